"""Names of templates, and ids that are computed from them.

A template of E2B has an id that stays while it is built anew, and tags, each of which points to a build. A template of
Corral's is one build under a name, `alias` or `alias:tag`. So the id is computed from the alias, and the build's id from
what the build holds: nothing more has to be kept.
"""

import hashlib
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from corral.api.e2b.failures import Refusal
from corral.engine.fingerprint import fingerprint
from corral.model.ids import TenantId, is_id
from corral.model.template import Template

DEFAULT_TAG = "default"
_PART = re.compile(r"[a-z0-9_-]+")
_TAG = re.compile(r"[a-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Reference:
    """What a client names: an alias or an id, and a tag."""

    alias: str
    tag: str = DEFAULT_TAG

    @property
    def name(self) -> str:
        """The name of the template of Corral's."""
        return self.alias if self.tag == DEFAULT_TAG else f"{self.alias}:{self.tag}"


def parse_reference(tenant: TenantId, text: str, *, new: bool = False) -> Reference:
    """Of `[namespace/]alias[:tag]`, `new` for what is to be made. Raises Refusal, also for the namespace of another tenant."""
    path, colon, tag = text.strip().lower().partition(":")
    space, slash, alias = path.rpartition("/")
    bad = not _PART.fullmatch(alias) or (slash and not _PART.fullmatch(space))
    if bad or (colon and not _TAG.fullmatch(tag)):
        raise Refusal(400, f"Invalid template reference: {text[:100]}")
    if slash and space != tenant:
        if new:
            raise Refusal(400, f"Invalid template reference: {text[:100]}: your namespace is '{tenant}'")
        raise Refusal(404, f"template '{text[:100]}' not found")
    return Reference(alias, tag or DEFAULT_TAG)


def checked_tag(text: str) -> str:
    """A tag, in lower case. Raises Refusal."""
    tag = text.strip().lower()
    if not _TAG.fullmatch(tag) or len(tag) > 63:
        raise Refusal(400, f"Invalid tag: {text[:80]!r}: use letters, digits, '-', '_' and '.'")
    if is_build(tag):
        raise Refusal(400, f"Invalid tag: {text[:80]!r} looks like the id of a build")
    return tag


def alias_of(template: Template) -> str:
    """Its name without the tag."""
    return template.name.partition(":")[0]


def tag_of(template: Template) -> str:
    """Its tag."""
    return tag_in(template.name)


def tag_in(name: str) -> str:
    """The tag of a template of that name."""
    return name.partition(":")[2] or DEFAULT_TAG


def template_id(tenant: TenantId, alias: str) -> str:
    """The id of all builds of an alias."""
    return hashlib.sha256(f"template {tenant} {alias}".encode()).hexdigest()[:20]


def is_build(tag: str) -> bool:
    """Whether a tag is the id of a build: each build has one beside those that clients give it."""
    try:
        return str(uuid.UUID(tag)) == tag
    except ValueError:
        return False


def build_id(template: Template, siblings: Sequence[Template]) -> str:
    """The id of a build, the same for all tags that point to it: the one that it was built under, else one computed from
    what it holds. `siblings`: all builds of its alias."""
    same = [item for item in siblings if (item.layers, item.config) == (template.layers, template.config)]
    built = [tag_of(item) for item in same if is_build(tag_of(item))]
    if built:
        return built[-1]
    return computed_build_id(template.tenant, alias_of(template), fingerprint(template))


def computed_build_id(tenant: TenantId, alias: str, fingerprint: str) -> str:
    """The id of a build that no client of E2B's made."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{tenant} {alias} {fingerprint}"))


def is_named(template: Template, text: str) -> bool:
    return text in (alias_of(template), template_id(template.tenant, alias_of(template))) or (
        is_id(text) and text == template.id
    )

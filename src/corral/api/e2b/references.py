"""Templates as E2B's clients name them, and what they are told of them."""

from collections.abc import Sequence
from typing import Any

from corral.api.e2b.calls import Call
from corral.api.e2b.failures import Refusal
from corral.api.e2b.names import Reference, alias_of, build_id, is_named, parse_reference, tag_of, template_id
from corral.engine.templates import BASE
from corral.model.ids import TenantId
from corral.model.sandbox import MIB, Limits
from corral.model.template import Template
from corral.protocol.e2b.base import ENVD_VERSION

_OWN = {
    BASE: "Debian with Python, Node.js, git and the tools that coding agents use",
    "code-interpreter-v1": "Jupyter kernels for e2b-code-interpreter",
}
"""Templates that Corral makes, and what they are."""


async def templates_of(call: Call, text: str) -> tuple[Reference, list[Template]]:
    """All builds of the template that a client names by alias or id. Raises Refusal."""
    reference = parse_reference(call.tenant, text)
    every = await call.engine.templates.list(call.tenant)
    found = [item for item in every if is_named(item, reference.alias)]
    if not found:
        raise Refusal(404, f"template '{text[:100]}' not found")
    return reference, found


async def find_template(call: Call, text: str) -> Template:
    """The build that a client names. Raises Refusal."""
    reference, found = await templates_of(call, text)
    for template in found:
        if tag_of(template) == reference.tag or template.id == reference.alias:
            return template
    raise Refusal(404, f"tag '{reference.tag}' does not exist for template '{reference.alias}'")


def names_of(tenant: TenantId, templates: Sequence[Template]) -> set[str]:
    """What sandboxes of a template are told to be made from: its id, whatever build it is that they were made from; its
    builds' own ids for those that no client of E2B made."""
    aliases = {alias_of(item) for item in templates}
    return {template_id(tenant, alias) for alias in aliases} | {item.id for item in templates}


async def template_ids(call: Call, text: str) -> set[str]:
    """The ids that sandboxes have of the template that a filter names, also of one that is gone. Raises Refusal."""
    if ":" in text:
        raise Refusal(400, "validation error: a template filter has no tag")
    try:
        alias = parse_reference(call.tenant, text).alias
    except Refusal as refusal:
        if refusal.status != 404:
            raise
        return set()
    found = [item for item in await call.engine.templates.list(call.tenant) if is_named(item, alias)]
    return {alias, template_id(call.tenant, alias)} | names_of(call.tenant, found)


def shape_of(template: Template, siblings: Sequence[Template]) -> dict[str, Any]:
    """A template as clients are told of it."""
    made, alias = template.created_at.isoformat(), alias_of(template)
    limits = template.config.limits or Limits()
    return {
        "templateID": template_id(template.tenant, alias),
        "buildID": build_id(template, siblings),
        "cpuCount": int(limits.cpus),
        "memoryMB": limits.memory // MIB,
        "diskSizeMB": limits.disk // MIB,
        "public": False,
        "aliases": [alias],
        "names": [alias],
        "createdAt": made,
        "updatedAt": made,
        "createdBy": None,
        "lastSpawnedAt": None,
        "spawnCount": 0,
        "buildCount": len({build_id(item, siblings) for item in siblings}),
        "envdVersion": ENVD_VERSION,
        "buildStatus": "ready",
        **({"isDefault": True, "description": _OWN[alias]} if alias in _OWN else {}),
    }


def next_token(token: str | None) -> dict[str, str]:
    """The header of a page that is not the last."""
    return {"x-next-token": token} if token else {}

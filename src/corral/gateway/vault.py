"""Opened secrets, by tenant and name, for as long as the engine wants them here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from corral.errors import CorralError, InvalidInput
from corral.gateway.box import Box
from corral.gateway.inject import Bound
from corral.gateway.redact import Forms
from corral.model.ids import TenantId
from corral.model.secrets import SecretForm
from corral.policy.bindings import checked_binding, parts_of
from corral.policy.egress import MODEL_HOSTS, literal
from corral.wire import githubapp
from corral.wire.link import SecretSpec


@dataclass(frozen=True, slots=True)
class Credential:
    """A secret, and what to look for in answers so that it does not come back."""

    spec: SecretSpec
    forms: Forms
    parts: tuple[str, ...]


class Vault:
    """All secrets. Replaced as a whole: what is revoked is gone at once (G-42, G-334)."""

    def __init__(self, secrets: Sequence[SecretSpec] = ()) -> None:
        """Raises InvalidInput for a base URL that nothing can be sent to."""
        self._all = {(spec.tenant, spec.name): _credential(spec) for spec in secrets}
        self._spelled: dict[TenantId, Forms | None] = {}

    def granted(self, box: Box) -> Mapping[str, Credential]:
        """The secrets that a box's grant covers and that exist, by name (G-173)."""
        return {
            name: found
            for name in sorted(box.secrets)
            if (found := self._all.get((box.tenant, name))) and found.spec.binding is None
        }

    def find(self, tenant: TenantId, name: str) -> Credential | None:
        """A tenant's secret, for what is done on the host's own behalf."""
        return self._all.get((tenant, name))

    def bound(self, box: Box) -> tuple[Bound, ...]:
        """The secrets that a box's grant covers and that go to hosts, by name, with the box's own placeholders."""
        return tuple(
            Bound.of(name, found.spec.value, found.spec.binding, box.seed)
            for name in sorted(box.secrets)
            if (found := self._all.get((box.tenant, name))) and found.spec.binding is not None
        )

    def values(self, tenant: TenantId) -> Forms | None:
        """What must stand in no request of a tenant's sandboxes: its secrets themselves (G-44)."""
        labels = {
            part.encode(): name
            for (owner, name), found in self._all.items()
            if owner == tenant
            for part in found.parts
        }
        return Forms.of(labels) if labels else None

    def spellings(self, tenant: TenantId) -> Forms | None:
        """What must not stand in the head of a request either: its secrets as addresses and credentials write them.
        Made once for all of its sandboxes.
        """
        if tenant not in self._spelled:
            found = [one.forms for (owner, _), one in self._all.items() if owner == tenant]
            self._spelled[tenant] = Forms.joined(found) if found else None
        return self._spelled[tenant]

    def model_hosts(self, tenant: TenantId, ruled: frozenset[str]) -> frozenset[str]:
        """Hosts that only the metered service may reach (G-185); but a rule may name the host of a base URL."""
        hosts = {
            urlsplit(found.spec.base_url).hostname or ""
            for (owner, _), found in self._all.items()
            if owner == tenant and found.spec.provider.is_model
        }
        return MODEL_HOSTS | frozenset(host for host in hosts - ruled if host and literal(host) is None)


def _credential(spec: SecretSpec) -> Credential:
    if spec.binding is not None:
        try:
            parts = parts_of(spec.value, checked_binding(spec.binding).mode)
        except CorralError as error:
            raise InvalidInput(f"secret {spec.name!r}: {error.message}", error.hint) from None
        return Credential(spec, Forms.joined(Forms(part, spec.name) for part in parts), parts)
    parts = urlsplit(spec.base_url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise InvalidInput(
            f"the base URL of secret {spec.name!r} is not valid", "use http:// or https://, a host and a path"
        )
    value = spec.value.reveal()
    if spec.form is SecretForm.GITHUB_APP:
        value = githubapp.mark(value)
    return Credential(spec, Forms(value, spec.name), (value,))

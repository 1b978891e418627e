"""What a sandbox's token may be used for."""

from dataclasses import dataclass, field
from datetime import datetime

from corral.model.ids import GrantId, SandboxId, TenantId


@dataclass(frozen=True, slots=True)
class Alias:
    """A model that is sent where another is asked for: a name, a pattern with `*`, or a family's word (`opus`)."""

    asked: str
    sent: str


@dataclass(frozen=True, slots=True)
class ModelLayer:
    """Which models may run, as names or patterns with `*`, and which take the place of others."""

    allow: tuple[str, ...] = ("*",)
    aliases: tuple[Alias, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelRules(ModelLayer):
    """The same, and what holds under it whatever it says: the rules of the templates that a sandbox, or a template, is made of,
    the nearest first.
    """

    under: tuple[ModelLayer, ...] = ()


@dataclass(frozen=True, slots=True)
class TenantModels:
    """Rules for all of a tenant's sandboxes, beside their own."""

    tenant: TenantId
    rules: ModelRules


@dataclass(frozen=True, slots=True)
class Grant:
    """A sandbox's right to use secrets through the gateway. Only the token's SHA-256 (hex) is kept.

    The token itself is derived from the installation's key and `id`, so it can be given to later processes of the
    same sandbox and is dead once the grant is gone. `former_hash` is that of the token before the last renewal, which
    is good until `former_until`. A grant that is revoked or over covers nothing: no secret, no host.
    """

    id: GrantId
    tenant: TenantId
    sandbox: SandboxId
    token_hash: str
    secrets: tuple[str, ...]
    created_at: datetime
    models: ModelRules = field(default_factory=ModelRules)
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    former_hash: str = ""
    former_until: datetime | None = None

    def state(self, now: datetime) -> str:
        """`good`, `revoked` or `expired`."""
        if self.revoked_at is not None:
            return "revoked"
        return "good" if self.expires_at is None or now < self.expires_at else "expired"

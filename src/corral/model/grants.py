"""What a sandbox's token may be used for."""

from dataclasses import dataclass
from datetime import datetime

from corral.model.ids import GrantId, SandboxId, TenantId


@dataclass(frozen=True, slots=True)
class Grant:
    """A sandbox's right to use secrets through the gateway. Only the token's SHA-256 (hex) is kept.

    The token itself is derived from the installation's key and `id`, so it can be given to later processes of the
    same sandbox and is dead once the grant is gone.
    """

    id: GrantId
    tenant: TenantId
    sandbox: SandboxId
    token_hash: str
    secrets: tuple[str, ...]
    created_at: datetime

"""What the audit log holds."""

from dataclasses import dataclass
from datetime import datetime

from corral.model.ids import SandboxId, TenantId


@dataclass(frozen=True, slots=True)
class AuditItem:
    """What is to be recorded: whose it is, and what happened. `detail` holds no secret."""

    tenant: TenantId
    sandbox: SandboxId | None
    kind: str
    detail: dict[str, str]


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One record. `sequence` counts all tenants' records without a gap; `hash` covers this record and the one before it.
    `detail` holds no secret; what is in it may be a sandbox's words.
    """

    sequence: int
    at: datetime
    tenant: TenantId
    sandbox: SandboxId | None
    kind: str
    detail: dict[str, str]
    hash: str


@dataclass(frozen=True, slots=True)
class AuditCheck:
    """What a check of the log found: how many records are sound, and what is wrong (empty: nothing). `absent`: records
    that were moved into files which are not here.
    """

    records: int
    fault: str = ""
    absent: int = 0

"""What model calls used and cost."""

from dataclasses import dataclass
from datetime import datetime

from corral.model.ids import SandboxId, TenantId


@dataclass(frozen=True, slots=True)
class Tokens:
    """Token counts of one call. Input excludes what was read from or written to a cache."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0


@dataclass(frozen=True, slots=True)
class Usage:
    """One metered call. `cost` in micro-US-dollars, rounded up.

    `assumed` marks a price that was not known for the model (the dearest of its kind was taken) or counts that the
    provider did not report.
    """

    tenant: TenantId
    sandbox: SandboxId
    secret: str
    provider: str
    model: str
    tokens: Tokens
    cost: int
    assumed: bool
    status: int
    duration_ms: int
    at: datetime
    request_id: str = ""
    path: str = ""


@dataclass(frozen=True, slots=True)
class UsageTotal:
    """Calls of one sandbox and model, summed."""

    model: str
    calls: int
    tokens: Tokens
    cost: int
    assumed: bool

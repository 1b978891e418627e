"""What model calls may cost, what they cost so far, and what is set aside for those under way.

Money is whole millionths of a US dollar.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from corral.model.ids import SandboxId, TenantId
from corral.model.usage import Usage

DEFAULT_CAP = 25_000_000
"""Of a sandbox, unless its host's operator says otherwise."""
DEFAULT_OUTPUT = 32_000
"""Tokens of output that a call may make which sets no limit."""
DEFAULT_MODEL_CALLS = 64
"""Model calls of one sandbox under way at a time."""


class Scope(StrEnum):
    """Whose calls a cap counts."""

    SANDBOX = "sandbox"
    TENANT = "tenant"


class Window(StrEnum):
    """How long a cap counts: all calls ever, those of one calendar day in UTC, or those of the last hour, 24 hours or
    seven days, whenever it is asked.
    """

    TOTAL = "total"
    DAY = "day"
    HOUR = "hour"
    DAY24 = "24h"
    WEEK = "week"


class Rate(StrEnum):
    """What is limited at a time: model calls and tokens in a minute, and calls under way."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    CALLS = "calls"


@dataclass(frozen=True, slots=True)
class Rates:
    """Limits of a sandbox or a tenant; None for none."""

    requests: int | None = None
    tokens: int | None = None
    calls: int | None = None

    def given(self) -> dict[Rate, int]:
        """Those that there are."""
        all_of_them = {Rate.REQUESTS: self.requests, Rate.TOKENS: self.tokens, Rate.CALLS: self.calls}
        return {rate: limit for rate, limit in all_of_them.items() if limit is not None}


@dataclass(frozen=True, slots=True)
class RateRefusal:
    """A call that is too many now: the limit, what there is already, and seconds until one more may fit."""

    scope: Scope
    rate: Rate
    limit: int
    used: int
    retry_after: int


@dataclass(frozen=True, slots=True)
class Balance:
    """One account. `cap` is None where nothing limits it; `default` marks a cap that comes from the host's setting.

    `reserved` is the sum of the worst cases of calls under way. `resets_at`: when a day's account starts anew.
    """

    scope: Scope
    window: Window
    cap: int | None
    spent: int
    reserved: int
    default: bool = False
    resets_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A call that could pass a cap: the account that refuses it, and what the call might have cost. `answer`: what a
    person said who was asked for more."""

    scope: Scope
    window: Window
    cap: int
    spent: int
    reserved: int
    needed: int
    resets_at: datetime | None = None
    answer: str = ""

    @property
    def passing(self) -> bool:
        """Whether it is refused only for what other calls under way have set aside, which they may not use up."""
        return self.spent + self.needed <= self.cap


@dataclass(frozen=True, slots=True)
class Warned:
    """A cap of which `percent` or more is spent now, and was not before."""

    scope: Scope
    window: Window
    percent: int
    cap: int
    spent: int
    tenant: TenantId
    sandbox: SandboxId


@dataclass(frozen=True, slots=True)
class Reservation:
    """The worst case of a call that is about to be made.

    `holder` names the gateway process that makes it, `number` the call within that process. `lease` is the number of the
    lease, 0 for none, that may be given for the next calls; a `drawn` one takes its amount from that and is not refused.
    """

    holder: str
    number: int
    tenant: TenantId
    sandbox: SandboxId
    amount: int
    at: datetime
    secret: str
    provider: str
    model: str
    path: str
    lease: int = 0
    drawn: bool = False


@dataclass(frozen=True, slots=True)
class Lease:
    """What is set aside for a sandbox's next calls, before they are known, so that they need not wait for the ledger.

    `holder` is the gateway process that draws on it, `number` the lease within that process; `amount` what is left, `drawn`
    what calls took from it so far.
    """

    holder: str
    number: int
    tenant: TenantId
    sandbox: SandboxId
    amount: int
    drawn: int
    at: datetime


@dataclass(frozen=True, slots=True)
class Return:
    """A lease is given back: nothing is drawn on it any more."""

    holder: str
    number: int


@dataclass(frozen=True, slots=True)
class Settlement:
    """How a reserved call ended: what it used, or None if it was never made."""

    holder: str
    number: int
    usage: Usage | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an entry: the refusal of a reservation and how much was added to its lease, warnings after a settlement."""

    refusal: Refusal | RateRefusal | None = None
    warnings: tuple[Warned, ...] = ()
    leased: int = 0


LedgerEntry = Reservation | Settlement | Return
"""What the ledger takes."""
Drawn = Callable[[str], Mapping[int, int] | None]
"""What a gateway process drew in all on each of its leases, by their numbers; None where that is not known."""

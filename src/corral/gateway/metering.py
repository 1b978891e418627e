"""From a model call to its line in the ledger."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from corral.gateway.box import Box
from corral.gateway.pricing import Price, PriceBook, micro
from corral.model.usage import Tokens, Usage
from corral.wire.link import SecretSpec
from corral.wire.usage import Counts, Reading

BYTES_PER_TOKEN = 3
"""For estimates, on the dear side: ordinary text has about four."""


@dataclass(frozen=True, slots=True)
class Call:
    """A metered call as it was let through: priced before it was sent."""

    box: Box
    secret: SecretSpec
    model: str
    price: Price
    path: str
    request_bytes: int
    at: datetime


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it ended. `status` is 0 if no answer came; `cut` if the answer was not read to its end."""

    status: int
    reading: Reading
    cut: bool
    duration_ms: int
    request_id: str


def settle(call: Call, outcome: Outcome, prices: PriceBook) -> Usage:
    """The ledger's record of a call that was sent (G-201 to G-209)."""
    counts, estimated = _counts(call, outcome)
    cost, assumed = _cost(call, outcome, counts, prices)
    return Usage(
        tenant=call.box.tenant,
        sandbox=call.box.id,
        secret=call.secret.name,
        provider=call.secret.provider.value,
        model=outcome.reading.model or call.model,
        tokens=Tokens(counts.input, counts.output, counts.cache_read, counts.cache_write),
        cost=cost,
        assumed=assumed or estimated,
        status=outcome.status,
        duration_ms=outcome.duration_ms,
        at=call.at,
        request_id=outcome.request_id,
        path=call.path,
    )


def _counts(call: Call, outcome: Outcome) -> tuple[Counts, bool]:
    """The counts, and whether some are estimated."""
    reading = outcome.reading
    if reading.complete:
        return reading.counts, False
    if outcome.status >= 400 and not any((reading.counts.input, reading.counts.output)):
        # Refused before anything was generated, which providers do not charge (G-207).
        return Counts(), False
    counts = reading.counts
    if not (counts.input or counts.cache_read or counts.cache_write):
        counts = replace(counts, input=_estimate(call.request_bytes))
    return replace(counts, output=max(counts.output, _estimate(reading.streamed))), True


def _estimate(size: int) -> int:
    return max(1, math.ceil(size / BYTES_PER_TOKEN))


def _cost(call: Call, outcome: Outcome, counts: Counts, prices: PriceBook) -> tuple[int, bool]:
    """The cost, and whether its price was assumed. The dearer of the model asked for and the one that
    answered counts.
    """
    reading = outcome.reading
    if counts == Counts():
        return 0, False
    if reading.cost is not None and call.price.trusts_stated_cost:
        return micro(reading.cost), False
    costs = [call.price.cost(counts, reading.tier, call.at)]
    if reading.model and reading.model != call.model:
        known = prices.known(call.secret, reading.model)
        if known is not None:
            costs.append(known.cost(counts, reading.tier, call.at))
    return max(costs), call.price.assumed


Ledger = Callable[[Usage], None]
"""Takes a record; it is kept until the engine has it."""

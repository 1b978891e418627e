"""From a model call to its line in the ledger."""

import math
from dataclasses import dataclass, replace
from datetime import datetime

from corral.gateway.box import Box
from corral.gateway.pricing import Price, PriceBook, micro
from corral.model.usage import Tokens, Usage
from corral.wire.bounds import Bounds
from corral.wire.link import SecretSpec
from corral.wire.usage import Counts, Reading

BYTES_PER_TOKEN = 3
"""For estimates, on the dear side: ordinary text has about four."""
GLOBAL = "global"
"""The value of `inference_geo` for anywhere."""
TOKENS_PER_SECOND = 500
"""More than models put out. It bounds what one made that nobody saw: thoughts are charged, but hardly shown."""


@dataclass(frozen=True, slots=True)
class Call:
    """A metered call as it was let through: priced, bounded, and its worst case set aside, before it was sent."""

    box: Box
    secret: SecretSpec
    model: str
    price: Price
    path: str
    bounds: Bounds
    reserved: int
    at: datetime
    output: int | None = None
    """The most tokens of output, where there is a reason to hold the provider to it."""


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
    if estimated:
        # What is not known was at most what was set aside; and that, where an answer came whole and said nothing (G-202).
        sure, _ = _cost(call, outcome, outcome.reading.counts, prices)
        cost = max(sure, min(cost, call.reserved) if outcome.cut else call.reserved)
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
    counts = reading.counts
    if outcome.status >= 400 and not any((counts.input, counts.output)):
        # Refused before anything was generated, which providers do not charge (G-207).
        return Counts(), False
    if not (counts.input or counts.cache_read or counts.cache_write):
        counts = replace(counts, input=call.bounds.input)
    return replace(counts, output=max(counts.output, _unseen(call, outcome))), True


def _unseen(call: Call, outcome: Outcome) -> int:
    """Output of an answer that was cut: what was seen, and what may have been made meanwhile; never zero (G-201)."""
    seen = math.ceil(outcome.reading.streamed / BYTES_PER_TOKEN)
    made = math.ceil(outcome.duration_ms * TOKENS_PER_SECOND / 1000)
    return max(1, min(max(seen, made), call.bounds.output))


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
    cost = max(costs)
    return regional(cost) if reading.regional else cost, call.price.assumed


def regional(cost: int) -> int:
    """What Anthropic charges in place of a cost for a call that it holds to one region."""
    return cost + -(-cost // 10)


def passed(call: Call, reading: Reading, text: int) -> bool:
    """Whether an answer that is still coming is sure to cost more than was set aside for it (G-214).

    Counts that the provider states are sure. Text is not counted in tokens, but no tokenizer spends as few on this much.
    """
    cost = call.price.cost(reading.counts, reading.tier, call.at)
    if (regional(cost) if reading.regional else cost) > call.reserved:
        return True
    return call.output is not None and text > text_limit(call.output)


def text_limit(tokens: int) -> int:
    """Bytes of text that so many tokens do not reach."""
    return _SLACK + tokens * _MOST_BYTES_PER_TOKEN


_MOST_BYTES_PER_TOKEN = 16
_SLACK = 4096

"""Whether a call keeps to the limits of how much at a time. Values in, values out.

Requests and tokens count over the last minute, whenever it began. A request counts when it begins; its tokens when it ends,
since nobody knows them before. So tokens can pass their limit by those of the calls that were under way, and no call is
begun until the minute has them behind it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from corral.errors import InvalidInput
from corral.model.budget import Rate, RateRefusal, Scope, Window

MINUTE = timedelta(minutes=1)
ROLLING = {Window.HOUR: timedelta(hours=1), Window.DAY24: timedelta(hours=24), Window.WEEK: timedelta(days=7)}
"""How long the windows are that begin anew with every moment."""
MAX_RATE = 10**12
_CALLS_AGAIN = 1


@dataclass(slots=True)
class Recent:
    """What the calls of a sandbox or a tenant did in the last minute. `open`: how many are under way. `first_request` and
    `first_tokens`: when the oldest of them began and ended.
    """

    requests: int = 0
    tokens: int = 0
    open: int = 0
    first_request: datetime | None = None
    first_tokens: datetime | None = None


def refuse(scope: Scope, limits: Mapping[Rate, int], recent: Recent, now: datetime) -> RateRefusal | None:
    """The limit that one more call would pass, and when to try again; None if it keeps to all (G-224)."""
    used = {
        Rate.CALLS: (recent.open, None),
        Rate.REQUESTS: (recent.requests, recent.first_request),
        Rate.TOKENS: (recent.tokens, recent.first_tokens),
    }
    for rate, (count, first) in used.items():
        limit = limits.get(rate)
        if limit is not None and count >= limit:
            return RateRefusal(scope, rate, limit, count, _seconds(first, now))
    return None


def _seconds(first: datetime | None, now: datetime) -> int:
    """Until the oldest of what counts is a minute ago."""
    if first is None:
        return _CALLS_AGAIN
    left = (first + MINUTE - now).total_seconds()
    return max(1, min(60, int(left) + 1))


def checked_rate(limit: int | None) -> int | None:
    """Itself, or InvalidInput for a limit that is none."""
    if limit is not None and not 1 <= limit <= MAX_RATE:
        raise InvalidInput(f"a limit of {limit} is out of range", f"give 1 to {MAX_RATE}, or `none`")
    return limit


def explain(refusal: RateRefusal, name: str) -> tuple[str, str]:
    """What a refused caller is told: what happened, and what to do."""
    whose = f"sandbox {name}" if refusal.scope is Scope.SANDBOX else "this sandbox's tenant"
    what = {
        Rate.CALLS: "model calls under way",
        Rate.REQUESTS: "model calls a minute",
        Rate.TOKENS: "tokens a minute",
    }[refusal.rate]
    target = name if refusal.scope is Scope.SANDBOX else "--tenant"
    message = f"the limit of {whose} is {refusal.limit:,} {what}, and it is at {refusal.used:,}"
    hint = f"wait {refusal.retry_after} s, or on the host, raise it: `corral rate set {target} --{refusal.rate} N`"
    return message, hint

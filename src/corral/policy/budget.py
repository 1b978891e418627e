"""Whether a call fits into the budgets that count it. Values in, values out.

The invariant: in each account with a cap, spent + reserved <= cap. A call is let through only if its worst case
fits into every account beside all that is spent and all that other calls have set aside; a call that ends gives back
what it did not use. So however many calls run at once, together they cannot pass a cap.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from corral.errors import InvalidInput
from corral.model.budget import Balance, Refusal, Scope, Window
from corral.policy.money import MAX_CAP, dollars
from corral.policy.rates import ROLLING

WARN_AT = (50, 80, 95)
"""Percent of a cap at which its owner is told (G-222)."""
LARGEST = 2**62
"""The most that an account without a cap holds: sums must stay exact in any database."""
LEASED_CALLS = 8
"""Calls like the last one that a lease covers."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY = timedelta(days=1)


def day_of(at: datetime) -> int:
    """The calendar day in UTC, as days since 1970."""
    return (at - _EPOCH) // _DAY


def end_of(day: int) -> datetime:
    """When a day's account is over."""
    return _EPOCH + (day + 1) * _DAY


def decide(balances: Sequence[Balance], amount: int) -> Refusal | None:
    """The first account into which `amount` does not fit, or None if it fits into all (G-210, G-211).

    What can cost nothing is never refused, even where a cap was lowered below what is spent.
    """
    if amount == 0:
        return None
    for balance in balances:
        cap = LARGEST if balance.cap is None else balance.cap
        if balance.spent + balance.reserved + amount > cap:
            return Refusal(
                balance.scope, balance.window, cap, balance.spent, balance.reserved, amount, balance.resets_at
            )
    return None


def more_to_lease(balances: Sequence[Balance], amount: int, left: int) -> int:
    """How much to add to a lease of which so much is left, after a call that may cost `amount`.

    Nothing while half of it is left, nor where a cap would then leave less free than a whole lease: near a cap each call
    asks by itself, so that a lease refuses nobody.
    """
    whole = LEASED_CALLS * amount
    added = whole - left
    if 2 * left > whole or any(
        balance.cap is not None and balance.spent + balance.reserved + added + whole > balance.cap
        for balance in balances
    ):
        return 0
    return added


def crossed(cap: int | None, before: int, after: int) -> int | None:
    """The highest percentage of WARN_AT that is reached now and was not before."""
    if not cap:
        return None
    reached = [percent for percent in WARN_AT if before * 100 < cap * percent <= after * 100]
    return max(reached, default=None)


def reached(balance: Balance) -> int | None:
    """The highest percentage of WARN_AT that is spent."""
    if not balance.cap:
        return None
    return max((p for p in WARN_AT if balance.spent * 100 >= balance.cap * p), default=None)


def checked_cap(cap: int | None) -> int | None:
    """Itself, or InvalidInput for a cap that is none. 0 lets no call through that could cost anything."""
    if cap is not None and not 0 <= cap <= MAX_CAP:
        raise InvalidInput(
            f"a budget of {cap / 1e6:g} US dollars is out of range", "give 0 to 1,000,000,000, or `none`"
        )
    return cap


_WHEN = {
    Window.TOTAL: "",
    Window.DAY: " for today",
    Window.HOUR: " for an hour",
    Window.DAY24: " for 24 hours",
    Window.WEEK: " for seven days",
}


def explain(refusal: Refusal, name: str) -> tuple[str, str]:
    """What a refused caller is told: what happened, and what a person can do about it (G-216)."""
    whose = f"sandbox {name}" if refusal.scope is Scope.SANDBOX else "this sandbox's tenant"
    when = _WHEN[refusal.window]
    message = (
        f"the budget of {whose}{when} does not cover this call: cap {dollars(refusal.cap)}, "
        f"spent {dollars(refusal.spent)}, reserved for calls under way {dollars(refusal.reserved)}, "
        f"this call may cost up to {dollars(refusal.needed)}"
    )
    target = name if refusal.scope is Scope.SANDBOX else "--tenant"
    per = "" if refusal.window is Window.TOTAL else f" --per {refusal.window}"
    per = " --daily" if refusal.window is Window.DAY else per
    hint = f"on the host, raise it: `corral budget set {target} USD{per}`"
    if refusal.scope is Scope.SANDBOX and refusal.window is Window.TOTAL:
        hint = f'in the sandbox, ask for more: `corral-ask budget USD "why"`; {hint}'
    if refusal.passing:
        hint = f"wait until other calls of it have ended, or {hint}"
    if refusal.answer:
        message += f"; a person was asked for more, who answered: {refusal.answer}"
    if refusal.resets_at is not None and refusal.window in ROLLING:
        hint += f"; what it counts becomes less from {refusal.resets_at:%Y-%m-%dT%H:%M:%SZ} on"
    elif refusal.resets_at is not None:
        hint += f"; it starts anew at {refusal.resets_at:%Y-%m-%dT%H:%M:%SZ}"
    return message, hint


def raise_for(refusal: Refusal) -> int | None:
    """How much more to ask for, in millionths of a US dollar, so that the call is covered and the next ones are not asked
    for one by one; None where more for the sandbox would not help.
    """
    if refusal.scope is not Scope.SANDBOX or refusal.window is not Window.TOTAL or refusal.passing:
        return None
    short = refusal.spent + refusal.reserved + refusal.needed - refusal.cap
    return -(-max(short, refusal.cap // 4, 1) // 1_000_000) * 1_000_000


def with_answer(refusal: Refusal, answer: str) -> Refusal:
    """The refusal of a call for which a person was asked in vain."""
    return replace(refusal, answer=answer)

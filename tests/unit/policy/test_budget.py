"""Budgets: what fits, what is refused and how it is said, and that no interleaving passes a cap."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import InvalidInput
from corral.model.budget import Balance, Refusal, Scope, Window
from corral.policy.budget import (
    LARGEST,
    LEASED_CALLS,
    WARN_AT,
    checked_cap,
    crossed,
    day_of,
    decide,
    end_of,
    explain,
    more_to_lease,
    reached,
)

MIDNIGHT = datetime(2026, 11, 30, tzinfo=UTC)
SANDBOX = Balance(Scope.SANDBOX, Window.TOTAL, 100, 60, 30)


def test_a_call_must_fit_beside_what_is_spent_and_reserved() -> None:
    """G-211."""
    assert decide([SANDBOX], 10) is None
    assert decide([SANDBOX], 11) == Refusal(Scope.SANDBOX, Window.TOTAL, 100, 60, 30, 11)


def test_every_account_must_have_room() -> None:
    """G-210."""
    day = Balance(Scope.TENANT, Window.DAY, 5, 0, 0, resets_at=MIDNIGHT)
    refusal = decide([SANDBOX, day], 6)
    assert refusal is not None
    assert (refusal.scope, refusal.window, refusal.resets_at) == (Scope.TENANT, Window.DAY, MIDNIGHT)
    assert decide([SANDBOX, day], 5) is None


def test_without_a_cap_only_exactness_limits() -> None:
    """G-217."""
    free = replace(SANDBOX, cap=None)
    assert decide([free], 10**15) is None
    assert decide([free], LARGEST) is not None


def test_zero_means_zero_and_what_is_free_passes() -> None:
    """G-217, G-229."""
    empty = Balance(Scope.SANDBOX, Window.TOTAL, 0, 0, 0)
    assert decide([empty], 1) is not None
    assert decide([empty], 0) is None
    assert decide([replace(empty, spent=7)], 0) is None


@given(
    st.integers(0, 1000),
    st.lists(st.tuples(st.booleans(), st.integers(0, 400), st.integers(0, 100)), max_size=60),
)
def test_no_interleaving_passes_a_cap(cap: int, steps: list[tuple[bool, int, int]]) -> None:
    """G-211, G-213: calls begin and end in any order, each costing no more than was set aside for it."""
    balance, under_way = Balance(Scope.SANDBOX, Window.TOTAL, cap, 0, 0), list[int]()
    for begins, amount, share in steps:
        if begins or not under_way:
            if decide([balance], amount) is None:
                under_way.append(amount)
                balance = replace(balance, reserved=balance.reserved + amount)
        else:
            reserved = under_way.pop(amount % len(under_way))
            cost = reserved * share // 100
            balance = replace(balance, reserved=balance.reserved - reserved, spent=balance.spent + cost)
        assert balance.spent + balance.reserved <= cap
        assert balance.reserved == sum(under_way)


@given(st.integers(1, 10**9), st.lists(st.integers(0, 10**8), max_size=40))
def test_each_warning_is_given_once(cap: int, costs: list[int]) -> None:
    """G-222."""
    spent, warned = 0, list[int]()
    for cost in costs:
        percent = crossed(cap, spent, spent + cost)
        spent += cost
        if percent is not None:
            warned.append(percent)
    assert warned == sorted(set(warned))
    due = [percent for percent in WARN_AT if spent * 100 >= cap * percent]
    assert (warned[-1] if warned else None) == (due[-1] if due else None)
    assert reached(Balance(Scope.SANDBOX, Window.TOTAL, cap, spent, 0)) == (due[-1] if due else None)
    assert crossed(None, 0, spent) is None


def test_days_are_those_of_utc() -> None:
    """G-218."""
    day = day_of(MIDNIGHT)
    assert day_of(MIDNIGHT - timedelta(microseconds=1)) == day - 1
    assert day_of(MIDNIGHT.astimezone() + timedelta(hours=23)) == day
    assert end_of(day - 1) == MIDNIGHT


def test_a_refusal_says_how_much_is_there_and_how_to_raise_it() -> None:
    """G-216."""
    refusal = Refusal(Scope.SANDBOX, Window.TOTAL, 25_000_000, 24_500_000, 250_000, 1_000_000)
    message, hint = explain(refusal, "brave-otter")
    for part in (
        "sandbox brave-otter",
        "cap $25.00",
        "spent $24.50",
        "reserved for calls under way $0.25",
        "up to $1.00",
    ):
        assert part in message
    assert "`corral budget set brave-otter USD`" in hint
    daily = replace(refusal, scope=Scope.TENANT, window=Window.DAY, spent=0, resets_at=MIDNIGHT)
    message, hint = explain(daily, "brave-otter")
    assert "tenant for today" in message
    assert hint.startswith("wait until other calls")
    assert "`corral budget set --tenant USD --daily`" in hint
    assert "starts anew at 2026-11-30T00:00:00Z" in hint
    assert (refusal.passing, daily.passing) == (False, True)


def test_caps_out_of_range_are_refused() -> None:
    assert (checked_cap(0), checked_cap(None)) == (0, None)
    for cap in (-1, 10**15 + 1):
        with pytest.raises(InvalidInput):
            checked_cap(cap)


def test_a_lease_is_for_so_many_calls_and_filled_once_half_of_it_is_left() -> None:
    free = replace(SANDBOX, cap=None)
    assert more_to_lease([free], 10, 0) == LEASED_CALLS * 10
    assert more_to_lease([free], 10, LEASED_CALLS * 5) == LEASED_CALLS * 5
    assert more_to_lease([free], 10, LEASED_CALLS * 5 + 1) == 0
    assert more_to_lease([free], 0, 0) == 0


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 1000), st.integers(0, 10**4))
def test_a_lease_leaves_as_much_free_as_it_holds(cap: int, used: int, amount: int, left: int) -> None:
    """G-211: near a cap nothing is leased, so calls are refused where they would be without leases."""
    balance = Balance(Scope.TENANT, Window.DAY, cap, used // 2, used - used // 2)
    added = more_to_lease([replace(SANDBOX, cap=None), balance], amount, left)
    assert added == 0 or (added > 0 and used + added + LEASED_CALLS * amount <= cap)

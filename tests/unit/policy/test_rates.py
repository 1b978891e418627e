"""Limits of how much at a time."""

from datetime import UTC, datetime, timedelta

import pytest

from corral.errors import InvalidInput
from corral.model.budget import Rate, RateRefusal, Scope
from corral.policy.rates import Recent, checked_rate, explain, refuse

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
BUSY = Recent(
    requests=5, tokens=900, open=2, first_request=NOW - 50 * SECOND, first_tokens=NOW - 59.5 * SECOND
)


@pytest.mark.parametrize(
    ("limits", "found"),
    [
        ({}, None),
        ({Rate.REQUESTS: 6, Rate.TOKENS: 901, Rate.CALLS: 3}, None),
        ({Rate.REQUESTS: 5}, (Rate.REQUESTS, 5, 5, 11)),
        ({Rate.TOKENS: 900}, (Rate.TOKENS, 900, 900, 1)),
        ({Rate.TOKENS: 10, Rate.CALLS: 2}, (Rate.CALLS, 2, 2, 1)),
    ],
)
def test_one_more_call(limits: dict[Rate, int], found: tuple[Rate, int, int, int] | None) -> None:
    """G-224: with the time until it may fit."""
    refusal = refuse(Scope.SANDBOX, limits, BUSY, NOW)
    assert refusal == (None if found is None else RateRefusal(Scope.SANDBOX, *found))


def test_a_clock_that_was_set_back_makes_nobody_wait_longer_than_a_minute() -> None:
    """G-218."""
    refusal = refuse(
        Scope.TENANT, {Rate.REQUESTS: 1}, Recent(requests=1, first_request=NOW + 3600 * SECOND), NOW
    )
    assert refusal is not None
    assert refusal.retry_after == 60


def test_what_is_told() -> None:
    message, hint = explain(RateRefusal(Scope.SANDBOX, Rate.TOKENS, 100_000, 120_000, 7), "box")
    assert message == "the limit of sandbox box is 100,000 tokens a minute, and it is at 120,000"
    assert hint == "wait 7 s, or on the host, raise it: `corral rate set box --tokens N`"


@pytest.mark.parametrize("limit", [0, -1, 10**13])
def test_limits_that_are_none(limit: int) -> None:
    with pytest.raises(InvalidInput):
        checked_rate(limit)

"""Limits at a time and rolling windows, on the ledger in the database."""

import itertools
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.unit.store import where

from corral.model.budget import Rate, RateRefusal, Rates, Refusal, Reservation, Scope, Settlement, Window
from corral.model.ids import DEFAULT_TENANT, SandboxId
from corral.model.usage import Tokens, Usage
from corral.store.store import SqlStore

NOW = datetime(2026, 3, 4, 23, 59, 50, tzinfo=UTC)
BOX, OTHER = SandboxId("a" * 16), SandboxId("b" * 16)
NUMBERS = itertools.count(1)


class Clock:
    now = NOW


async def open_store(directory: Path) -> SqlStore:
    return await SqlStore.open(where.url_of(directory), directory / "key", now=lambda: Clock.now)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlStore]:
    Clock.now = NOW
    opened = await open_store(tmp_path)
    yield opened
    await opened.close()


def wanted(amount: int = 1, sandbox: SandboxId = BOX) -> Reservation:
    return Reservation(
        "g", next(NUMBERS), DEFAULT_TENANT, sandbox, amount, Clock.now, "s", "openai", "m", "p"
    )


def done(of: Reservation, cost: int = 1, tokens: int = 10, seconds: int = 0) -> Settlement:
    usage = Usage(
        of.tenant, of.sandbox, "s", "openai", "m", Tokens(tokens), cost, False, 200, seconds * 1000, of.at
    )
    return Settlement(of.holder, of.number, usage)


async def call(
    store: SqlStore, cost: int = 1, tokens: int = 10, sandbox: SandboxId = BOX, rates: Rates | None = None
) -> Refusal | RateRefusal | None:
    """A whole call, in two transactions."""
    entry = wanted(cost, sandbox)
    (outcome,) = await store.apply_ledger([entry], None, rates)
    if outcome.refusal is None:
        await store.apply_ledger([done(entry, cost, tokens)], None, rates)
    return outcome.refusal


async def test_requests_in_any_minute(store: SqlStore, tmp_path: Path) -> None:
    """G-224: in one batch and over many, for a sandbox and no other, and after a restart."""
    await store.set_caps(DEFAULT_TENANT, BOX, {Rate.REQUESTS: 3})
    entries = [wanted() for _ in range(5)]
    outcomes = await store.apply_ledger(entries, None)
    assert [outcome.refusal is None for outcome in outcomes] == [True, True, True, False, False]
    assert await call(store, sandbox=OTHER) is None
    await store.apply_ledger([done(entry) for entry in entries[:3]], None)
    await store.close()
    Clock.now += timedelta(seconds=20)
    again = await open_store(tmp_path)
    assert await call(again) == RateRefusal(Scope.SANDBOX, Rate.REQUESTS, 3, 3, 41)
    Clock.now += timedelta(seconds=41)
    assert await call(again) is None
    await again.close()


async def test_tokens_in_any_minute_count_when_the_call_ends(store: SqlStore) -> None:
    """G-224."""
    await store.set_caps(DEFAULT_TENANT, None, {Rate.TOKENS: 100})
    long = wanted()
    await store.apply_ledger([long], None)
    Clock.now += timedelta(minutes=5)
    assert await call(store, tokens=60) is None
    await store.apply_ledger([done(long, tokens=70, seconds=300)], None)
    refusal = await call(store, sandbox=OTHER)
    assert isinstance(refusal, RateRefusal)
    assert (refusal.scope, refusal.rate, refusal.used) == (Scope.TENANT, Rate.TOKENS, 130)
    Clock.now += timedelta(seconds=61)
    assert await call(store) is None


async def test_calls_at_a_time_and_the_hosts_default(store: SqlStore) -> None:
    """G-224: a sandbox's own limit takes the place of the host's, also `none`."""
    host = Rates(calls=1)
    first, second = wanted(), wanted()
    outcomes = await store.apply_ledger([first, second], None, host)
    assert [outcome.refusal is None for outcome in outcomes] == [True, False]
    await store.set_caps(DEFAULT_TENANT, BOX, {Rate.CALLS: None})
    assert await store.rates(DEFAULT_TENANT, BOX, host) == Rates()
    assert await call(store, rates=host) is None
    await store.set_caps(DEFAULT_TENANT, BOX, {}, (Rate.CALLS,))
    assert await store.rates(DEFAULT_TENANT, BOX, host) == host
    assert isinstance(await call(store, rates=host), RateRefusal)
    await store.apply_ledger([done(first)], None, host)
    assert await call(store, rates=host) is None


@pytest.mark.parametrize(
    ("window", "length"),
    [
        (Window.HOUR, timedelta(hours=1)),
        (Window.DAY24, timedelta(hours=24)),
        (Window.WEEK, timedelta(days=7)),
    ],
)
async def test_a_budget_of_the_last_hours(store: SqlStore, window: Window, length: timedelta) -> None:
    """G-210, G-217, G-218: no new start at midnight, and what is older does not count."""
    await store.set_caps(DEFAULT_TENANT, BOX, {window: 100})
    assert await call(store, 60) is None
    Clock.now += timedelta(minutes=1)
    refusal = await call(store, 41)
    assert isinstance(refusal, Refusal)
    assert (refusal.window, refusal.spent, refusal.cap, refusal.resets_at) == (window, 60, 100, NOW + length)
    assert await call(store, 40) is None
    balances = await store.balances(DEFAULT_TENANT, BOX, None)
    assert [(item.spent, item.cap) for item in balances if item.window is window] == [(100, 100)]
    Clock.now = NOW + length + timedelta(seconds=1)
    assert await call(store, 60) is None


async def test_a_batch_cannot_pass_a_rolling_budget(store: SqlStore) -> None:
    """G-211: what one entry of a transaction sets aside or spends, the next one sees; and warnings come."""
    await store.set_caps(DEFAULT_TENANT, None, {Window.HOUR: 100})
    entries = [wanted(30, BOX if number % 2 else OTHER) for number in range(5)]
    outcomes = await store.apply_ledger(entries, None)
    assert [outcome.refusal is None for outcome in outcomes] == [True, True, True, False, False]
    settled = await store.apply_ledger(
        [*(done(entry, 20) for entry in entries[:3]), wanted(41), wanted(40)], None
    )
    assert [outcome.refusal is None for outcome in settled] == [True, True, True, False, True]
    warned = [(warning.window, warning.percent) for outcome in settled for warning in outcome.warnings]
    assert warned == [(Window.HOUR, 50)]

"""The ledger in the database: reservations, settlements, caps, and what survives."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import pytest
from tests.schemas import go_back
from tests.unit.store import where

from corral.model.budget import (
    Balance,
    Drawn,
    Outcome,
    Rate,
    RateRefusal,
    Refusal,
    Reservation,
    Return,
    Scope,
    Settlement,
    Window,
)
from corral.model.ids import DEFAULT_TENANT, SandboxId, TenantId
from corral.model.usage import Tokens, Usage
from corral.store.store import SqlStore

NOW = datetime(2026, 3, 4, 23, 59, 59, tzinfo=UTC)
BOX, OTHER_BOX = SandboxId("a" * 16), SandboxId("b" * 16)
OTHER = TenantId("other")
NUMBERS = itertools.count(1)


def wanted(amount: int, *, sandbox: SandboxId = BOX, at: datetime = NOW, holder: str = "g1") -> Reservation:
    return Reservation(
        holder,
        next(NUMBERS),
        DEFAULT_TENANT,
        sandbox,
        amount,
        at,
        "anthropic",
        "anthropic",
        "m\udc80",
        "messages",
    )


def done(reservation: Reservation, cost: int | None) -> Settlement:
    usage = None
    if cost is not None:
        # What a gateway says of whose call it was, and when, is not asked.
        usage = Usage(
            OTHER,
            OTHER_BOX,
            "anthropic",
            "anthropic",
            "m",
            Tokens(1, 2),
            cost,
            False,
            200,
            5,
            NOW + timedelta(days=9),
        )
    return Settlement(reservation.holder, reservation.number, usage)


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


async def reserve(store: SqlStore, entry: Reservation, default: int | None = None) -> Refusal | None:
    (outcome,) = await store.apply_ledger([entry], default)
    assert not isinstance(outcome.refusal, RateRefusal)
    return outcome.refusal


async def accounts(store: SqlStore, sandbox: SandboxId = BOX) -> list[tuple[int, int]]:
    """Spent and reserved: of the sandbox ever and today, of the tenant ever and today."""
    return [(item.spent, item.reserved) for item in await store.balances(DEFAULT_TENANT, sandbox, None)]


async def test_what_is_reserved_counts_in_every_account_until_it_is_settled(store: SqlStore) -> None:
    """G-210, G-211, G-213."""
    first = wanted(100)
    assert await reserve(store, first) is None
    assert await accounts(store) == [(0, 100)] * 4
    assert await store.apply_ledger([done(first, 30)], None) == [Outcome()]
    assert await accounts(store) == [(30, 0)] * 4
    assert await accounts(store, OTHER_BOX) == [(0, 0), (0, 0), (30, 0), (30, 0)]
    (total,) = await store.usage(BOX)
    assert (total.calls, total.cost) == (1, 30)


async def test_a_reservation_is_settled_once(store: SqlStore) -> None:
    """G-213, G-227: neither a second record nor one of a call that nobody reserved is charged."""
    first = wanted(100)
    await reserve(store, first)
    await store.apply_ledger([done(first, 30), done(first, 30)], None)
    await store.apply_ledger([done(first, 30), done(wanted(5), 7)], None)
    assert await accounts(store) == [(30, 0)] * 4
    assert [total.calls for total in await store.usage(BOX)] == [1]


async def test_a_call_that_was_never_made_costs_nothing(store: SqlStore) -> None:
    first, second = wanted(100), wanted(50)
    await reserve(store, first)
    await store.apply_ledger([done(first, None), second, done(second, None)], None)
    assert await accounts(store) == [(0, 0)] * 4
    assert await store.usage(BOX) == []


async def test_the_default_holds_where_no_cap_is_set(store: SqlStore) -> None:
    """G-223, and G-221: a change holds for the next call."""
    assert await reserve(store, wanted(100), default=99) == Refusal(
        Scope.SANDBOX, Window.TOTAL, 99, 0, 0, 100
    )
    await store.set_caps(DEFAULT_TENANT, BOX, {Window.TOTAL: 150})
    assert await reserve(store, wanted(100), default=99) is None
    assert await reserve(store, wanted(100), default=99) == Refusal(
        Scope.SANDBOX, Window.TOTAL, 150, 0, 100, 100
    )
    await store.set_caps(DEFAULT_TENANT, BOX, {Window.TOTAL: None})
    assert await reserve(store, wanted(100), default=99) is None
    await store.set_caps(DEFAULT_TENANT, BOX, {}, (Window.TOTAL,))
    assert await reserve(store, wanted(1), default=99) is not None
    shown = (await store.balances(DEFAULT_TENANT, BOX, 99))[0]
    assert shown == Balance(Scope.SANDBOX, Window.TOTAL, 99, 0, 200, default=True)


async def test_a_tenants_cap_counts_all_of_its_sandboxes(store: SqlStore) -> None:
    """G-210."""
    await store.set_caps(DEFAULT_TENANT, None, {Window.TOTAL: 150})
    assert await reserve(store, wanted(100)) is None
    refusal = await reserve(store, wanted(100, sandbox=OTHER_BOX))
    assert refusal == Refusal(Scope.TENANT, Window.TOTAL, 150, 0, 100, 100)
    (ever, today) = await store.balances(DEFAULT_TENANT, None, 99)
    assert (ever.cap, ever.reserved, today.cap) == (150, 100, None)


async def test_a_day_starts_anew_and_a_call_counts_for_the_day_it_began_on(store: SqlStore) -> None:
    """G-217, G-218."""
    await store.set_caps(DEFAULT_TENANT, BOX, {Window.DAY: 100})
    late = wanted(100)
    assert await reserve(store, late) is None
    refusal = await reserve(store, wanted(1))
    assert refusal is not None
    assert refusal.resets_at == datetime(2026, 3, 5, tzinfo=UTC)
    Clock.now = NOW + timedelta(seconds=1)
    early = wanted(100, at=Clock.now)
    assert await reserve(store, early) is None
    await store.apply_ledger([done(late, 70)], None)
    assert await accounts(store) == [(70, 100), (0, 100), (70, 100), (0, 100)]
    assert await reserve(store, wanted(31, at=NOW)) is not None
    assert await reserve(store, wanted(30, at=NOW)) is None


async def test_warnings_are_given_as_caps_are_used_up(store: SqlStore) -> None:
    """G-222."""
    await store.set_caps(DEFAULT_TENANT, BOX, {Window.TOTAL: 100})
    given = []
    for cost in (49, 1, 40, 4, 6):
        entry = wanted(cost)
        await reserve(store, entry)
        (outcome,) = await store.apply_ledger([done(entry, cost)], None)
        given.append([(warned.scope, warned.percent, warned.sandbox) for warned in outcome.warnings])
    assert given == [
        [],
        [(Scope.SANDBOX, 50, BOX)],
        [(Scope.SANDBOX, 80, BOX)],
        [],
        [(Scope.SANDBOX, 95, BOX)],
    ]


async def test_what_a_gateway_leaves_is_settled_at_its_worst_case(store: SqlStore, tmp_path: Path) -> None:
    """G-215: of one gateway when it ends, of all after a restart; never twice."""
    mine, other, over = wanted(100, holder="g1"), wanted(10, holder="g2"), wanted(1, holder="g1")
    await store.apply_ledger([mine, other, over], None)
    await store.apply_ledger([done(over, 1)], None)
    (settled,) = await store.abandon_reservations("g1", None)
    assert settled.number == mine.number
    assert await accounts(store) == [(101, 10)] * 4
    await store.apply_ledger([done(mine, 50)], None)
    await store.close()
    again = await open_store(tmp_path)
    assert len(await again.abandon_reservations(None, None)) == 1
    assert await again.abandon_reservations(None, None) == []
    assert await accounts(again) == [(111, 0)] * 4
    totals = {total.model: total for total in await again.usage(BOX)}
    assert (totals["m?"].calls, totals["m?"].cost, totals["m?"].assumed) == (2, 110, True)
    await again.close()


async def test_parallel_calls_never_pass_a_cap_and_the_ledger_agrees_with_its_accounts(
    store: SqlStore, tmp_path: Path
) -> None:
    """G-211, G-228: hundreds of calls at once, in batches of any size, over two sandboxes."""
    random = Random(7)
    await store.set_caps(DEFAULT_TENANT, BOX, {Window.TOTAL: 1000})
    await store.set_caps(DEFAULT_TENANT, None, {Window.DAY: 1500})

    async def one(sandbox: SandboxId) -> None:
        entry = wanted(random.randint(0, 60), sandbox=sandbox)
        if await reserve(store, entry) is None:
            cost = None if random.random() < 0.1 else random.randint(0, entry.amount)
            await store.apply_ledger([done(entry, cost)], None)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(150):
            tasks.create_task(one(BOX))
            tasks.create_task(one(OTHER_BOX))
            for balance in await store.balances(DEFAULT_TENANT, BOX, None):
                assert balance.cap is None or balance.spent + balance.reserved <= balance.cap
    ever, _, tenant, _ = await accounts(store)
    assert ever[1] == tenant[1] == 0
    sums = {
        str(box): int(str(cost))
        for box, cost in where.ask(tmp_path, "SELECT sandbox, SUM(cost) FROM usage GROUP BY 1")
    }
    assert where.ask(tmp_path, "SELECT COUNT(*) FROM reservations") == [(0,)]
    assert ever[0] == sums[BOX]
    assert tenant[0] == sum(sums.values())


async def test_what_was_spent_before_there_were_budgets_counts(tmp_path: Path) -> None:
    """G-220: the accounts of an older database are made from its ledger."""
    Clock.now = NOW
    store = await open_store(tmp_path)
    entries = [wanted(30), wanted(20, at=NOW - timedelta(days=1))]
    await store.apply_ledger([*entries, *(done(entry, entry.amount) for entry in entries)], None)
    before = await accounts(store)
    await store.close()
    go_back(tmp_path / "corral.db", "0001")
    again = await open_store(tmp_path)
    assert await accounts(again) == before == [(50, 0), (30, 0), (50, 0), (30, 0)]
    await again.close()


def drawn_of(totals: dict[int, int]) -> Drawn:
    return lambda _holder: totals


async def leased(store: SqlStore, entry: Reservation, default: int | None = None) -> int:
    (outcome,) = await store.apply_ledger([entry], default)
    assert outcome.refusal is None
    return outcome.leased


async def room(store: SqlStore, cap: int) -> int:
    """The most that one more call could cost under a cap, which shows what is set aside and not shown as reserved."""
    await store.set_caps(DEFAULT_TENANT, None, {Window.TOTAL: cap})
    refusal = await reserve(store, wanted(cap + 1, sandbox=OTHER_BOX))
    assert refusal is not None
    return cap - refusal.spent - refusal.reserved


async def test_a_lease_is_set_aside_for_the_next_calls_and_drawn_by_them(store: SqlStore) -> None:
    """G-211: what is leased counts against caps, and no call that draws on it needs more."""
    first = replace(wanted(100), lease=1)
    assert await leased(store, first) == 800
    assert await accounts(store) == [(0, 100)] * 4  # people see what is under way
    assert await room(store, 10_000) == 10_000 - 900
    second = replace(wanted(100), lease=1, drawn=True)
    assert await leased(store, second) == 0  # more than half is left
    assert await accounts(store) == [(0, 200)] * 4
    assert await room(store, 10_000) == 10_000 - 900
    third = replace(wanted(300), lease=1, drawn=True)
    assert await leased(store, third) == 2400 - 400
    await store.apply_ledger([done(first, 10), done(second, 20), done(third, None), Return("g1", 1)], None)
    assert await accounts(store) == [(30, 0)] * 4
    assert await room(store, 10_000) == 10_000 - 30
    await store.apply_ledger([Return("g1", 1), Return("g1", 7)], None)
    assert await room(store, 10_000) == 10_000 - 30


async def test_what_is_drawn_is_the_leases_whoever_it_is_said_to_be(store: SqlStore) -> None:
    await leased(store, replace(wanted(100), lease=1))
    lie = replace(wanted(50, sandbox=OTHER_BOX), tenant=OTHER, lease=1, drawn=True)
    await store.apply_ledger([lie], None)
    assert await accounts(store) == [(0, 150)] * 4
    unknown = replace(wanted(50), tenant=TenantId(""), lease=9, drawn=True)
    assert await store.apply_ledger([unknown, done(unknown, 50)], None) == [Outcome(), Outcome()]
    assert await accounts(store) == [(0, 150)] * 4


async def test_nothing_is_leased_near_a_cap_nor_under_a_rate(store: SqlStore) -> None:
    """Each call asks then, and is refused exactly where the cap is."""
    assert await leased(store, replace(wanted(100), lease=1), default=1699) == 0
    assert await leased(store, replace(wanted(100, sandbox=OTHER_BOX), lease=2), default=1700) == 800
    await store.set_caps(DEFAULT_TENANT, None, {Rate.REQUESTS: 1000})
    assert await leased(store, replace(wanted(10, holder="g2"), lease=1)) == 0


async def test_a_lease_moves_to_the_day_of_the_call_that_it_grows_by(store: SqlStore) -> None:
    await leased(store, replace(wanted(100), lease=1))
    tomorrow = NOW + timedelta(days=1)
    assert await leased(store, replace(wanted(800, at=tomorrow), lease=1, drawn=True)) == 6400
    await store.apply_ledger([Return("g1", 1)], None)
    Clock.now = tomorrow
    assert await accounts(store) == [(0, 900), (0, 800), (0, 900), (0, 800)]


@pytest.mark.parametrize(
    ("totals", "lost"),
    [({1: 0}, 0), ({}, 0), ({1: 250}, 250), ({1: 10_000}, 800), (None, 800)],
    ids=["nothing", "unknown to its process", "some", "a lie", "no journal"],
)
async def test_what_a_lost_gateway_drew_without_a_word_is_charged(
    store: SqlStore, totals: dict[int, int] | None, lost: int
) -> None:
    """G-215: and the rest of its leases is free again."""
    await leased(store, replace(wanted(100), lease=1))
    settled = await store.abandon_reservations("g1", None, lambda _holder: totals)
    assert sum(item.usage.cost for item in settled if item.usage) == 100 + lost
    assert await accounts(store) == [(100 + lost, 0)] * 4
    assert await room(store, 10_000) == 10_000 - 100 - lost


async def test_what_was_told_of_a_lease_is_not_charged_twice(store: SqlStore) -> None:
    """The journal's sums are of all draws, those in the ledger included."""
    first, second = replace(wanted(100), lease=1), replace(wanted(100), lease=1, drawn=True)
    await store.apply_ledger([first, second, done(first, 7), done(second, 8)], None)
    await store.abandon_reservations(None, None, drawn_of({1: 100}))
    assert await accounts(store) == [(15, 0)] * 4

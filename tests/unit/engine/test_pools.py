"""Warm pools over fakes: what fills them, what they give out, and what goes."""

import asyncio
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest
from tests.unit.engine.test_sandboxes import OTHER, World, world

from corral.engine.plan import CreateRequest
from corral.engine.pools import Pools
from corral.engine.sandboxes import Sandboxes
from corral.errors import Conflict, HostError, InvalidInput, NotFound
from corral.model.ids import DEFAULT_TENANT, TenantId
from corral.model.lifecycle import State
from corral.model.sandbox import GIB, Limits, Sandbox
from corral.policy.pools import pause_after

__all__ = ["world"]


@dataclass
class Warm:
    """An engine with pools that are looked at when a test says so."""

    world: World
    engine: Sandboxes
    pools: Pools

    @classmethod
    async def over(cls, world: World) -> "Warm":
        engine = world.engine()
        pools = Pools(
            store=world.store,
            sandboxes=engine,
            templates=world.templates,
            registry=world.registry,
            clock=world.clock,
            usable=world.driver.runtimes,
        )
        world.demand = pools.demand
        await pools.load()
        return cls(world, engine, pools)

    async def look(self) -> None:
        """Look until nothing is missing, or cannot be mended now."""
        self.pools.wake()
        while self.pools._wake.is_set():
            self.pools._wake.clear()
            await self.pools._look()

    def spares(self) -> list[Sandbox]:
        return self.world.registry.spares()

    async def create(
        self, name: str | None = None, tenant: TenantId = DEFAULT_TENANT, wanted: CreateRequest | None = None
    ) -> Sandbox:
        return await self.engine.create(tenant, replace(wanted or CreateRequest(), name=name))


@pytest.fixture
async def warm(world: World) -> Warm:
    return await Warm.over(world)


async def test_a_create_takes_a_spare_and_the_pool_is_filled_again(warm: Warm) -> None:
    await warm.pools.set(DEFAULT_TENANT, "base", 2)
    await warm.look()
    ready = {spare.id for spare in warm.spares()}
    assert len(ready) == 2
    assert warm.engine.list(DEFAULT_TENANT) == []
    starts = warm.world.driver.calls.count("start")

    wanted = CreateRequest(labels={"a": "b"}, env={"X": "1"}, ttl=60, allow=("example.org",))
    made = await warm.create("mine", wanted=wanted)

    assert made.id in ready
    assert warm.world.driver.calls.count("start") == starts
    assert (made.spec.name, made.spec.labels, made.spec.env["X"], made.spec.ttl) == (
        "mine",
        {"a": "b"},
        "1",
        60,
    )
    assert not made.spec.spare
    attached = warm.world.gateway.attached[made.id]
    assert (attached.name, attached.egress) == ("mine", made.spec.egress)
    assert [sandbox.spec.name for sandbox in warm.engine.list(DEFAULT_TENANT)] == ["mine"]
    assert [s.state for s in await warm.world.store.sandboxes() if not s.spec.spare] == [State.RUNNING]
    await warm.look()
    assert len(warm.spares()) == 2


async def test_a_claim_gets_a_token_that_the_spare_never_had(warm: Warm) -> None:
    await warm.pools.set(DEFAULT_TENANT, "base", 1)
    await warm.look()
    (spare,) = warm.spares()
    before = await warm.world.store.grant_of(spare.id)
    made = await warm.create()
    after = await warm.world.store.grant_of(made.id)
    assert before.id != after.id
    assert warm.world.gateway.attached[made.id].grant.token_hash == after.token_hash != before.token_hash


async def test_a_spare_is_shown_to_nobody(warm: Warm) -> None:
    await warm.pools.set(DEFAULT_TENANT, "base", 1)
    await warm.look()
    (spare,) = warm.spares()
    assert warm.engine.all() == []
    for ref in (spare.id, spare.spec.name):
        with pytest.raises(NotFound):
            warm.engine.get(DEFAULT_TENANT, ref)


@pytest.mark.parametrize(
    ("tenant", "wanted"),
    [
        (OTHER, CreateRequest()),
        (DEFAULT_TENANT, CreateRequest(limits=Limits(memory=GIB))),
    ],
)
async def test_nobody_else_s_create_takes_it(warm: Warm, tenant: TenantId, wanted: CreateRequest) -> None:
    """Not another tenant's, and none that wants other limits."""
    await warm.world.store.tenant(OTHER)
    await warm.pools.set(DEFAULT_TENANT, "base", 1)
    await warm.look()
    (spare,) = warm.spares()
    assert (await warm.create(tenant=tenant, wanted=wanted)).id != spare.id


async def test_many_creates_never_share_a_spare(warm: Warm) -> None:
    await warm.pools.set(DEFAULT_TENANT, "base", 5)
    await warm.look()
    async with asyncio.TaskGroup() as group:
        creates = [group.create_task(warm.create()) for _ in range(12)]
    made = [create.result() for create in creates]
    assert len({sandbox.id for sandbox in made}) == 12
    assert len({sandbox.spec.name for sandbox in made}) == 12


async def test_a_name_that_is_taken_costs_no_spare(warm: Warm) -> None:
    await warm.create("one")
    await warm.pools.set(DEFAULT_TENANT, "base", 1)
    await warm.look()
    with pytest.raises(Conflict):
        await warm.create("one")
    assert len(warm.spares()) == 1
    assert (await warm.create("two")).spec.name == "two"


@pytest.mark.parametrize("step", ["rename", "attach"])
async def test_a_spare_that_is_no_good_is_replaced_by_a_new_sandbox(warm: Warm, step: str) -> None:
    await warm.pools.set(DEFAULT_TENANT, "base", 1)
    await warm.look()
    (spare,) = warm.spares()
    failing = warm.world.driver.fail_at if step == "rename" else warm.world.gateway.fail_at
    failing.add(step)
    if step == "attach":  # a new one cannot be made either
        with pytest.raises(HostError):
            await warm.create("one")
        assert warm.world.driver.state == {}
        return
    made = await warm.create("one")
    assert made.id != spare.id
    assert set(warm.world.driver.state) == {made.id}


async def test_a_failed_provision_leaves_nothing(warm: Warm) -> None:
    await warm.pools.set(DEFAULT_TENANT, "base", 1)
    await warm.look()
    warm.world.failing_provision = True
    with pytest.raises(HostError):
        await warm.create("one")
    assert warm.world.driver.state == {}
    assert await warm.world.store.sandboxes() == []


async def test_spares_go_with_the_template_that_they_were_made_of(warm: Warm) -> None:
    await warm.create("one")
    await warm.world.checkpoints.make(DEFAULT_TENANT, "one", "mine")
    await warm.pools.set(DEFAULT_TENANT, "mine", 2)
    await warm.look()
    before = {spare.id for spare in warm.spares()}
    await warm.create("other")
    await warm.world.checkpoints.make(DEFAULT_TENANT, "other", "mine")
    made = await warm.create("two", wanted=CreateRequest(template="mine"))
    assert made.id not in before
    await warm.look()
    after = {spare.id for spare in warm.spares()}
    assert len(after) == 2
    assert not before & after
    assert before.isdisjoint(warm.world.driver.state)
    await warm.world.templates.remove(DEFAULT_TENANT, "mine")
    await warm.look()
    assert warm.spares() == []
    assert "no template" in warm.pools.statuses(DEFAULT_TENANT)[0].problem


async def test_a_pool_that_cannot_be_filled_waits_longer_each_time_and_says_why(warm: Warm) -> None:
    await warm.pools.set(DEFAULT_TENANT, "base", 1)
    warm.world.driver.fail_at = {"start"}
    for wait in (1, 2, 4):
        await warm.look()
        (status,) = warm.pools.statuses(DEFAULT_TENANT)
        assert status.ready == 0
        assert "start was told to fail" in status.problem
        assert status.retry_at == warm.world.clock.time + timedelta(seconds=wait)
        tried = warm.world.driver.calls.count("start")
        await warm.look()  # too early
        assert warm.world.driver.calls.count("start") == tried
        warm.world.clock.time += timedelta(seconds=wait)
    warm.world.driver.fail_at = set()
    await warm.look()
    (status,) = warm.pools.statuses(DEFAULT_TENANT)
    assert (status.ready, status.problem, status.retry_at) == (1, "", None)
    assert pause_after(100) == timedelta(minutes=5)


async def test_idle_spares_go_and_come_back_when_they_are_wanted(warm: Warm) -> None:
    await warm.pools.set(DEFAULT_TENANT, "base", 1, idle=60)
    await warm.look()
    warm.world.clock.time += timedelta(seconds=61)
    await warm.look()
    assert warm.spares() == []
    assert warm.pools.statuses(DEFAULT_TENANT)[0].asleep
    await warm.create()
    await warm.look()
    assert len(warm.spares()) == 1
    assert not warm.pools.statuses(DEFAULT_TENANT)[0].asleep


async def test_spares_outlive_the_daemon_and_half_made_ones_do_not(warm: Warm) -> None:
    await warm.pools.set(DEFAULT_TENANT, "base", 2)
    await warm.look()
    kept, ended = warm.spares()
    warm.world.driver.end(ended.id)
    again = await Warm.over(warm.world)
    await again.engine.recover()
    assert [spare.id for spare in again.spares()] == [kept.id]
    await again.look()
    assert len(again.spares()) == 2
    assert (await again.create()).id == kept.id


async def test_a_spare_that_ends_is_replaced(warm: Warm) -> None:
    await warm.pools.set(DEFAULT_TENANT, "base", 1)
    await warm.look()
    (spare,) = warm.spares()
    warm.world.driver.end(spare.id)
    while warm.spares():  # noqa: ASYNC110 - nothing else is waited for
        await asyncio.sleep(0)
    await warm.look()
    assert len(warm.spares()) == 1


async def test_a_pool_that_is_made_smaller_or_ended_lets_its_spares_go(warm: Warm) -> None:
    await warm.pools.set(DEFAULT_TENANT, "base", 3)
    await warm.look()
    await warm.pools.set(DEFAULT_TENANT, "base", 1)
    await warm.look()
    assert len(warm.spares()) == 1
    await warm.pools.remove(DEFAULT_TENANT, "base")
    assert warm.spares() == []
    assert await warm.world.store.pools() == []
    with pytest.raises(NotFound):
        await warm.pools.remove(DEFAULT_TENANT, "base")


async def test_what_makes_no_sense_is_refused(warm: Warm) -> None:
    for size, idle in ((0, None), (1001, None), (1, 1)):
        with pytest.raises(InvalidInput):
            await warm.pools.set(DEFAULT_TENANT, "base", size, idle=idle)
    with pytest.raises(NotFound):
        await warm.pools.set(DEFAULT_TENANT, "none", 1)
    assert await warm.world.store.pools() == []


async def test_a_grant_is_on_record_once_a_spare_is_somebodys(world: World) -> None:
    warm = await Warm.over(world)
    await warm.pools.set(DEFAULT_TENANT, "base", 1)
    await warm.look()
    assert await world.store.audit_entries(DEFAULT_TENANT) == []
    box = await warm.create("mine", wanted=CreateRequest(allow=("example.com",)))
    (record,) = await world.store.audit_entries(DEFAULT_TENANT)
    assert (record.kind, record.sandbox, record.detail["allow"]) == ("grant.create", box.id, "example.com")

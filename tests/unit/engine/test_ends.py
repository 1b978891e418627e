"""The end of a sandbox's life: what happens to it in each state, and what moves it."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest
from tests.unit.engine.test_sandboxes import World, world

from corral.engine.plan import CreateRequest
from corral.engine.ports import DriverStatus
from corral.engine.sandboxes import Sandboxes
from corral.errors import HostError, NotFound
from corral.model.ids import DEFAULT_TENANT, TenantId
from corral.model.lifecycle import State
from corral.model.sandbox import Expiry
from corral.policy.idle import idle_reason

__all__ = ["world"]

RESTS = (Expiry.PAUSE, Expiry.STOP)


async def made(world: World, expiry: Expiry) -> Sandboxes:
    engine = world.engine()
    await engine.create(DEFAULT_TENANT, CreateRequest(name="one", ttl=60, expiry=expiry))
    return engine


async def stopped_by_a_restart(world: World) -> Sandboxes:
    """An engine after the host was restarted."""
    for id in world.driver.state:
        world.driver.state[id] = DriverStatus.STOPPED
    engine = world.engine()
    await engine.recover()
    assert engine.get(DEFAULT_TENANT, "one").state is State.STOPPED
    return engine


@pytest.mark.parametrize("expiry", RESTS)
@pytest.mark.parametrize("how", ["stop", "restart"])
async def test_a_stopped_one_that_is_not_to_be_removed_stays(world: World, expiry: Expiry, how: str) -> None:
    engine = await made(world, expiry)
    if how == "stop":
        await engine.stop(DEFAULT_TENANT, "one", 0)
    else:
        engine = await stopped_by_a_restart(world)
    world.clock.time += timedelta(seconds=61)
    await engine.expire(DEFAULT_TENANT, "one")
    left = engine.get(DEFAULT_TENANT, "one")
    assert (left.state, left.spec.ttl) == (State.STOPPED, None)


@pytest.mark.parametrize("how", ["stop", "restart"])
async def test_a_stopped_one_that_is_to_be_removed_goes(world: World, how: str) -> None:
    engine = await made(world, Expiry.REMOVE)
    if how == "stop":
        await engine.stop(DEFAULT_TENANT, "one", 0)
    else:
        engine = await stopped_by_a_restart(world)
    assert engine.get(DEFAULT_TENANT, "one").spec.ttl == 60
    await engine.expire(DEFAULT_TENANT, "one")
    with pytest.raises(NotFound):
        engine.get(DEFAULT_TENANT, "one")


@pytest.mark.parametrize("expiry", list(Expiry))
async def test_a_paused_one_stands_still_through_a_restart_of_the_host(world: World, expiry: Expiry) -> None:
    engine = await made(world, expiry)
    await engine.pause(DEFAULT_TENANT, "one")
    world.clock.time += timedelta(days=1)
    engine = await stopped_by_a_restart(world)
    assert engine.get(DEFAULT_TENANT, "one").spec.ttl is None
    assert [item.spec.ttl for item in await world.store.sandboxes()] == [None]


@pytest.mark.parametrize("memory", [False, True])
async def test_a_paused_one_that_is_stopped_does_not_end_at_once(world: World, memory: bool) -> None:
    engine = await made(world, Expiry.REMOVE)
    await engine.pause(DEFAULT_TENANT, "one", memory=memory)
    world.clock.time += timedelta(days=1)
    assert (await engine.stop(DEFAULT_TENANT, "one", 0)).spec.ttl is None


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("how", ["stop", "restart"])
async def test_a_pause_by_the_host_leaves_the_rest_of_the_time(world: World, memory: bool, how: str) -> None:
    engine = await made(world, Expiry.REMOVE)
    await engine.pause(DEFAULT_TENANT, "one", memory=memory, reason=idle_reason(600))
    world.clock.time += timedelta(seconds=1000)
    if how == "stop" or memory:  # what is on disk is not stopped by a restart
        await engine.stop(DEFAULT_TENANT, "one", 0)
    else:
        engine = await stopped_by_a_restart(world)
    assert engine.get(DEFAULT_TENANT, "one").spec.ttl == 1060


@pytest.mark.parametrize("expiry", RESTS)
async def test_one_that_starts_is_not_ended_by_its_old_time(world: World, expiry: Expiry) -> None:
    engine = await made(world, expiry)
    sandbox = engine.get(DEFAULT_TENANT, "one")
    await world.registry.correct(sandbox.id, State.STARTING, "")
    await engine.expire(DEFAULT_TENANT, "one")
    assert engine.get(DEFAULT_TENANT, "one").state is State.STARTING


async def test_the_pause_at_its_end_goes_to_disk(world: World) -> None:
    engine = await made(world, Expiry.PAUSE)
    await engine.expire(DEFAULT_TENANT, "one")
    assert engine.get(DEFAULT_TENANT, "one").state is State.SUSPENDED


@pytest.mark.parametrize("step", ["hold", "save"])
async def test_the_pause_at_its_end_freezes_what_cannot_be_saved(world: World, step: str) -> None:
    engine = await made(world, Expiry.PAUSE)
    world.driver.fail_at = {step}
    await engine.expire(DEFAULT_TENANT, "one")
    sandbox = engine.get(DEFAULT_TENANT, "one")
    assert sandbox.state is State.PAUSED
    assert world.driver.state[sandbox.id] is DriverStatus.PAUSED


async def test_the_pause_at_its_end_freezes_under_a_runtime_that_saves_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.driver, "saves_memory", lambda _: False)
    engine = await made(world, Expiry.PAUSE)
    await engine.expire(DEFAULT_TENANT, "one")
    assert engine.get(DEFAULT_TENANT, "one").state is State.PAUSED


async def test_one_that_is_stopped_to_rest_has_no_end(world: World) -> None:
    engine = await made(world, Expiry.REMOVE)
    await engine.stop(DEFAULT_TENANT, "one", 0, endless=True)
    left = engine.get(DEFAULT_TENANT, "one")
    assert (left.state, left.spec.ttl, left.spec.rests) == (State.STOPPED, None, False)
    assert [item.spec for item in await world.store.sandboxes()] == [left.spec]


async def test_a_rest_that_fails_leaves_the_end_of_its_life(world: World) -> None:
    engine = await made(world, Expiry.REMOVE)
    world.driver.fail_at = {"stop"}
    with pytest.raises(HostError):
        await engine.stop(DEFAULT_TENANT, "one", 0, endless=True)
    left = engine.get(DEFAULT_TENANT, "one")
    assert (left.state, left.spec.ttl, left.spec.rests) == (State.RUNNING, 60, False)
    assert [item.spec for item in await world.store.sandboxes()] == [left.spec]
    world.driver.fail_at = set()
    assert (await engine.stop(DEFAULT_TENANT, "one", 0)).spec.ttl == 60


async def test_a_stop_at_its_end_that_fails_is_tried_again(world: World) -> None:
    engine = await made(world, Expiry.STOP)
    world.driver.fail_at = {"stop"}
    with pytest.raises(HostError):
        await engine.expire(DEFAULT_TENANT, "one")
    assert engine.get(DEFAULT_TENANT, "one").spec.ttl == 60
    world.driver.fail_at = set()
    await engine.expire(DEFAULT_TENANT, "one")
    left = engine.get(DEFAULT_TENANT, "one")
    assert (left.state, left.spec.ttl) == (State.STOPPED, None)


@pytest.mark.parametrize("stopped", [True, False])
async def test_a_rest_that_a_crash_cuts_is_whole_or_never_was(world: World, stopped: bool) -> None:
    engine = await made(world, Expiry.REMOVE)
    id = engine.get(DEFAULT_TENANT, "one").id
    await world.registry.set_rests(id, rests=True)
    if stopped:
        world.driver.state[id] = DriverStatus.STOPPED
    engine = world.engine()
    await engine.recover()
    left = engine.get(DEFAULT_TENANT, "one")
    wanted = (State.STOPPED, None, False) if stopped else (State.RUNNING, 60, False)
    assert (left.state, left.spec.ttl, left.spec.rests) == wanted
    assert [item.spec for item in await world.store.sandboxes()] == [left.spec]


@pytest.mark.parametrize("expiry", list(Expiry))
async def test_one_that_came_to_rest_while_its_end_waited_is_left_alone(world: World, expiry: Expiry) -> None:
    engine = await made(world, expiry)
    id = engine.get(DEFAULT_TENANT, "one").id
    await engine.expire(DEFAULT_TENANT, "one", lambda: False)
    assert engine.get(DEFAULT_TENANT, "one").state is State.RUNNING
    assert world.driver.state[id] is DriverStatus.RUNNING


async def test_an_end_that_comes_during_a_stop_to_rest_does_not_remove(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corral.engine.sandboxes.SWEEP_SECONDS", 0.0)
    engine = await made(world, Expiry.REMOVE)
    await engine.create(DEFAULT_TENANT, CreateRequest(name="two", ttl=60))
    ends, expire = asyncio.Event(), engine.expire

    async def noted(tenant: TenantId, ref: str, only_if: Callable[[], bool]) -> None:
        ends.set()
        await expire(tenant, ref, only_if)

    monkeypatch.setattr(engine, "expire", noted)
    events = engine.events(DEFAULT_TENANT)
    async with engine.locked(DEFAULT_TENANT, "one"):
        stop = asyncio.ensure_future(engine.stop(DEFAULT_TENANT, "one", 0, endless=True))
        await asyncio.sleep(0)  # it waits for the lock first
        world.clock.time += timedelta(seconds=61)
        world.tasks.start(engine.sweep(), name="sweep")
        await ends.wait()
    await stop
    async for event in events:
        if event.state == State.GONE:
            break
    assert [(item.spec.name, item.state) for item in engine.list(DEFAULT_TENANT)] == [("one", State.STOPPED)]


async def test_what_is_started_for_a_time_ends_then(world: World) -> None:
    engine = await made(world, Expiry.REMOVE)
    await engine.stop(DEFAULT_TENANT, "one", 0, endless=True)
    world.clock.time += timedelta(days=1)
    await engine.start(DEFAULT_TENANT, "one", ttl=30)
    left = engine.get(DEFAULT_TENANT, "one")
    assert (left.state, left.spec.rests) == (State.RUNNING, False)
    assert left.spec.ends_at == world.clock.time + timedelta(seconds=30)
    assert [item.spec for item in await world.store.sandboxes()] == [left.spec]


async def test_a_start_for_a_time_that_fails_brings_no_end(world: World) -> None:
    engine = await made(world, Expiry.REMOVE)
    await engine.stop(DEFAULT_TENANT, "one", 0, endless=True)
    world.driver.fail_at = {"start"}
    with pytest.raises(HostError):
        await engine.start(DEFAULT_TENANT, "one", ttl=30)
    left = engine.get(DEFAULT_TENANT, "one")
    assert (left.state, left.spec.ttl, left.spec.rests) == (State.STOPPED, None, False)


@pytest.mark.parametrize("state", [State.STARTING, State.RUNNING])
async def test_a_start_for_a_time_that_a_crash_cuts_is_whole_or_brings_no_end(
    world: World, state: State
) -> None:
    engine = await made(world, Expiry.REMOVE)
    id = engine.get(DEFAULT_TENANT, "one").id
    await world.registry.set_ttl(id, 30, rests=True)
    if state is State.STARTING:
        await world.registry.correct(id, State.STARTING, "")
    engine = world.engine()
    await engine.recover()
    left = engine.get(DEFAULT_TENANT, "one")
    wanted = (State.STOPPED, None, False) if state is State.STARTING else (State.RUNNING, 30, False)
    assert (left.state, left.spec.ttl, left.spec.rests) == wanted

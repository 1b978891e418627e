"""The end of a sandbox's life: what happens to it in each state, and what moves it."""

from datetime import timedelta

import pytest
from tests.unit.engine.test_sandboxes import World, world

from corral.engine.plan import CreateRequest
from corral.engine.ports import DriverStatus
from corral.engine.sandboxes import Sandboxes
from corral.errors import NotFound
from corral.model.ids import DEFAULT_TENANT
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

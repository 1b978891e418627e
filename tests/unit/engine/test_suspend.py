"""Suspending to disk over fakes: what failures and crashes leave."""

import pytest
from tests.unit.engine.test_sandboxes import World, world

from corral.engine.plan import CreateRequest
from corral.engine.ports import DriverStatus
from corral.engine.running import own_image
from corral.errors import Conflict, HostError
from corral.model.ids import DEFAULT_TENANT
from corral.model.lifecycle import State
from corral.model.sandbox import Sandbox

__all__ = ["world"]


async def test_life(world: World) -> None:
    engine = world.engine()
    box = await engine.create(DEFAULT_TENANT, CreateRequest(name="one", ttl=60))
    assert (await engine.pause(DEFAULT_TENANT, "one", memory=True)).state is State.SUSPENDED
    assert world.driver.state[box.id] is DriverStatus.STOPPED
    assert world.driver.saved == {own_image(box.id)}
    assert not world.gateway.attached
    with pytest.raises(Conflict):
        await engine.start(DEFAULT_TENANT, "one")
    assert (await engine.resume(DEFAULT_TENANT, "one")).state is State.RUNNING
    assert world.driver.saved == set()
    assert set(world.gateway.attached) == {box.id}
    await engine.pause(DEFAULT_TENANT, "one")
    assert (await engine.pause(DEFAULT_TENANT, "one", memory=True)).state is State.SUSPENDED
    assert (await engine.stop(DEFAULT_TENANT, "one")).state is State.STOPPED
    assert world.driver.saved == set()


@pytest.mark.parametrize("step", ["hold", "save"])
async def test_one_that_cannot_be_saved_goes_on(world: World, step: str) -> None:
    engine = world.engine()
    box = await engine.create(DEFAULT_TENANT, CreateRequest(name="one"))
    world.driver.fail_at = {step}
    with pytest.raises(HostError):
        await engine.pause(DEFAULT_TENANT, "one", memory=True)
    assert engine.get(DEFAULT_TENANT, "one").state is State.RUNNING
    assert world.driver.state[box.id] is DriverStatus.RUNNING
    assert world.driver.saved == set()


@pytest.mark.parametrize("step", ["prepare", "listen", "start", "guest", "attach"])
async def test_one_that_cannot_be_resumed_keeps_its_image(world: World, step: str) -> None:
    engine = world.engine()
    box = await engine.create(DEFAULT_TENANT, CreateRequest(name="one"))
    await engine.pause(DEFAULT_TENANT, "one", memory=True)
    world.driver.fail_at = world.gateway.fail_at = {step}
    with pytest.raises(HostError):
        await engine.resume(DEFAULT_TENANT, "one")
    assert engine.get(DEFAULT_TENANT, "one").state is State.SUSPENDED
    assert world.driver.saved == {own_image(box.id)}
    world.driver.fail_at = world.gateway.fail_at = set()
    assert (await engine.resume(DEFAULT_TENANT, "one")).state is State.RUNNING


@pytest.mark.parametrize(
    ("state", "status", "saved", "then"),
    [
        (State.SUSPENDING, DriverStatus.RUNNING, False, State.RUNNING),
        (State.SUSPENDING, DriverStatus.PAUSED, False, State.RUNNING),
        (State.SUSPENDING, DriverStatus.PAUSED, True, State.SUSPENDED),
        (State.SUSPENDING, DriverStatus.STOPPED, True, State.SUSPENDED),
        (State.SUSPENDING, DriverStatus.STOPPED, False, State.STOPPED),
        (State.SUSPENDED, DriverStatus.STOPPED, True, State.SUSPENDED),
        (State.RESUMING, DriverStatus.STOPPED, True, State.SUSPENDED),
        (State.RESUMING, DriverStatus.RUNNING, True, State.RUNNING),
        (State.RUNNING, DriverStatus.RUNNING, True, State.RUNNING),
    ],
)
async def test_a_crash_at_any_point_is_finished_or_undone(
    world: World, state: State, status: DriverStatus, saved: bool, then: State
) -> None:
    engine = world.engine()
    box = await engine.create(DEFAULT_TENANT, CreateRequest(name="one"))
    await world.store.set_state(Sandbox(box.spec, state, box.changed_at))
    world.driver.state[box.id] = status
    if saved:
        world.driver.saved.add(own_image(box.id))
    again = world.engine()
    await again.recover()
    assert again.get(DEFAULT_TENANT, "one").state is then
    alive = then is State.RUNNING
    assert world.driver.state[box.id] is (DriverStatus.RUNNING if alive else DriverStatus.STOPPED)
    assert world.driver.saved == ({own_image(box.id)} if then is State.SUSPENDED else set())


async def test_all_forks_are_made_or_none(world: World) -> None:
    engine = world.engine()
    box = await engine.create(DEFAULT_TENANT, CreateRequest(name="one", labels={"a": "b"}, ttl=60))
    made = await world.checkpoints.fork(DEFAULT_TENANT, "one", 2)
    assert made.memory
    assert [fork.spec.name for fork in made.sandboxes] == ["one-1", "one-2"]
    assert all(fork.spec.labels == {"a": "b"} and fork.spec.ttl == 60 for fork in made.sandboxes)
    tokens = {(await world.store.grant_of(each.id)).token_hash for each in (box, *made.sandboxes)}
    assert len(tokens) == 3
    assert world.driver.saved == set()
    before = set(world.driver.state)
    world.driver.fail_at = {"start"}
    with pytest.raises(HostError):
        await world.checkpoints.fork(DEFAULT_TENANT, "one", 3)
    assert set(world.driver.state) == before
    assert world.driver.state[box.id] is DriverStatus.RUNNING
    assert world.driver.saved == set()
    assert [template.name for template in await world.store.templates()] == ["base"]


@pytest.mark.parametrize("step", ["hold", "save", "commit"])
async def test_a_capture_that_fails_leaves_no_image(world: World, step: str) -> None:
    engine = world.engine()
    box = await engine.create(DEFAULT_TENANT, CreateRequest(name="one"))
    world.driver.fail_at = {step}
    with pytest.raises(HostError):
        await world.checkpoints.make(DEFAULT_TENANT, "one", "warm", memory=True)
    assert world.driver.saved == set()
    assert world.driver.state[box.id] is DriverStatus.RUNNING
    world.driver.fail_at = set()
    made = await world.checkpoints.make(DEFAULT_TENANT, "one", "warm", memory=True, by="me")
    assert made.memory is not None
    assert made.origin is not None
    assert (made.origin.sandbox, made.origin.by) == ("one", "me")
    assert world.driver.saved == {made.memory.image}
    await world.templates.remove(DEFAULT_TENANT, "warm")
    assert world.driver.saved == set()


async def test_a_template_under_another_name_goes_on_from_the_same_image(world: World) -> None:
    engine = world.engine()
    await engine.create(DEFAULT_TENANT, CreateRequest(name="one"))
    made = await world.checkpoints.make(DEFAULT_TENANT, "one", "warm", memory=True, by="me")
    assert made.memory is not None
    await world.templates.tag(DEFAULT_TENANT, "warm", "warm:v1")
    tagged = await world.templates.get(DEFAULT_TENANT, "warm:v1")
    assert (tagged.memory, tagged.origin) == (made.memory, made.origin)
    await world.templates.remove(DEFAULT_TENANT, "warm")
    assert world.driver.saved == {made.memory.image}
    await world.templates.remove(DEFAULT_TENANT, "warm:v1")
    assert world.driver.saved == set()


async def test_a_checkpoint_with_memory_takes_the_place_of_one_with_the_same_files(world: World) -> None:
    engine = world.engine()
    await engine.create(DEFAULT_TENANT, CreateRequest(name="one"))
    await world.checkpoints.make(DEFAULT_TENANT, "one", "warm", by="me")
    first = await world.checkpoints.make(DEFAULT_TENANT, "one", "warm", memory=True, by="me")
    assert first.memory is not None
    again = await world.checkpoints.make(DEFAULT_TENANT, "one", "warm", memory=True, by="me")
    assert again.memory is not None
    assert again.memory.image != first.memory.image
    assert world.driver.saved == {again.memory.image}

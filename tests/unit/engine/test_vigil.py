"""What the host does to sandboxes without being asked, over fakes."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.unit.engine.test_sandboxes import World, world  # noqa: F401 - a fixture

from corral.engine.plan import CreateRequest
from corral.engine.ports import DriverStatus
from corral.engine.sandboxes import Sandboxes
from corral.engine.vigil import Pressure, Vigil
from corral.errors import HostError
from corral.model.capacity import Resource
from corral.model.ids import DEFAULT_TENANT, SandboxId
from corral.model.lifecycle import State
from corral.model.sandbox import GIB, MIB, IdlePolicy
from corral.policy.idle import Step

RESTS = State.SUSPENDED
"""The fake runtime can save memory."""


@dataclass
class Watched:
    engine: Sandboxes
    vigil: Vigil
    world: World
    time: list[float]
    host: list[IdlePolicy] = field(default_factory=lambda: [IdlePolicy(0, 0)])

    def state(self, name: str) -> State:
        return self.engine.get(DEFAULT_TENANT, name).state

    def reason(self, name: str) -> str:
        return self.engine.get(DEFAULT_TENANT, name).reason

    async def after(self, seconds: float) -> None:
        self.time[0] += seconds
        await self.vigil.tick()


@pytest.fixture
async def watched(world: World) -> Watched:  # noqa: F811
    engine = world.engine()
    time = [1000.0]
    engine._activity._now = lambda: time[0]
    engine._activity._begun = 1000.0
    host = [IdlePolicy(0, 0)]
    vigil = Vigil(
        sandboxes=engine,
        processes=cast("Any", SimpleNamespace(written_by=lambda _: 0)),
        registry=engine._registry,
        driver=world.driver,
        store=world.store,
        machine=world.machine,
        activity=engine._activity,
        admission=engine.admission,
        rules=lambda: world.rules,
        idle=lambda: host[0],
        pressure=lambda: Pressure(Step.PAUSE, 600),
        now=lambda: time[0],
    )
    return Watched(engine, vigil, world, time, host)


async def _create(watched: Watched, name: str, policy: IdlePolicy | None = None) -> None:
    await watched.engine.create(DEFAULT_TENANT, CreateRequest(name=name, idle=policy or IdlePolicy()))


async def test_policies_of_sandbox_and_host(watched: Watched) -> None:
    await _create(watched, "own", IdlePolicy(60, 600))
    await _create(watched, "never", IdlePolicy(0, 0))
    await _create(watched, "hosts")
    watched.host[0] = IdlePolicy(120, 0)
    await watched.after(61)
    assert (watched.state("own"), watched.state("hosts")) == (RESTS, State.RUNNING)
    assert watched.reason("own") == "idle for 1 min"
    await watched.after(60)
    assert watched.state("hosts") is RESTS
    await watched.after(600)
    assert (watched.state("own"), watched.state("hosts")) == (State.STOPPED, RESTS)
    assert watched.state("never") is State.RUNNING


async def test_one_that_is_busy_is_not_idle(watched: Watched) -> None:
    await _create(watched, "one", IdlePolicy(60, 0))
    id = watched.engine.get(DEFAULT_TENANT, "one").id
    for step in range(20):
        watched.world.driver.busy[id] = (step * 1_000_000, 0)
        await watched.after(15)
    assert watched.state("one") is State.RUNNING
    for _ in range(5):
        await watched.after(15)
    assert watched.state("one") is RESTS


async def test_memory_pressure_takes_the_longest_idle_one_at_a_time(watched: Watched) -> None:
    for name in ("first", "second", "used"):
        await _create(watched, name)
    await watched.after(700)
    watched.engine._activity.touch(watched.engine.get(DEFAULT_TENANT, "used").id)
    watched.time[0] += 1
    watched.engine._activity._last[watched.engine.get(DEFAULT_TENANT, "second").id] -= 5
    watched.world.machine.free[Resource.MEMORY] = 100.0 * MIB
    await watched.after(1)
    assert (watched.state("first"), watched.state("second")) == (State.RUNNING, RESTS)
    assert watched.reason("second").startswith("the host is short of memory (100.0 MiB free)")
    await watched.after(1)
    await watched.after(1)
    assert (watched.state("first"), watched.state("used")) == (RESTS, State.RUNNING)


async def test_memory_pressure_passes_by_spares_and_what_cannot_rest(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A spare is nobody's to pause, and has been idle longest of all."""
    await watched.engine.make_spare(DEFAULT_TENANT, CreateRequest())
    for name in ("stuck", "first"):
        await _create(watched, name)
    await watched.after(700)
    stuck = watched.engine.get(DEFAULT_TENANT, "stuck").id
    watched.engine._activity._last[stuck] = 0.0
    save = watched.world.driver.save

    async def picky(sandbox: SandboxId, *args: Any, **kwargs: Any) -> int:
        if sandbox == stuck:
            raise HostError("it cannot be saved")
        return await save(sandbox, *args, **kwargs)

    monkeypatch.setattr(watched.world.driver, "save", picky)
    watched.world.machine.free[Resource.MEMORY] = 100.0 * MIB
    await watched.after(1)
    assert (watched.state("stuck"), watched.state("first")) == (State.RUNNING, RESTS)


async def test_writers_are_paused_before_the_disk_is_full_and_go_on(
    watched: Watched,
) -> None:
    await _create(watched, "writer")
    await _create(watched, "other")
    disk = watched.world.driver.disk
    writer = watched.engine.get(DEFAULT_TENANT, "writer").id
    for left in (1500, 400, 200):
        watched.world.machine.free[Resource.DISK] = float(left * MIB)
        disk[writer] = disk.get(writer, 0) + 64 * MIB
        await watched.after(0.1)
    assert (watched.state("writer"), watched.state("other")) == (State.PAUSED, State.RUNNING)
    assert watched.world.driver.left_free == 128 * MIB  # of a reserve of 512
    assert watched.reason("writer") == "the host's disk is nearly full: 200.0 MiB left, and it was writing"
    watched.world.machine.free[Resource.DISK] = 10.0 * GIB
    await watched.after(1)
    assert watched.state("writer") is State.RUNNING
    assert watched.world.driver.state[writer] is DriverStatus.RUNNING

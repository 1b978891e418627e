"""Lives of sandboxes over fakes: what a failure or a crash leaves, and what recovery makes of it."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from corral.engine.activity import Activity
from corral.engine.admission import Admission
from corral.engine.checkpoints import Checkpoints
from corral.engine.disk import Disk, Space
from corral.engine.events import Events
from corral.engine.hooks import Hooks
from corral.engine.leaks import LeakCheck
from corral.engine.plan import CreateRequest
from corral.engine.ports import DriverStatus
from corral.engine.processes import Processes
from corral.engine.registry import Registry
from corral.engine.sandboxes import Sandboxes
from corral.engine.services import Services
from corral.engine.templates import Templates
from corral.engine.volumes import Volumes
from corral.errors import Conflict, CorralError, DiskFull, HostError, InvalidInput, NoCapacity, NotFound
from corral.host.tasks import TaskOwner
from corral.model.budget import Window
from corral.model.capacity import Resource, Rules
from corral.model.ids import DEFAULT_TENANT, LayerDigest, TenantId
from corral.model.lifecycle import State
from corral.model.sandbox import GIB, Limits, Sandbox, SandboxSpec
from corral.model.secrets import Secret
from corral.model.template import TemplateConfig
from corral.policy.retention import Retention
from corral.store.store import SqlStore
from corral.testing.fakes import FakeDriver, FakeGateway, FakeLayers, FakeMachine, FakeVolumeDisk

OTHER = TenantId("other")


class _Clock:
    def __init__(self) -> None:
        self.time = datetime(2026, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self.time


@dataclass
class World:
    store: SqlStore
    driver: FakeDriver
    gateway: FakeGateway
    clock: _Clock
    tasks: TaskOwner
    layers: FakeLayers = field(default_factory=FakeLayers)
    machine: FakeMachine = field(default_factory=FakeMachine)
    volume_disk: FakeVolumeDisk = field(default_factory=FakeVolumeDisk)
    rules: Rules = field(default_factory=Rules)
    passed: float = 0.0
    failing_provision: bool = False
    demand: Callable[[SandboxSpec], None] = lambda _: None
    stored: list[State] = field(default_factory=list)
    """States that a crash in the middle of each provision would have left in the store."""
    registry: Registry = field(init=False)
    templates: Templates = field(init=False)
    checkpoints: Checkpoints = field(init=False)
    volumes: Volumes = field(init=False)
    """Parts of the engine that was made last."""

    secrets: dict[str, Secret] = field(default_factory=dict)

    async def _secrets(self, _: TenantId) -> dict[str, Secret]:
        return self.secrets

    def engine(self) -> Sandboxes:
        """A new engine over the same world: what a restart of the daemon is."""
        events = Events()
        registry = Registry(self.store, events, self.clock)

        async def no_environment(_: Sandbox) -> dict[str, str]:
            return {}

        async def no_agent(*_: object) -> LayerDigest:
            raise HostError("no agents here")

        async def provision(*_: object) -> None:
            self.stored += [item.state for item in await self.store.sandboxes()]
            if self.failing_provision:
                raise HostError("provision was told to fail")

        async def complete(_: TenantId, request: CreateRequest) -> CreateRequest:
            return request

        processes = Processes(
            driver=self.driver,
            registry=registry,
            clock=self.clock,
            tasks=self.tasks,
            environment=no_environment,
        )
        activity = Activity()
        admission = Admission(
            registry=registry,
            driver=self.driver,
            machine=self.machine,
            activity=activity,
            tasks=self.tasks,
            rules=lambda: self.rules,
        )
        self.registry = registry
        self.templates = Templates(
            self.store, self.layers, self.clock, no_agent, on_prune=lambda: made.sweep_images()
        )
        self.volumes = Volumes(
            store=self.store,
            disk=self.volume_disk,
            registry=registry,
            admission=admission,
            clock=self.clock,
        )
        made = Sandboxes(
            store=self.store,
            driver=self.driver,
            gateway=self.gateway,
            templates=self.templates,
            registry=registry,
            events=events,
            clock=self.clock,
            tasks=self.tasks,
            admission=admission,
            activity=activity,
            hooks=Hooks(
                on_running=processes.open,
                on_down=processes.close,
                provision=provision,
                complete=complete,
                on_claimed=processes.refresh,
                on_up=Services(processes).start,
                on_leave=processes.leave,
                on_demand=lambda spec: self.demand(spec),
            ),
            volumes=self.volumes,
            steady=lambda: self.passed,
        )
        self.checkpoints = Checkpoints(
            store=self.store,
            sandboxes=made,
            templates=self.templates,
            registry=registry,
            driver=self.driver,
            leaks=LeakCheck(self.store, self.driver, self._secrets),
        )
        return made


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    store = await SqlStore.open(f"sqlite:///{tmp_path}/db", tmp_path / "key")
    await store.tenant(DEFAULT_TENANT)
    async with TaskOwner() as tasks:
        yield World(store, FakeDriver(), FakeGateway(), _Clock(), tasks)
    await store.close()


async def test_life(world: World) -> None:
    engine = world.engine()
    sandbox = await engine.create(DEFAULT_TENANT, CreateRequest(name="one"))
    assert sandbox.state is State.RUNNING
    assert set(world.gateway.attached) == {sandbox.id}
    assert (await engine.pause(DEFAULT_TENANT, "one")).state is State.PAUSED
    assert (await engine.resume(DEFAULT_TENANT, "one")).state is State.RUNNING
    assert (await engine.stop(DEFAULT_TENANT, "one", 0)).state is State.STOPPED
    assert not world.gateway.attached
    assert (await engine.start(DEFAULT_TENANT, sandbox.id)).state is State.RUNNING
    await engine.remove(DEFAULT_TENANT, "one")
    assert not world.driver.state
    assert not world.gateway.attached
    assert await world.store.sandboxes() == []


async def test_a_create_cut_before_its_content_is_in_is_undone(world: World) -> None:
    await world.engine().create(DEFAULT_TENANT, CreateRequest(name="one"))
    assert world.stored == [State.CREATING]
    assert [item.state for item in await world.store.sandboxes()] == [State.RUNNING]


@pytest.mark.parametrize("step", ["prepare", "listen", "start", "guest", "attach", "provision"])
async def test_a_create_that_fails_leaves_nothing(world: World, step: str) -> None:
    engine = world.engine()
    world.driver.fail_at = world.gateway.fail_at = {step}
    world.failing_provision = step == "provision"
    with pytest.raises(HostError):
        await engine.create(DEFAULT_TENANT, CreateRequest(name="one"))
    assert engine.list(DEFAULT_TENANT) == []
    assert await world.store.sandboxes() == []
    assert not world.driver.state
    assert not world.gateway.attached


@pytest.mark.parametrize("step", ["prepare", "listen", "start", "guest", "attach"])
async def test_a_start_that_fails_leaves_it_stopped(world: World, step: str) -> None:
    engine = world.engine()
    await engine.create(DEFAULT_TENANT, CreateRequest(name="one"))
    await engine.stop(DEFAULT_TENANT, "one", 0)
    world.driver.fail_at = world.gateway.fail_at = {step}
    with pytest.raises(HostError):
        await engine.start(DEFAULT_TENANT, "one")
    sandbox = engine.get(DEFAULT_TENANT, "one")
    assert sandbox.state is State.STOPPED
    assert world.driver.state == {sandbox.id: DriverStatus.STOPPED}
    assert not world.gateway.attached


@pytest.mark.parametrize("act", ["pause", "resume", "start", "stop"])
async def test_what_the_table_excludes_changes_nothing(world: World, act: str) -> None:
    engine = world.engine()
    await engine.create(DEFAULT_TENANT, CreateRequest(name="one"))
    if act in ("pause", "stop"):
        await engine.stop(DEFAULT_TENANT, "one", 0)
    before = engine.get(DEFAULT_TENANT, "one")
    calls = len(world.driver.calls)
    with pytest.raises(Conflict):
        await getattr(engine, act)(DEFAULT_TENANT, "one")
    assert engine.get(DEFAULT_TENANT, "one") == before
    assert len(world.driver.calls) == calls


async def test_creates_at_once_without_a_name_never_choose_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = itertools.count()
    monkeypatch.setattr(
        "corral.engine.creation.generate_slug",
        lambda words: "otter" if words == 2 else f"lynx-{next(numbers)}",
    )
    engine = world.engine()
    await engine.create(DEFAULT_TENANT, CreateRequest(name="one"))
    await world.checkpoints.make(DEFAULT_TENANT, "one", "mine")
    wanted = CreateRequest(template="mine")
    async with asyncio.TaskGroup() as group:
        creates = [group.create_task(engine.create(DEFAULT_TENANT, wanted)) for _ in range(4)]
    assert {create.result().spec.name for create in creates} == {"otter", "lynx-0", "lynx-1", "lynx-2"}


async def test_a_taken_name_is_refused_and_the_holder_is_unharmed(world: World) -> None:
    engine = world.engine()
    first = await engine.create(DEFAULT_TENANT, CreateRequest(name="one"))
    with pytest.raises(Conflict):
        await engine.create(DEFAULT_TENANT, CreateRequest(name="one"))
    assert engine.get(DEFAULT_TENANT, "one").state is State.RUNNING
    assert set(world.driver.state) == {first.id}


async def test_another_tenants_sandbox_does_not_exist(world: World) -> None:
    engine = world.engine()
    sandbox = await engine.create(DEFAULT_TENANT, CreateRequest(name="one"))
    await world.store.tenant(OTHER)
    assert (await engine.create(OTHER, CreateRequest(name="one"))).id != sandbox.id
    for ref in (sandbox.id, "two"):
        with pytest.raises(NotFound):
            await engine.remove(OTHER, ref)


async def test_no_process_runs_before_the_gateway_serves_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G-4, G-5, G-14: at each start; and none runs where the gateway cannot serve it, or the network is not as it must be."""
    sandboxes, started = world.engine(), []
    real = world.driver.start

    async def start(spec: SandboxSpec, *rest: Any) -> None:
        assert spec.id in world.gateway.attached
        started.append(spec.id)
        await real(spec, *rest)

    monkeypatch.setattr(world.driver, "start", start)
    box = await sandboxes.create(DEFAULT_TENANT, CreateRequest(name="box"))
    await sandboxes.stop(DEFAULT_TENANT, "box", 1.0)
    assert box.id not in world.gateway.attached
    await sandboxes.start(DEFAULT_TENANT, "box")
    assert started == [box.id] * 2
    await sandboxes.stop(DEFAULT_TENANT, "box", 1.0)
    for step in ("attach", "probe"):
        world.driver.fail_at = world.gateway.fail_at = {step}
        for attempt in (
            sandboxes.start(DEFAULT_TENANT, "box"),
            sandboxes.create(DEFAULT_TENANT, CreateRequest(name="other")),
        ):
            with pytest.raises(HostError, match=f"{step} was told to fail"):
                await attempt
    assert started == [box.id] * 2
    assert world.gateway.attached == {}


async def test_a_sandbox_whose_first_process_ends_is_stopped(world: World) -> None:
    engine = world.engine()
    sandbox = await engine.create(DEFAULT_TENANT, CreateRequest(name="one"))
    events = engine.events(DEFAULT_TENANT, after=0)
    world.driver.end(sandbox.id)
    async for event in events:
        if event.state == State.STOPPED:
            break
    assert engine.get(DEFAULT_TENANT, "one").state is State.STOPPED
    assert not world.gateway.attached


async def test_the_end_of_its_time_removes_a_sandbox(world: World) -> None:
    engine = world.engine()
    await engine.create(DEFAULT_TENANT, CreateRequest(name="one", ttl=60))
    await engine.create(DEFAULT_TENANT, CreateRequest(name="two"))
    world.clock.time += timedelta(seconds=61)
    events = engine.events(DEFAULT_TENANT)
    world.tasks.start(engine.sweep(), name="sweep")
    async for event in events:
        if event.state == State.GONE:
            break
    assert [s.spec.name for s in engine.list(DEFAULT_TENANT)] == ["two"]


@pytest.mark.parametrize("step", [timedelta(days=1), timedelta(days=-1)])
async def test_a_step_of_the_clock_is_no_time_that_passes(
    world: World, monkeypatch: pytest.MonkeyPatch, step: timedelta
) -> None:
    monkeypatch.setattr("corral.engine.sandboxes.SWEEP_SECONDS", 0.01)
    engine = world.engine()
    made = await engine.create(DEFAULT_TENANT, CreateRequest(name="one", ttl=60))
    world.tasks.start(engine.sweep(), name="sweep")
    await asyncio.sleep(0)
    world.clock.time += step
    async with asyncio.timeout(30):
        while engine.get(DEFAULT_TENANT, "one").spec.ttl == made.spec.ttl:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.01)
    events = engine.events(DEFAULT_TENANT)
    world.clock.time += timedelta(seconds=61)
    world.passed += 61
    async for event in events:
        if event.state == State.GONE:
            break
    assert engine.list(DEFAULT_TENANT) == []


class TestRecovery:
    """A new engine over the store and the driver that a killed one left."""

    async def prepare(self, world: World, state: State, actual: DriverStatus | None) -> Sandbox:
        engine = world.engine()
        sandbox = await engine.create(DEFAULT_TENANT, CreateRequest(name="one"))
        await world.store.set_state(sandbox.with_state(state, world.clock.now()))
        world.gateway.attached.clear()
        if actual is None:
            world.driver.state.pop(sandbox.id)
        else:
            world.driver.state[sandbox.id] = actual
        return sandbox

    @pytest.mark.parametrize("actual", [None, *(s for s in DriverStatus if s is not DriverStatus.ABSENT)])
    @pytest.mark.parametrize("state", [State.CREATING, State.REMOVING])
    async def test_cut_creates_are_undone_and_cut_removes_finished(
        self, world: World, state: State, actual: DriverStatus | None
    ) -> None:
        await self.prepare(world, state, actual)
        engine = world.engine()
        await engine.recover()
        assert engine.list(DEFAULT_TENANT) == []
        assert not world.driver.state
        assert await world.store.sandboxes() == []

    @pytest.mark.parametrize(
        ("state", "actual", "expected"),
        [
            (State.RUNNING, DriverStatus.RUNNING, State.RUNNING),
            (State.RUNNING, DriverStatus.PAUSED, State.RUNNING),
            (State.PAUSED, DriverStatus.PAUSED, State.PAUSED),
            (State.PAUSED, DriverStatus.RUNNING, State.RUNNING),
            (State.RUNNING, DriverStatus.STOPPED, State.STOPPED),
            (State.RUNNING, None, State.STOPPED),
            (State.PAUSED, DriverStatus.STOPPED, State.STOPPED),
            (State.STARTING, DriverStatus.RUNNING, State.STOPPED),
            (State.STOPPED, DriverStatus.RUNNING, State.STOPPED),
        ],
    )
    async def test_what_the_kernel_shows_decides(
        self, world: World, state: State, actual: DriverStatus | None, expected: State
    ) -> None:
        sandbox = await self.prepare(world, state, actual)
        engine = world.engine()
        await engine.recover()
        assert engine.get(DEFAULT_TENANT, "one").state is expected
        attached = expected in (State.RUNNING, State.PAUSED)
        assert (sandbox.id in world.gateway.attached) == attached
        if attached:
            assert world.driver.state[sandbox.id].value == expected.value

    async def test_what_no_sandbox_owns_is_removed(self, world: World) -> None:
        sandbox = await self.prepare(world, State.RUNNING, DriverStatus.RUNNING)
        await world.store.remove_sandbox(sandbox.id)
        await world.engine().recover()
        assert not world.driver.state

    async def test_one_that_cannot_be_recovered_does_not_stop_the_others(self, world: World) -> None:
        engine = world.engine()
        await engine.create(DEFAULT_TENANT, CreateRequest(name="one"))
        world.driver.fail_at = {"listen"}
        again = world.engine()
        await again.recover()
        assert len(again.list(DEFAULT_TENANT)) == 1


async def test_one_that_does_not_answer_after_a_restart_is_still_watched(world: World) -> None:
    first = world.engine()
    sandbox = await first.create(DEFAULT_TENANT, CreateRequest(name="one"))
    world.driver.fail_at = {"guest"}
    again = world.engine()
    await again.recover()
    assert again.get(DEFAULT_TENANT, "one").state is State.RUNNING
    events = again.events(DEFAULT_TENANT, after=0)
    world.driver.end(sandbox.id)
    async for event in events:
        if event.state == State.STOPPED:
            break
    assert again.get(DEFAULT_TENANT, "one").state is State.STOPPED


async def test_checkpoint_thaws_whatever_happens(world: World) -> None:
    engine = world.engine()
    sandbox = await engine.create(DEFAULT_TENANT, CreateRequest(name="one"))
    template = await world.checkpoints.make(DEFAULT_TENANT, "one", "mark")
    assert template.layers[:-1] == (FakeLayers.BASE,)
    world.driver.fail_at = {"commit"}
    with pytest.raises(CorralError):
        await world.checkpoints.make(DEFAULT_TENANT, "one", "mark2")
    assert world.driver.state[sandbox.id] is DriverStatus.RUNNING


async def test_layers_of_a_removed_template_go_with_its_last_sandbox(world: World) -> None:
    engine = world.engine()
    await engine.create(DEFAULT_TENANT, CreateRequest(name="one"))
    layer = (await world.checkpoints.make(DEFAULT_TENANT, "one", "mark")).layers[-1]
    await engine.create(DEFAULT_TENANT, CreateRequest(name="two", template="mark"))
    await world.templates.remove(DEFAULT_TENANT, "mark")
    assert world.layers.kept == {FakeLayers.BASE, layer}
    await engine.remove(DEFAULT_TENANT, "two")
    assert world.layers.kept == {FakeLayers.BASE}


async def test_a_prune_tells_what_comes_back_of_all_that_go_together(world: World) -> None:
    engine = world.engine()
    await engine.create(DEFAULT_TENANT, CreateRequest(name="one"))
    for number in range(1, 4):  # each on top of the one before
        await world.checkpoints.make(DEFAULT_TENANT, "one", f"mark{number}")
        world.clock.time += timedelta(minutes=1)
        await engine.remove(DEFAULT_TENANT, "one")
        await engine.create(DEFAULT_TENANT, CreateRequest(name="one", template=f"mark{number}"))
    await engine.remove(DEFAULT_TENANT, "one")

    async def space() -> Space:
        raise NotImplementedError

    disk = Disk(
        store=world.store,
        layers=world.layers,
        driver=world.driver,
        templates=world.templates,
        registry=world.registry,
        space=space,
        volumes=world.volumes,
        rules=Retention,
    )
    plan = await disk.prune(DEFAULT_TENANT, Retention(keep=0), dry_run=True)
    assert [(use.name, use.own, use.shared) for use in plan.removed] == [
        ("mark1", 0, 2),
        ("mark2", 0, 3),
        ("mark3", 1, 3),
    ]
    assert plan.freed == 3
    assert await disk.prune(DEFAULT_TENANT, Retention(keep=0)) == plan


@pytest.mark.parametrize(("name", "error"), [("base", Conflict), ("No Name", InvalidInput)])
async def test_a_checkpoint_under_a_bad_name_makes_nothing(
    world: World, name: str, error: type[CorralError]
) -> None:
    engine = world.engine()
    await engine.create(DEFAULT_TENANT, CreateRequest(name="one"))
    world.driver.fail_at = {"commit"}
    with pytest.raises(error):
        await world.checkpoints.make(DEFAULT_TENANT, "one", name)


async def test_a_checkpoint_takes_the_place_of_checkpoints_only(world: World) -> None:
    engine = world.engine()
    await engine.create(DEFAULT_TENANT, CreateRequest(name="one"))
    config = TemplateConfig()
    await world.templates.publish(DEFAULT_TENANT, ("built",), (FakeLayers.BASE,), config, "a build")
    world.driver.fail_at = {"commit"}
    with pytest.raises(Conflict) as refused:
        await world.checkpoints.make(DEFAULT_TENANT, "one", "built")
    assert "no checkpoint" in refused.value.message


async def test_a_template_gets_fewer_layers_unless_it_was_replaced(world: World) -> None:
    engine = world.engine()
    await engine.create(DEFAULT_TENANT, CreateRequest(name="one"))
    first = await world.checkpoints.make(DEFAULT_TENANT, "one", "mark")
    user = await engine.create(DEFAULT_TENANT, CreateRequest(name="two", template="mark"))
    shorter = await world.templates.flatten(first)
    assert shorter is not None
    assert shorter.layers != first.layers
    assert shorter.origin == first.origin
    assert [item.id for item in await world.store.templates() if item.name == "mark"] == [shorter.id]
    assert (await world.store.template(user.spec.template)).layers == first.layers
    assert {*shorter.layers, *first.layers} <= world.layers.kept
    assert await world.templates.flatten(first) is None
    assert [item.id for item in await world.store.templates() if item.name == "mark"] == [shorter.id]


async def test_a_create_whose_template_is_replaced_while_it_waits_takes_the_new_one(world: World) -> None:
    world.rules = STRICT
    engine = world.engine()
    await engine.create(DEFAULT_TENANT, CreateRequest(name="all", limits=Limits(memory=16 * GIB)))
    layers = (FakeLayers.BASE,)
    await world.templates.publish(DEFAULT_TENANT, ("mine",), layers, TemplateConfig(), "a build")
    waits = asyncio.Event()
    wish = CreateRequest(name="one", template="mine", queue=True, progress=lambda _: waits.set())
    async with asyncio.TaskGroup() as group:
        making = group.create_task(engine.create(DEFAULT_TENANT, wish))
        await waits.wait()
        config = TemplateConfig(env={"A": "new"})
        new = await world.templates.publish(DEFAULT_TENANT, ("mine",), layers, config, "another")
        await world.templates.prune()
        await engine.remove(DEFAULT_TENANT, "all")
    made = making.result()
    assert (made.spec.name, made.spec.template, made.spec.env["A"]) == ("one", new.id, "new")
    assert [item.id for item in await world.store.sandboxes()] == [made.id]


async def test_a_create_whose_template_is_removed_while_it_waits_says_its_name(world: World) -> None:
    world.rules = STRICT
    engine = world.engine()
    await engine.create(DEFAULT_TENANT, CreateRequest(name="all", limits=Limits(memory=16 * GIB)))
    await world.templates.publish(DEFAULT_TENANT, ("mine",), (FakeLayers.BASE,), TemplateConfig(), "a build")
    waits = asyncio.Event()
    wish = CreateRequest(name="one", template="mine", queue=True, progress=lambda _: waits.set())
    making = asyncio.ensure_future(engine.create(DEFAULT_TENANT, wish))
    await waits.wait()
    await world.templates.remove(DEFAULT_TENANT, "mine")
    await engine.remove(DEFAULT_TENANT, "all")
    with pytest.raises(NotFound, match="no template 'mine'"):
        await making
    assert await world.store.sandboxes() == []


# -- room -------------------------------------------------------------------------------------------------------------

STRICT = Rules({Resource.MEMORY: 1.0}, 0, 0)


async def test_a_create_that_does_not_fit_is_refused_with_numbers_and_leaves_nothing(world: World) -> None:
    world.rules = STRICT
    engine = world.engine()
    for number in range(4):  # 16 GiB, 4 each
        await engine.create(DEFAULT_TENANT, CreateRequest(name=f"box{number}"))
    with pytest.raises(NoCapacity) as refused:
        await engine.create(DEFAULT_TENANT, CreateRequest())
    assert "needs 4.0 GiB of memory, 0 B free" in refused.value.message
    assert "--queue" in refused.value.hint
    assert len(engine.list(DEFAULT_TENANT)) == 4
    await engine.stop(DEFAULT_TENANT, "box0", 0)
    await engine.create(DEFAULT_TENANT, CreateRequest())
    with pytest.raises(NoCapacity):
        await engine.start(DEFAULT_TENANT, "box0")
    assert engine.get(DEFAULT_TENANT, "box0").state is State.STOPPED


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (Rules(tenant_sandboxes=2), "your tenant runs as many sandboxes as it may: 2"),
        (
            Rules(tenant_memory=9 * GIB),
            "needs 4.0 GiB of memory, 1.0 GiB free of the 9.0 GiB that your tenant may have",
        ),
    ],
)
async def test_a_tenant_at_its_bound_is_told_apart_from_a_full_host(
    world: World, rules: Rules, message: str
) -> None:
    world.rules = rules
    engine = world.engine()
    for _ in range(2):
        await engine.create(DEFAULT_TENANT, CreateRequest())
    with pytest.raises(NoCapacity) as refused:
        await engine.create(DEFAULT_TENANT, CreateRequest())
    assert refused.value.of_tenant
    assert message in refused.value.message
    world.rules = STRICT
    with pytest.raises(NoCapacity) as refused:
        await engine.create(DEFAULT_TENANT, CreateRequest(limits=Limits(memory=15 * GIB)))
    assert not refused.value.of_tenant


async def test_a_hundred_creates_at_once_take_no_more_than_there_is(world: World) -> None:
    world.rules = STRICT
    engine = world.engine()
    results: list[Sandbox | None] = []

    async def one() -> None:
        try:
            results.append(await engine.create(DEFAULT_TENANT, CreateRequest(limits=Limits(memory=GIB))))
        except NoCapacity:
            results.append(None)

    async with asyncio.TaskGroup() as group:
        for _ in range(100):
            group.create_task(one())
    assert results.count(None) == 84
    assert len(engine.list(DEFAULT_TENANT)) == 16


async def test_what_is_held_is_counted_again_after_a_restart(world: World) -> None:
    world.rules = STRICT
    engine = world.engine()
    for _ in range(4):
        await engine.create(DEFAULT_TENANT, CreateRequest())
    again = world.engine()
    await again.recover()
    with pytest.raises(NoCapacity):
        await again.create(DEFAULT_TENANT, CreateRequest())


async def test_the_queue_is_served_as_room_comes_and_tells_the_place(world: World) -> None:
    world.rules = STRICT
    engine = world.engine()
    await engine.create(DEFAULT_TENANT, CreateRequest(name="all", limits=Limits(memory=15 * GIB)))
    told: dict[str, list[str]] = {"one": [], "two": []}
    async with asyncio.TaskGroup() as group:
        waiting = {}
        for name, lines in told.items():
            said = asyncio.Event()

            def tell(line: str, lines: list[str] = lines, said: asyncio.Event = said) -> None:
                lines.append(line)
                said.set()

            request = CreateRequest(name=name, queue=True, progress=tell)
            waiting[name] = group.create_task(engine.create(DEFAULT_TENANT, request))
            await said.wait()
        assert [item.name for item in engine.admission.queue()] == ["one", "two"]
        with pytest.raises(NoCapacity, match="2 creates that came before wait"):
            await engine.create(DEFAULT_TENANT, CreateRequest(limits=Limits(memory=16 * 1024 * 1024)))
        await engine.remove(DEFAULT_TENANT, "all")
    assert told["one"] == ["waiting for room: place 1 of 1; needs 4.0 GiB of memory, 1.0 GiB free"]
    assert told["two"][0].startswith("waiting for room: place 2 of 2")
    assert {task.result().state for task in waiting.values()} == {State.RUNNING}
    assert engine.admission.queue() == []


async def test_what_the_host_can_never_carry_does_not_wait(world: World) -> None:
    world.rules = STRICT
    engine = world.engine()
    with pytest.raises(NoCapacity, match="more than this host has"):
        await engine.create(DEFAULT_TENANT, CreateRequest(queue=True, limits=Limits(memory=17 * GIB)))


async def test_who_waited_in_vain_or_went_away_holds_nothing(world: World) -> None:
    world.rules = STRICT
    engine = world.engine()
    await engine.create(DEFAULT_TENANT, CreateRequest(name="all", limits=Limits(memory=16 * GIB)))
    with pytest.raises(NoCapacity, match="in the queue"):
        await engine.create(DEFAULT_TENANT, CreateRequest(queue=True, queue_timeout=0.05))
    said = asyncio.Event()
    request = CreateRequest(queue=True, progress=lambda _: said.set())
    async with asyncio.TaskGroup() as group:
        gone = group.create_task(engine.create(DEFAULT_TENANT, request))
        await said.wait()
        gone.cancel()
    assert engine.admission.queue() == []
    assert len(engine.admission.holdings()) == 1
    await engine.remove(DEFAULT_TENANT, "all")
    assert engine.admission.holdings() == []


async def test_a_full_disk_is_called_that(world: World) -> None:
    world.machine.free[Resource.DISK] = 60.0 * GIB  # of 1 TiB, a twentieth of which is the host's at most
    engine = world.engine()
    world.rules = Rules(reserve_disk=100 * GIB)
    with pytest.raises(DiskFull, match="of disk") as refused:
        await engine.create(DEFAULT_TENANT, CreateRequest(limits=Limits(disk=10_000 * GIB)))
    assert "free space" in refused.value.hint


async def test_a_tenant_whose_budget_is_used_up_makes_nothing_that_spends(world: World) -> None:
    engine = world.engine()
    await world.store.set_caps(DEFAULT_TENANT, None, {Window.TOTAL: 0})
    with pytest.raises(NoCapacity, match="budget of your tenant is used up"):
        await engine.create(DEFAULT_TENANT, CreateRequest(secrets=("key",)))
    await engine.create(DEFAULT_TENANT, CreateRequest())


async def test_a_removal_that_has_begun_is_finished_in_the_background(world: World) -> None:
    engine = world.engine()
    sandbox = await engine.create(DEFAULT_TENANT, CreateRequest(name="box"))
    await engine.begin_removal(DEFAULT_TENANT, "box")
    while (found := engine.by_id(sandbox.id)) is not None:
        assert found.state is State.REMOVING
        await asyncio.sleep(0)
    assert sandbox.id not in await world.driver.known()
    with pytest.raises(NotFound):
        await engine.begin_removal(DEFAULT_TENANT, "box")

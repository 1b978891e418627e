"""The crash contract, step by step: the daemon is killed before each thing that it does on the host.

`pointed.py` numbers the steps of an operation; a rehearsal tells how many there are. By default each operation is cut at a
few of them, drawn with a seed; `CORRAL_POINTS=all` (`make test-all`) cuts each operation at every one. After each cut the
daemon starts again as it is, and then: the operation is done or undone, done if it was answered; what ran on goes on; what was
there is usable; and once the test's objects are removed, nothing is left of anything.
"""

import os
import random
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.conftest import Daemon
from tests.faults import pointed
from tests.traces import settled, traces, wait_for

from corral import Client
from corral.errors import Conflict, CorralError, NotFound
from corral.model.lifecycle import State

pytestmark = [
    pytest.mark.root,
    # Clients whose daemon is killed under them leave their connections to the collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.timeout(36_000 if os.environ.get("CORRAL_POINTS") else 240),
]

POINTS = os.environ.get("CORRAL_POINTS", "1")
SEED = os.environ.get("CORRAL_KILL_SEED", "1")
BOX, MADE, POOL, VOLUME = "cut", "cut-made", "base", "cut-volume"
KEPT = "/home/user/kept"
Act = Callable[[Client], object]


def _none(client: Client) -> None:
    """Nothing is needed."""


def _running(client: Client, isolation: str = "container") -> None:
    client.create_sandbox(name=BOX, isolation=isolation)
    client.write_file(BOX, KEPT, "kept")


def _stopped(client: Client) -> None:
    _running(client)
    client.stop_sandbox(BOX, 0)


def _paused(client: Client) -> None:
    _running(client)
    client.pause_sandbox(BOX)


def _guarded(client: Client) -> None:
    _running(client, "gvisor")


def _suspended(client: Client) -> None:
    _guarded(client)
    client.pause_sandbox(BOX, memory=True)


def _checkpointed(client: Client) -> None:
    _running(client)
    client.checkpoint(BOX, MADE)


def _pooled(client: Client) -> None:
    client.set_pool(POOL, 1, limits={"memory": 64 << 20})
    wait_for(lambda: client.list_pools()[0].ready == 1, "the pool is not filled")


def _with_volume(client: Client) -> None:
    client.create_volume(VOLUME)


def _mounting(client: Client, isolation: str = "container") -> None:
    _with_volume(client)
    client.create_sandbox(name=BOX, isolation=isolation, volumes=[f"{VOLUME}:/data"])
    client.write_file(BOX, KEPT, "kept")
    client.write_file(BOX, "/data/kept", "kept")


def _mounting_stopped(client: Client) -> None:
    _mounting(client)
    client.stop_sandbox(BOX, 0)


@dataclass(frozen=True)
class Operation:
    """`ready`, then `act`, which is cut. States of the sandbox `cut` before and after; None: there is none."""

    ready: Act
    act: Act
    before: State | None
    after: State | None


RUN, STOP = State.RUNNING, State.STOPPED
OPERATIONS = {
    "create": Operation(_none, lambda c: c.create_sandbox(name=BOX, allow=["example.org"]), None, RUN),
    "create in gVisor": Operation(_none, lambda c: c.create_sandbox(name=BOX, isolation="gvisor"), None, RUN),
    "start": Operation(_stopped, lambda c: c.start_sandbox(BOX), STOP, RUN),
    "stop": Operation(_running, lambda c: c.stop_sandbox(BOX, 5), RUN, STOP),
    "resume": Operation(_paused, lambda c: c.resume_sandbox(BOX), State.PAUSED, RUN),
    "pause": Operation(_running, lambda c: c.pause_sandbox(BOX), RUN, State.PAUSED),
    "suspend": Operation(_guarded, lambda c: c.pause_sandbox(BOX, memory=True), RUN, State.SUSPENDED),
    "wake": Operation(_suspended, lambda c: c.resume_sandbox(BOX), State.SUSPENDED, RUN),
    "remove": Operation(_running, lambda c: c.remove_sandbox(BOX), RUN, None),
    "remove a stopped one": Operation(_stopped, lambda c: c.remove_sandbox(BOX), STOP, None),
    "remove a suspended one": Operation(_suspended, lambda c: c.remove_sandbox(BOX), State.SUSPENDED, None),
    "checkpoint": Operation(_running, lambda c: c.checkpoint(BOX, MADE), RUN, RUN),
    "checkpoint with memory": Operation(_guarded, lambda c: c.checkpoint(BOX, MADE, memory=True), RUN, RUN),
    "create from a checkpoint": Operation(
        _checkpointed, lambda c: c.create_sandbox(MADE, name=f"{BOX}-2"), RUN, RUN
    ),
    "fork": Operation(_guarded, lambda c: c.fork_sandbox(BOX, 2), RUN, RUN),
    "fork of files": Operation(_running, lambda c: c.fork_sandbox(BOX, 2), RUN, RUN),
    "remove a template": Operation(_checkpointed, lambda c: c.remove_template(MADE), RUN, RUN),
    "fill a pool": Operation(_none, _pooled, None, None),
    "claim from a pool": Operation(
        _pooled, lambda c: c.create_sandbox(POOL, name=BOX, limits={"memory": 64 << 20}), None, RUN
    ),
    "build": Operation(
        _none,
        lambda c: c.build_template_from(MADE, dockerfile="FROM base\nRUN echo x > /x\nENV A=1\n"),
        None,
        None,
    ),
    "run a command": Operation(_running, lambda c: c.exec_command(BOX, "echo x > /tmp/x"), RUN, RUN),
    "write a file": Operation(_running, lambda c: c.write_file(BOX, "/tmp/y", "y"), RUN, RUN),
    "time to live": Operation(_running, lambda c: c.set_ttl(BOX, 3600), RUN, RUN),
    "store a secret": Operation(
        _running, lambda c: c.put_secret("cut-secret", "value-of-a-secret", "openai"), RUN, RUN
    ),
    "make a volume": Operation(_none, lambda c: c.create_volume(VOLUME), None, None),
    "remove a volume": Operation(_with_volume, lambda c: c.remove_volume(VOLUME), None, None),
    "create with a volume": Operation(
        _with_volume, lambda c: c.create_sandbox(name=BOX, volumes=[f"{VOLUME}:/data"]), None, RUN
    ),
    "start with a volume": Operation(_mounting_stopped, lambda c: c.start_sandbox(BOX), STOP, RUN),
    "suspend with a volume": Operation(
        lambda c: _mounting(c, "gvisor"), lambda c: c.pause_sandbox(BOX, memory=True), RUN, State.SUSPENDED
    ),
    "read in a volume of a stopped one": Operation(
        _mounting_stopped, lambda c: c.read_file(BOX, "/data/kept"), STOP, STOP
    ),
}


class PointedDaemon(Daemon):
    """A daemon that is killed where it is told to be."""

    program = ("-m", "tests.faults.pointed")

    @property
    def env(self) -> dict[str, str]:
        root = str(Path(__file__).resolve().parents[2])
        return {**super().env, pointed.SOCKET: self.orders, "PYTHONPATH": root}

    @property
    def orders(self) -> str:
        return f"/run/corral-points-{os.getpid()}"

    def order(self, text: str) -> int:
        with socket.socket(socket.AF_UNIX) as client, client.makefile("rw") as stream:
            client.connect(self.orders)
            stream.write(f"{text}\n")
            stream.flush()
            return int(stream.readline())


@dataclass
class Scene:
    daemon: PointedDaemon
    held: frozenset[str] = frozenset()
    counts: dict[str, int] = field(default_factory=dict)

    def points(self, name: str) -> int:
        """How many steps an operation takes, by doing it."""
        if name not in self.counts:
            self.ready(name)
            self.daemon.order("count")
            with self.daemon.client() as client:
                OPERATIONS[name].act(client)
            self.counts[name] = self.daemon.order("read")
            self.clear()
        return self.counts[name]

    def ready(self, name: str) -> None:
        if self.daemon.process is None:  # a test before this one has failed
            self.daemon.start()
        with self.daemon.client() as client:
            for left in client.list_sandboxes():
                client.remove_sandbox(left.id)
            OPERATIONS[name].ready(client)

    def cut(self, name: str, point: int) -> None:
        """Cut an operation at a point, and look at what is left."""
        self.ready(name)
        self.daemon.order(f"kill {point}")
        answered = False
        with self.daemon.client() as client, suppress(CorralError):
            OPERATIONS[name].act(client)
            answered = True
        self.daemon.kill()  # where there were fewer steps this time
        self.daemon.start()
        self._check(name, answered=answered)
        self.clear()

    def cut_gateway(self, name: str, point: int) -> None:
        """End the gateway alone at a point: the daemon goes on, and starts another."""
        self.ready(name)
        process, former = self.daemon.process, self.daemon.gateway_pid()
        self.daemon.order(f"gateway {point}")
        answered = False
        with self.daemon.client() as client, suppress(CorralError):
            OPERATIONS[name].act(client)
            answered = True
        reached = self.daemon.order("read") >= point  # there can be fewer steps than in the rehearsal
        assert process is not None
        assert process.poll() is None
        if reached:
            wait_for(lambda: self.daemon.gateway_pid() not in (None, former), "no other gateway runs")
        self._check(name, answered=answered)
        self.clear()

    def _check(self, name: str, *, answered: bool) -> None:
        operation = OPERATIONS[name]
        with self.daemon.client() as client:
            state = _state(client, BOX)
            allowed = {operation.after} if answered else {operation.before, operation.after}
            assert state in allowed, f"{'answered' if answered else 'not answered'}: it is {state}"
            if state is not None:
                _use(client, BOX, kept=operation.before is not None, stopping=operation.after is STOP)
            for other in client.list_sandboxes():
                if other.name != BOX and other.state is RUN:
                    assert client.exec_command(other.name, "echo alive").stdout == "alive\n", other.name
            self._check_volume(client, name, answered=answered)
            made = {template.name for template in client.list_templates()}
            if answered and ("checkpoint" in name or name == "build"):
                assert MADE in made
            if MADE in made:
                again = client.create_sandbox(MADE)
                assert client.exec_command(again.id, "echo alive").stdout == "alive\n"

    def _check_volume(self, client: Client, name: str, *, answered: bool) -> None:
        """It is there with what was in it, or gone."""
        found = [volume.name for volume in client.list_volumes()]
        if name in ("make a volume", "remove a volume"):
            after = [VOLUME] if name == "make a volume" else []
            assert not answered or found == after
        else:
            assert found == ([VOLUME] if "volume" in name else [])
        if found:
            mounting = client.create_sandbox(volumes=[f"{VOLUME}:/data"])
            kept = OPERATIONS[name].before is not None
            wanted = "kept" if kept else ""
            assert (
                client.exec_command(mounting.id, "cat /data/kept 2>/dev/null; echo >> /data/new").stdout
                == wanted
            )

    def clear(self) -> None:
        """Remove all that a test makes; nothing else may be left."""
        with self.daemon.client() as client:
            _sweep(client)
        settled(self.daemon, self.held)


def _sweep(client: Client) -> None:
    for pool in client.list_pools():
        client.remove_pool(pool.template)
    for sandbox in client.list_sandboxes():
        with suppress(NotFound):
            client.remove_sandbox(sandbox.id)
    for volume in client.list_volumes():
        client.remove_volume(volume.id)
    for template in client.list_templates():
        if template.name == MADE:
            client.remove_template(template.id)
    with suppress(NotFound):
        client.remove_secret("cut-secret")
    client.forget_steps()
    client.prune()


def _state(client: Client, name: str) -> State | None:
    try:
        return client.get_sandbox(name).state
    except NotFound:
        return None


def _use(client: Client, name: str, *, kept: bool, stopping: bool) -> None:
    state = client.get_sandbox(name).state
    if state in (State.PAUSED, State.SUSPENDED):
        client.resume_sandbox(name)
    elif state is STOP:
        client.start_sandbox(name)
    try:
        assert client.exec_command(name, "echo alive", timeout=60).stdout == "alive\n"
    except (AssertionError, Conflict):
        if not stopping:
            raise
        wait_for(lambda: _state(client, name) is STOP, "neither usable nor stopped")
        client.start_sandbox(name)
    if kept:
        assert client.read_file(name, KEPT) == "kept"


@pytest.fixture(scope="module")
def scene(shared_daemon: Daemon) -> Iterator[Scene]:
    shared_daemon.remove_all()
    shared_daemon.stop()
    daemon = PointedDaemon(shared_daemon.data)
    daemon.start()
    try:
        found = Scene(daemon)
        with daemon.client() as client:
            _sweep(client)  # what a run that was broken off has left
            client.create_sandbox(name="warm")
            client.create_sandbox(name="warm-2", isolation="gvisor")
            _sweep(client)
        found.held = traces(daemon)
        yield found
    finally:
        if daemon.process is not None:
            daemon.stop()
        Path(daemon.orders).unlink(missing_ok=True)
        shared_daemon.start()
        shared_daemon.remove_all()


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_cut_at_any_step_leaves_the_operation_done_or_undone(scene: Scene, name: str) -> None:
    """LIFE-: nothing leaks, nothing is lost, nothing is half done."""
    total = scene.points(name)
    every = range(1, total + 1)
    drawn = (
        every if POINTS == "all" else random.Random(f"{SEED} {name}").sample(every, min(int(POINTS), total))
    )
    for point in drawn:
        try:
            scene.cut(name, point)
        except BaseException as error:
            error.add_note(f"{name}, cut at point {point} of {total}")
            raise


@pytest.mark.parametrize("name", ["create", "start", "claim from a pool", "fork", "wake", "remove"])
def test_a_gateway_that_ends_at_any_step_leaves_the_operation_done_or_undone(scene: Scene, name: str) -> None:
    """Of those operations that tell it something. The sandbox has its network afterwards, at the next gateway."""
    total = scene.points(name)
    point = random.Random(f"gateway {SEED} {name}").randint(1, total)
    try:
        scene.cut_gateway(name, point)
    except BaseException as error:
        error.add_note(f"{name}, the gateway ended at point {point} of {total}")
        raise


def test_there_are_more_than_a_thousand_points(scene: Scene) -> None:
    assert sum(scene.points(name) for name in OPERATIONS) >= 1000

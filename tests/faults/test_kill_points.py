"""The crash contract: when both processes of the daemon are killed, the next start finishes or undoes whatever was cut.

In each round every operation is begun, each on a sandbox of its own and so much ahead of the one `kill -9` that another
part of it has been done by then. Afterwards each must be done or undone as a whole, and done if it was answered; a sandbox
that just ran on must not have noticed; and once all are removed nothing may be left of them.

The moments are drawn with a fixed seed, evenly over each operation. CORRAL_KILL_POINTS draws another number of them,
CORRAL_KILL_SEED others. A failure names the operations and their moments.
"""

import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from tests.conftest import Daemon
from tests.traces import settled, traces, wait_for

from corral import Client
from corral.errors import Conflict, CorralError, NotFound
from corral.host.programs import search_path
from corral.model.lifecycle import State

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]

POINTS = int(os.environ.get("CORRAL_KILL_POINTS", "20"))
SEED = os.environ.get("CORRAL_KILL_SEED", "1")
BEYOND = 1.15
"""Times an operation's measured duration: some kills come just after its end."""
COUNTER = "import itertools, time\nfor i in itertools.count(): print(i, flush=True); time.sleep(0.02)"
FORKS = 3
KEPT = "/home/user/kept"
Act = Callable[[Client, str], object]


@dataclass(frozen=True)
class Operation:
    """What is interrupted: `ready` makes its sandbox, `act` is cut. `before` and `after` are the sandbox's states when it is
    undone and done; None: there is no sandbox."""

    ready: Act
    act: Act
    before: State | None
    after: State | None


def _made(client: Client, name: str) -> None:
    client.create_sandbox(name=name)
    client.write_file(name, KEPT, name)


def _stopped(client: Client, name: str) -> None:
    _made(client, name)
    client.stop_sandbox(name, 0)


def _paused(client: Client, name: str) -> None:
    _made(client, name)
    client.pause_sandbox(name)


def _made_of_gvisor(client: Client, name: str) -> None:
    client.create_sandbox(name=name, isolation="gvisor")
    client.write_file(name, KEPT, name)


def _suspended(client: Client, name: str) -> None:
    _made_of_gvisor(client, name)
    client.pause_sandbox(name, memory=True)


def _forks(name: str) -> list[str]:
    return [f"{name}-{number + 1}" for number in range(FORKS)]


def _taken(name: str) -> str:
    return f"{name}-taken"


OPERATIONS = {
    "create": Operation(
        lambda client, name: None, lambda client, name: client.create_sandbox(name=name), None, State.RUNNING
    ),
    "start": Operation(
        _stopped, lambda client, name: client.start_sandbox(name), State.STOPPED, State.RUNNING
    ),
    "stop": Operation(_made, lambda client, name: client.stop_sandbox(name, 5), State.RUNNING, State.STOPPED),
    "pause": Operation(_made, lambda client, name: client.pause_sandbox(name), State.RUNNING, State.PAUSED),
    "resume": Operation(
        _paused, lambda client, name: client.resume_sandbox(name), State.PAUSED, State.RUNNING
    ),
    "checkpoint": Operation(
        _made, lambda client, name: client.checkpoint(name, _taken(name)), State.RUNNING, State.RUNNING
    ),
    "fork": Operation(
        _made, lambda client, name: client.fork_sandbox(name, FORKS), State.RUNNING, State.RUNNING
    ),
    **(
        {
            "suspend": Operation(
                _made_of_gvisor,
                lambda client, name: client.pause_sandbox(name, memory=True),
                State.RUNNING,
                State.SUSPENDED,
            ),
            "wake": Operation(
                _suspended, lambda client, name: client.resume_sandbox(name), State.SUSPENDED, State.RUNNING
            ),
        }
        if shutil.which("runsc", path=search_path())
        else {}
    ),
    "remove": Operation(_made, lambda client, name: client.remove_sandbox(name), State.RUNNING, None),
}


class Attempt:
    """One operation, begun in a thread of its own."""

    def __init__(self, daemon: Daemon, name: str) -> None:
        self.name = name
        self.operation = OPERATIONS[name]
        self.begun = self.ended = 0.0
        self.answered = False
        self._client = daemon.client()
        self._client.health()  # connected by now: the moments are those of the operation alone
        self._thread = threading.Thread(target=self._act)

    def begin(self) -> None:
        self.begun = time.monotonic()
        self._thread.start()

    def _act(self) -> None:
        with self._client, suppress(CorralError):
            self.operation.act(self._client, self.name)
            self.answered = True
        self.ended = time.monotonic()

    def join(self) -> float:
        """Wait for its end; the seconds that it took."""
        self._thread.join()
        return self.ended - self.begun


@dataclass
class Scene:
    """A daemon with a sandbox in it that counts, what the installation holds then, and how long operations take in it."""

    daemon: Daemon
    process: int = 0
    held: frozenset[str] = frozenset()
    counted: bytearray = field(default_factory=bytearray)
    durations: dict[str, float] = field(default_factory=dict)
    intact: bool = False
    """Whether the last round left it as it was: after one that failed it is set up again, and judges the next round alone."""

    def set_up(self) -> None:
        """Start afresh, and measure what the operations take side by side."""
        self.daemon.remove_all()
        with self.daemon.client() as client:
            with suppress(NotFound):
                client.remove_template(_taken("checkpoint"))
            client.create_sandbox(name="bystander")
            self.process = client.start_process("bystander", ["python3", "-c", COUNTER]).id
        self.held, self.counted = traces(self.daemon), bytearray()
        attempts = self.prepare()
        for attempt in attempts:
            attempt.begin()
        self.durations = {attempt.name: attempt.join() for attempt in attempts}
        self.clear()

    def prepare(self) -> list[Attempt]:
        with self.daemon.client() as client:
            for name, operation in OPERATIONS.items():
                operation.ready(client, name)
        return [Attempt(self.daemon, name) for name in OPERATIONS]

    def clear(self) -> None:
        """Remove what the operations left, and see that nothing else is left."""
        with self.daemon.client() as client:
            for name in OPERATIONS:
                with suppress(NotFound):
                    client.remove_sandbox(name)
            with suppress(NotFound):
                client.remove_template(_taken("checkpoint"))
            for fork in _forks("fork"):
                with suppress(NotFound):
                    client.remove_sandbox(fork)
        settled(self.daemon, self.held)

    def counting(self) -> None:
        """The bystander goes on counting where it was, and has left out nothing."""
        with self.daemon.client() as client:
            begun = len(self.counted)
            for piece in client.follow_output("bystander", self.process, begun):
                self.counted += piece.data
                if len(self.counted) > begun + 64:
                    break
        lines = self.counted.decode().rpartition("\n")[0].split("\n")
        assert lines == [str(number) for number in range(len(lines))]


@pytest.fixture(scope="module")
def whole_scene(shared_daemon: Daemon) -> Iterator[Scene]:
    yield Scene(shared_daemon)
    if shared_daemon.process is None:
        shared_daemon.start()
    shared_daemon.remove_all()


@pytest.fixture
def scene(whole_scene: Scene) -> Scene:
    if not whole_scene.intact:
        if whole_scene.daemon.process is None:
            whole_scene.daemon.start()
        whole_scene.set_up()
    whole_scene.intact = False
    return whole_scene


@pytest.mark.parametrize("point", range(POINTS))
def test_a_kill_at_any_moment_leaves_every_operation_done_or_undone(scene: Scene, point: int) -> None:
    ahead = {}
    for name, duration in scene.durations.items():
        slice_ = random.Random(f"{SEED} {name}").sample(range(POINTS), POINTS)[point]
        part = (slice_ + random.Random(f"{SEED} {name} {point}").random()) / POINTS
        ahead[name] = part * duration * BEYOND
    print({name: f"{seconds * 1000:.1f} ms" for name, seconds in ahead.items()})  # noqa: T201  shown by a failure
    attempts = scene.prepare()
    _kill_during(scene.daemon, attempts, ahead)
    scene.daemon.start()
    for attempt in attempts:
        _check(scene.daemon, attempt)
    scene.counting()
    scene.clear()
    scene.intact = True


def _kill_during(daemon: Daemon, attempts: list[Attempt], ahead: dict[str, float]) -> None:
    moment = time.monotonic() + max(ahead.values())
    for attempt in sorted(attempts, key=lambda attempt: -ahead[attempt.name]):
        time.sleep(max(moment - ahead[attempt.name] - time.monotonic(), 0))
        attempt.begin()
    time.sleep(max(moment - time.monotonic(), 0))
    daemon.kill()
    for attempt in attempts:
        attempt.join()


def _check(daemon: Daemon, attempt: Attempt) -> None:
    name, operation = attempt.name, attempt.operation
    with daemon.client() as client:
        state = _state(client, name)
        said = "answered" if attempt.answered else "not answered"
        allowed = {operation.after} if attempt.answered else {operation.before, operation.after}
        assert state in allowed, f"{name}, {said}: the sandbox is {state}"
        if state is None:
            return
        if state is State.SUSPENDED:
            state = client.resume_sandbox(name).state
        if name != "create":
            assert client.read_file(name, KEPT) == name, name
        if state is State.RUNNING:
            _usable(client, name)
        elif state is State.PAUSED:
            _usable(client, client.resume_sandbox(name).name)
        else:
            _usable(client, client.start_sandbox(name).name)
        if name == "fork":
            _check_forks(client, name, answered=attempt.answered)
        if name == "checkpoint":
            _check_template(client, name, answered=attempt.answered)


def _state(client: Client, name: str) -> State | None:
    try:
        return client.get_sandbox(name).state
    except NotFound:
        return None


def _usable(client: Client, name: str) -> None:
    """It runs commands; or it was told to stop before the kill, and stops, and can be started again."""
    try:
        assert client.exec_command(name, "echo alive", timeout=30).stdout == "alive\n", name
    except (AssertionError, Conflict):
        if name != "stop":
            raise
        wait_for(lambda: _state(client, name) is State.STOPPED, f"{name} is neither usable nor stopped")
        client.start_sandbox(name)
        assert client.exec_command(name, "echo alive", timeout=30).stdout == "alive\n"


def _check_forks(client: Client, name: str, *, answered: bool) -> None:
    """All are there, or none."""
    there = {item.name for item in client.list_sandboxes()} & set(_forks(name))
    assert there == set(_forks(name)) or (not there and not answered)
    for fork in there:
        assert client.read_file(fork, KEPT) == name
        _usable(client, fork)


def _check_template(client: Client, name: str, *, answered: bool) -> None:
    taken = _taken(name)
    if taken not in {template.name for template in client.list_templates()}:
        assert not answered, f"{taken} was answered and is lost"
        return
    made = client.create_sandbox(taken)
    assert client.read_file(made.id, KEPT) == name
    client.remove_sandbox(made.id)

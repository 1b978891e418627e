"""A daemon that ends, asked to or killed: what runs in its sandboxes goes on, and a new one takes all of it up."""

import json
import os
import signal
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import Daemon
from tests.traces import settled, traces, wait_for

from corral import Client, Sandbox
from corral.errors import Conflict, CorralError
from corral.model.lifecycle import State

pytestmark = [
    pytest.mark.root,
    # The HTTP library drops a unix socket that nobody answers without closing it.
    pytest.mark.filterwarnings("ignore:.*socket.socket:pytest.PytestUnraisableExceptionWarning"),
]

ISOLATIONS = ["container", pytest.param("gvisor", marks=pytest.mark.gvisor)]
ENDS: dict[str, Callable[[Daemon], None]] = {"SIGTERM": Daemon.stop, "SIGKILL": Daemon.kill}
# Ends soon after the file `go` is there.
WAITER = "while [ ! -e /home/user/go ]; do sleep 0.02; done; echo after; echo err >&2; exit 7"


@pytest.fixture(params=ENDS)
def restart(request: pytest.FixtureRequest, daemon: Daemon) -> Callable[[Callable[[], object]], None]:
    """Ends the daemon, does something meanwhile, and starts it again."""

    def again(meanwhile: Callable[[], object] = lambda: None) -> None:
        ENDS[request.param](daemon)
        try:
            meanwhile()
        finally:
            daemon.start()

    return again


def _host_path(daemon: Daemon, box: Sandbox, path: str) -> Path:
    return daemon.run / "sandboxes" / box.id / "root" / path.lstrip("/")


def _pids(daemon: Daemon, box: Sandbox) -> set[str]:
    return {trace for trace in traces(daemon) if trace.startswith("process ") and trace.endswith(box.id)}


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_processes_go_on_and_nothing_of_them_is_lost(
    daemon: Daemon, client: Client, restart: Callable[..., None], isolation: str
) -> None:
    box = Sandbox.create(client=client, isolation=isolation)
    counter = box.spawn(["bash", "-c", "for i in $(seq 200); do echo $i; sleep 0.01; done; exit 3"])
    reader = box.spawn(
        ["bash", "-c", 'while read -r line; do echo "got $line"; done; echo end; exit 4'], stdin=True
    )
    reader.write(b"one\n")
    ended = box.spawn(["sh", "-c", "echo done; exit 5"], tag="mine")
    assert ended.wait().exit_code == 5

    restart()

    with daemon.client() as after:
        again = Sandbox.connect(box.id, client=after)
        assert again.state is State.RUNNING
        assert [process.id for process in again.processes()] == [counter.id, reader.id, ended.id]
        counted = again.process(counter.id).wait()
        assert counted.stdout.split() == [str(number) for number in range(1, 201)]
        assert counted.exit_code == 3
        resumed = again.process(reader.id)
        resumed.write(b"two\n")
        resumed.close_stdin()
        assert resumed.wait().stdout == "got one\ngot two\nend\n"
        assert resumed.exit_code == 4
        known = again.process(ended.id)
        assert (known.info.tag, known.info.exit.code if known.info.exit else None) == ("mine", 5)
        assert known.wait().stdout == "done\n"
        assert again.spawn("true").id > ended.id


def test_a_process_that_ends_while_no_daemon_runs_is_told_later(
    daemon: Daemon, client: Client, box: Sandbox, restart: Callable[..., None]
) -> None:
    process = box.spawn(["bash", "-c", WAITER])
    others = len(_pids(daemon, box))

    def let_it_end() -> None:
        _host_path(daemon, box, "/home/user/go").touch()
        wait_for(lambda: len(_pids(daemon, box)) < others, "the process did not end")

    restart(let_it_end)
    with daemon.client() as after:
        result = Sandbox.connect("box", client=after).process(process.id).wait()
    assert (result.exit_code, result.stdout, result.stderr, result.reason) == (7, "after\n", "err\n", "")


def test_a_time_limit_holds_across_a_restart(
    daemon: Daemon, box: Sandbox, restart: Callable[..., None]
) -> None:
    process = box.spawn(["sleep", "1000"], timeout=1)
    restart()
    with daemon.client() as after:
        result = Sandbox.connect("box", client=after).process(process.id).wait()
    assert (result.exit_code, result.signal) == (137, 9)
    assert result.reason == "timeout"


def test_who_follows_sees_a_restart_as_a_delay(
    daemon: Daemon, box: Sandbox, restart: Callable[..., None]
) -> None:
    process = box.spawn(["bash", "-c", f"echo before; {WAITER}"])
    seen: list[bytes] = []
    begun = threading.Event()
    failures: list[Exception] = []

    def follow() -> None:
        try:
            for piece in process.output():
                seen.append(piece.data)
                begun.set()
        except CorralError as error:
            failures.append(error)

    thread = threading.Thread(target=follow)
    thread.start()
    assert begun.wait(30)
    restart()
    with daemon.client() as after:
        after.write_file("box", "/home/user/go", b"")
    thread.join(60)
    assert not thread.is_alive()
    assert not failures
    assert sorted(b"".join(seen).split()) == [b"after", b"before", b"err"]
    assert process.exit_code == 7


def test_states_and_times_to_live_are_kept(
    daemon: Daemon, client: Client, restart: Callable[..., None]
) -> None:
    ran, rested, stood, gone = (
        Sandbox.create(client=client, name=name) for name in ("ran", "rested", "stood", "gone")
    )
    ticking = rested.spawn(["bash", "-c", "while :; do echo; sleep 0.01; done"])
    next(ticking.output())
    rested.pause()
    stood.files.write("/home/user/kept", "precious")
    stood.stop(0)
    gone.kill()
    ran.set_ttl(3600)
    Sandbox.create(client=client, name="brief", ttl=2)
    Sandbox.create(client=client, name="resting", ttl=2).pause()  # what rests does not age

    restart()

    with daemon.client() as after:
        states = {
            "ran": State.RUNNING,
            "rested": State.PAUSED,
            "resting": State.PAUSED,
            "stood": State.STOPPED,
        }
        wait_for(
            lambda: {box.name: box.state for box in Sandbox.list(client=after)} == states,
            lambda: Sandbox.list(client=after),
        )
        after.resume_sandbox("resting")
        wait_for(lambda: "resting" not in {box.name for box in Sandbox.list(client=after)}, "it does not age")
        left = after.get_sandbox("ran").ttl
        assert left is not None
        assert left >= 3600
        _resumes(Sandbox.connect("rested", client=after), ticking.id)
        again = Sandbox.connect("stood", client=after).start()
        assert again.files.read("/home/user/kept") == "precious"


def _resumes(rested: Sandbox, ticking: int) -> None:
    with pytest.raises(Conflict) as refused:
        rested.exec("true")
    assert "corral resume rested" in refused.value.hint
    rested.resume()
    assert rested.exec("echo alive").stdout == "alive\n"
    told = sum(len(piece.data) for piece in rested.client.follow_output("rested", ticking, wait=False))
    assert told > 0
    more = rested.client.follow_output("rested", ticking, told)
    assert next(iter(more)).offset == told


def test_a_sandbox_that_ended_meanwhile_is_stopped_and_can_be_started(
    daemon: Daemon, box: Sandbox, restart: Callable[..., None]
) -> None:
    box.files.write("/home/user/kept", "precious")
    process = box.spawn(["sleep", "1000"])
    first = int((daemon.run / "sandboxes" / box.id / "bundle" / "pid").read_text())

    def end_it() -> None:
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: not _pids(daemon, box), "it did not end")

    restart(end_it)
    with daemon.client() as after:
        again = Sandbox.connect("box", client=after)
        assert again.state is State.STOPPED
        assert "while the daemon was down" in again.info.reason
        again.start()
        assert again.files.read("/home/user/kept") == "precious"
        assert again.process(process.id).wait().reason == "lost"


def test_nothing_is_left_of_what_is_removed_after_a_restart(
    daemon: Daemon, client: Client, restart: Callable[..., None]
) -> None:
    held = traces(daemon)
    ran, rested, stood = (Sandbox.create(client=client) for _ in range(3))
    ran.spawn(["sleep", "1000"], stdin=True)
    ran.exec("true")
    rested.pause()
    stood.stop(0)
    assert stood.files.list("/home/user") is not None  # which mounts its root
    restart()
    daemon.remove_all()
    settled(daemon, held)


def test_what_a_daemon_left_half_removed_goes_at_the_next_start(daemon: Daemon, box: Sandbox) -> None:
    """G-337. Records of a sandbox that no row owns: the last steps of a removal that was cut."""
    held = traces(daemon)
    daemon.stop()
    orphan = "00000000000000aa"
    (daemon.data / "sandboxes" / f"{orphan}.json").write_text(
        json.dumps({"runtime": "runc", "uid_base": 1_000_000, "layers": []})
    )
    (daemon.run / "sandboxes" / orphan / "root").mkdir(parents=True)
    daemon.start()
    settled(daemon, held)


def test_the_gateway_comes_back_by_itself_and_so_does_the_network(daemon: Daemon, box: Sandbox) -> None:
    ask = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "http://gateway.corral/"]
    assert box.exec(ask).stdout == "200"
    for _ in range(2):
        former = daemon.gateway_pid()
        assert former is not None
        os.kill(former, signal.SIGKILL)
        wait_for(lambda: daemon.gateway_pid() not in (None, former), "no new gateway")  # noqa: B023
        wait_for(lambda: box.exec(ask).stdout == "200", "the sandbox has no network again")


def test_a_daemon_starts_with_an_altered_secret_and_refuses_that_one_alone(
    daemon: Daemon, client: Client
) -> None:
    """G-342: it is named, and can be stored again."""
    names = ("whole", "altered")
    for name in names:
        client.put_secret(name, "sk-kept-0123456789", "openai", "http://192.0.2.1")
    daemon.stop()
    with sqlite3.connect(daemon.data / "corral.db") as db:
        db.execute("UPDATE secrets SET base_url = 'https://thief.example' WHERE name = 'altered'")
    daemon.start()
    try:
        problems = {item.name: item.problem for item in client.list_secrets() if item.name in names}
        assert (problems["whole"], "altered" in problems["altered"]) == ("", True)
        box = Sandbox.create(client=client, secrets=names)
        said = box.exec("curl -s http://gateway.corral/s/altered/ http://gateway.corral/s/whole/").stdout
        assert ("no secret 'altered'" in said, "no secret 'whole'" in said) == (True, False)
        client.put_secret("altered", "sk-kept-0123456789", "openai", "http://192.0.2.1")
        assert not any(item.problem for item in client.list_secrets() if item.name in names)
    finally:
        for name in names:
            client.remove_secret(name)


def test_without_a_gateway_there_is_no_network(daemon: Daemon, box: Sandbox) -> None:
    """The gateway is stopped, not dead, so that nobody starts it again: what it does not answer, nobody does."""
    gateway = daemon.gateway_pid()
    assert gateway is not None
    os.kill(gateway, signal.SIGSTOP)
    try:
        asked = box.exec(["curl", "-s", "-m", "1", "http://gateway.corral/"])
        assert asked.exit_code != 0
        assert asked.stdout == ""
    finally:
        os.kill(gateway, signal.SIGCONT)

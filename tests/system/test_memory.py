"""Memory of gVisor sandboxes on disk: what goes on after it, and what must not."""

import json
import time
from collections.abc import Iterator

import pytest
from tests.conftest import Daemon
from tests.traces import settled, traces, wait_for

from corral import Client, Sandbox
from corral.errors import Conflict, InvalidInput, Unsupported
from corral.model.lifecycle import State
from corral.sdk.sandbox import Process

pytestmark = [pytest.mark.root, pytest.mark.gvisor]

# Counts in memory, into a file that it holds open and into its output; serves a file over a listening socket.
COUNTER = """
import http.server, os, sys, threading, time
os.chdir("/home/user")
log = open("log", "a", buffering=1)
deleted = open("deleted", "w+"); deleted.write("still here"); deleted.flush(); os.unlink("deleted")
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        deleted.seek(0)
        body = f"{count} {deleted.read()} {os.environ['ANTHROPIC_API_KEY']}".encode()
        self.send_response(200); self.send_header("content-length", str(len(body))); self.end_headers(); self.wfile.write(body)
    def log_message(self, *_): pass
threading.Thread(target=http.server.HTTPServer(("", 8000), Page).serve_forever).start()
count = 0
while True:
    count += 1
    print(count, flush=True); log.write(f"{count}\\n")
    time.sleep(0.05)
"""


@pytest.fixture
def traced(daemon: Daemon) -> Iterator[Daemon]:
    """What the daemon holds afterwards is what it held before."""
    before = traces(daemon)
    yield daemon
    daemon.remove_all()
    settled(daemon, before)


@pytest.fixture
def busy(traced: Daemon, client: Client) -> Iterator[Sandbox]:
    """A sandbox in which the counter runs, with a token in its environment."""
    client.put_secret("anthropic", "sk-ant-of-the-host", base_url="https://models.example")
    box = Sandbox.create(client=client, isolation="gvisor", name="busy", secrets=("anthropic",))
    box.spawn(["python3", "-c", COUNTER], tag="counter")
    wait_for(lambda: page(box) is not None, "the counter does not serve")
    yield box
    client.remove_secret("anthropic")


def page(box: Sandbox) -> str | None:
    asked = box.exec(["curl", "-s", "http://localhost:8000/"])
    return asked.stdout if asked.exit_code == 0 else None


def counted(box: Sandbox) -> int:
    shown = page(box)
    assert shown is not None
    number, rest = shown.split(" ", 1)
    assert rest.startswith("still here ")
    return int(number)


def held_token(box: Sandbox) -> str:
    """The token that the counter has had since its start."""
    return (page(box) or "").split()[-1]


def new_token(box: Sandbox) -> str:
    """The token that a new process gets."""
    return box.exec(["printenv", "ANTHROPIC_API_KEY"], check=True).stdout.strip()


def identity(box: Sandbox) -> list[str]:
    """Host name, machine id, network, and random numbers of the system."""
    show = "hostname; cat /etc/hostname /etc/machine-id; head -c 16 /dev/urandom | base64"
    return box.exec(["sh", "-c", show], check=True).stdout.split()


def host_processes(daemon: Daemon, box: Sandbox) -> list[str]:
    return [trace for trace in traces(daemon) if trace.startswith("process ") and box.id in trace]


@pytest.mark.parametrize("killed", [False, True], ids=["", "daemon killed"])
def test_a_suspended_sandbox_goes_on_where_it_was(traced: Daemon, busy: Sandbox, killed: bool) -> None:
    before = counted(busy)
    assert busy.pause(memory=True).state is State.SUSPENDED
    assert host_processes(traced, busy) == []
    if killed:
        traced.kill()
        traced.start()
    with traced.client() as client:
        box = Sandbox.connect(busy.id, client=client)
        assert box.state is State.SUSPENDED
        with pytest.raises(Conflict) as refused:
            box.exec(["true"])
        assert "corral resume" in refused.value.hint
        assert box.resume().state is State.RUNNING
        after = counted(box)
        assert before < after
        (process,) = [item for item in box.processes() if item.tag == "counter"]
        assert process.exit is None
        wait_for(lambda: counted(box) > after + 5, "it does not count on")
        log = [int(line) for line in box.files.read("/home/user/log").split()]
        assert log == list(range(1, len(log) + 1))
        follow = box.process(process.id)
        follow.kill()
        shown = [int(line) for line in follow.wait().stdout.split()]
        assert shown == list(range(1, len(shown) + 1))
        assert len(shown) > after


@pytest.mark.parametrize("memory", [False, True], ids=["paused", "suspended"])
def test_its_clock_is_right_before_anything_else_is_done(busy: Sandbox, *, memory: bool) -> None:
    """G-345: for who ran on, too: what a certificate's time is compared with."""
    script = "import sys, time\nfor _ in sys.stdin: print(time.time(), flush=True)"
    old = busy.spawn(["python3", "-c", script], stdin=True)
    busy.pause(memory=memory)
    time.sleep(5)
    busy.resume()
    for asked in (None, old):
        before = time.time()
        now = float(busy.exec("date +%s.%N").stdout if asked is None else _asked(asked))
        assert before - 1 <= now <= time.time() + 1


def _asked(process: Process) -> str:
    process.write(b"x\n")
    return next(piece.data for piece in process.output()).decode()


def test_stopping_or_removing_a_suspended_one_leaves_no_image(traced: Daemon, busy: Sandbox) -> None:
    images = traced.data / "store" / "machines"
    busy.pause(memory=True)
    assert [path.name for path in images.iterdir()] == [busy.id]
    busy.stop()
    assert list(images.iterdir()) == []
    busy.start()
    assert page(busy) is None
    assert busy.exec(["test", "-e", "/home/user/log"]).exit_code == 0
    busy.pause(memory=True)
    busy.kill()
    assert list(images.iterdir()) == []


def test_an_image_that_cannot_be_read_leaves_the_sandbox_suspended(traced: Daemon, busy: Sandbox) -> None:
    busy.pause(memory=True)
    record = traced.data / "store" / "machines" / busy.id / "image.json"
    whole = record.read_text()
    record.write_text(json.dumps({**json.loads(whole), "runtime": "runsc 0"}))
    with pytest.raises(Conflict) as refused:
        busy.resume()
    assert "another version" in refused.value.message
    assert busy.refresh().state is State.SUSPENDED
    record.write_text(whole)
    assert counted(busy.resume()) > 0


def test_runc_says_what_it_cannot_do(client: Client) -> None:
    box = Sandbox.create(client=client)
    with pytest.raises(Unsupported) as refused:
        box.pause(memory=True)
    assert "gvisor" in refused.value.hint
    assert box.refresh().state is State.RUNNING


def test_the_commands(traced: Daemon, busy: Sandbox) -> None:
    traced.cli("pause", "--memory", "busy")
    assert "suspended" in traced.cli("ls").stdout
    traced.cli("resume", "busy")
    assert counted(busy) > 0


def test_forks_go_on_each_as_themselves(traced: Daemon, busy: Sandbox) -> None:
    before = counted(busy)
    forks = busy.fork(3)
    assert [box.name for box in forks] == ["busy-1", "busy-2", "busy-3"]
    assert {box.refresh().info.template_name for box in forks} == {"base"}
    for box in forks:
        assert counted(box) > before
        log = [int(line) for line in box.files.read("/home/user/log").split()]
        assert log == list(range(1, len(log) + 1))
        assert identity(box)[:2] == [box.name] * 2
        assert [item.tag for item in box.processes() if item.exit is None] == ["counter"]
    everybody = [busy, *forks]
    for part in (2, 3):
        assert len({identity(box)[part] for box in everybody}) == 4
    forks[0].files.write("/home/user/mine", b"1")
    assert busy.exec(["test", "-e", "/home/user/mine"]).exit_code != 0
    busy.kill()
    assert counted(forks[1]) > before
    assert list((traced.data / "store" / "machines").iterdir()) == []


def test_the_parent_s_token_is_in_no_fork(busy: Sandbox) -> None:
    """Neither in what ran on, nor in what starts there; the processes that ran on have their own fork's."""
    parent = held_token(busy)
    assert parent == new_token(busy)
    (fork,) = busy.fork()
    assert held_token(fork) == new_token(fork) != parent


def test_a_checkpoint_with_memory_starts_warm_and_holds_no_token(
    traced: Daemon, client: Client, busy: Sandbox
) -> None:
    token = held_token(busy)
    made = client.checkpoint(busy.id, "warm", memory=True)
    try:
        assert made.memory is not None
        assert made.origin is not None
        assert made.origin.sandbox == "busy"
        images = traced.data / "store" / "machines"
        for path in images.glob("*/runtime/*"):
            assert token.encode() not in path.read_bytes()
        busy.kill()
        boxes = [Sandbox.create("warm", client=client, secrets=("anthropic",)) for _ in range(2)]
        assert len({held_token(box) for box in boxes} | {token}) == 3
        assert all(held_token(box) == new_token(box) for box in boxes)
        client.set_pool("warm", 1)
        wait_for(lambda: client.list_pools()[0].ready == 1, "the pool does not fill")
        claimed = Sandbox.create("warm", client=client, secrets=("anthropic",))
        assert held_token(claimed) == new_token(claimed) not in {held_token(box) for box in boxes}
        client.remove_pool("warm")
        with pytest.raises(InvalidInput):
            Sandbox.create("warm", client=client, isolation="container")
        with pytest.raises(InvalidInput):
            Sandbox.create("warm", client=client, limits={"cpus": 1})
        stopped = boxes[0].stop().start()
        assert page(stopped) is None
    finally:
        client.remove_template("warm")
    assert list(images.iterdir()) == []


def test_of_runc_the_files_are_forked(traced: Daemon, client: Client) -> None:
    box = Sandbox.create(client=client, name="plain")
    box.exec("echo one > /home/user/file; sleep 1000 >/dev/null 2>&1 &", check=True)
    done = traced.cli("fork", "plain", "-n", "2", "--name", "try")
    assert done.stdout == "try-1\ntry-2\n"
    assert "only gVisor" in done.stderr
    for name in ("try-1", "try-2"):
        fork = Sandbox.connect(name, client=client)
        assert fork.files.read("/home/user/file") == "one\n"
        assert "sleep 1000" not in fork.exec(["ps", "-e", "-o", "args"], check=True).stdout

"""Memory of gVisor sandboxes on disk: what goes on after it, and what must not."""

import json
from collections.abc import Iterator

import pytest
from tests.conftest import Daemon
from tests.traces import settled, traces, wait_for

from corral import Client, Sandbox
from corral.errors import Conflict, Unsupported
from corral.model.lifecycle import State

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
        body = f"{count} {deleted.read()}".encode()
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
def busy(traced: Daemon, client: Client) -> Sandbox:
    """A sandbox in which the counter runs."""
    box = Sandbox.create(client=client, isolation="gvisor", name="busy")
    box.spawn(["python3", "-c", COUNTER], tag="counter")
    wait_for(lambda: page(box) is not None, "the counter does not serve")
    return box


def page(box: Sandbox) -> str | None:
    asked = box.exec(["curl", "-s", "http://localhost:8000/"])
    return asked.stdout if asked.exit_code == 0 else None


def counted(box: Sandbox) -> int:
    shown = page(box)
    assert shown is not None
    number, _, rest = shown.partition(" ")
    assert rest == "still here"
    return int(number)


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

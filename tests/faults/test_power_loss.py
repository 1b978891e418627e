"""The power fails: what was answered as done and durable is there after the next start, and nothing is half there.

The data directory is on an ext4 that is shut down without a flush, as file systems' own tests do: whatever was not brought
to the disk by then is gone, in it and in the store's btrfs, which is in a file on it. With it go all processes, mounts,
control groups and the run directory.
"""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.faults.machine import TINY, Machine, build_tiny, machine
from tests.traces import settled, traces

from corral import Client
from corral.errors import NotFound
from corral.host.programs import search_path
from corral.model.lifecycle import State

pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(600),
    # Clients whose daemon goes under them leave their connections to the collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

BOX, MADE = "cut", "made"
BYTES = bytes(range(256)) * 4096


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    folder = tmp_path_factory.mktemp("power")
    scratch = folder / "tree"
    scratch.mkdir()
    with machine(folder) as made:
        with made.daemon.client() as client:
            build_tiny(client, scratch)
            client.create_sandbox(TINY, name="warm")
            client.remove_sandbox("warm")
        yield made


@pytest.fixture
def client(host: Machine) -> Iterator[Client]:
    if host.daemon.process is None:
        host.daemon.start()
    before = traces(host.daemon)
    with host.daemon.client() as client:
        yield client
    with host.daemon.client() as client:
        for sandbox in client.list_sandboxes():
            client.remove_sandbox(sandbox.id)
        with suppress(NotFound):
            client.remove_template(MADE)
        client.prune()
    settled(host.daemon, before)


def _cut(host: Machine) -> Client:
    host.cut()
    host.daemon.start()
    return host.daemon.client()


def test_a_checkpoint_that_was_answered_is_whole(host: Machine, client: Client) -> None:
    """A template's layers are on the disk before it is."""
    client.create_sandbox(TINY, name=BOX)
    client.write_file(BOX, "/kept", BYTES)
    client.checkpoint(BOX, MADE)
    with _cut(host) as after:
        made = after.create_sandbox(MADE)
        assert after.read_file_bytes(made.id, "/kept") == BYTES


@pytest.mark.skipif(shutil.which("runsc", path=search_path()) is None, reason="runsc is not installed")
def test_a_suspended_sandbox_goes_on(host: Machine, client: Client) -> None:
    """Its image, and that it is suspended, are on the disk before its processes are killed."""
    client.create_sandbox(TINY, name=BOX, isolation="gvisor")
    process = client.start_process(BOX, ["sh", "-c", "while :; do sleep 0.1; done"]).id
    client.pause_sandbox(BOX, memory=True)
    with _cut(host) as after:
        assert after.get_sandbox(BOX).state is State.SUSPENDED
        after.resume_sandbox(BOX)
        assert [item.id for item in after.list_processes(BOX) if item.exit is None] == [process]


@pytest.mark.skipif(shutil.which("runsc", path=search_path()) is None, reason="runsc is not installed")
def test_a_resumed_sandbox_does_not_go_back(host: Machine, client: Client) -> None:
    """It has gone on from its image, which must not be used a second time."""
    client.create_sandbox(TINY, name=BOX, isolation="gvisor")
    client.pause_sandbox(BOX, memory=True)
    client.resume_sandbox(BOX)
    with _cut(host) as after:
        assert after.get_sandbox(BOX).state is State.STOPPED
        after.start_sandbox(BOX)
        assert after.exec_command(BOX, "echo alive").stdout == "alive\n"


def test_sandboxes_are_stopped_and_have_their_files(host: Machine, client: Client) -> None:
    """As after any other boot; what was made or removed a moment before is there or not, and either way usable."""
    for name in (BOX, "removed"):
        client.create_sandbox(TINY, name=name)
        client.write_file(name, "/kept", BYTES)
    for place in (host.daemon.data / "store", host.daemon.data):
        subprocess.run(["sync", "--file-system", place], check=True)
    client.create_sandbox(TINY, name="fresh")
    client.remove_sandbox("removed")
    with _cut(host) as after:
        found = {sandbox.name: sandbox.state for sandbox in after.list_sandboxes()}
        assert found[BOX] is State.STOPPED
        assert set(found) <= {BOX, "removed", "fresh"}
        assert after.read_file_bytes(BOX, "/kept") == BYTES
        for name in found:
            after.start_sandbox(name)
            assert after.exec_command(name, "echo alive").stdout == "alive\n"
        assert after.read_file_bytes(BOX, "/kept") == BYTES


def test_what_the_first_start_and_settings_wrote_is_whole(tmp_path: Path) -> None:
    with machine(tmp_path) as fresh:
        with fresh.daemon.client() as client:
            client.set_config("e2b.isolation", "gvisor")
            client.put_secret("kept", "value-of-a-secret", "openai")
        installation = (fresh.daemon.data / "instance").read_text()
        with _cut(fresh) as after:
            assert after.get_config()["e2b.isolation"] == "gvisor"
            assert [secret.name for secret in after.list_secrets()] == ["kept"]
        assert (fresh.daemon.data / "instance").read_text() == installation

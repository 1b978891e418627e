"""Sandboxes that run are taken up by another daemon than the one that made them: by a newer version, with an older database;
and after their process numbers were given to others."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.machine import COUNTER, TINY, Machine, build_tiny, counts, machine
from tests.schemas import go_back, revisions
from tests.traces import wait_for

from corral.model.lifecycle import State

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]

BOX, OTHER = "box", "other"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    folder = tmp_path_factory.mktemp("others")
    (folder / "tree").mkdir()
    with machine(folder) as made:
        with made.daemon.client() as client:
            build_tiny(client, folder / "tree")
        yield made


@pytest.fixture
def boxes(host: Machine) -> Iterator[tuple[int, int]]:
    """Two sandboxes, `box` and `other`, each with a process that counts: their numbers."""
    if host.daemon.process is None:
        host.daemon.start()
    with host.daemon.client() as client:
        for name in (BOX, OTHER):
            client.create_sandbox(TINY, name=name)
        yield tuple(client.start_process(name, ["sh", "-c", COUNTER]).id for name in (BOX, OTHER))  # type: ignore[misc]
    with host.daemon.client() as client:
        for sandbox in client.list_sandboxes():
            client.remove_sandbox(sandbox.id)


@pytest.mark.parametrize("revision", [revisions()[0], revisions()[-2]])
def test_a_newer_daemon_takes_up_what_runs(host: Machine, boxes: tuple[int, int], revision: str) -> None:
    """G-341: with the oldest schema, and with the last one before this version's."""
    with host.daemon.client() as client:
        counts(client, BOX, boxes[0])
    host.daemon.stop()
    go_back(host.daemon.data / "corral.db", revision)
    host.daemon.start()
    with host.daemon.client() as client:
        counts(client, BOX, boxes[0])
        assert {sandbox.name: sandbox.state for sandbox in client.list_sandboxes()} == {
            BOX: State.RUNNING,
            OTHER: State.RUNNING,
        }
        assert client.exec_command(BOX, "echo alive").stdout == "alive\n"
        client.create_sandbox(TINY, name="third")
        assert client.exec_command("third", "echo alive").stdout == "alive\n"


def test_a_process_number_that_another_has_by_now_is_not_the_sandbox(
    host: Machine, boxes: tuple[int, int]
) -> None:
    """A stranger's, and another sandbox's: neither is taken for it, and neither is touched."""
    with host.daemon.client() as client:
        ids = {sandbox.name: sandbox.id for sandbox in client.list_sandboxes()}
    notes = {name: host.daemon.run / "sandboxes" / id / "bundle" / "pid" for name, id in ids.items()}
    with subprocess.Popen(["sleep", "infinity"]) as stranger:
        try:
            for taker in (stranger.pid, int(notes[OTHER].read_text())):
                host.daemon.kill()
                _end(int(notes[BOX].read_text()))
                notes[BOX].write_text(str(taker))
                host.daemon.start()
                with host.daemon.client() as client:
                    assert client.get_sandbox(BOX).state is State.STOPPED
                    assert stranger.poll() is None
                    assert client.exec_command(OTHER, "echo alive").stdout == "alive\n"
                    client.start_sandbox(BOX)
        finally:
            stranger.kill()


def _end(pid: int) -> None:
    fd = os.pidfd_open(pid)
    signal.pidfd_send_signal(fd, signal.SIGKILL)
    os.close(fd)
    wait_for(lambda: not _runs(pid), "it does not end")


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False

"""Sandboxes that fill the host's disk: the writer stands still before it is full, and goes on once there is room; and one that
is too fast to be seen in time cannot fill it either.
"""

import os
import signal
import time
from pathlib import Path

import pytest
from tests.faults.machine import MIB, TINY, bound_of, build_tiny, machine
from tests.traces import wait_for

from corral import Client
from corral.model.lifecycle import State

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]

_APPEND = "dd if=/dev/zero of=/fill bs=1M count={} oflag=append conv=notrunc,fsync"
WRITE = f"while {_APPEND.format(1)}; do sleep 0.05; done"
FLOOD = f"while {_APPEND.format(64)}; do :; done"


def test_a_writer_is_paused_before_the_disk_is_full_and_goes_on_when_it_is_not(tmp_path: Path) -> None:
    """On a real disk, with a real store in a sparse file, which the kernel would make read-only."""
    (tmp_path / "tree").mkdir()
    with machine(tmp_path, 8192 * MIB) as host, host.daemon.client() as client:
        build_tiny(client, tmp_path / "tree")
        client.create_sandbox(TINY, name="reader")
        client.create_sandbox(TINY, name="writer", limits={"disk": 6144 * MIB})
        ballast = _fill(host.daemon.data, leave=240 * MIB)
        client.start_process("writer", ["sh", "-c", WRITE])
        wait_for(lambda: client.get_sandbox("writer").state is State.PAUSED, "the writer goes on")
        assert client.get_sandbox("writer").reason.startswith("the host's disk is nearly full")
        assert _free(host.daemon.data) > 0
        assert client.get_sandbox("reader").state is State.RUNNING
        client.write_file("reader", "/small", "written")
        assert not _read_only(host.daemon.data)
        ballast.unlink()
        wait_for(lambda: client.get_sandbox("writer").state is State.RUNNING, "the writer does not go on")
        before = _written(client)
        wait_for(lambda: _written(client) > before, "it writes nothing more")


def test_a_disk_is_not_filled_while_nobody_looks_at_it(tmp_path: Path) -> None:
    """The daemon stands still, as if it were too slow."""
    (tmp_path / "tree").mkdir()
    with machine(tmp_path, 8192 * MIB) as host, host.daemon.client() as client:
        build_tiny(client, tmp_path / "tree")
        client.create_sandbox(TINY, name="writer", limits={"disk": 6144 * MIB})
        data = host.daemon.data
        assert host.daemon.process is not None
        ballast = _fill(data, leave=1024 * MIB)
        wait_for(lambda: 0 < bound_of(data) < 1024 * MIB, "what sandboxes write is not bounded")
        client.start_process("writer", ["sh", "-c", FLOOD])
        host.daemon.process.send_signal(signal.SIGSTOP)
        try:
            wait_for(lambda: _free(data) < 256 * MIB and _rests(data), "it does not write until it is full")
        finally:
            host.daemon.process.send_signal(signal.SIGCONT)
        assert client.get_sandbox("writer").state in (State.RUNNING, State.PAUSED)
        assert _free(data) > 32 * MIB
        assert not _read_only(data)
        ballast.unlink()
        wait_for(lambda: bound_of(data) > 1024 * MIB, "what sandboxes write is bounded still")
        wait_for(lambda: client.get_sandbox("writer").state is State.RUNNING, "the writer does not go on")
        client.write_file("writer", "/small", "written")


def _fill(disk: Path, *, leave: int) -> Path:
    ballast = disk / "ballast"
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, _free(disk) - leave)
    return ballast


def _free(disk: Path) -> int:
    found = os.statvfs(disk)
    return found.f_bavail * found.f_frsize


def _rests(disk: Path) -> bool:
    before = _free(disk)
    time.sleep(1)
    return _free(disk) == before


def _read_only(data: Path) -> bool:
    return bool(os.statvfs(data / "store").f_flag & os.ST_RDONLY)


def _written(client: Client) -> int:
    return client.stat_file("writer", "/fill").size

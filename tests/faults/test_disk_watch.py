"""Sandboxes that fill the host's disk: the writer stands still before it is full, and goes on once there is room."""

import os
from pathlib import Path

import pytest
from tests.faults.machine import MIB, TINY, build_tiny, machine
from tests.traces import wait_for

from corral import Client
from corral.model.lifecycle import State

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]

FILL = "while dd if=/dev/zero of=/fill bs=1M count=8 oflag=append conv=notrunc,fsync; do :; done"


def test_a_writer_is_paused_before_the_disk_is_full_and_goes_on_when_it_is_not(tmp_path: Path) -> None:
    """On a real disk, with a real store in a sparse file, which the kernel would make read-only."""
    (tmp_path / "tree").mkdir()
    with machine(tmp_path, 8192 * MIB) as host, host.daemon.client() as client:
        build_tiny(client, tmp_path / "tree")
        client.create_sandbox(TINY, name="reader")
        client.create_sandbox(TINY, name="writer", limits={"disk": 6144 * MIB})
        ballast = _fill(host.daemon.data, leave=280 * MIB)
        client.start_process("writer", ["sh", "-c", FILL])
        wait_for(lambda: client.get_sandbox("writer").state is State.PAUSED, "the writer goes on")
        assert client.get_sandbox("writer").reason.startswith("the host's disk is nearly full")
        assert _free(host.daemon.data) > 0
        assert client.get_sandbox("reader").state is State.RUNNING
        client.write_file("reader", "/small", "written")
        assert not os.statvfs(host.daemon.data / "store").f_flag & os.ST_RDONLY
        ballast.unlink()
        wait_for(lambda: client.get_sandbox("writer").state is State.RUNNING, "the writer does not go on")
        before = _written(client)
        wait_for(lambda: _written(client) > before, "it writes nothing more")


def _fill(disk: Path, *, leave: int) -> Path:
    ballast = disk / "ballast"
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, _free(disk) - leave)
    return ballast


def _free(disk: Path) -> int:
    found = os.statvfs(disk)
    return found.f_bavail * found.f_frsize


def _written(client: Client) -> int:
    return client.stat_file("writer", "/fill").size

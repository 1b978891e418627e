"""A disk that is full: refused as that, before or in the middle, and nothing is left of what did not fit."""

import gzip
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import Daemon
from tests.faults import machine
from tests.faults.machine import bound_of
from tests.system.test_image_archives import image
from tests.traces import settled, traces, wait_for

from corral.errors import DiskFull, HostError

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]

MIB = 1024 * 1024


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 GiB, of which this host's disk only holds what is written."""
    with machine.disk(tmp_path, 2048 * MIB) as data:
        yield data


def _fill(disk: Path, leave: int) -> Path:
    ballast = disk / "ballast"
    found = os.statvfs(disk)
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, found.f_bavail * found.f_frsize - leave)
    return ballast


def _repetitive_layer(times: int) -> bytes:
    """One file of so many times 64 MiB, without a zero that could be a hole, which takes 64 KiB each."""
    entry = tarfile.TarInfo("letters")
    entry.size = times * 64 * MIB
    return (
        gzip.compress(entry.tobuf()) + gzip.compress(b"x" * (64 * MIB)) * times + gzip.compress(bytes(1024))
    )


def test_a_daemon_does_not_start_where_its_store_has_no_room(disk: Path) -> None:
    _fill(disk, 64 * MIB)
    daemon = Daemon(disk)
    command = [sys.executable, "-m", "corral.daemon.main", "--detach"]
    refused = subprocess.run(command, env=daemon.env, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == DiskFull.exit_code, refused.stderr
    assert "free at least" in refused.stderr
    assert not (daemon.run / "api.sock").exists()
    daemon.discard()


def test_what_does_not_fit_is_refused_and_leaves_nothing(disk: Path) -> None:
    daemon = Daemon(disk)
    daemon.start()
    try:
        _fill(disk, 80 * MIB)
        before = traces(daemon)
        with daemon.client() as client:
            for _ in range(2):
                with pytest.raises(DiskFull) as refused:
                    client.create_sandbox()
                assert "free space" in refused.value.hint
                assert client.list_sandboxes() == []
                assert client.list_templates() == []
                settled(daemon, before)
    finally:
        daemon.discard()


def test_an_image_that_is_larger_than_the_disk_is_refused_and_the_store_lives_on(disk: Path) -> None:
    """A few megabytes of gzip can be gigabytes: what unpacks them counts as a sandbox does."""
    daemon = Daemon(disk)
    daemon.start()
    try:
        with daemon.client() as client:
            _fill(disk, 1200 * MIB)
            wait_for(lambda: 0 < bound_of(disk) < 1200 * MIB, "writes are not bounded")
            before = traces(daemon)
            with pytest.raises(DiskFull):
                client.import_template("huge", image(_repetitive_layer(48)))
            settled(daemon, before)
            assert not os.statvfs(disk / "store").f_flag & os.ST_RDONLY
    finally:
        daemon.discard()


def test_a_store_that_became_read_only_is_told_and_comes_back(disk: Path) -> None:
    """As the kernel makes it when it could not write to it."""
    daemon = Daemon(disk)
    daemon.start()
    try:
        subprocess.run(["mount", "-o", "remount,ro", disk / "store"], check=True)
        with daemon.client() as client, pytest.raises(HostError) as refused:
            client.build_template("base")
        assert "read-only" in refused.value.message
        assert "restart the daemon" in refused.value.hint
        daemon.stop()
        daemon.start()
        (disk / "store" / "tmp" / "x").mkdir()
    finally:
        daemon.discard()

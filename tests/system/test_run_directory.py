"""The run directory holds nothing of an earlier boot, wherever it is."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.daemon.volatile import make_volatile
from corral.host import mounts, syscalls

pytestmark = pytest.mark.root


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    """A directory on a disk, with what a boot before has left."""
    found = tmp_path / "run"
    (found / "sandboxes" / "0123456789abcdef").mkdir(parents=True)
    (found / "sandboxes" / "0123456789abcdef" / "net.ns").touch()
    (found / "api.sock").touch()
    yield found
    while mounts.is_mounted(found):
        mounts.unmount(found)


def test_what_an_earlier_boot_left_on_a_disk_goes(run: Path) -> None:
    make_volatile(run)
    assert list(run.iterdir()) == []
    assert [entry.fstype for entry in mounts.mounts() if entry.target == run] == ["tmpfs"]


def test_a_second_start_changes_nothing(run: Path) -> None:
    make_volatile(run)
    (run / "api.sock").touch()
    make_volatile(run)
    assert [entry.name for entry in run.iterdir()] == ["api.sock"]
    assert len([entry for entry in mounts.mounts() if entry.target == run]) == 1


def test_what_sandboxes_of_this_boot_use_stays(run: Path) -> None:
    used = run / "sandboxes" / "0123456789abcdef"
    mounts.FileSystem("tmpfs", "x", used, syscalls.MS_NODEV).make()
    try:
        make_volatile(run)
        assert (run / "api.sock").exists()
        assert mounts.is_mounted(used)
    finally:
        mounts.unmount(used)

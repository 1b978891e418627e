"""The host primitives on a real kernel: id mappings, network namespaces, mounts, control groups."""

import errno
import os
import signal
import socket
import threading
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from corral.errors import InternalError
from corral.host import cgroups, mounts, namespaces, process, syscalls

pytestmark = pytest.mark.root


async def test_a_mapping_is_made_once_per_range() -> None:
    first = await namespaces.userns_fd(300_000)
    assert await namespaces.userns_fd(300_000) == first
    assert await namespaces.userns_fd(300_000, first=100_000) != first


@pytest.mark.parametrize(
    ("base", "size", "first"), [(0, 10, 0), (-1, 10, 0), (2**32 - 10, 65536, 0), (1, 0, 0)]
)
async def test_an_impossible_range_is_refused(base: int, size: int, first: int) -> None:
    with pytest.raises(InternalError):
        await namespaces.userns_fd(base, size, first=first)


def test_work_in_a_network_namespace_stays_there(tmp_path: Path) -> None:
    own = Path("/proc/thread-self/ns/net").stat().st_ino
    pin = tmp_path / "net"
    fd = namespaces.run_in_new_netns(namespaces.own_netns_fd)
    namespaces.pin_netns(fd, pin)
    inside = os.fstat(fd).st_ino
    os.close(fd)
    assert inside != own
    threads = threading.active_count()
    fd = os.open(pin, os.O_RDONLY)
    names = namespaces.run_in_netns(fd, lambda: [name for _, name in socket.if_nameindex()])
    assert names == ["lo"]
    with pytest.raises(ZeroDivisionError):
        namespaces.run_in_netns(fd, lambda: 1 // 0)
    assert threading.active_count() == threads
    assert Path("/proc/thread-self/ns/net").stat().st_ino == own
    os.close(fd)
    namespaces.unpin(pin)
    namespaces.unpin(pin)
    assert not pin.exists()


def test_something_else_than_a_namespace_is_refused(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(OSError, match="setns"):
        namespaces.run_in_netns(fd, lambda: None)
    os.close(fd)


def test_a_list_of_mounts_is_made_whole_or_not_at_all(tmp_path: Path) -> None:
    folder, source = tmp_path / "mnt", tmp_path / "source"
    folder.mkdir()
    source.mkdir()
    good: list[mounts.MountOperation] = [
        mounts.FileSystem("tmpfs", "none", folder, options="size=1m"),
        mounts.Bind(source, folder, read_only=True),
    ]
    mounts.apply(good)
    assert mounts.is_mounted(folder)
    with pytest.raises(OSError, match="Read-only"):
        (folder / "file").touch()
    assert len(mounts.mounts_below(folder)) == 2
    mounts.undo(good)
    mounts.undo(good)
    assert not mounts.is_mounted(folder)
    with pytest.raises(OSError, match="mount --bind"):
        mounts.apply([*good, mounts.Bind(tmp_path / "missing", folder)])
    assert mounts.mounts_below(tmp_path) == []


def test_a_busy_mount_is_detached(tmp_path: Path) -> None:
    folder = tmp_path / "with space\nand line"
    folder.mkdir()
    mounts.apply([mounts.FileSystem("tmpfs", "none", folder, options="size=1m")])
    (folder / "inner").mkdir()
    mounts.apply([mounts.FileSystem("tmpfs", "none", folder / "inner", options="size=1m")])
    assert [entry.target for entry in mounts.mounts_below(folder)] == [folder, folder / "inner"]
    with open(folder / "held", "w"):
        mounts.unmount_below(folder)
        assert not mounts.is_mounted(folder)
    assert mounts.mounts_below(tmp_path) == []


def test_paths_do_not_leave_their_root(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")
    fd = os.open(tmp_path, os.O_PATH)
    with pytest.raises(FileNotFoundError):
        syscalls.openat2(fd, "link/passwd", os.O_RDONLY, resolve=syscalls.RESOLVE_IN_ROOT)
    with pytest.raises(OSError) as caught:
        syscalls.openat2(fd, "../", os.O_RDONLY, resolve=syscalls.RESOLVE_BENEATH)
    assert caught.value.errno == errno.EXDEV
    with pytest.raises(OSError, match="NUL"):
        syscalls.openat2(fd, b"a\0b", os.O_RDONLY)
    os.close(fd)


@pytest.fixture
async def group() -> AsyncIterator[cgroups.Cgroup]:
    group = cgroups.detect().group(f"/corral-test-{uuid.uuid4().hex[:8]}/one")
    for folder in group.directories:
        folder.mkdir(parents=True)
    yield group
    await group.kill()
    await group.remove()
    for folder in group.directories:
        folder.parent.rmdir()


async def _inside(group: cgroups.Cgroup, command: str) -> process.Child:
    """A shell that enters the group before it does anything else."""
    read, write = os.pipe()
    # A version 1 cpuset takes nobody before its processors are set, and matters to none of this.
    folders = [folder for folder in group.directories if not (folder / "cpuset.cpus").exists()]
    files = " ".join(str(folder / "cgroup.procs") for folder in folders)
    script = f'for f in {files}; do echo $$ > "$f" || exit 1; done; echo in; {command}'
    child = process.spawn(["sh", "-c", script], stdout=write)
    os.close(write)
    try:
        assert os.read(read, 3) == b"in\n"
    finally:
        os.close(read)
    return child


async def test_a_group_is_read_frozen_killed_and_removed(group: cgroups.Cgroup) -> None:
    child = await _inside(group, "sleep 600 & sleep 600 & wait")
    assert child.pid in group.pids()
    usage = group.usage()
    assert usage.pids >= 1
    assert usage.memory_peak > 0
    assert usage.oom_kills == 0
    await group.freeze()
    assert group.is_frozen()
    group.thaw()
    assert not group.is_frozen()
    await group.freeze()
    await group.kill()  # also what is frozen
    assert group.pids() == []
    assert await child.wait(20) == -signal.SIGKILL
    await group.remove()
    assert not group.exists()
    await group.remove()
    for folder in group.directories:
        folder.mkdir()


async def test_a_fork_bomb_is_killed(group: cgroups.Cgroup) -> None:
    layout = cgroups.detect()
    pids = next(folder for folder in group.directories if (folder / "pids.max").exists())
    (pids / "pids.max").write_text("200")
    assert layout.version in (1, 2)
    child = await _inside(group, "bomb() { bomb & bomb & }; while :; do bomb 2>/dev/null; done")
    await group.kill()
    assert group.pids() == []
    await child.wait(20)


async def test_a_process_killed_for_want_of_memory_is_counted(group: cgroups.Cgroup) -> None:
    names = ("memory.limit_in_bytes", "memory.max")
    limit = next(folder / name for folder in group.directories for name in names if (folder / name).exists())
    limit.write_text(str(16 << 20))
    child = await _inside(group, "exec dd if=/dev/zero of=/dev/null bs=64M count=1")
    assert await child.wait(30) == -signal.SIGKILL
    assert group.oom_kills() == 1

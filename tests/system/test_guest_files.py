"""Files of a sandbox with shifted ids: a real user namespace, its own mounts, an overlay root, a hostile owner."""

import asyncio
import contextlib
import ctypes
import fcntl
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from corral.drivers.execfiles import ExecGuestFiles
from corral.drivers.files import HostGuestFiles
from corral.engine.ports import Entry, EntryKind, WatchEvent, WatchEventKind
from corral.errors import Conflict, DiskFull, Forbidden, InvalidInput, NotFound
from corral.host import mounts, process
from corral.host.programs import find_program
from corral.wire.guest import PROGRAM

pytestmark = pytest.mark.root

BASE = 300_000
SIZE = 65_536
# As a runtime does it: a user and a mount namespace, mounts of their own, a new root; then wait for the end.
GUEST = """
import os, sys
from corral.host import syscalls
root = sys.argv[1]
syscalls.unshare(syscalls.CLONE_NEWUSER)
print("unshared", flush=True)
sys.stdin.readline()
os.setresgid(0, 0, 0)
os.setresuid(0, 0, 0)
syscalls.unshare(syscalls.CLONE_NEWNS)
syscalls.mount("tmpfs", f"{root}/tmp", "tmpfs", 0, "mode=1777,size=1m")
syscalls.mount("/proc", f"{root}/proc", None, syscalls.MS_BIND | syscalls.MS_REC)
syscalls.mount(f"{root}/opt/source", f"{root}/opt/mounted", None, syscalls.MS_BIND)
os.chroot(root)
os.chdir("/")
print("ready", flush=True)
sys.stdin.readline()
"""


@dataclass
class Box:
    """A guest's root as the host has it mounted, and the process that lives in it."""

    root: Path
    pid: int

    def inside(self, path: str) -> Path:
        """A path as the guest's process sees it."""
        return Path(f"/proc/{self.pid}/root{path}")


def shift(path: Path) -> None:
    for found in (path, *path.rglob("*")):
        os.chown(found, BASE + found.lstat().st_uid, BASE + found.lstat().st_gid, follow_symlinks=False)


@pytest.fixture
def overlay(tmp_path: Path) -> Iterator[Path]:
    """An overlay: a template's layer below, the sandbox's own directory above."""
    lower, upper, work, root = (tmp_path / name for name in ("lower", "upper", "work", "root"))
    for path in (
        "etc",
        "tmp",
        "proc",
        "opt/source",
        "opt/mounted",
        "home/user",
        "usr/share/doc",
        "run/corral",
    ):
        (lower / path).mkdir(parents=True)
    (lower / "etc" / "passwd").write_text("root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n")
    (lower / "usr" / "share" / "doc" / "readme").write_text("from the template")
    os.chown(lower / "home" / "user", 1000, 1000)
    shift(lower)
    for folder in (upper, work, root):
        folder.mkdir()
    os.chown(upper, BASE, BASE)
    mount = mounts.FileSystem(
        "overlay", "overlay", root, options=f"lowerdir={lower},upperdir={upper},workdir={work}"
    )
    mount.make()
    yield root
    mounts.undo([mount])


@pytest.fixture
def box(overlay: Path) -> Iterator[Box]:
    for folder in (*overlay.parents, overlay):
        folder.chmod(folder.stat().st_mode | 0o011)
    guest = subprocess.Popen(
        [sys.executable, "-c", GUEST, str(overlay)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with guest:
        assert guest.stdin is not None
        assert guest.stdout is not None
        assert guest.stdout.readline() == "unshared\n"
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{guest.pid}/{name}").write_text(f"0 {BASE} {SIZE}\n")
        guest.stdin.write("go\n")
        guest.stdin.flush()
        assert guest.stdout.readline() == "ready\n"
        yield Box(overlay, guest.pid)
        guest.kill()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


def opener(path: str) -> Callable[[], int]:
    return lambda: os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


@pytest.fixture
def running(box: Box, threads: ThreadPoolExecutor) -> HostGuestFiles:
    """The files of a running sandbox."""
    return HostGuestFiles(opener(f"/proc/{box.pid}/root"), BASE, threads)


@pytest.fixture
def stopped(overlay: Path, threads: ThreadPoolExecutor) -> HostGuestFiles:
    """The files of a stopped one."""
    return HostGuestFiles(opener(str(overlay)), BASE, threads)


async def chunks(*data: bytes) -> AsyncIterator[bytes]:
    for chunk in data:
        yield chunk


async def content(files: HostGuestFiles | ExecGuestFiles, path: str, *span: int) -> bytes:
    return b"".join([chunk async for chunk in files.read(path, *span)])


def owners(path: Path) -> tuple[int, int, int]:
    status = path.lstat()
    return status.st_uid - BASE, status.st_gid - BASE, stat.S_IMODE(status.st_mode)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_new_files_belong_to_the_user_inside(running: HostGuestFiles, box: Box) -> None:
    data = bytes(range(256)) * 300
    entry = await running.write("/home/user/a/b.bin", chunks(data[:1000], data[1000:]), "user", 0o640)
    assert entry == Entry(
        "/home/user/a/b.bin",
        "b.bin",
        EntryKind.FILE,
        len(data),
        0o640,
        1000,
        1000,
        entry.mtime,
        atime=entry.atime,
        ctime=entry.ctime,
    )
    assert await content(running, "/home/user/a/b.bin") == data
    assert await content(running, "/home/user/a/b.bin", 255, 3) == b"\xff\x00\x01"
    assert await content(running, "/home/user/a/b.bin", len(data) + 5) == b""
    assert owners(box.root / "home/user/a") == (1000, 1000, 0o755)
    assert owners(box.root / "home/user/a/b.bin") == (1000, 1000, 0o640)
    assert await running.make_dir("/srv/x", "7:8", 0o750)
    assert not await running.make_dir("/srv/x", "root", 0o700)
    assert owners(box.root / "srv/x") == (7, 8, 0o750)
    with pytest.raises(InvalidInput, match="no user"):
        await running.write("/x", chunks(), "nobody")


async def test_files_of_the_template_are_replaced_and_removed(stopped: HostGuestFiles, overlay: Path) -> None:
    doc = "/usr/share/doc/readme"
    assert (await stopped.stat(doc)).uid == 0
    await stopped.write(doc, chunks(b"mine"), "user")
    assert await content(stopped, doc) == b"mine"
    assert await stopped.move(doc, "/moved") == await stopped.stat("/moved")
    with pytest.raises(Conflict, match="comes with the template") as refused:
        await stopped.move("/usr/share", "/share")
    assert "mv" in refused.value.hint
    (overlay / "usr" / "closed" / "inner").mkdir(0o000, parents=True)
    await stopped.remove("/usr")
    assert not (overlay / "usr").exists()


async def test_the_guests_own_tmpfs_is_seen_and_written(running: HostGuestFiles, box: Box) -> None:
    await running.write("/tmp/x/file", chunks(b"in memory"), "user")
    assert await running.move("/tmp/x/file", "/tmp/file") == await running.stat("/tmp/file")
    assert await content(running, "/tmp/file") == b"in memory"
    assert owners(box.inside("/tmp/x")) == (1000, 1000, 0o755)
    assert list((box.root / "tmp").iterdir()) == []
    with pytest.raises(Conflict):
        await running.move("/tmp/file", "/home/file")
    await running.remove("/tmp/x")
    assert [entry.path for entry in await running.list("/tmp")] == ["/tmp/file"]


async def test_a_full_disk_changes_nothing(running: HostGuestFiles) -> None:
    await running.write("/tmp/file", chunks(b"old"), "user")
    with pytest.raises(DiskFull):
        await running.write("/tmp/file", chunks(*[bytes(65536)] * 32), "user")
    assert await content(running, "/tmp/file") == b"old"
    await running.write("/tmp/other", chunks(bytes(900_000)), "user")
    assert [entry.name for entry in await running.list("/tmp")] == ["file", "other"]


async def test_the_kernels_files_are_left_alone(running: HostGuestFiles) -> None:
    for path in ("/proc/kmsg", "/proc/version", "/proc/sys/kernel/core_pattern", "/proc/1/environ"):
        with pytest.raises(Forbidden):
            await content(running, path)
        with pytest.raises(Forbidden):
            await running.write(path, chunks(b"x"), "root")
    for path in ("/proc/1/root/etc/passwd", "/proc/self/cwd/etc/passwd"):
        with pytest.raises((Forbidden, NotFound)):
            await content(running, path)
    with pytest.raises(Forbidden):
        await running.list("/proc")
    below = await running.list("/", depth=3)
    assert "/proc" in {entry.path for entry in below}
    assert not [entry.path for entry in below if entry.path.startswith("/proc/")]


async def test_mount_points_stay(running: HostGuestFiles, box: Box) -> None:
    await running.write("/opt/source/file", chunks(b"kept"), "user")
    for change in (
        lambda: running.remove("/opt/mounted"),
        lambda: running.remove("/opt"),
        lambda: running.move("/opt/mounted", "/away"),
        lambda: running.move("/opt", "/away"),
    ):
        with pytest.raises(Conflict):
            await change()
    assert owners(box.root / "opt") == (0, 0, 0o755)
    assert await content(running, "/opt/mounted/file") == b"kept"


async def test_devices_and_fifos_do_not_block(running: HostGuestFiles, box: Box) -> None:
    os.mkfifo(box.root / "fifo")
    os.mknod(box.root / "zero", 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    os.mknod(box.root / "disk", 0o666 | stat.S_IFBLK, os.makedev(7, 0))
    for path in ("/fifo", "/zero", "/disk"):
        assert (await running.stat(path)).kind is EntryKind.OTHER
        with pytest.raises(Forbidden):
            await content(running, path)
        with pytest.raises(Forbidden):
            await running.write(path, chunks(b"x"), "user")
        await running.remove(path)


async def test_a_passwd_that_is_none_is_no_passwd(running: HostGuestFiles, box: Box) -> None:
    passwd = box.root / "etc" / "passwd"
    passwd.unlink()
    os.mkfifo(passwd)
    assert (await running.write("/a", chunks(), "root")).uid == 0
    assert (await running.write("/a", chunks(), "5")).uid == 5
    with pytest.raises(InvalidInput):
        await running.write("/a", chunks(), "user")
    passwd.unlink()
    passwd.symlink_to("/proc/self/status")
    assert (await running.write("/a", chunks(), "root")).uid == 0


async def test_a_leased_file_does_not_hold_the_daemon(stopped: HostGuestFiles, overlay: Path) -> None:
    file = overlay / "leased"
    file.touch()
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    try:
        with file.open("r+") as lease:
            try:
                fcntl.fcntl(lease, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            except OSError:
                pytest.skip("this file system has no leases")
            with pytest.raises(Conflict, match="leased"):
                await content(stopped, "/leased")
    finally:
        signal.signal(signal.SIGIO, before)


async def test_what_the_host_made_shows_as_nobodys(stopped: HostGuestFiles, overlay: Path) -> None:
    (overlay / "unmapped").touch()
    entry = await stopped.stat("/unmapped")
    assert (entry.uid, entry.gid) == (65534, 65534)


async def test_an_aborted_write_leaves_nothing(stopped: HostGuestFiles, overlay: Path) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"half"
        raise Conflict("the sender is gone")

    async def endless(started: asyncio.Event) -> AsyncIterator[bytes]:
        while True:
            yield bytes(65536)
            started.set()

    before = open_files()
    with pytest.raises(Conflict, match="sender"):
        await stopped.write("/new/file", broken(), "user")
    started = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(stopped.write("/new/file", endless(started), "user"))
        await started.wait()
        task.cancel()
    assert not (overlay / "new").exists()
    assert open_files() == before


async def test_a_large_sparse_file_is_read_in_flat_memory(running: HostGuestFiles, box: Box) -> None:
    size = 5 * 1024**3
    await running.write("/tmp/sparse", chunks(), "user")
    with box.inside("/tmp/sparse").open("r+b") as file:  # on a tmpfs a hole takes no page cache
        file.truncate(size)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    count = 0
    async for chunk in running.read("/tmp/sparse"):
        count += len(chunk)
    assert count == size
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 * 1024  # KiB


@pytest.mark.parametrize("root", ["running", "stopped"])
async def test_a_directory_swapped_for_a_link_never_leads_out(
    request: pytest.FixtureRequest, overlay: Path, tmp_path: Path, root: str
) -> None:
    files: HostGuestFiles = request.getfixturevalue(root)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("host")
    (overlay / "real").mkdir()
    (overlay / "link").symlink_to(outside)
    (overlay / "place").mkdir()
    done = threading.Event()
    exchange = ctypes.CDLL(None, use_errno=True).renameat2
    names = [os.fsencode(overlay / name) for name in ("place", "link")]
    swaps: list[int] = []

    def swap() -> None:
        while not done.is_set():
            swaps.append(exchange(-100, names[0], -100, names[1], 2))

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        for _ in range(150):
            with contextlib.suppress(NotFound, Conflict, Forbidden):
                await files.write("/place/file", chunks(b"guest"), "user")
            with contextlib.suppress(NotFound, Conflict, Forbidden):
                assert await content(files, "/place/file") == b"guest"
            with contextlib.suppress(NotFound, Conflict, Forbidden):
                await files.remove("/place/file")
            with contextlib.suppress(NotFound, Conflict, Forbidden):
                await files.move("/real", "/place/real")
    finally:
        done.set()
        swapper.join()
    assert swaps.count(0) > 150
    assert [path.name for path in outside.iterdir()] == ["file"]
    assert (outside / "file").read_text() == "host"


@pytest.fixture
def filler(overlay: Path) -> "Iterator[subprocess.Popen[bytes]]":
    """A process of the guest that never stops adding to /busy."""
    script = "n=0; while :; do n=$((n+1)); mkdir -p d$((n % 9)); true > d$((n % 9))/$n; true > $n; done"
    process = subprocess.Popen(
        ["/bin/sh", "-c", script], cwd=make_busy(overlay), stderr=subprocess.DEVNULL,
        user=BASE, group=BASE, extra_groups=[],
    )  # fmt: skip
    with process:
        yield process
        process.kill()


async def test_removal_is_not_held_up_by_a_process_that_fills(
    stopped: HostGuestFiles, overlay: Path, filler: "subprocess.Popen[bytes]"
) -> None:
    """What it adds to is taken from it: a removal ends although the process never does."""
    await stopped.remove("/busy")
    assert filler.poll() is None
    assert not (overlay / "busy").exists()


def make_busy(overlay: Path) -> Path:
    busy = overlay / "busy"
    for number in range(200):
        (busy / "deep" / str(number)).mkdir(parents=True)
    shift(busy)
    return busy


async def test_changes_are_told(running: HostGuestFiles, box: Box) -> None:
    async def following(events: AsyncIterator[WatchEvent], count: int) -> list[WatchEvent]:
        return [await anext(events) for _ in range(count)]

    before = open_files()
    async with running.watch("/home/user", recursive=True) as events:
        (box.root / "home/user/made").mkdir()
        await running.write("/home/user/made/file", chunks(b"x"), "user")
        assert await following(events, 2) == [
            WatchEvent(WatchEventKind.CREATE, "/home/user/made"),
            WatchEvent(WatchEventKind.CREATE, "/home/user/made/file"),
        ]
        await running.write("/home/user/made/file", chunks(b"y"), "user")
        (box.root / "usr/share/doc/readme").unlink()
        await running.remove("/home/user/made")
        assert await following(events, 3) == [
            WatchEvent(WatchEventKind.WRITE, "/home/user/made/file"),
            WatchEvent(WatchEventKind.REMOVE, "/home/user/made/file"),
            WatchEvent(WatchEventKind.REMOVE, "/home/user/made"),
        ]
    assert open_files() <= before + 1  # a selector may stay
    with pytest.raises(NotFound):
        await running.watch("/none", recursive=False).__aenter__()
    with pytest.raises(Conflict):
        await running.watch("/etc/passwd", recursive=True).__aenter__()


async def test_a_watch_ends_with_its_directory(
    running: HostGuestFiles, box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corral.drivers.watching._PATROL", 0.05)
    (box.root / "short").mkdir()
    async with running.watch("/short", recursive=False) as events:
        (box.root / "short").rmdir()
        assert [event async for event in events] == [WatchEvent(WatchEventKind.REMOVE, "/short")]


@pytest.fixture
def through_init(stopped: HostGuestFiles, overlay: Path) -> ExecGuestFiles:
    """Changes made by the guest's init, in the root and with its ids, as a runtime would run it."""
    program = overlay / PROGRAM[1:]
    shutil.copy(find_program("corral-init"), program)
    os.chown(program, BASE, BASE)

    async def run(
        argv: Sequence[str], stdin: AsyncIterator[bytes] | None, user: str
    ) -> tuple[int, bytes, bytes]:
        assert user == "0:0"
        async with process.stream(["chroot", str(overlay), *argv], timeout=60) as child:
            async for chunk in stdin or chunks():
                await child.write(chunk)
            child.close_stdin()
            out = b"".join([chunk async for chunk in child])
            done = await child.wait()
            return done.exit_code, out, done.stderr

    return ExecGuestFiles(stopped, run)


async def test_changes_through_the_guests_init(through_init: ExecGuestFiles, overlay: Path) -> None:
    data = bytes(range(256)) * 5000
    # The init runs as the host's root here: its ids are the host's.
    entry = await through_init.write("/home/user/d/file", chunks(data[:7], data[7:]), "user", 0o600)
    assert (entry.size, entry.mode) == (len(data), 0o600)
    assert (overlay / "home/user/d/file").stat().st_uid == 1000
    assert await content(through_init, "/home/user/d/file") == data
    assert await through_init.make_dir("/home/user/e", "user")
    assert not await through_init.make_dir("/home/user/e", "user")
    assert (await through_init.move("/home/user/d/file", "/home/user/e/f")).path == "/home/user/e/f"
    assert [entry.name for entry in await through_init.list("/home/user/e")] == ["f"]
    await through_init.remove("/home/user/e")
    with pytest.raises(NotFound):
        await through_init.stat("/home/user/e")
    with pytest.raises(NotFound):
        await through_init.remove("/home/user/e")
    with pytest.raises(Conflict):
        await through_init.write("/home", chunks(), "user")
    for path in ("relative", "/", "/a/..", "/nul\0"):
        with pytest.raises(InvalidInput):
            await through_init.write(path, chunks(), "user")
        with pytest.raises(InvalidInput):
            await through_init.remove(path)

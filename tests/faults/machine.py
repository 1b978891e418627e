"""A host of its own for tests that take its power or its disk away: a data directory on a disk in a file, and a template of a
few programs in place of `base`, which takes minutes to make.
"""

import fcntl
import os
import re
import shutil
import signal
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import Daemon
from tests.traces import control_groups, mounts_below, wait_for

from corral import Client
from corral.host import btrfs
from corral.sdk.contexts import Context

MIB = 1024 * 1024
TINY = "tiny"
_PROGRAMS = ("sh", "cat", "sleep", "ls", "dd", "sync")
_SHUT_DOWN = 0x8004587D
_NO_FLUSH = 2


def build_tiny(client: Client, scratch: Path, name: str = TINY, more: tuple[str, ...] = ()) -> None:
    """A template of a shell and what a test calls in it, `more` included."""
    for program in (*_PROGRAMS, *more):
        path = shutil.which(program)
        assert path is not None
        listed = subprocess.run(["ldd", path], check=True, capture_output=True, text=True).stdout
        for file in (f"/bin/{program}", *re.findall(r"/\S*lib\S*", listed)):
            target = scratch / file.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path if file == f"/bin/{program}" else file, target)
    client.build_template_from(name, dockerfile="FROM scratch\nCOPY . /\n", context=Context(scratch).archive)


def bound_of(data: Path) -> int:
    """Bytes that all sandboxes of a data directory may hold together; 0: nothing bounds them yet."""
    groups = Path("/sys/fs/btrfs") / str(btrfs.filesystem_id(data / "store")) / "qgroups"
    return sum(int(file.read_text()) for file in groups.glob("2_*/max_referenced"))


@contextmanager
def disk(folder: Path, size: int) -> Iterator[Path]:
    """A mounted file system of `size` bytes, of which this host's disk only holds what is written."""
    image, data = folder / "image", folder / "data"
    data.mkdir()
    with image.open("wb") as file:
        file.truncate(size)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, data], check=True)
    try:
        yield data
    finally:
        if data.is_mount():
            _unmount(str(data))
        image.unlink()


@dataclass
class Machine:
    """A daemon on a disk whose power can be cut: what was not flushed to the disk by then is gone, and so is all that runs."""

    image: Path
    daemon: Daemon

    def fail_disk(self) -> None:
        """Let nothing more reach the disk, nor come from it."""
        fd = os.open(self.daemon.data, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, _SHUT_DOWN, struct.pack("I", _NO_FLUSH))
        finally:
            os.close(fd)

    def cut(self) -> None:
        """Cut the power, and boot again up to where the daemon is to start."""
        self.fail_disk()
        self.end()
        subprocess.run(["mount", "-o", "loop", self.image, self.daemon.data], check=True)

    def end(self) -> None:
        """Let nothing be left of what ran, but the disk."""
        self.daemon.kill()
        self._end_processes()
        for target in reversed(mounts_below(self.daemon.run, self.daemon.data)):
            _unmount(target)
        wait_for(lambda: not _attached(self.image), "the disk is still in use")
        shutil.rmtree(self.daemon.run, ignore_errors=True)

    def _end_processes(self) -> None:
        instance = self.daemon.run.name
        for group in control_groups(instance):
            for pid in (group / "cgroup.procs").read_text().split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            for frozen, thawed in (("cgroup.freeze", "0"), ("freezer.state", "THAWED")):
                if (group / frozen).exists():
                    (group / frozen).write_text(thawed)
        for group in reversed(control_groups(instance)):
            wait_for(lambda group=group: _removed(group), f"{group} is not empty")  # type: ignore[misc]


@contextmanager
def machine(folder: Path, size: int = 3072 * MIB) -> Iterator[Machine]:
    """A machine whose daemon runs."""
    with disk(folder, size) as data:
        made = Machine(folder / "image", Daemon(data))
        try:
            made.daemon.start()
            yield made
        finally:
            made.end()


def _unmount(target: str) -> None:
    """At once, or as soon as what has just been killed is gone; never leave it in the way of others."""
    try:
        wait_for(lambda: _unmounted(target), f"{target} is busy")
    except BaseException:
        subprocess.run(["umount", "--lazy", target], check=False)
        raise


def _unmounted(target: str) -> bool:
    return subprocess.run(["umount", target], check=False, capture_output=True).returncode == 0


def _attached(image: Path) -> bool:
    return subprocess.run(["losetup", "-j", image], check=True, capture_output=True).stdout != b""


def _removed(group: Path) -> bool:
    with suppress(FileNotFoundError, OSError):
        group.rmdir()
    return not group.exists()


COUNTER = "i=0; while :; do echo $i; i=$((i+1)); sleep 0.05; done"


def counts(client: Client, box: str, process: int) -> None:
    """A process that runs `COUNTER` has left nothing out, and goes on."""
    text = b""
    for piece in client.follow_output(box, process):
        text += piece.data
        if text.count(b"\n") > 20:
            break
    lines = text.decode().rpartition("\n")[0].split("\n")
    assert lines == [str(number) for number in range(len(lines))]

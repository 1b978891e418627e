"""Mounts of this mount namespace: what is mounted, and operations that can describe and undo themselves.

A set-up is a list of operations; `apply` does them in order and undoes what it did if one fails, `undo`
takes the same list backwards. Every call blocks; most take less than a millisecond.
"""

import errno
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from corral.host import syscalls

# More mounts on one spot than this are not ours.
_MAX_STACKED = 64
_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class MountEntry:
    """A line of mountinfo. `root` is the mounted part of the file system, `device` its major:minor."""

    id: int
    device: str
    root: str
    target: Path
    fstype: str
    source: str


class MountOperation(Protocol):
    """One mount that can be made, undone and told."""

    @property
    def target(self) -> Path:
        """Where it is mounted."""

    def make(self) -> None:
        """Mount it. Raises OSError."""

    def describe(self) -> str:
        """The command that would do the same."""


@dataclass(frozen=True, slots=True)
class FileSystem:
    """A file system by mount(2). `flags`: MS_…; `options`: comma-separated, of the file system."""

    fstype: str
    source: str
    target: Path
    flags: int = 0
    options: str = ""

    def make(self) -> None:
        """Mount it."""
        syscalls.mount(self.source, str(self.target), self.fstype, self.flags, self.options)

    def describe(self) -> str:
        """As a mount command."""
        return f"mount -t {self.fstype} -o {self.options or 'defaults'} {self.source} {self.target}"


@dataclass(frozen=True, slots=True)
class Bind:
    """A file or directory at a second place."""

    source: Path
    target: Path
    read_only: bool = False

    def make(self) -> None:
        """Mount it. A read-only one is never writable, not for a moment."""
        fd = syscalls.open_tree(syscalls.AT_FDCWD, str(self.source), syscalls.OPEN_TREE_CLONE)
        try:
            if self.read_only:
                syscalls.mount_setattr(fd, set_flags=syscalls.MOUNT_ATTR_RDONLY)
            attach(fd, self.target)
        finally:
            os.close(fd)

    def describe(self) -> str:
        """As a mount command."""
        return f"mount --bind {'-o ro ' if self.read_only else ''}{self.source} {self.target}"


def apply(operations: Sequence[MountOperation]) -> None:
    """Make all mounts in order; if one fails, undo those before it and raise its OSError."""
    for index, operation in enumerate(operations):
        try:
            operation.make()
        except OSError as error:
            undo(operations[:index])
            raise OSError(error.errno, f"{operation.describe()}: {error.strerror}") from error


def undo(operations: Sequence[MountOperation]) -> None:
    """Unmount all, last first. Idempotent."""
    for operation in reversed(operations):
        unmount(operation.target)


def attach(fd: int, target: Path) -> None:
    """Mount a detached mount at `target`."""
    syscalls.move_mount(fd, "", syscalls.AT_FDCWD, str(target))


def is_mounted(path: Path) -> bool:
    """Whether `path` itself is a mount point, asked in constant time. A symlink or a missing path is not
    one.
    """
    try:
        parent = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        flags = os.O_PATH | os.O_NOFOLLOW
        os.close(syscalls.openat2(parent, path.name, flags, resolve=syscalls.RESOLVE_NO_XDEV))
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno == errno.EXDEV:
            return True
        raise
    finally:
        os.close(parent)
    return False


def open_mounted(path: Path) -> int | None:
    """A file system's root that is mounted at `path`, opened (O_PATH), which the caller closes; it stays whole where it is
    unmounted afterwards. None where none is.
    """
    try:
        fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if os.fstat(fd).st_dev != path.parent.stat().st_dev:
        return fd
    os.close(fd)
    return None


def unmount(path: Path) -> None:
    """Unmount all that is mounted at `path`; what is busy is detached and ends with its last user.
    Idempotent.
    """
    for _ in range(_MAX_STACKED):
        try:
            syscalls.umount2(str(path), syscalls.UMOUNT_NOFOLLOW)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT, errno.ENOTDIR):
                return
            if error.errno != errno.EBUSY:
                raise
            syscalls.umount2(str(path), syscalls.UMOUNT_NOFOLLOW | syscalls.MNT_DETACH)


def unmount_below(path: Path) -> None:
    """Unmount `path` and everything below it, innermost first. Idempotent."""
    for entry in reversed(mounts_below(path)):
        unmount(entry.target)


def mounts_below(path: Path) -> list[MountEntry]:
    """Mounts at `path` and below, in the order in which they were made."""
    return [_parse(line) for line in _lines() if _is_below(line, str(path).rstrip("/"))]


def mounts() -> list[MountEntry]:
    """All mounts of this mount namespace."""
    return [_parse(line) for line in _lines()]


def _lines() -> list[str]:
    text = Path("/proc/self/mountinfo").read_bytes().decode("utf-8", "surrogateescape")
    return [line for line in text.split("\n") if line]


def _is_below(line: str, path: str) -> bool:
    # A host with a thousand sandboxes has thousands of mounts: only what is asked for is parsed whole.
    target = _unescape(line.split(" ", 5)[4])
    return target == path or target.startswith(f"{path}/")


def _parse(line: str) -> MountEntry:
    fields = line.split(" ")
    rest = fields[fields.index("-", 6) + 1 :]
    return MountEntry(
        id=int(fields[0]),
        device=fields[2],
        root=_unescape(fields[3]),
        target=Path(_unescape(fields[4])),
        fstype=rest[0],
        source=_unescape(rest[1]),
    )


def _unescape(text: str) -> str:
    # The kernel writes space, tab, newline and backslash as octal numbers.
    return _ESCAPE.sub(lambda match: chr(int(match.group(1), 8)), text) if "\\" in text else text

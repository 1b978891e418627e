"""What is asked of a path, a name or a descriptor in a guest's tree before it is used."""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

from corral.errors import Conflict, Forbidden, InvalidInput
from corral.host import syscalls
from corral.host.fileerrors import shown
from corral.model.ids import check_guest_path

_DATA_FILE_SYSTEMS = frozenset(
    {
        0x794C7630,  # overlayfs
        0x01021994,  # tmpfs
        0x9123683E,  # btrfs
        0x58465342,  # xfs
        0xEF53,  # ext4
    }
)


def inner_path(path: str) -> str:
    """A path for `openat2`, of which an empty one would mean nothing."""
    try:
        return check_guest_path(path).rstrip("/") or "/"
    except UnicodeEncodeError:
        raise InvalidInput("the path holds characters that no file name can have") from None


def split_path(path: str) -> tuple[str, str]:
    """Parent and name of an entry that is to be made, moved or removed."""
    parent, _, name = inner_path(path).rpartition("/")
    if name in ("", ".", ".."):
        raise InvalidInput(
            f"{shown(path)} does not name an entry of a directory", "give a path that ends in a name"
        )
    return parent or "/", name


def check_mode(mode: int) -> None:
    """Raise InvalidInput for what is no file mode."""
    if not 0 <= mode <= 0o7777:
        raise InvalidInput(f"mode {mode:o} is out of range", "use 0 to 7777, octal")


@contextlib.contextmanager
def closing(fd: int) -> Iterator[int]:
    """Close a descriptor at the end of the block."""
    try:
        yield fd
    finally:
        os.close(fd)


def holds_data(fd: int) -> bool:
    """Whether a descriptor is on a file system whose files are data, not doors to the kernel."""
    return syscalls.fstatfs_type(fd) in _DATA_FILE_SYSTEMS


def require_data(fd: int, path: str) -> None:
    """Raise Forbidden unless `holds_data`."""
    if not holds_data(fd):
        raise Forbidden(
            f"{shown(path)} is not on a file system that holds files",
            "read kernel files (/proc, /sys) with a command inside the sandbox",
        )


def require_regular(status: os.stat_result, path: str) -> None:
    """Raise Conflict for a directory, Forbidden for what is not a file at all."""
    if stat.S_ISDIR(status.st_mode):
        raise Conflict(f"{shown(path)} is a directory", "give the path of a file")
    if not stat.S_ISREG(status.st_mode):
        raise Forbidden(
            f"{shown(path)} is a FIFO, socket or device", "only regular files are read and written"
        )


def refuse_mount(fd: int, name: str, path: str) -> None:
    """Raise Conflict for a mount point: a change from outside would silently detach it in the guest."""
    resolve = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_XDEV
    try:
        os.close(syscalls.openat2(fd, name, os.O_PATH | os.O_NOFOLLOW, resolve=resolve))
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise Conflict(f"{shown(path)} is a mount point", "choose another path") from None
        raise

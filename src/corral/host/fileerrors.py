"""What a failed file operation in a guest's tree means to who asked for it."""

import contextlib
import errno
from collections.abc import Iterator

from corral.errors import (
    Conflict,
    CorralError,
    DiskFull,
    Forbidden,
    HostError,
    InvalidInput,
    NoCapacity,
    NotFound,
)

_DISK_HINT = "remove files in the sandbox, or create it with a larger disk limit"
_MEANINGS: dict[int, tuple[type[CorralError], str, str | None]] = {
    errno.ENOENT: (NotFound, "does not exist in the sandbox", "list what is there"),
    errno.ENOTDIR: (Conflict, "is not a directory, or passes through something that is not", None),
    errno.EISDIR: (Conflict, "is a directory", "give the path of a file"),
    errno.EEXIST: (Conflict, "exists, and is not what is needed there", "remove it first"),
    errno.ENOTEMPTY: (Conflict, "is a directory that is not empty", "remove it first"),
    errno.ELOOP: (Forbidden, "passes through links that are not followed", "give the path without links"),
    errno.EXDEV: (
        Conflict,
        "cannot be renamed to there: it crosses file systems or comes with the template",
        "use `mv` inside the sandbox, which copies",
    ),
    errno.EBUSY: (Conflict, "is a mount point, or holds one", "choose another path"),
    errno.EAGAIN: (Conflict, "is leased or renamed by a process of the sandbox just now", "try again"),
    errno.ETXTBSY: (Conflict, "is being executed", "stop the program first"),
    errno.ESTALE: (Conflict, "was replaced meanwhile", "try again"),
    errno.EACCES: (Forbidden, "may not be accessed", None),
    errno.EPERM: (Forbidden, "may not be changed", None),
    errno.EROFS: (Forbidden, "is on a read-only file system", "choose another path"),
    errno.ENAMETOOLONG: (InvalidInput, "has a name that is too long", "use at most 255 bytes per name"),
    errno.EINVAL: (InvalidInput, "is not valid there", None),
    errno.ENOSPC: (DiskFull, "cannot be written: the disk is full", _DISK_HINT),
    errno.EDQUOT: (DiskFull, "cannot be written: the sandbox's disk limit is reached", _DISK_HINT),
    errno.EMFILE: (NoCapacity, "cannot be opened: the daemon has too many open files", None),
    errno.ENFILE: (NoCapacity, "cannot be opened: the host has too many open files", None),
    errno.ENOMEM: (NoCapacity, "cannot be opened: the host has no memory left", None),
}


def shown(path: str) -> str:
    """A guest's path for a message: quoted, with what is not printable escaped, at most 200 characters."""
    return ascii(path if len(path) <= 200 else path[:200] + "…")


@contextlib.contextmanager
def translated(path: str) -> Iterator[None]:
    """Raise an OSError in the block as the public error that it means for `path`."""
    try:
        yield
    except OSError as error:
        kind, text, hint = _MEANINGS.get(
            error.errno or 0, (HostError, f"cannot be used: {error.strerror}", None)
        )
        raise kind(f"{shown(path)} {text}", hint) from error

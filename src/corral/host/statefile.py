"""Small files that hold state: seen whole or not at all, also after the power failed."""

import os
from pathlib import Path


def write_state(path: Path, data: bytes, mode: int = 0o600, *, lasting: bool = True) -> None:
    """Let `path` hold `data`, with this mode; what it held before goes. On return that survives a power cut, unless it need
    not be `lasting`, since each start writes it anew.

    One writer at a time for a path. Raises OSError; then `path` is as it was.
    """
    temporary = path.with_name(f"{path.name}.new")
    temporary.unlink(missing_ok=True)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with open(fd, "wb") as file:
        os.fchmod(fd, mode)
        file.write(data)
    if lasting:
        flush(temporary)
    temporary.replace(path)
    if lasting:
        flush(path.parent)


def flush(path: Path) -> None:
    """Put a file's content, or a directory's entries, on disk."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

"""One daemon per data directory."""

import fcntl
import os
from pathlib import Path
from typing import Self

from corral.errors import Conflict


class InstanceLock:
    """Held for the life of a daemon; the kernel lets go of it however that ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    def __enter__(self) -> Self:
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 32, 0).decode(errors="replace").strip()
            os.close(fd)
            raise Conflict(
                f"a daemon (pid {holder}) runs on this data directory already",
                "use it, or stop it: `corral daemon stop`; a second one needs its own CORRAL_DATA_DIR",
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._fd = fd
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

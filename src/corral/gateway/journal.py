"""What a gateway process drew on its leases, in a file that outlives it.

A call that is covered by a lease is made before the ledger has heard of it. If the engine ends in between, what the gateway
told it is lost with the link, and the gateway ends too. So the gateway first writes the sum of all that it drew on a lease
into a page that it shares with this file; that takes a microsecond, and survives the end of every process. Whoever settles
what was under way then compares that sum with the ledger's. A power cut can take the last of it, as it can of the ledger.
"""

import mmap
import os
import struct
from collections import deque
from collections.abc import Mapping
from pathlib import Path

_SLOT = struct.Struct("<QQ")
_SLOTS = 4096
_SIZE = _SLOT.size * _SLOTS


class Journals:
    """The files of all gateway processes of an installation, by their names in the ledger."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def create(self, holder: str) -> int:
        """A new, empty one; its descriptor, which the caller closes."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(self._directory / holder, flags, 0o600)
        try:
            os.posix_fallocate(fd, 0, _SIZE)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def drawn(self, holder: str) -> Mapping[int, int] | None:
        """What was drawn in all on each lease; None where there is no such file."""
        try:
            data = (self._directory / holder).read_bytes()
        except FileNotFoundError:
            return None
        return dict(_SLOT.iter_unpack(data[: len(data) // _SLOT.size * _SLOT.size]))

    def remove(self, holder: str) -> None:
        """The process is gone, and settled. Idempotent."""
        (self._directory / holder).unlink(missing_ok=True)

    def remove_all(self) -> None:
        """No process of a former daemon is left, and all are settled."""
        if self._directory.is_dir():
            for path in self._directory.iterdir():
                path.unlink()


class Journal:
    """The process's own end. A lease has a place from `open` to `close`."""

    def __init__(self, fd: int) -> None:
        """The descriptor is the caller's."""
        self._page = mmap.mmap(fd, _SIZE)
        self._free = deque(range(0, _SIZE, _SLOT.size))
        self._places: dict[int, int] = {}

    def open(self, lease: int) -> bool:
        """Give a lease a place; False if all are taken."""
        if not self._free:
            return False
        place = self._places[lease] = self._free.popleft()
        # The sum first: no reader may take the former lease's for that of this one.
        struct.pack_into("<Q", self._page, place + 8, 0)
        struct.pack_into("<Q", self._page, place, lease)
        return True

    def draw(self, lease: int, total: int) -> None:
        """So much was drawn on it in all."""
        struct.pack_into("<Q", self._page, self._places[lease] + 8, total)

    def close(self, lease: int) -> None:
        """It is given back. Its place is the last to be taken again, when the engine has long heard of that."""
        self._free.append(self._places.pop(lease))

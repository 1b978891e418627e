"""Files that somebody else's input makes as large as it likes: never the last of the host's disk."""

import io
import os
from typing import BinaryIO

from corral.errors import DiskFull
from corral.rootfs.sparse import is_zero

_ROOM = 1 << 30
"""Bytes that stay free on the disk."""
_LOOK = 16 << 20
"""Bytes between two looks."""
_HOLE = 1 << 14
"""So many zeros at once take no room: what tarfile reads a file in."""


class WithRoom(io.RawIOBase):
    """A file to write to, at its end, while its disk has room. Raises DiskFull."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._unseen = _LOOK

    def writable(self) -> bool:
        """Nothing else."""
        return True

    def write(self, data: "bytes | bytearray | memoryview") -> int:  # type: ignore[override]  # as tarfile calls it
        """All of `data`; of nothing but zeros, a hole."""
        if len(data) >= _HOLE and is_zero(bytes(data)):
            end = self._file.seek(len(data), os.SEEK_CUR)
            os.ftruncate(self._file.fileno(), end)
            return len(data)
        self._unseen += len(data)
        if self._unseen >= _LOOK:
            self._unseen = 0
            disk = os.fstatvfs(self._file.fileno())
            if disk.f_bavail * disk.f_frsize < _ROOM:
                raise DiskFull("the disk of the data directory has less than 1 GiB left")
        return self._file.write(data)

    def tell(self) -> int:
        """Where the next byte goes."""
        return self._file.tell()

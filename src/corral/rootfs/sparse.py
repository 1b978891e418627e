"""Where a file has data: what is a hole is neither read nor copied, and long runs of zeros are written as holes."""

import errno
import os
from collections.abc import Iterable, Iterator

_BLOCK = 1 << 16
"""Zeros that begin and end on multiples of it, from where a piece begins, are written as a hole."""


def data_ranges(fd: int) -> Iterator[tuple[int, int]]:
    """Starts and ends of the parts of a regular file that may hold something else than zeros, in order."""
    at, size = 0, os.fstat(fd).st_size
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left
                return
            raise
        at = os.lseek(fd, start, os.SEEK_HOLE)
        yield start, at


def is_zero(data: bytes) -> bool:
    """Whether it is nothing but zeros. Quick where its first or last byte is none."""
    return not (data[:1].strip(b"\0") or data[-1:].strip(b"\0")) and data == bytes(len(data))


def write_file(fd: int, pieces: Iterable[bytes]) -> None:
    """Fill a file that is new and empty. Archives hold the holes of a file as zeros: here they are holes again."""
    at = 0
    for piece in pieces:
        for start in range(0, len(piece), _BLOCK):
            block = piece[start : start + _BLOCK]
            if not is_zero(block):
                _write_at(fd, block, at + start)
        at += len(piece)
    os.ftruncate(fd, at)


def _write_at(fd: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, at)
        view, at = view[written:], at + written

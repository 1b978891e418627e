"""Where a file has data: what is a hole is neither read nor copied."""

import errno
import os
from collections.abc import Iterator


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

"""Metadata of a guest's files: extended attributes below one prefix, set by whoever may write the file.

The prefix is the one that E2B's tools use, so that each reads what the other wrote. What a guest puts there is data: it is
bounded and decoded, never trusted.
"""

import contextlib
import errno
import os
from collections.abc import Mapping

PREFIX = "user.e2b."
MAX_BYTES = 64 * 1024
"""Names and values of one file that are read; more is left out."""
_NONE_KEPT = (errno.ENOTSUP, errno.EPERM)


def set_metadata(fd: int, metadata: Mapping[str, str]) -> bool:
    """Attach metadata to an open file that has none yet; False where the file system keeps none. Raises OSError."""
    for key, value in metadata.items():
        try:
            os.setxattr(fd, PREFIX + key, value.encode())
        except OSError as error:
            if error.errno in _NONE_KEPT:
                return False
            raise
    return True


def read_metadata(fd: int) -> dict[str, str]:
    """Metadata of the file behind a descriptor, also one of O_PATH. Empty where there is none or none can be read."""
    path, found, size = f"/proc/self/fd/{fd}", {}, 0
    with contextlib.suppress(OSError):
        for name in sorted(os.listxattr(path)):
            if not name.startswith(PREFIX):
                continue
            with contextlib.suppress(OSError):  # it went meanwhile
                value = os.getxattr(path, name)
                size += len(name) + len(value)
                if size <= MAX_BYTES:
                    key = (
                        name.removeprefix(PREFIX)
                        .encode("utf-8", "surrogateescape")
                        .decode("utf-8", "replace")
                    )
                    found[key] = value.decode("utf-8", "replace")
    return found

"""The moment of a start, seen by a daemon that comes after.

A daemon may be killed while a runtime starts a sandbox for it. The runtime goes on, and brings up a sandbox
that the next daemon has just cleaned away. So the runtime inherits a locked file, and whoever cleans up waits
for the lock, killing what appears meanwhile. A lock ends with its last holder, whatever ends that one.
"""

import asyncio
import contextlib
import fcntl
import os
import time
from collections.abc import Iterator

from corral.drivers.oci_places import Place
from corral.errors import HostError
from corral.host.cgroups import Cgroup

_LOCK = "starting"
_POLL_SECONDS = 0.01
_PATIENCE_SECONDS = 60.0


@contextlib.contextmanager
def starting(place: Place) -> Iterator[int]:
    """A locked descriptor that the runtime is to inherit."""
    fd = os.open(place.bundle / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield fd
    finally:
        os.close(fd)


async def kill_all(group: Cgroup, place: Place) -> None:
    """Kill all processes of a sandbox, and those that a start still under way brings. Raises HostError if it
    does not end."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    await group.kill()
    if not _is_starting(place):
        return
    while _is_starting(place):
        if time.monotonic() > deadline:
            raise _stuck(place)
        await asyncio.sleep(_POLL_SECONDS)
        await group.kill()
    await group.kill()  # what came between the last kill and the end of the start


async def start_over(place: Place) -> None:
    """Return once no start is under way that an earlier daemon began. Raises HostError if it does not end."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while _is_starting(place):
        if time.monotonic() > deadline:
            raise _stuck(place)
        await asyncio.sleep(_POLL_SECONDS)


def _stuck(place: Place) -> HostError:
    return HostError(
        "a runtime that an earlier daemon called to start the sandbox does not end",
        f"look for the process that has {place.bundle / _LOCK} open, and end it",
    )


def _is_starting(place: Place) -> bool:
    try:
        fd = os.open(place.bundle / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False

"""The first process of a sandbox, as the host's kernel sees it: found, watched and ended by a pidfd."""

import asyncio
import contextlib
import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path

from corral.errors import HostError
from corral.oci.runtime import read_pid

_KILL_SECONDS = 10.0


def open_first_process(pid_file: Path, cgroup: str) -> int | None:
    """A pidfd of the process that a runtime noted, which the caller closes; None if it does not run.

    A process number may belong to somebody else by now; but nobody else is in the sandbox's `cgroup`, and its
    other processes cannot outlive the first.
    """
    if not pid_file.exists():
        return None
    pid = read_pid(pid_file)
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    if not has_ended(pidfd) and _in_cgroup(pid, cgroup):
        return pidfd
    os.close(pidfd)
    return None


@contextlib.contextmanager
def first_process(pid_file: Path, cgroup: str) -> Iterator[int | None]:
    """The same for a block."""
    pidfd = open_first_process(pid_file, cgroup)
    try:
        yield pidfd
    finally:
        if pidfd is not None:
            os.close(pidfd)


def has_ended(pidfd: int) -> bool:
    """Whether the process has ended, reaped or not."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


async def ended(pidfd: int, seconds: float | None = None) -> bool:
    """Wait until the process has ended; False if it has not within `seconds`. One waiter per descriptor."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    loop.add_reader(pidfd, done.set)
    try:
        await asyncio.wait_for(done.wait(), seconds)
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(pidfd)
    return True


async def kill_first_process(pidfd: int) -> None:
    """SIGKILL; returns when it has ended, and with it every process of its namespace. Raises HostError if the
    kernel does not let it go.
    """
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    if not await ended(pidfd, _KILL_SECONDS):
        raise HostError(
            "the sandbox's first process was killed and does not go away",
            "the kernel holds it in an uninterruptible call: look at the host's disks and kernel log",
        )


def pid_of(pidfd: int) -> int:
    """The process number behind a pidfd; -1 once it has been reaped."""
    for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == "Pid":
            return int(value)
    return -1


def _in_cgroup(pid: int, cgroup: str) -> bool:
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return False
    # A line is `number:controllers:path`; a runtime may have put it into a group below.
    paths = (line.split(":", 2)[2] for line in lines)
    return any(path == cgroup or path.startswith(f"{cgroup}/") for path in paths)

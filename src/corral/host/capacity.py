"""What this machine has, and what of it nobody uses. Read anew at each call; takes a tenth of a millisecond."""

import os
import resource
from collections.abc import Iterable
from pathlib import Path

from corral.model.capacity import Resource, Room

_OWN_HANDLES = 256
"""File handles that the daemon needs whatever it runs."""


def raise_handle_limit() -> None:
    """Let this process, and those that it starts, open as many files as it may: each sandbox takes some."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def room(directories: Iterable[Path]) -> Room:
    """The machine's room; its disk is that of the directory with the least free."""
    memory = _memory("MemTotal", "MemAvailable")
    pids, used_pids = _processes()
    handles = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    free_disk, disk = min(_disk(directory) for directory in directories)
    cpus = float(os.cpu_count() or 1)
    return Room(
        total={
            Resource.MEMORY: memory["MemTotal"],
            Resource.CPUS: cpus,
            Resource.PIDS: pids,
            Resource.HANDLES: handles,
            Resource.DISK: disk,
        },
        free={
            Resource.MEMORY: memory["MemAvailable"],
            Resource.CPUS: cpus,
            Resource.PIDS: max(0, pids - used_pids),
            Resource.HANDLES: max(0, handles - _OWN_HANDLES),
            Resource.DISK: free_disk,
        },
    )


def unwritten() -> float:
    """Bytes of files, of any disk, that wait in memory to be written."""
    return sum(_memory("Dirty", "Writeback").values())


def _memory(*names: str) -> dict[str, float]:
    found: dict[str, float] = {}
    with Path("/proc/meminfo").open() as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if name in names:
                found[name] = float(value.split()[0]) * 1024
                if len(found) == len(names):
                    break
    return found


def _processes() -> tuple[float, float]:
    """How many processes and threads there may be, and are."""
    most = min(
        int(Path(path).read_text()) for path in ("/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max")
    )
    return float(most), float(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])


def _disk(directory: Path) -> tuple[float, float]:
    """Free and total bytes."""
    found = os.statvfs(directory)
    return float(found.f_bavail * found.f_frsize), float(found.f_blocks * found.f_frsize)


def waiting_percent() -> float | None:
    """Share of the last ten seconds in which some process waited for memory (PSI); None where the kernel does not tell."""
    try:
        first = Path("/proc/pressure/memory").read_text().split()
    except OSError:
        return None
    return next((float(item[6:]) for item in first if item.startswith("avg10=")), None)


def network_bytes(pid: int) -> int:
    """Bytes that went in and out of the network of a process, its loopback left out."""
    total = 0
    for line in Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]:
        name, _, numbers = line.partition(":")
        fields = numbers.split()
        if name.strip() != "lo":
            total += int(fields[0]) + int(fields[8])
    return total

"""Control groups of the layouts that exist: version 2, version 1, and both at once.

The OCI runtime makes a sandbox's groups and writes its limits. This module reads, freezes and cleans up.
Under version 1 one group is a directory per controller; `name` is its path from the root of each hierarchy,
as in the runtime's `cgroupsPath`.
"""

import asyncio
import contextlib
import errno
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from corral.errors import HostError, InternalError, Unsupported
from corral.host import mounts

# The kernel tells by no event when a version 1 freezer is done; a process stops within microseconds.
_POLL = 0.002
_PATIENCE = 10.0


@dataclass(frozen=True, slots=True)
class CgroupUsage:
    """What a group uses, with all below it.

    `memory` in bytes, without the file cache that can be dropped at once; `memory_peak` is with it. `file_cache` is what
    files on disks hold of memory: no tmpfs, and not gVisor's file of its guest's memory.
    `cpu_usec` is processor time since its start in microseconds. `pids` counts processes and threads.
    """

    memory: int
    memory_peak: int
    file_cache: int
    cpu_usec: int
    pids: int
    oom_kills: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the hierarchies are mounted: all in `roots`; version 1's by controller; version 2's as
    `unified`.
    """

    controllers: dict[str, Path]
    unified: Path | None
    roots: tuple[Path, ...]

    @property
    def version(self) -> int:
        """The version that runtimes use: 1 also where both are mounted and version 1 has the controllers."""
        return 1 if "memory" in self.controllers else 2

    def group(self, name: str) -> "Cgroup":
        """The group `name`: absolute, at least one component."""
        parts = name.split("/")
        if not name.startswith("/") or any(part in ("", ".", "..") for part in parts[1:]):
            raise InternalError(f"the cgroup name {name!r} is not valid")
        return Cgroup(self, name.removeprefix("/"))


def detect() -> Layout:
    """The host's layout. Raises Unsupported if there is none that can limit memory and processes."""
    controllers: dict[str, Path] = {}
    unified: Path | None = None
    roots: dict[Path, None] = {}
    for entry in mounts.mounts():
        # A bind mount of a part of a hierarchy (as in a container) is not the hierarchy.
        if entry.root != "/" or not entry.fstype.startswith("cgroup"):
            continue
        roots[entry.target] = None
        if entry.fstype == "cgroup2":
            unified = unified or entry.target
        else:
            for controller in _controllers(entry.target):
                controllers.setdefault(controller, entry.target)
    layout = Layout(controllers, unified, tuple(roots))
    if layout.version == 2 and not _has_controllers(unified):
        raise Unsupported(
            "this host has no cgroups that limit memory and processes",
            "mount cgroup2 at /sys/fs/cgroup, or boot with systemd.unified_cgroup_hierarchy=1",
        )
    return layout


def _controllers(target: Path) -> list[str]:
    # /sys/fs/cgroup/cpu,cpuacct is one hierarchy of two; a named one (systemd) has no controller.
    return [name for name in target.name.split(",") if name != "systemd"]


def _has_controllers(unified: Path | None) -> bool:
    if unified is None:
        return False
    return {"memory", "pids"} <= set((unified / "cgroup.controllers").read_text().split())


class Cgroup:
    """One group. Reading a group that does not exist raises FileNotFoundError; the rest is idempotent."""

    def __init__(self, layout: Layout, name: str) -> None:
        self._layout = layout
        self._name = name

    @property
    def directories(self) -> list[Path]:
        """Its directory in every hierarchy, whether it exists or not."""
        return [root / self._name for root in self._layout.roots]

    def exists(self) -> bool:
        """Whether it is there in the hierarchy that counts its processes."""
        return self._main.is_dir()

    def usage(self) -> CgroupUsage:
        """What it and the groups below it use now."""
        return self._usage1() if self._layout.version == 1 else self._usage2()

    def cpu_usec(self) -> int:
        """Processor time since its start in microseconds."""
        if self._layout.version == 1:
            return _number(self._v1("cpuacct") / "cpuacct.usage") // 1000
        return _field(self._main / "cpu.stat", "usage_usec")

    def unwritten(self) -> int:
        """Bytes of files that its processes have written and that are in memory only."""
        first = self._layout.version == 1
        stat = (self._v1("memory") if first else self._main) / "memory.stat"
        names = ("total_dirty", "total_writeback") if first else ("file_dirty", "file_writeback")
        return sum(_fields(stat, *names))

    def oom_kills(self) -> int:
        """How many of its processes the kernel has killed for want of memory."""
        if self._layout.version == 1:
            return _field(self._v1("memory") / "memory.oom_control", "oom_kill")
        return _field(self._main / "memory.events", "oom_kill")

    def pids(self) -> list[int]:
        """Its processes, those of groups below it included."""
        found: list[int] = []
        for folder in _tree(self._main):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                found += map(int, (folder / "cgroup.procs").read_text().split())
        return found

    def limit_connections(self, size: int) -> None:
        """Let what its sockets hold take at most `size` bytes. Version 2 counts that as memory like any other; version 1 by
        itself, and the runtimes leave it without a limit.
        """
        if self._layout.version == 1:
            # A kernel may be without the counter, and the group may have ended.
            with contextlib.suppress(FileNotFoundError):
                (self._v1("memory") / "memory.kmem.tcp.limit_in_bytes").write_text(str(size))

    def is_frozen(self) -> bool:
        """Whether all of its processes are stopped by `freeze`."""
        if self._layout.version == 1:
            return (self._v1("freezer") / "freezer.state").read_text().strip() == "FROZEN"
        return _field(self._main / "cgroup.events", "frozen") == 1

    async def freeze(self) -> None:
        """Stop all of its processes; returns when they are stopped. Raises HostError, thawed, if they do
        not stop.
        """
        # Version 1 may never get hold of processes that start others all the time, but does if asked again.
        rounds = 50 if self._layout.version == 1 else 1
        for _ in range(rounds):
            self._set_frozen(frozen=True)
            if await _until(self.is_frozen, _PATIENCE / rounds):
                return
            self._set_frozen(frozen=False)
        raise HostError(
            "the processes of the sandbox could not be paused within ten seconds",
            "one of them waits for a disk or a network file system: try again later, or stop the sandbox",
        )

    def thaw(self) -> None:
        """Let them run again."""
        self._set_frozen(frozen=False)

    async def kill(self) -> None:
        """SIGKILL to all of its processes, frozen ones included; returns when they are gone. Raises
        HostError if the kernel does not let them go within ten seconds."""
        kill_file = self._main / "cgroup.kill"
        if not self.exists():
            return
        if kill_file.exists():
            kill_file.write_text("1")
            done = await _until(lambda: not self.pids())
        else:
            done = await _until(self._kill_round)
        if not done:
            raise HostError("processes of the sandbox do not end although they were killed")

    async def remove(self) -> None:
        """Remove its directories, and those below, everywhere. Its processes must have ended."""
        directories = self.directories
        if not await _until(lambda: all(_removed(folder) for folder in directories)):
            raise HostError(f"the cgroup {self._name} is still in use and cannot be removed")

    @property
    def _main(self) -> Path:
        """The directory whose list of processes counts."""
        if self._layout.version == 1:
            return self._v1("pids" if "pids" in self._layout.controllers else "memory")
        if self._layout.unified is None:
            raise InternalError("a version 2 layout without its hierarchy")
        return self._layout.unified / self._name

    def _v1(self, controller: str) -> Path:
        try:
            return self._layout.controllers[controller] / self._name
        except KeyError:
            raise Unsupported(
                f"this host's cgroups have no {controller} controller",
                f"enable it: cgroup_enable={controller}",
            ) from None

    def _usage1(self) -> CgroupUsage:
        memory = self._v1("memory")
        names = ("total_inactive_file", "total_cache", "total_shmem")
        droppable, cache, shared = _fields(memory / "memory.stat", *names)
        return CgroupUsage(
            memory=max(0, _number(memory / "memory.usage_in_bytes") - droppable),
            memory_peak=_number(memory / "memory.max_usage_in_bytes"),
            file_cache=max(0, cache - shared),
            cpu_usec=self.cpu_usec(),
            pids=_number(self._v1("pids") / "pids.current"),
            oom_kills=self.oom_kills(),
        )

    def _usage2(self) -> CgroupUsage:
        folder = self._main
        current = _number(folder / "memory.current")
        peak = folder / "memory.peak"  # since Linux 5.19
        droppable, cache, shared = _fields(folder / "memory.stat", "inactive_file", "file", "shmem")
        return CgroupUsage(
            memory=max(0, current - droppable),
            memory_peak=_number(peak) if peak.exists() else current,
            file_cache=max(0, cache - shared),
            cpu_usec=self.cpu_usec(),
            pids=_number(folder / "pids.current"),
            oom_kills=self.oom_kills(),
        )

    def _set_frozen(self, *, frozen: bool) -> None:
        if self._layout.version == 1:
            (self._v1("freezer") / "freezer.state").write_text("FROZEN" if frozen else "THAWED")
        else:
            (self._main / "cgroup.freeze").write_text("1" if frozen else "0")

    def _kill_round(self) -> bool:
        """Kill whoever is there. Stopped while it is read, a fork bomb cannot outrun the list; a frozen
        process dies when it is thawed."""
        pids = self.pids()
        if not pids:
            return True
        with contextlib.suppress(FileNotFoundError):
            self._set_frozen(frozen=True)
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(FileNotFoundError):
            self._set_frozen(frozen=False)
        return False


def _tree(folder: Path) -> Iterator[Path]:
    """Groups below `folder` and itself, innermost first."""
    pending, found = [folder], []
    while pending:
        current = pending.pop()
        found.append(current)
        with contextlib.suppress(FileNotFoundError):
            pending += [Path(entry) for entry in os.scandir(current) if entry.is_dir(follow_symlinks=False)]
    return reversed(found)


def _removed(folder: Path) -> bool:
    for group in _tree(folder):
        try:
            group.rmdir()
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            return False
    return True


def _number(path: Path) -> int:
    return int(path.read_text())


def _field(path: Path, name: str) -> int:
    """A value of a file of `name value` lines; 0 if it is not listed."""
    return _fields(path, name)[0]


def _fields(path: Path, *names: str) -> list[int]:
    """The same of several, in the order of their names."""
    listed = dict(line.split(" ", 1) for line in path.read_text().splitlines() if " " in line)
    return [int(listed.get(name, 0)) for name in names]


async def _until(condition: Callable[[], bool], patience: float = _PATIENCE) -> bool:
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(_POLL)
    return True

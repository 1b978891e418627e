"""Looks at the machine: small questions whose answers are plain values, for `corral doctor`.

Each one blocks for some milliseconds at most, changes nothing, and answers with None or an empty value where the host
does not say.
"""

import os
import resource
import shutil
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from corral.errors import Unsupported
from corral.host.programs import find_program


@dataclass(frozen=True, slots=True)
class Kernel:
    """`release` as uname tells; `seccomp` actions that filters may take; `filesystems` known at the moment."""

    release: str
    seccomp: frozenset[str]
    filesystems: frozenset[str]
    loop_control: bool


@dataclass(frozen=True, slots=True)
class Room:
    """What is free, in bytes: on the file system of the data directory, and of memory."""

    disk: int
    memory: int
    inodes: int | None


@dataclass(frozen=True, slots=True)
class KernelLimits:
    """Limits that many sandboxes run into. None: not told."""

    inotify_instances: int | None
    inotify_watches: int | None
    open_files: int
    user_namespaces: int | None
    pid_max: int | None


def kernel() -> Kernel:
    """The kernel and what it has built in or loaded."""
    lines = _text("/proc/filesystems").splitlines()
    return Kernel(
        release=os.uname().release,
        seccomp=frozenset(_text("/proc/sys/kernel/seccomp/actions_avail").split()),
        filesystems=frozenset(line.split()[-1] for line in lines if line.split()),
        loop_control=Path("/dev/loop-control").exists(),
    )


def room(directory: Path) -> Room:
    """Free space for `directory`, which may not exist yet, and available memory."""
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    status = os.statvfs(existing)
    return Room(
        disk=shutil.disk_usage(existing).free,
        memory=psutil.virtual_memory().available,
        inodes=status.f_favail if status.f_files else None,
    )


def kernel_limits() -> KernelLimits:
    """System-wide limits, and this process's on open files."""
    return KernelLimits(
        inotify_instances=_number("/proc/sys/fs/inotify/max_user_instances"),
        inotify_watches=_number("/proc/sys/fs/inotify/max_user_watches"),
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        user_namespaces=_number("/proc/sys/user/max_user_namespaces"),
        pid_max=_number("/proc/sys/kernel/pid_max"),
    )


def programs(names: Iterable[str]) -> dict[str, Path | None]:
    """Where each program is, None for those that are missing."""
    found: dict[str, Path | None] = {}
    for name in names:
        try:
            found[name] = find_program(name)
        except Unsupported:
            found[name] = None
    return found


def resolve(host: str) -> tuple[str, ...]:
    """The addresses of a name, by the host's resolver; empty if it has none. May take as long as a timeout."""
    try:
        answers = socket.getaddrinfo(host, 443, type=socket.SOCK_STREAM)
    except OSError:
        return ()
    return tuple(dict.fromkeys(str(address[0]) for *_, address in answers))


def own_addresses() -> frozenset[str]:
    """The addresses of this host's interfaces."""
    wanted = (socket.AF_INET, socket.AF_INET6)
    return frozenset(
        entry.address.partition("%")[0]
        for entries in psutil.net_if_addrs().values()
        for entry in entries
        if entry.family in wanted
    )


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _number(path: str) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None

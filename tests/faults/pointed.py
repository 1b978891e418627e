"""The daemon, with every step that it takes on the host numbered, and killed at the one that is asked for.

Run in place of `corral.daemon.main`; nothing of it is in the product. A point lies **before** each thing that changes
something: Python's own audit events (files made, renamed, removed, programs started, signals, ioctls), each system call
of `corral.host.syscalls`, and the begin and the commit of each transaction. So whatever the daemon did up to a point has
happened, and nothing after it. One more lies after the start of each program, which then has a daemon no more.

A socket takes orders: `count` starts counting anew, `kill N` does and ends both processes at point N, `gateway N` the gateway
alone, `read` tells how many there were. Counting begins with the start; POINTS_DEADLY is the point of that at which to end.
"""

import functools
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event

from corral.daemon import main as daemon
from corral.engine import audit, disk
from corral.host import syscalls

SOCKET, DEADLY = "POINTS_SOCKET", "POINTS_DEADLY"
LONG_CHAIN = 3
"""Layers of a checkpoint from which on they are made fewer here: dozens would take as many seconds."""
_FILES = {
    *("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod"),
    *("os.chown", "os.utime", "os.setxattr", "os.removexattr", "fcntl.ioctl", "fcntl.flock", "os.kill"),
    *("subprocess.Popen", "os.posix_spawn", "socket.bind", "socket.sendmsg", "shutil.rmtree"),
}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_QUIET = {"setns", "prctl", "setfsuid", "setfsgid", "fstatfs_type", "openat2"}
"""Calls that change nothing outside of the calling thread."""


class Points:
    """The counter. Counting is cheap enough to be always there; `armed` says whether it means anything."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.passed = 0
        self.deadly = 0
        self.armed = False
        self.kill = _kill_all

    def start(self, deadly: int, kill: Callable[[], None]) -> None:
        """Count from one again; `kill` is called at `deadly`, 0 for never."""
        with self._lock:
            self.passed, self.deadly, self.armed, self.kill = 0, deadly, True, kill

    def step(self) -> None:
        """One more."""
        if not self.armed:
            return
        with self._lock:
            self.passed += 1
            if self.passed == self.deadly:
                self.kill()


def _kill_all() -> None:
    _kill_gateway()
    signal.pidfd_send_signal(os.pidfd_open(os.getpid()), signal.SIGKILL)


def _kill_gateway() -> None:
    children = " ".join(p.read_text() for p in Path(f"/proc/{os.getpid()}/task").glob("*/children")).split()
    for pid in children:
        if b"corral.gateway.main" in Path(f"/proc/{pid}/cmdline").read_bytes():
            signal.pidfd_send_signal(os.pidfd_open(int(pid)), signal.SIGKILL)


def _watch_python(points: Points) -> None:
    def hook(name: str, args: tuple[Any, ...]) -> None:
        changes = name in _FILES
        if name == "open" and isinstance(args[2], int):
            named = args[2] & os.O_TMPFILE != os.O_TMPFILE  # one without a name is gone with who made it
            changes = bool(args[2] & _WRITING) and named and not str(args[0]).startswith("/proc/")
        if changes:
            points.step()

    sys.addaudithook(hook)


def _watch_programs(points: Points) -> None:
    start = subprocess.Popen.__init__

    @functools.wraps(start)
    def stepping(*args: Any, **kwargs: Any) -> None:
        start(*args, **kwargs)
        points.step()

    subprocess.Popen.__init__ = stepping  # type: ignore[method-assign]


def _watch_syscalls(points: Points) -> None:
    for name, call in list(vars(syscalls).items()):
        own = callable(call) and getattr(call, "__module__", "") == syscalls.__name__
        if own and not name.startswith("_") and name not in _QUIET and not isinstance(call, type):
            setattr(syscalls, name, _stepping(points, call))


def _stepping(points: Points, call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def stepping(*args: Any, **kwargs: Any) -> Any:
        points.step()
        return call(*args, **kwargs)

    return stepping


def _watch_database(points: Points) -> None:
    for moment in ("begin", "commit"):
        event.listen(Engine, moment, lambda *_: points.step())


def _hurry_archive() -> None:
    """Let audit records be moved once they are to be kept for a day, which all are older than here."""
    audit.ARCHIVE_SECONDS = 0.2
    move = audit.AuditLog.archive

    async def archive(self: audit.AuditLog) -> None:
        self._clock = _Ahead()
        await move(self)

    audit.AuditLog.archive = archive  # type: ignore[method-assign]


class _Ahead:
    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(days=2)


def _take_orders(points: Points, place: str) -> None:
    Path(place).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(place)
    listener.listen()
    while True:
        connection, _ = listener.accept()
        with connection, connection.makefile("rw") as stream:
            order, _, number = stream.readline().strip().partition(" ")
            if order == "read":
                points.armed = False
                stream.write(f"{points.passed}\n")
            else:
                points.start(int(number or 0), _kill_gateway if order == "gateway" else _kill_all)
                stream.write("0\n")


def main() -> int:
    """The daemon under its points."""
    points = Points()
    disk.FLATTEN_OVER = LONG_CHAIN
    _hurry_archive()
    threading.Thread(target=_take_orders, args=(points, os.environ[SOCKET]), daemon=True).start()
    points.start(int(os.environ.get(DEADLY, "0")), _kill_all)
    _watch_programs(points)
    _watch_python(points)
    _watch_syscalls(points)
    _watch_database(points)
    return daemon.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())

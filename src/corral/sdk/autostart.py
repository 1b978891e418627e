"""Starting this host's daemon on first use.

The daemon is started as a process of its own session and left alone; readiness is the socket's answer. Two
clients may do so at once: the second daemon refuses to start, and both clients find the first.
"""

import os
import select
import socket
import sys
import time
from pathlib import Path

from corral.errors import Conflict, DaemonUnreachable, Forbidden
from corral.sdk.settings import Settings

READY_SECONDS = 60.0
POLL_SECONDS = 0.02
AGAIN_SECONDS = 0.2
"""Pause before the next try where another daemon holds the data directory but does not answer: it comes up, or ends."""
LOG_TAIL = 2000

SERVE = (sys.executable, "-m", "corral.daemon.main", "--detach")


def answers(path: Path) -> bool:
    """Whether somebody listens on a unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


def ensure(where: Settings) -> None:
    """Start the daemon where none answers, and return once it does.

    Raises Forbidden where this user may not, DaemonUnreachable with the end of its log if it does not come up.
    """
    if answers(where.socket):
        return
    if os.geteuid() != 0:
        raise Forbidden("no daemon runs, and only root can start it", "run `sudo corral daemon start` once")
    offset = _size(where.log)
    deadline = time.monotonic() + READY_SECONDS
    while (status := _wait(where.socket, _spawn(where), deadline)) == Conflict.exit_code:
        select.select([], [], [], AGAIN_SECONDS)
    if status is not None:
        raise DaemonUnreachable(
            f"the daemon did not start{_tail(where.startup_log, 0)}{_tail(where.log, offset)}",
            f"look for the cause in {where.log}, and at `corral doctor`",
        )


def _spawn(where: Settings) -> int:
    actions: list[tuple[int, int, str, int, int] | tuple[int, int, int]] = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(where.startup_log), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    try:
        where.startup_log.parent.mkdir(parents=True, exist_ok=True, mode=0o711)
        environ = {**os.environ, "CORRAL_DATA_DIR": str(where.data_dir)}
        return os.posix_spawn(SERVE[0], SERVE, environ, file_actions=actions, setsid=True)
    except OSError as error:
        raise DaemonUnreachable(
            f"the daemon could not be started: {error}", "check CORRAL_DATA_DIR"
        ) from error


def _wait(path: Path, pid: int, deadline: float) -> int | None:
    """Wait until the socket answers: None. Where our child ends before that, its exit status; -1 once it is too late."""
    while time.monotonic() < deadline:
        status = _ended(pid)
        if answers(path):
            return None
        if status is not None:
            return status
        select.select([], [], [], POLL_SECONDS)
    return -1


def _ended(pid: int) -> int | None:
    """The exit status of our child, once it has ended."""
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return 0
    return os.waitstatus_to_exitcode(status) if found else None


def _size(log: Path) -> int:
    try:
        return log.stat().st_size
    except OSError:
        return 0


def _tail(log: Path, offset: int) -> str:
    """What the log got since `offset`, the end of it."""
    try:
        with log.open("rb") as file:
            file.seek(max(offset, _size(log) - LOG_TAIL))
            text = file.read().decode("utf-8", "replace").strip()
    except OSError:
        return ""
    return f"; its log ends with:\n{text}" if text else ""

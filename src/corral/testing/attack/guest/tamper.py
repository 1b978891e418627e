"""A sandbox's root against its own PID 1 and the places that the daemon reads; prints what each attempt gave."""

import contextlib
import json
import os
import signal
import sys
from pathlib import Path

from .kit import in_child, libc, outcome, report

SPOOL = Path("/run/corral/io")


def spool(target: str) -> dict[str, str]:
    """Replace every output file, present and future, by something else."""
    found = {}
    for number in range(1, 40):
        for suffix in ("out", "err"):
            path = SPOOL / f"{number}.{suffix}"
            found[str(path)] = outcome(_replace, path, target, number)
    return found


def _replace(path: Path, target: str, number: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    match number % 4:
        case 0:
            os.symlink(target, path)
        case 1:
            os.mkfifo(path)
        case 2:
            path.mkdir()
        case _:
            with path.open("wb") as file:
                file.truncate(1 << 40)


def init() -> dict[str, str]:
    """Trace, stop, kill, rewrite and confuse PID 1."""
    garbage = os.urandom(65536)

    def trace() -> None:
        if libc.ptrace(16, 1, None, None) != 0:
            raise PermissionError(1, "")

    def write(path: str) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        with contextlib.suppress(BlockingIOError):
            os.write(fd, garbage)
        os.close(fd)

    found = {"trace": in_child(trace)}
    for path in ("/proc/1/fd/0", "/proc/1/fd/1", "/proc/1/mem"):
        found[f"write {path}"] = outcome(write, path)
    found["replace"] = outcome(os.rename, "/bin/true", "/run/corral/init")
    found["unlink"] = outcome(os.unlink, "/run/corral/init")
    return found


if __name__ == "__main__":
    if sys.argv[1] == "spool":
        report(spool(sys.argv[2]))
    else:
        Path("/root/results").write_text(json.dumps(init()))
        # From here on its own output goes nowhere.
        outcome(os.rename, "/run/corral", "/run/moved")
        outcome(os.makedirs, "/run/corral/io")
        for number in (signal.SIGSTOP, signal.SIGSEGV, signal.SIGHUP, signal.SIGKILL, signal.SIGTERM):
            os.kill(1, number)

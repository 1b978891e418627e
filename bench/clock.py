"""Taking times, and running outside programs."""

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

MS = 1000.0
MIB = 1024 * 1024


def elapsed(action: Callable[[], object]) -> float:
    """Milliseconds that a call takes."""
    begun = time.perf_counter()
    action()
    return (time.perf_counter() - begun) * MS


def repeat(n: int, action: Callable[[], object], warm: int = 1) -> list[float]:
    """Milliseconds of `n` calls in a row, after `warm` that are not counted."""
    for _ in range(warm):
        action()
    return [elapsed(action) for _ in range(n)]


def call(*argv: str | Path) -> str:
    """Run a program to its end; what it wrote. Raises RuntimeError with its error output if it failed."""
    done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        words = " ".join(map(str, argv))[:300]
        raise RuntimeError(f"{words} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def first_line(argv: Sequence[str | Path]) -> float:
    """Milliseconds from the start of a program until it has written a line; its end is waited for, but not counted."""
    begun = time.perf_counter()
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as child:
        line = child.stdout.readline() if child.stdout is not None else b""
        took = (time.perf_counter() - begun) * MS
        child.wait()
    if not line or child.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, argv))} ended with {child.returncode}")
    return took


def wait_until(true: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    """Look every 20 ms until something holds. Raises RuntimeError when the time is over."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.02)


def end(process: "subprocess.Popen[bytes]", seconds: float = 30.0) -> None:
    """TERM, and KILL if that is not enough."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def meminfo(*names: str) -> int:
    """The sum of some lines of /proc/meminfo, in bytes; a line that this kernel has not counts as nothing."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    return sum(int(line[1]) * 1024 for line in lines if line[0].rstrip(":") in names)


def rss(pid: int) -> int:
    """Bytes of memory that a process holds, shared pages included."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def pss(pid: int) -> int:
    """Bytes of memory of a process, shared pages divided among their users."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def cpu_seconds(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    """Process ids of a process's children."""
    tasks = Path(f"/proc/{pid}/task")
    return [int(child) for file in tasks.glob("*/children") for child in file.read_text().split()]

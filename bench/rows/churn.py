"""Whether a daemon that has made and removed thousands of sandboxes is as quick and as small as one that has not."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench.clock import MIB, MS, rss
from bench.figures import Figure, Row
from bench.stand import Stand

_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class _Held:
    """What there is of the daemon's: MiB of memory, open handles and threads of its processes, mounts below its run
    directory, and files in the directories that it keeps."""

    memory: float
    handles: int
    threads: int
    mounts: int
    files: int


def rows(stand: Stand) -> Iterator[Row]:
    """Each cycle makes a sandbox, runs a command in it and removes it; several at a time."""
    stand.remove_all()
    n = stand.n(10_000, 500)
    tenth = n // 10
    first = _cycles(stand, tenth)
    warm = _held(stand)
    _cycles(stand, n - 2 * tenth)
    last = _cycles(stand, tenth)
    held = _held(stand)
    yardstick = Figure.of("the first tenth of them", "ms", first)
    yield Row(
        f"create, command, remove: {n:,} times",
        Figure.of("the last tenth of them", "ms", last),
        (yardstick,),
        bounds={yardstick.who: 1.5},
        remark=f"{_AT_ONCE} at a time, all by one daemon that is never started again.",
    )
    before = Figure.single("after a tenth of them", "MiB", warm.memory)
    growth = {
        name: getattr(held, name) - getattr(warm, name) for name in ("handles", "threads", "mounts", "files")
    }
    yield Row(
        f"daemon's memory after {n:,} sandboxes",
        Figure.single("engine + gateway, RSS", "MiB", held.memory, n),
        (before,),
        parts=tuple(Figure.single(f"growth: {name}", "", value, n) for name, value in growth.items()),
        bounds={before.who: 1.1},
        remark=(
            "What a sandbox would leave behind shows here. Growth is that after the first tenth; files are those in the "
            "directories of sandboxes, layers and spools."
        ),
    )


def _cycles(stand: Stand, n: int) -> list[float]:
    """Milliseconds of each of `n` cycles."""

    def one(_: int) -> float:
        begun = time.perf_counter()
        box = stand.sandbox()
        box.exec(["true"], check=True)
        box.kill()
        return (time.perf_counter() - begun) * MS

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return list(threads.map(one, range(n)))


def _held(stand: Stand) -> _Held:
    pids = (stand.engine_pid, stand.gateway_pid)
    directories = (stand.run, stand.data / "sandboxes", *(stand.data / "store").glob("*"))
    return _Held(
        memory=sum(map(rss, pids)) / MIB,
        handles=sum(_count(Path(f"/proc/{pid}/fd")) for pid in pids),
        threads=sum(_count(Path(f"/proc/{pid}/task")) for pid in pids),
        mounts=Path("/proc/self/mountinfo").read_text().count(f" {stand.run}/"),
        files=sum(map(_count, directories)),
    )


def _count(directory: Path) -> int:
    return sum(1 for _ in directory.iterdir()) if directory.is_dir() else 0

"""What a sandbox that does nothing costs the host."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.clock import MIB, cpu_seconds, meminfo, pss, repeat, rss
from bench.figures import Figure, Row
from bench.rows.fleet import FLEET, REST_SECONDS, create_many
from bench.stand import Stand
from corral.model.sandbox import Isolation

# What the kernel holds for programs and cannot take back. Page cache and the pages of other programs are not among it,
# so their changes do not show.
_KERNEL = ("SUnreclaim", "KernelStack", "PageTables", "SecPageTables", "Percpu")


@dataclass(frozen=True, slots=True)
class _Memory:
    """MiB for each of `n`: the kernel's, pages of its processes, and growth of the daemon."""

    n: int
    kernel: float
    processes: float
    daemon: float

    @property
    def all(self) -> float:
        """All of it."""
        return self.kernel + self.processes + self.daemon


def rows(stand: Stand) -> Iterator[Row]:
    """For each isolation, and for bare containers."""
    n = stand.n(100, 30)
    runc = _of_corral(stand, Isolation.CONTAINER, n)
    bare = _measure(stand, n, lambda: stand.bare.start_many(n), lambda: stand.bare.pids)
    stand.bare.remove_all()
    yield _idle("idle sandbox, container", runc, bare, budget=3)
    if stand.runsc:
        yield _idle("idle sandbox, gVisor", _of_corral(stand, Isolation.GVISOR, stand.n(30, 10)), bare)
    yield from _crowd(stand, stand.n(1000, 200))


def _of_corral(stand: Stand, isolation: Isolation, n: int) -> _Memory:
    memory = _measure(stand, n, lambda: create_many(stand, isolation, n), lambda: _processes(stand))
    stand.remove_all()
    return memory


def _crowd(stand: Stand, n: int) -> Iterator[Row]:
    """So many at once that most machines' users will never have more."""

    def make() -> None:
        for _ in range(n // FLEET):
            create_many(stand, Isolation.CONTAINER, FLEET)

    memory = _measure(stand, n, make, lambda: _processes(stand))
    yield _idle(f"idle sandbox, container, {n:,} at once", memory, budget=2)
    pids = (stand.engine_pid, stand.gateway_pid)
    used = sum(map(cpu_seconds, pids))
    time.sleep(REST_SECONDS)
    yield Row(
        f"daemon's CPU with {n:,} idle sandboxes",
        Figure.single(f"engine + gateway, of {REST_SECONDS:.0f} s", "s", sum(map(cpu_seconds, pids)) - used),
        parts=(Figure.single("engine + gateway, RSS", "MiB", sum(map(rss, pids)) / MIB),),
        remark="seconds of CPU, in steps of 10 ms.",
    )
    yield Row(
        f"list of {n:,} sandboxes, by API",
        Figure.of("Corral SDK", "ms", repeat(stand.n(20, 5), stand.client.list_sandboxes)),
        budget=50,
    )
    stand.remove_all()


def _measure(stand: Stand, n: int, make: Callable[[], object], pids: Callable[[], list[int]]) -> _Memory:
    daemon = (stand.engine_pid, stand.gateway_pid)
    # The pauses synchronise nothing: the kernel frees what has ended long after its end.
    time.sleep(stand.n(15, 5))
    kernel, held = meminfo(*_KERNEL), sum(map(pss, daemon))
    make()
    time.sleep(3)
    return _Memory(
        n,
        (meminfo(*_KERNEL) - kernel) / n / MIB,
        sum(map(pss, pids())) / n / MIB,
        (sum(map(pss, daemon)) - held) / n / MIB,
    )


def _processes(stand: Stand) -> list[int]:
    """All processes in the sandboxes' groups."""
    groups = list(Path("/sys/fs/cgroup").glob(f"pids/corral-{stand.run.name}/*/**/cgroup.procs"))
    groups += Path("/sys/fs/cgroup").glob(f"corral-{stand.run.name}/*/**/cgroup.procs")
    return [int(pid) for group in groups for pid in group.read_text().split()]


def _idle(title: str, ours: _Memory, bare: _Memory | None = None, budget: float | None = None) -> Row:
    yardsticks = (
        [] if bare is None else [Figure.single("bare runc, host memory each", "MiB", bare.all, bare.n)]
    )
    return Row(
        title,
        Figure.single("host memory each", "MiB", ours.all, ours.n),
        tuple(yardsticks),
        parts=(
            Figure.single("of it: kernel", "MiB", ours.kernel, ours.n),
            Figure.single("of it: its processes", "MiB", ours.processes, ours.n),
            Figure.single("of it: growth of the daemon", "MiB", ours.daemon, ours.n),
        ),
        budget=budget,
        remark=(
            f"over {ours.n} sandboxes. Kernel: what it cannot take back (slab, stacks, page tables, per-CPU); caches are not "
            "counted. Processes: pages that several share are divided among them. A bare container has one network "
            "namespace, not a pair."
        ),
    )

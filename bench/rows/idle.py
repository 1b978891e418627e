"""What a sandbox that does nothing costs the host."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.clock import MIB, meminfo, pss
from bench.figures import Figure, Row
from bench.rows.fleet import create_many
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


def _of_corral(stand: Stand, isolation: Isolation, n: int) -> _Memory:
    memory = _measure(stand, n, lambda: create_many(stand, isolation, n), lambda: _processes(stand))
    stand.remove_all()
    return memory


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


def _idle(title: str, ours: _Memory, bare: _Memory, budget: float | None = None) -> Row:
    return Row(
        title,
        Figure.single("host memory each", "MiB", ours.all, ours.n),
        (Figure.single("bare runc, host memory each", "MiB", bare.all, bare.n),),
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

"""Many sandboxes at once: how long they take to come, and what they cost while they do nothing."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.clock import MIB, available_memory, cpu_seconds, pss, repeat, rss
from bench.figures import Figure, Row
from bench.stand import Stand
from corral import AsyncClient, AsyncSandbox
from corral.model.sandbox import Isolation
from corral.sdk.settings import settings

FLEET = 100
_SETTLE_SECONDS = 3.0
_REST_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class _Memory:
    """MiB for each of a fleet: what the host lost, and what of it are pages of processes."""

    host: float
    processes: float


def rows(stand: Stand) -> Iterator[Row]:
    """One hundred with runc; fewer with gVisor, of which only the memory is looked at."""
    bare_seconds, bare_memory = _bare(stand)
    before = available_memory()
    seconds = _create(stand, Isolation.CONTAINER, FLEET)
    memory = _memory(before, FLEET, _processes(stand))
    yield _burst(bare_seconds, seconds)
    yield _idle("idle sandbox, runc", memory, bare_memory, FLEET, budget=3)
    yield from _at_rest(stand)
    yield _listing(stand)
    yield _removal(stand)
    if stand.runsc:
        n = stand.n(30, 10)
        before = available_memory()
        _create(stand, Isolation.GVISOR, n)
        yield _idle("idle sandbox, gVisor", _memory(before, n, _processes(stand)), bare_memory, n)
        stand.remove_all()


def _bare(stand: Stand) -> tuple[float, _Memory]:
    before = available_memory()
    seconds = stand.bare.start_many(FLEET)
    memory = _memory(before, FLEET, stand.bare.pids)
    stand.bare.remove_all()
    return seconds, memory


def _create(stand: Stand, isolation: Isolation, n: int) -> float:
    """Seconds until `n` sandboxes, asked for at once, have each run a command."""

    async def one(client: AsyncClient) -> None:
        box = await AsyncSandbox.create("base", client=client, isolation=isolation)
        await box.exec(["true"], check=True)

    async def all_of_them() -> float:
        async with AsyncClient(where=settings(environ=stand.env)) as client:
            await client.health()
            begun = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                for _ in range(n):
                    group.create_task(one(client))
            return time.perf_counter() - begun

    return asyncio.run(all_of_them())


def _memory(before: int, n: int, pids: list[int]) -> _Memory:
    time.sleep(_SETTLE_SECONDS)  # not a synchronisation: memory is given back late
    host = (before - available_memory()) / n / MIB
    return _Memory(host, sum(map(pss, pids)) / n / MIB)


def _processes(stand: Stand) -> list[int]:
    """All processes in the sandboxes' groups."""
    groups = list(Path("/sys/fs/cgroup").glob(f"pids/corral-{stand.run.name}/*/**/cgroup.procs"))
    groups += Path("/sys/fs/cgroup").glob(f"corral-{stand.run.name}/*/**/cgroup.procs")
    return [int(pid) for group in groups for pid in group.read_text().split()]


def _burst(bare: float, ours: float) -> Row:
    yardstick = Figure.single("bare runc run -d, 4 at a time", "s", bare, FLEET)
    return Row(
        f"{FLEET} creates at once, all usable",
        Figure.single("Corral SDK (asyncio)", "s", ours, FLEET),
        (yardstick,),
        bounds={yardstick.who: 1.5},
        remark=(
            "Corral's figure includes a command in each of them, and all that a bare container has not: overlay, quota, network "
            "with gateway, records. The client runs on the same cores."
        ),
    )


def _idle(title: str, ours: _Memory, bare: _Memory, n: int, budget: float | None = None) -> Row:
    return Row(
        title,
        Figure.single("host memory each", "MiB", ours.host, n),
        (Figure.single("bare runc, host memory each", "MiB", bare.host, FLEET),),
        parts=(Figure.single("of it: pages of its processes", "MiB", ours.processes, n),),
        budget=budget,
        remark=(
            "the difference of MemAvailable before and after, so kernel memory and the growth of both daemon processes "
            "count too."
        ),
    )


def _at_rest(stand: Stand) -> Iterator[Row]:
    pids = {"engine": stand.engine_pid, "gateway": stand.gateway_pid}
    used = sum(map(cpu_seconds, pids.values()))
    time.sleep(_REST_SECONDS)
    used = sum(map(cpu_seconds, pids.values())) - used
    yield Row(
        f"daemon's memory with {FLEET} sandboxes",
        Figure.single("engine + gateway, RSS", "MiB", sum(map(rss, pids.values())) / MIB),
        (Figure.single("dockerd + containerd, RSS", "MiB", sum(map(rss, stand.docker.pids)) / MIB),),
        parts=tuple(Figure.single(f"of it: {name}", "MiB", rss(pid) / MIB) for name, pid in pids.items()),
        budget=150,
        remark="Docker's two daemons have at most one container at this moment, which favours them.",
    )
    yield Row(
        f"daemon's CPU with {FLEET} idle sandboxes",
        Figure.single(f"engine + gateway, of {_REST_SECONDS:.0f} s", "s", used),
        remark="seconds of CPU, in steps of 10 ms.",
    )


def _listing(stand: Stand) -> Row:
    corral = str(Path(sys.executable).with_name("corral"))

    def by_cli() -> None:
        subprocess.run([corral, "ls"], env=stand.env, check=True, stdout=subprocess.DEVNULL)

    n = stand.n(20, 5)
    return Row(
        f"corral ls, {FLEET} sandboxes",
        Figure.of("corral ls", "ms", repeat(n, by_cli)),
        (Figure.of("docker ps, at most 1 container", "ms", repeat(n, lambda: stand.docker.call("ps"))),),
        parts=(Figure.of("the same by API", "ms", repeat(n, stand.client.list_sandboxes)),),
        remark="most of it is Python starting and loading the client.",
    )


def _removal(stand: Stand) -> Row:
    ids = [info.id for info in stand.client.list_sandboxes()]
    corral = str(Path(sys.executable).with_name("corral"))
    begun = time.perf_counter()
    subprocess.run([corral, "rm", *ids], env=stand.env, check=True, stdout=subprocess.DEVNULL)
    return Row(
        f"removing {FLEET} running sandboxes",
        Figure.single("corral rm", "s", time.perf_counter() - begun, FLEET),
    )

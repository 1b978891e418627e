"""Many sandboxes at once: how long they take to come, and what they cost while they do nothing."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from bench.clock import MIB, available_memory, cpu_seconds, pss, repeat, rss
from bench.figures import Figure, Row
from bench.stand import Stand
from corral import AsyncClient, AsyncSandbox
from corral.model.sandbox import Isolation
from corral.sdk.settings import settings

FLEET = 100
_SETTLE_SECONDS = 2.0
_REST_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class _Round:
    """Seconds until all of a fleet were there; MiB for each: what the host lost, and what of it are pages of processes."""

    n: int
    seconds: float
    memory: float
    processes: float

    @classmethod
    def of(cls, seconds: float, before: int, n: int, pids: list[int]) -> Self:
        """`before`: available memory before they were made. `pids`: their processes."""
        memory = (before - _settled_memory()) / n / MIB
        return cls(n, seconds, memory, sum(map(pss, pids)) / n / MIB)


def rows(stand: Stand) -> Iterator[Row]:
    """One hundred with runc; fewer with gVisor, of which only the memory is looked at."""
    bare: list[_Round] = []
    dressed: list[float] = []
    ours: list[_Round] = []
    # In turns, so that both meet the same machine.
    for _ in range(stand.n(4, 2)):
        stand.remove_all()
        bare.append(_bare(stand))
        dressed.append(_dressed(stand))
        ours.append(_ours(stand, Isolation.CONTAINER, FLEET))
    yield _burst(bare, dressed, ours)
    yield _idle("idle sandbox, runc", ours, bare, budget=3)
    yield from _at_rest(stand)
    yield _listing(stand)
    yield _removal(stand)
    if stand.runsc:
        yield _idle("idle sandbox, gVisor", [_ours(stand, Isolation.GVISOR, stand.n(30, 10))], bare)
        stand.remove_all()


def _bare(stand: Stand) -> _Round:
    before = _settled_memory()
    seconds = stand.bare.start_many(FLEET)
    measured = _Round.of(seconds, before, FLEET, stand.bare.pids)
    stand.bare.remove_all()
    return measured


def _dressed(stand: Stand) -> float:
    """Seconds of the same with a sandbox's own configuration: its root, network, user namespace, profile and limits."""
    with stand.sandbox() as box:
        config = stand.run / "sandboxes" / box.id / "bundle" / "config.json"
        seconds = stand.bare.start_many(FLEET, config)
        stand.bare.remove_all()
    return seconds


def _ours(stand: Stand, isolation: Isolation, n: int) -> _Round:
    before = _settled_memory()
    seconds = _create(stand, isolation, n)
    return _Round.of(seconds, before, n, _processes(stand))


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


def _settled_memory() -> int:
    """Available memory. The pause is no synchronisation: the kernel takes its time to free what has ended."""
    time.sleep(_SETTLE_SECONDS)
    return available_memory()


def _processes(stand: Stand) -> list[int]:
    """All processes in the sandboxes' groups."""
    groups = list(Path("/sys/fs/cgroup").glob(f"pids/corral-{stand.run.name}/*/**/cgroup.procs"))
    groups += Path("/sys/fs/cgroup").glob(f"corral-{stand.run.name}/*/**/cgroup.procs")
    return [int(pid) for group in groups for pid in group.read_text().split()]


def _burst(bare: list[_Round], dressed: list[float], ours: list[_Round]) -> Row:
    yardstick = Figure.of("bare runc run -d, 4 at a time", "s", [fleet.seconds for fleet in bare])
    return Row(
        f"{FLEET} creates at once, all usable",
        Figure.of("Corral SDK (asyncio)", "s", [fleet.seconds for fleet in ours]),
        (yardstick, Figure.of("the same, configured as a sandbox", "s", dressed)),
        bounds={yardstick.who: 1.5},
        remark=(
            "CPU decides: a bare container costs about 26 ms of it, a sandbox about 55. Of the difference, 8 ms are runc's own for "
            "seccomp profile and user namespace (the second yardstick), 16 the daemon's (quota, overlay, network with gateway, "
            "records, a command in each), 4 the client's on the same cores."
        ),
    )


def _idle(title: str, ours: list[_Round], bare: list[_Round], budget: float | None = None) -> Row:
    return Row(
        title,
        Figure.of("host memory each", "MiB", [fleet.memory for fleet in ours]),
        (Figure.of("bare runc, host memory each", "MiB", [fleet.memory for fleet in bare]),),
        parts=(Figure.of("of it: pages of its processes", "MiB", [fleet.processes for fleet in ours]),),
        budget=budget,
        remark=(
            f"the difference of MemAvailable before and after {ours[0].n} creates, divided by them, so kernel memory and "
            "the growth of both daemon processes count too. Whatever else the machine does falls into it."
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
        parts=(
            *(Figure.single(f"of it: {name}", "MiB", rss(pid) / MIB) for name, pid in pids.items()),
            Figure.single(
                "both, pages that they share counted once", "MiB", sum(map(pss, pids.values())) / MIB
            ),
        ),
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

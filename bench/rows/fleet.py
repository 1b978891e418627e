"""Many sandboxes at once: how long they take to come and to go, and what the daemon costs while they do nothing."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.clock import MIB, cpu_seconds, pss, repeat, rss
from bench.figures import Figure, Row
from bench.stand import Stand
from corral import AsyncClient, AsyncSandbox
from corral.model.sandbox import Isolation
from corral.sdk.settings import settings

FLEET = 100
REST_SECONDS = 10.0


def rows(stand: Stand) -> Iterator[Row]:
    """One hundred sandboxes with runc."""
    bare: list[float] = []
    dressed: list[float] = []
    ours: list[float] = []
    # In turns, so that all meet the same machine.
    for _ in range(stand.n(4, 2)):
        stand.remove_all()
        bare.append(stand.bare.start_many(FLEET))
        stand.bare.remove_all()
        if not stand.short:
            dressed.append(_dressed(stand))
        ours.append(create_many(stand, Isolation.CONTAINER, FLEET))
    yield _burst(bare, dressed, ours)
    yield from _at_rest(stand)
    yield _listing(stand)
    yield _removal(stand)


def _dressed(stand: Stand) -> float:
    """Seconds of the same with a sandbox's own configuration: its root, network, user namespace, profile and limits."""
    with stand.sandbox() as box:
        config = stand.run / "sandboxes" / box.id / "bundle" / "config.json"
        seconds = stand.bare.start_many(FLEET, config)
        stand.bare.remove_all()
    return seconds


def create_many(stand: Stand, isolation: Isolation, n: int) -> float:
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


def _burst(bare: list[float], dressed: list[float], ours: list[float]) -> Row:
    yardstick = Figure.of("bare runc run -d, 4 at a time", "s", bare)
    others = [Figure.of("the same, configured as a sandbox", "s", dressed)] if dressed else []
    return Row(
        f"{FLEET} creates at once, all usable",
        Figure.of("Corral SDK (asyncio)", "s", ours),
        (yardstick, *others),
        bounds={yardstick.who: 1.5},
        remark=(
            "Corral's figure includes a command in each sandbox, and overlay, quota, network with gateway and "
            "records. The second yardstick, of a full run, is runc with a sandbox's own configuration. The client "
            "runs on the same cores."
        ),
    )


def _at_rest(stand: Stand) -> Iterator[Row]:
    pids = {"engine": stand.engine_pid, "gateway": stand.gateway_pid}
    used = sum(map(cpu_seconds, pids.values()))
    time.sleep(REST_SECONDS)
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
        Figure.single(f"engine + gateway, of {REST_SECONDS:.0f} s", "s", used),
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

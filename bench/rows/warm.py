"""What is ready before it is asked for: pools, checkpoints, memory on disk, forks."""

import time
from collections.abc import Iterator

from bench.clock import MS, elapsed, wait_until
from bench.figures import Figure, Row
from bench.rows.create import WARM
from bench.rows.fleet import FLEET, create_many
from bench.stand import Stand
from corral import Sandbox
from corral.model.sandbox import Isolation

FILES = 50_000
FORKS = 10
LAYERS = 60
_LARGE = "5G"


def rows(stand: Stand) -> Iterator[Row]:
    """Each in turn; the templates that they make are removed."""
    stand.remove_all()
    yield _claim(stand)
    yield _burst(stand)
    yield _checkpoint(stand)
    yield from _flat(stand)
    if stand.runsc:
        yield from _memory(stand)


def _fill(stand: Stand, size: int) -> None:
    stand.client.set_pool("base", size)
    wait_until(lambda: stand.client.list_pools()[0].ready == size, "the pool", 120)
    time.sleep(1)  # what follows the start of the last one


def _claim(stand: Stand) -> Row:
    times = []
    for _ in range(stand.n(20, 10) + WARM):
        _fill(stand, 2)
        stand.client.health()
        begun = time.perf_counter()
        box = stand.sandbox()
        box.exec(["true"], check=True)
        times.append((time.perf_counter() - begun) * MS)
        box.kill()
    stand.client.remove_pool("base")
    return Row(
        "create → first command done, from a warm pool",
        Figure.of("Corral SDK", "ms", times[WARM:]),
        budget=5,
        remark=(
            "two API calls. The sandbox gets its name, token, policy and environment in this time. Published: Hotcell's pool "
            "24 ms, on other hardware."
        ),
    )


def _burst(stand: Stand) -> Row:
    times = []
    for _ in range(stand.n(4, 2)):
        stand.remove_all()
        _fill(stand, FLEET)
        times.append(create_many(stand, Isolation.CONTAINER, FLEET))
    stand.client.remove_pool("base")
    stand.remove_all()
    return Row(
        f"{FLEET} creates at once, all usable, from a warm pool",
        Figure.of("Corral SDK (asyncio)", "s", times),
        budget=0.3,
        remark="a command in each included; client and daemon share the cores. Published: OpenSandbox 0.92 s, pooled.",
    )


def _checkpoint(stand: Stand) -> Row:
    box = stand.sandbox()
    make = f"mkdir d; cd d; for i in $(seq {FILES}); do echo $i > $i; done; sync"
    box.exec(["bash", "-c", make], check=True)
    times = []
    for number in range(stand.n(10, 5)):
        times.append(elapsed(lambda n=number: stand.client.checkpoint(box.id, f"bench-{n}")))  # type: ignore[misc]
        stand.client.remove_template(f"bench-{number}")
    copy = elapsed(lambda: box.exec(["cp", "-a", "/home/user/d", "/home/user/e"], check=True))
    box.kill()
    return Row(
        f"checkpoint of {FILES:,} files",
        Figure.of("Corral SDK", "ms", times),
        (Figure.single("cp -a of the same files", "ms", copy),),
        budget=50,
        remark="on a btrfs store. The sandbox stands still for a part of it only.",
    )


def _started(stand: Stand, template: str, n: int) -> Figure:
    times = []
    for number in range(n + WARM):
        begun = time.perf_counter()
        box = Sandbox.create(template, client=stand.client)
        box.exec(["true"], check=True)
        if number >= WARM:
            times.append((time.perf_counter() - begun) * MS)
        box.kill()
    return Figure.of(f"from {template.removeprefix('bench-')}", "ms", times)


def _flat(stand: Stand) -> Iterator[Row]:
    n = stand.n(10, 5)
    for size in ("1M", _LARGE):
        box = stand.sandbox()
        box.exec(["fallocate", "-l", size, "/home/user/large"], check=True)
        stand.client.checkpoint(box.id, f"bench-{size.lower()}")
        box.kill()
    small, large = (_started(stand, f"bench-{size.lower()}", n) for size in ("1M", _LARGE))
    yield Row(
        f"create → first command done, {_LARGE} in the checkpoint",
        large,
        (small,),
        bounds={small.who: 1.3},
        remark="the size of what it starts from does not matter.",
    )
    for name in ("bench-1m", f"bench-{_LARGE.lower()}"):
        stand.client.remove_template(name)
    template = "base"
    for number in range(LAYERS - len(stand.base.layers)):
        box = Sandbox.create(template, client=stand.client)
        box.exec(f"echo {number} > /home/user/{number}", check=True)
        template = "bench-deep"
        stand.client.checkpoint(box.id, template)
        box.kill()
    deep, base = _started(stand, template, n), _started(stand, "base", n)
    stand.client.remove_template(template)
    yield Row(
        f"create → first command done, {LAYERS} layers",
        deep,
        (base,),
        bounds={base.who: 1.3},
        remark="one layer for each checkpoint in a row.",
    )


def _memory(stand: Stand) -> Iterator[Row]:
    box = stand.sandbox(isolation=Isolation.GVISOR)
    box.spawn(["python3", "-m", "http.server"])
    box.exec("until curl -s localhost:8000 > /dev/null; do sleep 0.05; done", check=True)
    suspends, resumes = [], []
    for _ in range(stand.n(10, 4)):
        suspends.append(elapsed(lambda: box.pause(memory=True)))
        resumes.append(elapsed(lambda: box.resume().exec(["true"], check=True)))
    cold = []
    for _ in range(stand.n(5, 3)):
        begun = time.perf_counter()
        other = stand.sandbox(isolation=Isolation.GVISOR)
        other.exec(["true"], check=True)
        cold.append((time.perf_counter() - begun) * MS)
        other.kill()
    fresh = Figure.of("a new gVisor sandbox", "ms", cold)
    yield Row(
        "resume from disk → first command done, gVisor",
        Figure.of("Corral SDK", "ms", resumes),
        (fresh,),
        parts=(Figure.of("pause --memory", "ms", suspends),),
        budget=300,
        remark="with a Python web server in it. Most of it is runsc's own restore.",
    )
    forks, many = [], []
    for _ in range(stand.n(5, 3)):
        forks.append(elapsed(lambda: _forked(box, 1)))
        many.append(elapsed(lambda: _forked(box, FORKS)) / MS)
        for info in stand.client.list_sandboxes():
            if info.id != box.id:
                stand.client.remove_sandbox(info.id)
    yield Row(
        "fork, with its processes, gVisor",
        Figure.of("Corral SDK", "ms", forks),
        (fresh,),
        budget=300,
        remark="the first one stands still for a part of it.",
    )
    yield Row(
        f"{FORKS} forks in parallel, gVisor",
        Figure.of("Corral SDK", "s", many),
        budget=1.5,
        remark="all answer to a command afterwards.",
    )
    box.kill()


def _forked(box: Sandbox, count: int) -> None:
    for fork in box.fork(count):
        fork.exec(["true"], check=True)

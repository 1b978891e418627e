"""From nothing to the end of a first command."""

import time
from collections.abc import Iterator

from bench.clock import MS, first_line
from bench.figures import Figure, Row
from bench.stand import Stand
from corral.model.sandbox import Isolation

WARM = 2
_COMMAND = ("echo", "ready")


def rows(stand: Stand) -> Iterator[Row]:
    """One row for each isolation."""
    n = stand.n(20, 10)
    ours = _corral(stand, Isolation.CONTAINER, n)
    docker = [first_line(stand.docker.run("--rm", command=_COMMAND)) for _ in range(n)]
    bundle = stand.bare.bundle("create", *_COMMAND)
    runc = [first_line(stand.bare.argv("run", "--bundle", bundle, f"create{i}")) for i in range(n)]
    docker_figure = Figure.of("docker run --rm", "ms", docker)
    yield Row(
        "create → first command done, container",
        Figure.of("Corral SDK", "ms", ours),
        (docker_figure, Figure.of("bare runc run", "ms", runc)),
        budget=60,
        bounds={docker_figure.who: 0.5},
        remark=(
            "two API calls, `create` and `exec`, one sandbox at a time. Docker's containers have no network at all; Corral's "
            "have one with a gateway, a disk quota and a user namespace. Bare runc is the yardstick: Corral calls crun "
            "once. For the yardsticks the clock stops at the command's output, so that their removal is not counted."
        ),
    )
    if stand.runsc:
        yield Row(
            "create → first command done, gVisor",
            Figure.of("Corral SDK", "ms", _corral(stand, Isolation.GVISOR, stand.n(10, 5))),
            (docker_figure,),
            remark=(
                "the time is that of `runsc run`, which starts a kernel in user space. The yardstick shares the host's kernel."
            ),
        )


def _corral(stand: Stand, isolation: Isolation, n: int) -> list[float]:
    times = []
    for number in range(n + WARM):
        begun = time.perf_counter()
        box = stand.sandbox(isolation=isolation)
        box.exec(_COMMAND, check=True)
        if number >= WARM:
            times.append((time.perf_counter() - begun) * MS)
        box.kill()
    return times

"""A command in a sandbox that runs."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.clock import call, repeat
from bench.figures import Figure, Row
from bench.stand import Stand
from corral.model.sandbox import Isolation

_COMMAND = ["true"]


def rows(stand: Stand) -> Iterator[Row]:
    """By the API, for each isolation, and by the command line."""
    n, slow = stand.n(500, 200), stand.n(30, 10)
    docker = Figure.of("docker exec", "ms", _docker(stand, slow))
    runc = Figure.of("bare runc exec", "ms", _runc(stand, slow))
    fork = Figure.of("fork+exec on the host", "ms", repeat(n, lambda: subprocess.run(_COMMAND)))
    yield Row(
        "exec round trip by API, container",
        Figure.of("Corral SDK", "ms", _corral(stand, Isolation.CONTAINER, n)),
        (docker, runc, fork),
        budget=4,
        bounds={docker.who: 0.1, runc.who: 0.5},
        remark=(
            "one HTTP request over the unix socket; PID 1 of the sandbox starts the command, so no runtime is "
            "called."
        ),
    )
    if stand.runsc:
        yield Row(
            "exec round trip by API, gVisor",
            Figure.of("Corral SDK", "ms", _corral(stand, Isolation.GVISOR, n)),
            (docker, runc),
            remark=("several times slower than with runc; where the time goes has not been looked into."),
        )
    yield _by_cli(stand, docker, slow)


def _corral(stand: Stand, isolation: Isolation, n: int) -> list[float]:
    with stand.sandbox(isolation=isolation) as box:
        return repeat(n, lambda: box.exec(_COMMAND, check=True), warm=5)


def _docker(stand: Stand, n: int) -> list[float]:
    container = stand.docker.start()
    command = stand.docker.argv("exec", container, *_COMMAND)
    return repeat(n, lambda: call(*command), warm=2)


def _runc(stand: Stand, n: int) -> list[float]:
    stand.bare.start("exec", stand.bare.bundle("exec", "sleep", "infinity"))
    command = stand.bare.argv("exec", "exec", *_COMMAND)
    times = repeat(n, lambda: call(*command), warm=2)
    stand.bare.remove_all()
    return times


def _by_cli(stand: Stand, docker: Figure, n: int) -> Row:
    corral = str(Path(sys.executable).with_name("corral"))
    with stand.sandbox() as box:
        command = [corral, "exec", box.name, "--", *_COMMAND]
        times = repeat(n, lambda: subprocess.run(command, env=stand.env, check=True), warm=2)
    python = Figure.of("python -c pass", "ms", repeat(n, lambda: call(sys.executable, "-c", "pass"), warm=2))
    return Row(
        "exec by command line, container",
        Figure.of("corral exec", "ms", times),
        (docker, python),
        remark=(
            "nearly all of it is Python starting and loading the client: programs that start many commands should use the API."
        ),
    )

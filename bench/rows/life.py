"""Changes in the life of one sandbox."""

from collections.abc import Callable, Iterator

from bench.clock import elapsed
from bench.figures import Figure, Row
from bench.stand import Stand

_ROWS = (
    ("pause", "pause", "docker pause"),
    ("resume", "resume", "docker unpause"),
    ("stop", "stop", "docker stop"),
    ("start again", "start", "docker start"),
    ("remove, running", "kill", "docker rm -f"),
)


def rows(stand: Stand) -> Iterator[Row]:
    """Each change, beside Docker's."""
    n = stand.n(15, 5)
    ours: dict[str, list[float]] = {verb: [] for _, verb, _ in _ROWS}
    docker: dict[str, list[float]] = {verb: [] for _, _, verb in _ROWS}
    for _ in range(n):
        box = stand.sandbox()
        box.exec(["true"], check=True)
        for _, verb, _ in _ROWS:
            ours[verb].append(elapsed(getattr(box, verb)))
    for _ in range(n):
        # With an init, which ends at once when it is asked to.
        container = stand.docker.start("--init")
        for _, _, verb in _ROWS:
            docker[verb].append(elapsed(_docker(stand, verb, container)))
    for title, mine, theirs in _ROWS:
        yardstick = Figure.of(theirs, "ms", docker[theirs])
        yield Row(
            f"{title}, container",
            Figure.of("Corral SDK", "ms", ours[mine]),
            (yardstick,),
            bounds={yardstick.who: 1.0},
        )


def _docker(stand: Stand, verb: str, container: str) -> Callable[[], str]:
    return lambda: stand.docker.call(*verb.split()[1:], container)

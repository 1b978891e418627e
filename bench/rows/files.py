"""Files in and out of a running sandbox."""

from collections.abc import Iterator
from pathlib import Path

from bench.clock import MIB, MS, call, elapsed, repeat
from bench.figures import Figure, Row
from bench.stand import Stand
from corral import Sandbox

_LARGE = 256 * MIB
_SMALL = b"x" * 1024


def rows(stand: Stand) -> Iterator[Row]:
    """Small files by their latency, a large one by its throughput."""
    container = stand.docker.start()
    with stand.sandbox() as box:
        yield _small(stand, box, container)
        yield from _large(stand, box, container)


def _small(stand: Stand, box: Sandbox, container: str) -> Row:
    local = stand.work / "small"
    local.write_bytes(_SMALL)

    def ours() -> None:
        box.files.write("/home/user/small", _SMALL)
        box.files.read_bytes("/home/user/small")

    def docker() -> None:
        stand.docker.call("cp", str(local), f"{container}:/tmp/small")
        stand.docker.call("cp", f"{container}:/tmp/small", str(local))

    yardstick = Figure.of("docker cp in and out", "ms", repeat(stand.n(20, 5), docker))
    return Row(
        "1 KiB file: write, then read",
        Figure.of("Corral SDK", "ms", repeat(stand.n(200, 50), ours, warm=3)),
        (yardstick,),
        bounds={yardstick.who: 0.5},
        remark="two API calls on one side, two programs on the other.",
    )


def _large(stand: Stand, box: Sandbox, container: str) -> Iterator[Row]:
    local = stand.work / "large"
    # Random, so that nothing on the way can do less than the work.
    with local.open("wb") as file, Path("/dev/urandom").open("rb") as source:
        for _ in range(_LARGE // MIB):
            file.write(source.read(MIB))
    back = stand.work / "back"
    n = stand.n(5, 3)

    def rates(who: str, action: object) -> Figure:
        times = [elapsed(action) for _ in range(n)]  # type: ignore[arg-type]
        return Figure.of(who, "MB/s", [_LARGE / 1e6 / (t / MS) for t in times], more_is_better=True)

    up = rates("Corral SDK", lambda: box.files.upload(local, "/home/user/large"))
    docker_up = rates("docker cp", lambda: stand.docker.call("cp", str(local), f"{container}:/tmp/large"))
    copied = rates("cp on the host", lambda: call("cp", local, back))
    yield Row(
        "256 MiB upload", up, (docker_up, copied), more_is_better=True, bounds={docker_up.who: 0.5},
        remark="Corral streams the body over HTTP into a file below the sandbox's quota.",
    )  # fmt: skip
    down = rates("Corral SDK", lambda: _download(box, back))
    docker_down = rates("docker cp", lambda: stand.docker.call("cp", f"{container}:/tmp/large", str(back)))
    yield Row(
        "256 MiB download", down, (docker_down, copied), more_is_better=True, bounds={docker_down.who: 0.5}
    )


def _download(box: Sandbox, target: Path) -> None:
    with target.open("wb") as file:
        for chunk in box.files.stream("/home/user/large"):
            file.write(chunk)

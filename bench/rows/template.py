"""The base template."""

from collections.abc import Iterator

from bench.clock import repeat
from bench.figures import Figure, Row
from bench.stand import Stand


def rows(stand: Stand) -> Iterator[Row]:
    """The build, where this bench has made it, and finding it made already."""
    again = Figure.of(
        "build when it is there", "ms", repeat(stand.n(10, 5), lambda: stand.client.build_template("base"))
    )
    yield Row("base template, built before", again)
    if stand.build_seconds is not None:
        yield Row(
            "base template, from nothing",
            Figure.single("corral template build base", "s", stand.build_seconds),
            remark=(
                "measured once, when the bench's data directory was made, with the downloads. It has no yardstick."
            ),
        )

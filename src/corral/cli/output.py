"""How results are shown: tables and progress for people, JSON for programs, and nothing that drives a terminal."""

import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import click

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069]")
_CONTROL_BUT_LINES = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069]"
)


def clean(text: str, *, lines: bool = False) -> str:
    """Text that comes from a sandbox, made harmless for a terminal: control and direction characters as `\\x1b`.

    With `lines`, line breaks and tabs are kept.
    """
    pattern = _CONTROL_BUT_LINES if lines else _CONTROL
    text = text.replace("\r\n", "\n") if lines else text
    shown = pattern.sub(lambda found: found.group().encode("unicode_escape").decode(), text)
    return shown.encode("utf-8", "replace").decode()


def say(text: str = "") -> None:
    """A line of result on stdout."""
    click.echo(text)


def note(text: str) -> None:
    """A line beside the result, on stderr."""
    click.echo(text, err=True)


def show_json(value: Any) -> None:
    """A result as JSON. Non-ASCII is escaped, so that nothing in it drives a terminal."""
    click.echo(json.dumps(plain(value), indent=2))


def json_line(value: Any) -> None:
    """One of many results, on one line of its own."""
    click.echo(json.dumps(plain(value)))


def plain(value: Any) -> Any:
    """Models as JSON's own types."""
    from pydantic import BaseModel  # loaded already where there is one

    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return {key: plain(item) for key, item in value.items()} if isinstance(value, dict) else value


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table: drawn on a terminal, else columns of text with a head line."""
    cells = [[clean(str(cell)) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _drawn(columns, cells)
        return
    lines = [list(columns), *cells]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    for line in lines:
        say("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _drawn(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        drawn.add_column(column, overflow="fold")
    for row in cells:
        drawn.add_row(*(Text(cell) for cell in row))
    Console().print(drawn)


def fields(pairs: Sequence[tuple[str, object]]) -> None:
    """Names and values, one a line; those without a value are left out."""
    given = [(name, clean(str(value))) for name, value in pairs if value not in (None, "", [], {})]
    width = max((len(name) for name, _ in given), default=0)
    for name, value in given:
        say(f"{name.ljust(width)}  {value}")


class Progress:
    """Shows what long work is doing: one changing line on a terminal, else a line each."""

    def __init__(self, status: Any = None) -> None:
        self._status = status

    def __call__(self, line: str) -> None:
        """Show one line."""
        if self._status is None:
            note(clean(line))
        else:
            from rich.text import Text

            self._status.update(Text(clean(line)))


@contextmanager
def progress(title: str) -> Iterator[Progress]:
    """Progress while the block runs."""
    if not sys.stderr.isatty():
        yield Progress()
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status(Text(title)) as status:
        yield Progress(status)


def age(since: datetime) -> str:
    """How long ago, in the largest unit."""
    seconds = max(int((datetime.now(UTC) - since).total_seconds()), 0)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def size(count: float) -> str:
    """Bytes in binary units."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def dollars(micro: int) -> str:
    """Millionths of a US dollar as dollars."""
    return f"${micro / 1e6:.4f}"


def write_guest(data: bytes, *, err: bool = False) -> None:
    """Bytes of a sandbox's: as they are into a file or pipe, made harmless on a terminal."""
    stream = sys.stderr if err else sys.stdout
    if stream.isatty():
        click.echo(clean(data.decode("utf-8", "replace"), lines=True), nl=False, err=err)
        return
    click.echo(data, nl=False, err=err)

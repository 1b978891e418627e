"""Rows as a table, and its place in the documentation."""

from collections.abc import Iterable, Mapping, Sequence

from bench.figures import Row, number

BEGIN = "<!-- figures: written by `make bench`, do not edit -->"
END = "<!-- end of figures -->"

_HEAD = ("what", "who", "median", "best", "p90", "n", "ratio or budget")


def table(rows: Sequence[Row]) -> str:
    """A Markdown table that can be read as plain text too: Corral's line of each row, its parts, then its yardsticks."""
    lines = [_HEAD]
    for row in rows:
        for figure in (row.ours, *row.parts, *row.yardsticks):
            first = figure is row.ours
            lines.append(
                (
                    row.title if first else "",
                    f"**{figure.who}**" if first else figure.who,
                    f"{number(figure.median)} {figure.unit}",
                    number(figure.best),
                    number(figure.p90),
                    str(figure.n),
                    row.verdict(figure),
                )
            )
    return _aligned(lines)


def remarks(rows: Iterable[Row]) -> str:
    """What is to be said to each row, as a list."""
    return "\n".join(f"- **{row.title}**: {row.remark}" for row in rows if row.remark)


def section(rows: Sequence[Row], machine: Mapping[str, str]) -> str:
    """All that `make bench` writes into the documentation."""
    facts = "\n".join(f"- {name}: {value}" for name, value in machine.items())
    return f"{facts}\n\n{table(rows)}\n\n{remarks(rows)}"


def replace_section(document: str, text: str) -> str:
    """The document with `text` between its markers. Raises ValueError where it has not one pair of them."""
    if document.count(BEGIN) != 1 or document.count(END) != 1:
        raise ValueError(f"the document must hold {BEGIN!r} and {END!r} once each")
    before, rest = document.split(BEGIN)
    if END not in rest:
        raise ValueError("the markers are in the wrong order")
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.split(END)[1]}"


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    texts = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in lines
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([texts[0], rule, *texts[1:]])

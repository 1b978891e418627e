"""`python -m bench`: measure, print, and write down."""

import argparse
import json
import os
import sys
from pathlib import Path

from bench import machine, report
from bench.figures import Row, number
from bench.rows import GROUPS
from bench.stand import Stand

_DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"


def main(argv: list[str] | None = None) -> int:
    """The command line; 0, or 1 if a ratio to a yardstick was missed."""
    options = _options(argv)
    if os.geteuid() != 0:
        print("bench: needs root", file=sys.stderr)
        return 2
    wanted = options.only or list(GROUPS)
    rows: list[Row] = []
    facts = machine.facts()
    with Stand(short=options.short) as stand:
        for name in wanted:
            for row in GROUPS[name](stand):
                rows.append(row)
                figure = row.ours
                print(
                    f"bench: {row.title}: {number(figure.median)} {figure.unit}", file=sys.stderr, flush=True
                )
    print(report.section(rows, facts))
    if options.json is not None:
        options.json.write_text(
            json.dumps({"machine": facts, "rows": [row.as_json() for row in rows]}, indent=1) + "\n"
        )
    if not options.short and not options.only:
        _DOCUMENT.write_text(report.replace_section(_DOCUMENT.read_text(), report.section(rows, facts)))
    missed = [sentence for row in rows for sentence in row.missed()]
    for sentence in missed:
        print(f"bench: missed: {sentence}", file=sys.stderr)
    return 1 if missed else 0


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure Corral beside yardsticks. A full run writes its figures into docs/benchmarks.md.",
    )
    parser.add_argument("--short", action="store_true", help="fewer samples: about five minutes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file too")
    parser.add_argument(
        "--only", action="append", choices=list(GROUPS), help="one group of rows; may be repeated"
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())

"""What children write is kept, and never more of it than was asked for."""

import os
from pathlib import Path

from corral.daemon.childlog import LOGS_KEPT, ChildLog


async def test_lines_come_in_order_to_the_last_one(tmp_path: Path) -> None:
    log = ChildLog(tmp_path / "child.log")
    for words in (b"one\ntwo \xff\n", b"three"):
        async with log.pipe() as output:
            os.write(output, words)
    log.close()
    assert (tmp_path / "child.log").read_text() == "one\ntwo \ufffd\nthree\n"


async def test_a_child_that_writes_without_end_fills_no_disk(tmp_path: Path) -> None:
    """RES-2."""
    log = ChildLog(tmp_path / "child.log", size=1000)
    async with log.pipe() as output:
        for number in range(2000):
            os.write(output, f"line {number}\n".encode())
            if number == 1000:
                os.write(output, b"x" * 30_000 + b"\n")
    log.close()
    sizes = [entry.stat().st_size for entry in os.scandir(tmp_path)]
    assert len(sizes) == 1 + LOGS_KEPT
    assert sum(sizes) <= (1 + LOGS_KEPT) * 1000
    assert (tmp_path / "child.log").read_text().endswith("line 1999\n")

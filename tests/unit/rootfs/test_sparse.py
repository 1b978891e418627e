"""Holes of files: where their data is, and files that get them again."""

import os
from pathlib import Path

import pytest

from corral.rootfs.digest import tree_digest
from corral.rootfs.sparse import data_ranges, is_zero, write_file

MIB = 1 << 20
BLOCK = 1 << 16


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0",
        b"x",
        bytes(MIB),
        b"x" + bytes(3 * BLOCK),
        bytes(3 * BLOCK) + b"x",
        bytes(BLOCK) + b"x" * BLOCK + bytes(BLOCK + 7) + b"y" + bytes(10),
    ],
)
@pytest.mark.parametrize("size", [1, 1000, BLOCK, 5 * BLOCK + 3])
def test_a_file_is_what_was_written_however_it_comes(tmp_path: Path, content: bytes, size: int) -> None:
    if size == 1 and len(content) > 1000:
        content = content[-1000:]
    pieces = [content[at : at + size] for at in range(0, len(content), size)]
    with (tmp_path / "file").open("wb") as file:
        write_file(file.fileno(), pieces)
    assert (tmp_path / "file").read_bytes() == content


def test_zeros_become_holes_and_count_for_nothing(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        write_file(file.fileno(), [bytes(MIB)] * 50 + [b"x" * BLOCK] + [bytes(MIB)] * 50)
        os.fsync(file.fileno())
        assert list(data_ranges(file.fileno())) == [(50 * MIB, 50 * MIB + BLOCK)]
    found = tree_digest(tmp_path)
    assert found.size < MIB
    (tmp_path / "dense").write_bytes((tmp_path / "file").read_bytes())
    (tmp_path / "file").unlink()
    (tmp_path / "dense").rename(tmp_path / "file")
    assert tree_digest(tmp_path).digest == found.digest


@pytest.mark.parametrize(
    ("data", "zero"), [(b"", True), (b"\0", True), (bytes(100), True), (b"\0x\0", False), (b"x", False)]
)
def test_zeros_are_told_from_what_only_begins_and_ends_like_them(data: bytes, zero: bool) -> None:
    assert is_zero(data) is zero

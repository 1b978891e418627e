"""Files that grow by somebody else's input."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from corral.errors import DiskFull
from corral.rootfs.room import WithRoom

MIB = 1 << 20


def test_the_last_of_a_disk_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = 1100 * MIB
    monkeypatch.setattr(os, "fstatvfs", lambda _: SimpleNamespace(f_bavail=free, f_frsize=1))
    with (tmp_path / "file").open("wb") as file:
        kept = WithRoom(file)
        for _ in range(32):
            kept.write(b"x" * MIB)
        assert kept.tell() == 32 * MIB
        free = 1000 * MIB
        with pytest.raises(DiskFull, match="less than 1 GiB"):
            kept.write(b"x" * 32 * MIB)
        assert kept.tell() == 32 * MIB


def test_zeros_take_no_room_wherever_they_are(tmp_path: Path) -> None:
    pieces = (b"a" * 5000, bytes(20_000), b"b" * 5000, bytes(MIB), bytes(100), bytes(MIB))
    with (tmp_path / "file").open("wb") as file:
        kept = WithRoom(file)
        for piece in pieces:
            kept.write(piece)
        assert kept.tell() == sum(map(len, pieces))
    assert (tmp_path / "file").read_bytes() == b"".join(pieces)
    assert (tmp_path / "file").stat().st_blocks * 512 < MIB // 4

"""Archives made to exhaust who reads them (FILE-9): bombs, bombs in numbers, names without end, windows of gigabytes.

The programs that read archives run here as the daemon runs them, with small limits in place of large ones.
"""

import bz2
import gzip
import io
import lzma
import struct
import tarfile
import zlib
from pathlib import Path
from typing import Any

import pytest
import zstandard

from corral.errors import InvalidInput, TooLarge
from corral.rootfs import archive_index, copyin
from corral.rootfs.programs import run_program

pytestmark = pytest.mark.root

MIB = 1 << 20


def tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def bomb(files: int, size: int) -> bytes:
    return gzip.compress(tar({f"zero-{number}": bytes(size) for number in range(files)}), 1)


def with_window(data: bytes, code: int) -> bytes:
    """The bytes as xz, whose block asks for a window by the format's code: 40 stands for 4 GiB less one byte."""
    packed = bytearray(lzma.compress(data, filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 4096}]))
    size = (packed[12] + 1) * 4
    assert packed[14:16] == b"\x21\x01"  # the block's only filter, with one byte of properties
    packed[16] = code
    packed[12 + size - 4 : 12 + size] = struct.pack("<I", zlib.crc32(packed[12 : 12 + size - 4]))
    return bytes(packed)


async def index(folder: Path, data: bytes, **limits: int) -> archive_index.Request:
    """Index an archive, as an upload is."""
    (folder / "upload").write_bytes(data)
    request = archive_index.Request(
        source=str(folder / "upload"),
        tar=str(folder / "archive.tar"),
        index=str(folder / "index"),
        **{"max_entries": 1000, "max_bytes": 100 * MIB, "max_names": MIB, **limits},
    )
    await run_program("archive_index", request)
    return request


def make(folder: Path) -> None:
    for name in ("upper", "mount"):
        (folder / name).mkdir(parents=True)


async def add(folder: Path, files: dict[str, bytes], **limits: int) -> set[str]:
    """Add files to an empty image, archives among them unpacked; the names of what is there then."""
    make(folder)
    indexed = await index(folder, tar(files))
    options: dict[str, Any] = {"max_entries": 1000, "max_bytes": MIB, **limits}
    request = copyin.Request(
        tar=indexed.tar,
        plan=indexed.index,
        lowers=[],
        upper=str(folder / "upper"),
        mount=str(folder / "mount"),
        uid_base=0,
        directories=[],
        target="/",
        directory=True,
        owner="",
        mode=None,
        unpack=True,
        **options,
    )
    await run_program("copyin", request)
    return {path.name for path in (folder / "upper").iterdir()}


async def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    with pytest.raises(TooLarge, match="bytes unpacked"):
        await index(tmp_path, bomb(1, 50 * MIB), max_bytes=MIB)
    assert (tmp_path / "archive.tar").stat().st_size <= MIB
    with pytest.raises(TooLarge, match="bytes unpacked"):
        await add(tmp_path / "add", {"a.tgz": bomb(1, 50 * MIB)})
    assert sum(path.stat().st_size for path in (tmp_path / "add" / "upper").iterdir()) <= MIB


async def test_many_small_bombs_are_as_one_large_one(tmp_path: Path) -> None:
    small = bomb(1, 700_000)
    assert await add(tmp_path / "one", {"a.tgz": small}) == {"zero-0"}
    with pytest.raises(TooLarge, match="bytes unpacked"):
        await add(tmp_path / "two", {"a.tgz": small, "b.tgz": small})
    assert len(await add(tmp_path / "names", {"a.tgz": bomb(600, 0)})) == 600
    with pytest.raises(TooLarge, match="files"):
        await add(tmp_path / "more", {"a.tgz": bomb(600, 0), "b.tgz": bomb(600, 0)})


async def test_entries_and_their_names_are_counted(tmp_path: Path) -> None:
    with pytest.raises(TooLarge, match="more than 1000 files"):
        await index(tmp_path, bomb(1001, 0))
    long = {f"{'d/' * 1900}{number}": b"" for number in range(300)}
    with pytest.raises(TooLarge, match="names"):
        await index(tmp_path, gzip.compress(tar(long), 1), max_entries=100_000)


@pytest.mark.parametrize("code", [38, 40], ids=["2 GiB", "4 GiB"])
async def test_a_window_of_gigabytes_is_not_granted(tmp_path: Path, code: int) -> None:
    ordinary = tar({"file": b"content"})
    assert await add(tmp_path / "small", {"a.txz": with_window(ordinary, 18)}) == {"file"}
    hungry = with_window(ordinary, code)
    with pytest.raises(TooLarge, match="memory"):
        await index(tmp_path, hungry)
    with pytest.raises(TooLarge, match="memory"):
        await add(tmp_path / "add", {"a.txz": hungry})


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, zstandard.compress])
async def test_a_damaged_archive_is_refused_as_such(tmp_path: Path, pack: Any) -> None:
    whole = pack(tar({"file": bytes(range(256)) * 4096}))
    garbage = whole[:6] + bytes(range(255, 0, -1)) * 4
    for number, data in enumerate((garbage, whole[: len(whole) // 2])):
        with pytest.raises(InvalidInput):
            await index(tmp_path, data)
        with pytest.raises(InvalidInput):
            await add(tmp_path / str(number), {"a": data})

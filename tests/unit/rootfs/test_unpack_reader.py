"""The reader of hostile archives, and the paths in them. Unpacking itself needs a root of its own: tests/system."""

import gzip
import io
import json
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import InvalidInput, TooLarge
from corral.model.ids import LayerDigest
from corral.rootfs.index import LayerIndex
from corral.rootfs.unpack import LayerReader, clean_path, decompressed


@pytest.mark.parametrize(
    ("name", "path"),
    [("a/b", "a/b"), ("/a//b/", "a/b"), ("./a/./b", "a/b"), ("./", ""), ("", ""), ("a..b/...", "a..b/...")],
)
def test_paths(name: str, path: str) -> None:
    assert clean_path(name) == path


@pytest.mark.parametrize("name", ["..", "../a", "a/../b", "/..", "a/..", "a\0b", "x" * 5000])
def test_paths_that_climb_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput):
        clean_path(name)


@given(st.text(alphabet="ab./\\\0\udc80", max_size=30))
def test_a_path_is_clean_or_refused(name: str) -> None:
    try:
        path = clean_path(name)
    except InvalidInput:
        return
    assert not path.startswith("/")
    assert not {"", ".", ".."} & set(path.split("/")) or path == ""


def test_headers_are_bounded_and_files_are_not() -> None:
    reader = LayerReader(io.BytesIO(bytes(8 << 20)), limit=1 << 30)
    assert len(reader.read(512)) == 512
    assert sum(len(piece) for piece in reader.data(4 << 20)) == 4 << 20
    with pytest.raises(InvalidInput, match="headers"):
        reader.read(2 << 20)
    reader.next_header()
    reader.read(1 << 20)
    with pytest.raises(InvalidInput, match="headers"):
        reader.read(1)


def test_it_only_goes_forward() -> None:
    reader = LayerReader(io.BytesIO(b"0123456789"), limit=100)
    assert reader.seek(4) == 4
    assert reader.read(2) == b"45"
    for wrong in (3, -1):
        with pytest.raises(InvalidInput):
            reader.seek(wrong)
    with pytest.raises(InvalidInput):
        reader.seek(0, 2)
    with pytest.raises(InvalidInput, match="ends in the middle"):
        list(reader.data(100))


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress, bytes])
def test_what_is_unpacked_is_counted_and_hashed(pack: object) -> None:
    assert callable(pack)
    data = bytes(range(256)) * 4096
    reader = LayerReader(decompressed(io.BytesIO(pack(data))), limit=len(data))
    reader.drain()
    assert reader.tell() == len(data)
    whole = LayerReader(io.BytesIO(data), limit=len(data))
    whole.drain()
    assert reader.hash.digest() == whole.hash.digest()
    bomb = LayerReader(decompressed(io.BytesIO(pack(data))), limit=len(data) - 1)
    with pytest.raises(TooLarge):
        bomb.drain()


def test_two_archives_behind_each_other_are_one_stream() -> None:
    for pack in (gzip.compress, zstandard.ZstdCompressor().compress):
        reader = LayerReader(decompressed(io.BytesIO(pack(b"one") + pack(b"two"))), limit=100)
        assert b"".join(reader.data(6)) == b"onetwo"


def test_the_index_of_layers(tmp_path: Path) -> None:
    index = LayerIndex(tmp_path / "index")
    layer = LayerDigest("sha256:" + "a" * 64)
    key = "b" * 64
    assert index.get(key) is None
    index.put(key, layer)
    assert LayerIndex(tmp_path / "index").get(key) == layer
    assert [path.name for path in (tmp_path / "index").iterdir()] == [key]
    (tmp_path / "index" / key).write_text(json.dumps({"damaged": 1}))
    assert index.get(key) is None
    for wrong in ("", "../x", "B" * 64):
        with pytest.raises(InvalidInput):
            index.get(wrong)

"""Codings taken off as bodies come, and placeholders exchanged in them, however they are cut."""

import contextlib
import gzip
import zlib
from collections.abc import Callable

import brotli  # type: ignore[import-untyped]
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import InvalidInput
from corral.gateway.codings import READABLE, decoder
from corral.gateway.inject import Exchange
from corral.gateway.redact import Forms
from corral.gateway.rewrite import Guard, LeakError


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


PACK: dict[str, list[Callable[[bytes], bytes]]] = {
    "gzip": [gzip.compress, lambda data: gzip.compress(data[:9]) + gzip.compress(data[9:])],
    "deflate": [zlib.compress, raw_deflate],
    "br": [brotli.compress],
    "zstd": [zstandard.ZstdCompressor().compress],
}


def unpack(coding: str, data: bytes, size: int) -> bytes:
    unpacker = decoder(coding)
    parts = [data[start : start + size] for start in range(0, len(data), size)]
    out = b"".join(piece for part in parts for piece in unpacker.feed(part))
    unpacker.finish()
    return out


@pytest.mark.parametrize("coding", READABLE)
@given(data=st.binary(max_size=3000), size=st.integers(1, 5000))
def test_what_was_packed_is_unpacked(coding: str, data: bytes, size: int) -> None:
    """G-140."""
    for pack in PACK[coding]:
        assert unpack(coding, pack(data), size) == data


@pytest.mark.parametrize("coding", READABLE)
@given(data=st.binary(max_size=300), size=st.integers(1, 100))
def test_hostile_bytes_are_unpacked_or_refused(coding: str, data: bytes, size: int) -> None:
    """G-143: nothing else, and nothing that was not whole."""
    with contextlib.suppress(InvalidInput):
        unpack(coding, data, size)


@pytest.mark.parametrize("coding", READABLE)
def test_a_cut_body_is_noticed(coding: str) -> None:
    packed = PACK[coding][0](b"some text that is long enough to be packed " * 50)
    with pytest.raises(InvalidInput):
        unpack(coding, packed[:-5], 7)


@pytest.mark.parametrize("coding", READABLE)
def test_a_bomb_comes_in_small_pieces(coding: str) -> None:
    """G-92."""
    bomb = PACK[coding][0](bytes(32 << 20))
    unpacker = decoder(coding)
    sizes = [len(piece) for piece in unpacker.feed(bomb)]
    assert sum(sizes) == 32 << 20
    assert max(sizes) <= 128 * 1024


def test_unknown_codings_are_refused() -> None:
    for coding in ("lzma", "gzip,br", "compress"):
        with pytest.raises(InvalidInput):
            decoder(coding)


STAND, SECRET = "ph_0123456789abcdefghij", "the-secret/of+another=length"


@given(
    st.lists(st.sampled_from([STAND, "ph_", STAND[:-1], "x", STAND + STAND]), max_size=12), st.integers(1, 40)
)
def test_placeholders_are_found_however_they_are_cut(words: list[str], size: int) -> None:
    """G-31, G-35."""
    text = "-".join(words).encode()
    exchange = Exchange([(STAND, SECRET)])
    out = b"".join(exchange.feed(text[start : start + size]) for start in range(0, len(text), size))
    out += exchange.finish()
    assert out == text.replace(STAND.encode(), SECRET.encode())
    assert exchange.hits == text.count(STAND.encode())


@given(st.binary(max_size=60), st.binary(max_size=60), st.integers(1, 40))
def test_no_secret_gets_past_the_guard(before: bytes, after: bytes, size: int) -> None:
    """G-44: not a whole one, in whatever pieces; and what is none passes unchanged."""
    text = before + SECRET.encode() + after
    guard = Guard(Forms.of({SECRET.encode(): "s"}))
    passed, leaked = b"", False
    for start in range(0, len(text), size):
        try:
            passed += guard.feed(text[start : start + size])
        except LeakError:
            leaked = True
            break
    assert leaked
    assert SECRET.encode() not in passed
    clean = Guard(Forms.of({SECRET.encode(): "s"}))
    plain = before + SECRET[:-1].encode()
    if SECRET.encode() not in plain:
        out = b"".join(clean.feed(plain[start : start + size]) for start in range(0, len(plain), size))
        assert out + clean.finish() == plain

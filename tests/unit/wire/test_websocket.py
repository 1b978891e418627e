"""Frames told apart, however they are cut, and text changed in them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import InvalidInput
from corral.gateway.redact import Forms, Redactor
from corral.wire.websocket import Frames, TextChange

SECRET = "a-secret-of-some-length"


def frame(opcode: int, data: bytes, *, final: bool = True) -> bytes:
    size = len(data)
    first = bytes((opcode | (0x80 if final else 0),))
    if size < 126:
        return first + bytes((size,)) + data
    if size < 1 << 16:
        return first + b"\x7e" + size.to_bytes(2, "big") + data
    return first + b"\x7f" + size.to_bytes(8, "big") + data


def change() -> TextChange:
    redactor = Redactor(Forms(SECRET, "s"))
    return TextChange(redactor.feed, redactor.finish)


def chunks(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


@pytest.mark.parametrize("size", [1, 3, 7, 100_000])
def test_a_secret_is_taken_out_of_text_over_frames_and_cuts(size: int) -> None:
    """G-104, G-105, G-139: with a ping between the frames of a message, and binary left alone."""
    raw = SECRET.encode()
    stream = (
        frame(1, b"x" * 300 + raw[:5], final=False) + frame(9, b"ping") + frame(0, raw[5:] + b"y" * 70_000)
        + frame(2, raw) + frame(1, b"") + frame(1, raw[:-1]) + frame(8, b"")
    )  # fmt: skip
    made = change()
    out = b"".join(made.feed(part) for part in chunks(stream, size))
    assert len(out) == len(stream)
    assert out.count(raw) == 1
    assert out.endswith(frame(2, raw) + frame(1, b"") + frame(1, raw[:-1]) + frame(8, b""))
    assert frame(9, b"ping") in out


def all_of(frames: Frames, parts: list[bytes]) -> bytes:
    return b"".join(piece.data for part in parts for piece in frames.feed(part))


@given(st.binary(max_size=400), st.integers(1, 50))
def test_any_bytes_are_passed_or_refused(data: bytes, size: int) -> None:
    whole, cut = Frames(), Frames()
    try:
        expected = b"".join(piece.data for piece in whole.feed(data))
    except InvalidInput:
        with pytest.raises(InvalidInput):
            all_of(cut, chunks(data, size))
        return
    found = all_of(cut, chunks(data, size))
    assert found == expected
    assert data.startswith(found)


@pytest.mark.parametrize("data", [b"\xc1\x00", b"\x81\x80\x00\x00\x00\x00"])
def test_compressed_and_masked_frames_are_refused(data: bytes) -> None:
    """G-104."""
    with pytest.raises(InvalidInput):
        list(Frames().feed(data))

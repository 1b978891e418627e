"""Frames told apart, however they are cut, and text changed in them."""

from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import InvalidInput
from corral.gateway.redact import Forms, Redactor
from corral.gateway.rewrite import Guard, LeakError
from corral.wire.websocket import Change, Frames

SECRET = "a-secret-of-some-length"


def frame(opcode: int, data: bytes, *, final: bool = True, mask: bytes = b"") -> bytes:
    size = len(data)
    first, flag = bytes((opcode | (0x80 if final else 0),)), 0x80 if mask else 0
    data = mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(data)) if mask else data
    if size < 126:
        return first + bytes((flag | size,)) + data
    if size < 1 << 16:
        return first + bytes((flag | 126,)) + size.to_bytes(2, "big") + data
    return first + bytes((flag | 127,)) + size.to_bytes(8, "big") + data


def change() -> Change:
    redactor = Redactor(Forms(SECRET, "s"))
    return Change(Frames(), redactor.feed, redactor.finish, redactor.whole)


def watch() -> Change:
    guard = Guard(Forms(SECRET, "s"))
    return Change(Frames(client=True), guard.feed, guard.finish, guard.whole)


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


@pytest.mark.parametrize("size", [1, 3, 100_000])
def test_a_secret_is_taken_out_of_what_control_frames_say(size: int) -> None:
    """G-137: at once, also between the frames of a message, whose own secret is found over it."""
    raw = SECRET.encode()
    stream = (
        frame(1, raw[:5], final=False) + frame(9, raw) + frame(0x0A, b"a" + raw) + frame(0, raw[5:])
        + frame(8, b"\x03\xe8why: " + raw)
    )  # fmt: skip
    made = change()
    out = b"".join(made.feed(part) for part in chunks(stream, size))
    assert len(out) == len(stream)
    assert raw not in out
    assert b"\x03\xe8why: [redacted:s]" in out


def fed(made: Change, parts: Iterable[bytes]) -> Iterator[bytes]:
    return (made.feed(part) for part in parts)


MASK = b"\x01\xfe\x7f\x00"


@pytest.mark.parametrize("size", [1, 3, 7, 100_000])
@pytest.mark.parametrize("mask", [MASK, bytes(4)])
def test_what_a_client_says_passes_as_it_is(size: int, mask: bytes) -> None:
    """G-104: fragments, pings between them, binary, empty and large ones; the end of each message at once."""
    stream = (
        frame(1, b"x" * 300 + SECRET.encode()[:5], final=False, mask=mask) + frame(9, b"ping", mask=mask)
        + frame(0, b"y" * 70_000, mask=mask) + frame(2, bytes(range(256)), mask=mask) + frame(1, b"", mask=mask)
        + frame(0x0A, b"", mask=mask) + frame(1, SECRET.encode()[:-1], mask=mask) + frame(8, b"\x03\xe8bye", mask=mask)
    )  # fmt: skip
    made = watch()
    assert b"".join(made.feed(part) for part in chunks(stream, size)) == stream
    assert made.between


RAW = SECRET.encode()
LEAKS = [
    frame(1, b"a" + RAW, mask=MASK),
    frame(2, RAW + b"b", mask=MASK),
    frame(1, RAW[:7], final=False, mask=MASK) + frame(9, b"x", mask=MASK) + frame(0, RAW[7:], mask=bytes(4)),
    frame(9, RAW, mask=MASK),
    frame(8, b"\x03\xe8" + RAW, mask=MASK),
]


@pytest.mark.parametrize("stream", LEAKS)
@pytest.mark.parametrize("size", [1, 5, 100_000])
def test_no_byte_of_a_secret_that_a_client_says_passes(stream: bytes, size: int) -> None:
    """G-44: text and binary, over fragments, in pings and closes."""
    made, out = watch(), bytearray()
    whole = frame(1, b"hello", mask=MASK) + stream
    with pytest.raises(LeakError):
        out.extend(b for passed in fed(made, chunks(whole, size)) for b in passed)
    assert whole.startswith(out)
    assert not any(piece.data.startswith(RAW[:1]) for piece in Frames(client=True).feed(bytes(out)))


def test_what_waits_is_bounded() -> None:
    """G-340: who never goes on with what may be a secret, and pings for ever, holds no memory."""
    made = watch()
    made.feed(frame(1, RAW[:5], final=False, mask=MASK))
    with pytest.raises(InvalidInput):
        list(fed(made, [frame(9, b"p" * 100, mask=MASK)] * 1000))


@given(st.binary(max_size=300), st.integers(1, 50))
def test_a_mask_taken_off_and_put_on_is_none(data: bytes, size: int) -> None:
    made = watch()
    stream = frame(2, data, mask=MASK)
    assert b"".join(made.feed(part) for part in chunks(stream, size)) == stream


@given(st.binary(max_size=400), st.integers(1, 50), st.booleans())
def test_any_bytes_are_passed_or_refused(data: bytes, size: int, client: bool) -> None:
    whole, cut = Change(Frames(client=client)), Change(Frames(client=client))
    try:
        expected = whole.feed(data)
    except InvalidInput:
        with pytest.raises(InvalidInput):
            list(fed(cut, chunks(data, size)))
        return
    assert b"".join(cut.feed(part) for part in chunks(data, size)) == expected
    assert data.startswith(expected)
    assert len(data) - len(expected) < 140


@pytest.mark.parametrize("data", [b"\xc1\x00", b"\x81\x80\x00\x00\x00\x00"])
def test_compressed_and_masked_frames_are_refused(data: bytes) -> None:
    """G-104."""
    with pytest.raises(InvalidInput):
        Change(Frames()).feed(data)


@pytest.mark.parametrize(
    "data", [frame(1, b"x"), frame(9, b"x" * 126, mask=MASK), frame(9, b"", final=False, mask=MASK)]
)
def test_a_client_masks_and_keeps_control_short(data: bytes) -> None:
    """G-104."""
    with pytest.raises(InvalidInput):
        Change(Frames(client=True)).feed(data)

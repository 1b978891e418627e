"""Server-sent events."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import TooLarge
from corral.wire.sse import Blocks, Decoder, Event

LINES = st.lists(
    st.sampled_from(
        [b"data: a", b"data:b", b"data", b"event: x", b"id: 1", b"id: \0", b": comment", b"retry: 5", b"", b"", b"foo: \xff",
         b"data: \xc3\xa4"]
    ),
    max_size=30,
)  # fmt: skip
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    found = []
    for cut in cuts:
        found.append(data[:cut])
        data = data[cut:]
    return [*found, data]


def test_events() -> None:
    """G-199."""
    text = b"\xef\xbb\xbfdata: one\n\n: beat\n\nevent: e\r\ndata: two\r\ndata:three\r\nid: 7\r\n\r\nevent: lost\n\ndata\r\r"
    assert Decoder().feed(text) == [
        Event("message", "one", ""),
        Event("e", "two\nthree", "7"),
        Event("message", "", "7"),
    ]


def test_a_cut_stream_gives_its_last_event() -> None:
    """G-201."""
    decoder = Decoder()
    assert decoder.feed(b"data: x\n") == []
    assert decoder.finish() == [Event("message", "x")]
    assert decoder.finish() == []


@given(LINES, st.lists(ENDS, min_size=1, max_size=30), st.lists(st.integers(0, 9), max_size=60))
def test_cut_anywhere_it_reads_the_same(lines: list[bytes], ends: list[bytes], cuts: list[int]) -> None:
    """G-199."""
    data = b"".join(line + ends[i % len(ends)] for i, line in enumerate(lines))
    whole = Decoder()
    expected = whole.feed(data) + whole.finish()
    decoder = Decoder()
    found = [event for piece in pieces(data, cuts) for event in decoder.feed(piece)] + decoder.finish()
    assert found == expected


@given(st.binary(max_size=400), st.lists(st.integers(0, 9), max_size=60))
def test_blocks_lose_nothing(data: bytes, cuts: list[int]) -> None:
    """G-99."""
    blocks = Blocks()
    found = [block for piece in pieces(data, cuts) for block in blocks.feed(piece)]
    assert b"".join(found) + blocks.rest() == data


def test_an_event_is_complete_with_its_blank_line() -> None:
    """G-99."""
    decoder = Decoder()
    assert decoder.feed(b"data: x\r\n\r\n") == [Event("message", "x")]
    assert decoder.feed(b"data: y\r\r") == [Event("message", "y")]
    assert decoder.feed(b"\ndata: z\n\n") == [Event("message", "z")]


def test_events_are_bounded() -> None:
    decoder = Decoder(limit=100)
    assert decoder.feed(b"data: 0123456789" * 6) == []
    with pytest.raises(TooLarge):
        decoder.feed(b"data: 0123456789")

"""Framing of the Connect protocol."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import InvalidInput, TooLarge
from corral.wire.connect import (
    COMPRESSED,
    END,
    Code,
    EnvelopeDecoder,
    end_of_stream,
    envelope,
    error_body,
    parse_timeout,
)


@given(st.lists(st.binary(max_size=200), max_size=8), st.integers(1, 50))
def test_messages_come_out_however_the_body_is_cut(messages: list[bytes], size: int) -> None:
    body = b"".join(map(envelope, messages))
    decoder = EnvelopeDecoder()
    found = [item for i in range(0, len(body), size) for item in decoder.feed(body[i : i + size])]
    decoder.close()
    assert [item.data for item in found] == messages


@given(st.lists(st.binary(max_size=64), max_size=8))
def test_any_bytes_are_messages_or_refused(chunks: list[bytes]) -> None:
    decoder = EnvelopeDecoder(limit=32)
    try:
        for chunk in chunks:
            assert all(len(item.data) <= 32 for item in decoder.feed(chunk))
        decoder.close()
    except (InvalidInput, TooLarge):
        pass


def test_the_end_is_marked() -> None:
    found = EnvelopeDecoder().feed(end_of_stream(error_body(Code.NOT_FOUND, "none")))
    assert [(item.data, item.end) for item in found] == [
        (b'{"error": {"code": "not_found", "message": "none"}}', True)
    ]
    assert end_of_stream()[0] == END


def test_a_long_message_is_refused_by_its_head() -> None:
    with pytest.raises(TooLarge):
        EnvelopeDecoder(limit=10).feed(b"\0\0\0\0\x0b")


def test_compressed_and_broken_off_messages_are_refused() -> None:
    with pytest.raises(InvalidInput):
        EnvelopeDecoder().feed(envelope(b"x", COMPRESSED))
    decoder = EnvelopeDecoder()
    decoder.feed(envelope(b"xyz")[:-1])
    with pytest.raises(InvalidInput):
        decoder.close()


@pytest.mark.parametrize(("text", "seconds"), [(None, None), ("", None), ("0", None), ("1500", 1.5)])
def test_timeouts_are_milliseconds(text: str | None, seconds: float | None) -> None:
    assert parse_timeout(text) == seconds


@pytest.mark.parametrize("text", ["-1", "1.5", "x", "9" * 11, "²"])
def test_other_timeouts_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_timeout(text)


def test_every_code_has_a_status() -> None:
    assert {code.status for code in Code} <= set(range(400, 600))

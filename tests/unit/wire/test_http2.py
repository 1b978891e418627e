"""HTTP/2 messages: what is refused, what is passed on, and a server's farewell."""

import itertools

import pytest
from hyperframe.frame import DataFrame, Frame, GoAwayFrame, PingFrame
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import InvalidInput
from corral.wire.http2 import Farewell, grpc_refusal, request, request_fields, response, trailers

GOOD = [(b":method", b"POST"), (b":scheme", b"https"), (b":authority", b"a.example"), (b":path", b"/x?y")]


def test_a_request_begins_with_its_host() -> None:
    found = request([*GOOD, (b"host", b"a.example"), (b"content-type", b"application/grpc+proto")])
    assert (found.method, found.target, found.grpc) == ("POST", "/x?y", True)
    assert found.fields == [(b"host", b"a.example"), (b"content-type", b"application/grpc+proto")]


@pytest.mark.parametrize(
    "fields",
    [
        GOOD[:3],
        [*GOOD, (b":protocol", b"websocket")],
        [GOOD[0], (b":scheme", b"http"), *GOOD[2:]],
        [*GOOD, (b"host", b"b.example")],
        [*GOOD[:3], (b":path", "/é".encode())],
    ],
)
def test_other_requests_are_refused(fields: list[tuple[bytes, bytes]]) -> None:
    """G-108."""
    with pytest.raises(InvalidInput):
        request(fields)


def test_fields_are_sent_as_http2_wants_them() -> None:
    """The host is the authority, and nothing is asked of the server that is the gateway's to do."""
    sent = request_fields(
        "GET", "a.example", "/", [("Host", "a.example"), ("X-A", "1"), ("Expect", "x")], trailers=True
    )
    assert sent[4:] == [(b"x-a", b"1"), (b"te", b"trailers")]
    assert sent[2] == (b":authority", b"a.example")


def test_answers_and_trailers_keep_what_is_theirs() -> None:
    """G-85, G-88."""
    assert response([(b":status", b"204"), (b"connection", b"x"), (b"a", b"b")]) == (204, [(b"a", b"b")])
    with pytest.raises(InvalidInput):
        response([(b"a", b"b")])
    assert trailers([(b"grpc-status", b"0"), (b"authorization", b"x"), (b"content-length", b"1")]) == [
        (b"grpc-status", b"0")
    ]


def test_a_refusal_is_spelled_as_grpc_spells_it() -> None:
    """G-110."""
    fields = dict(grpc_refusal(403, "no: 100 % é\n"))
    assert fields[b"grpc-status"] == b"7"
    assert fields[b"grpc-message"] == b"no: 100 %25 %C3%A9%0A"


def frames(*given: Frame) -> bytes:
    return b"".join(frame.serialize() for frame in given)


BEFORE = frames(PingFrame(0, opaque_data=b"12345678"), DataFrame(1, data=b"\x07" * 300))
GENTLE = frames(GoAwayFrame(0, last_stream_id=5, additional_data=b"bye"))
HARD = frames(GoAwayFrame(0, last_stream_id=5, error_code=2))
AFTER = frames(DataFrame(3, data=b"z" * 50, flags=["END_STREAM"]))


@given(st.lists(st.integers(0, len(BEFORE + GENTLE + HARD + AFTER)), max_size=8))
def test_a_farewell_is_taken_out_wherever_the_stream_is_cut(cuts: list[int]) -> None:
    """One without an error, and no other; nothing else is changed."""
    whole = BEFORE + GENTLE + HARD + AFTER
    found, out = Farewell(), b""
    edges = [0, *sorted(cuts), len(whole)]
    for start, end in itertools.pairwise(edges):
        out += found.feed(whole[start:end])
    assert out == BEFORE + HARD + AFTER
    assert found.last == 5


@given(st.binary(max_size=200))
def test_anything_passes_a_farewell(data: bytes) -> None:
    assert data.startswith(Farewell().feed(data)) or Farewell().feed(data) in data

"""What makes a request ambiguous, and which fields are passed on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.gateway.framing import MAX_HEAD, check, check_response, end_to_end, wants_upgrade

HOST = (b"Host", b"a.com")


def status(
    fields: list[tuple[bytes, bytes]],
    method: str = "GET",
    target: str = "/",
    version: tuple[int, int] = (1, 1),
) -> int:
    bad = check(method, target, version, fields)
    return 0 if bad is None else bad.status


@pytest.mark.parametrize(
    "fields",
    [
        [HOST],
        [HOST, (b"Content-Length", b"0")],
        [HOST, (b"Transfer-Encoding", b"Chunked")],
        [HOST, (b"Connection", b"keep-alive, X-Own")],
        [HOST, (b"A", b"tab\tand \xff")],
    ],
)
def test_good_requests(fields: list[tuple[bytes, bytes]]) -> None:
    assert status(fields) == 0


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [HOST, HOST],
        [HOST, (b"content-length", b"1"), (b"Content-Length", b"1")],
        [HOST, (b"Content-Length", b"1"), (b"Transfer-Encoding", b"chunked")],
        [HOST, (b"Content-Length", b"1 1")],
        [HOST, (b"Content-Length", b"")],
        [HOST, (b"Content-Length", "１".encode())],
        [HOST, (b"Content-Length", b"1" * 30)],
        [HOST, (b"Transfer-Encoding", b"chunked, chunked")],
        [HOST, (b"Transfer-Encoding", b"identity")],
        [HOST, (b"Transfer-Encoding", b"chunked"), (b"transfer-encoding", b"chunked")],
        [HOST, (b"Connection", b"close,HOST")],
        [HOST, (b"Connection", b"Cookie")],
        [HOST, (b"Upgrade", b"H2C")],
        [HOST, (b"HTTP2-Settings", b"x")],
        [HOST, (b"A", b"b\rc")],
        [HOST, (b"A", b"b\nc")],
        [HOST, (b"A", b"b\x00c")],
        [HOST, (b"A", b"b\x7fc")],
    ],
)
def test_ambiguous_requests(fields: list[tuple[bytes, bytes]]) -> None:
    """G-74, G-86, G-89."""
    assert status(fields) == 400


@pytest.mark.parametrize(
    ("method", "target", "version", "expected"),
    [
        ("GET", "http://a.com/", (1, 1), 400),
        ("GET", "*", (1, 1), 400),
        ("OPTIONS", "*", (1, 1), 400),
        ("GET", "/a#b", (1, 1), 400),
        ("GET", "/ä", (1, 1), 400),
        ("GET", "", (1, 1), 400),
        ("CONNECT", "a.com:443", (1, 1), 405),
        ("GET", "/", (2, 0), 505),
        ("GET", "/%2e%2e//x?a=b&a=c", (1, 1), 0),
    ],
)
def test_targets(method: str, target: str, version: tuple[int, int], expected: int) -> None:
    """G-76, G-78, G-90."""
    assert status([HOST], method, target, version) == expected


def test_the_head_is_bounded() -> None:
    """G-91."""
    assert status([HOST, (b"A", b"a" * MAX_HEAD)]) == 431


def test_hop_by_hop_fields_end_here() -> None:
    """G-85, G-87."""
    fields = [
        HOST,
        (b"Connection", b"close, X-Named"),
        (b"x-named", b"1"),
        (b"Keep-Alive", b"5"),
        (b"TE", b"trailers"),
        (b"Trailer", b"x"),
        (b"Transfer-Encoding", b"chunked"),
        (b"Upgrade", b"websocket"),
        (b"Proxy-Authorization", b"x"),
        (b"Proxy-Connection", b"x"),
        (b"X-Corral-Decision", b"allowed"),
        (b"Accept", b"a"),
        (b"accept", b"b"),
    ]
    assert end_to_end(fields) == [("Host", "a.com"), ("Accept", "a"), ("accept", "b")]
    assert wants_upgrade(fields)


@pytest.mark.parametrize(
    "fields",
    [
        [(b"Content-Length", b"1"), (b"Content-Length", b"2")],
        [(b"Content-Length", b"1"), (b"Transfer-Encoding", b"chunked")],
        [(b"A", b"b\r\nSet-Cookie: x")],
    ],
)
def test_ambiguous_answers(fields: list[tuple[bytes, bytes]]) -> None:
    """G-75, G-98."""
    assert check_response(fields) is not None


def test_good_answers() -> None:
    assert check_response([(b"Content-Length", b"1"), (b"Content-Length", b"1"), (b"A", b"\xff")]) is None


@given(st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=20)), max_size=8), st.text(max_size=20))
def test_nothing_raises(fields: list[tuple[bytes, bytes]], target: str) -> None:
    """G-342."""
    check("GET", target, (1, 1), fields)
    check_response(fields)

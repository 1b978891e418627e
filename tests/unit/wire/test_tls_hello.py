"""The client hello parser, on hellos of the real TLS library and on noise."""

import ssl
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import InvalidInput, TooLarge
from corral.wire.tls import MAX_HELLO, Alert, ClientHello, HelloParser, alert, looks_like_tls


def real_hello(name: str | None = "example.com", alpn: tuple[str, ...] = ()) -> bytes:
    """What OpenSSL sends first."""
    context = ssl.create_default_context()
    context.check_hostname = False
    if alpn:
        context.set_alpn_protocols(list(alpn))
    outgoing = ssl.MemoryBIO()
    connection = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        connection.do_handshake()
    return outgoing.read()


def vector(size: int, data: bytes) -> bytes:
    return len(data).to_bytes(size, "big") + data


def hello(*extensions: tuple[int, bytes], tail: bytes = b"") -> bytes:
    """A hello message with chosen extensions."""
    parts = b"".join(struct.pack("!H", kind) + vector(2, body) for kind, body in extensions)
    body = (
        b"\x03\x03"
        + bytes(32)
        + vector(1, b"")
        + vector(2, b"\x13\x01")
        + vector(1, b"\0")
        + vector(2, parts)
    )
    return b"\x01" + vector(3, body + tail)


def records(message: bytes, size: int = 16384) -> bytes:
    """A handshake message over records of `size` bytes."""
    return b"".join(b"\x16\x03\x01" + vector(2, message[i : i + size]) for i in range(0, len(message), size))


def sni(*names: bytes) -> tuple[int, bytes]:
    return 0, vector(2, b"".join(b"\0" + vector(2, name) for name in names))


def test_a_real_hello() -> None:
    """G-50."""
    parser = HelloParser()
    data = real_hello(alpn=("h2", "http/1.1"))
    assert parser.feed(data) == ClientHello("example.com", ("h2", "http/1.1"), encrypted=False)
    assert bytes(parser.received) == data
    assert looks_like_tls(data)
    assert not looks_like_tls(b"GET / HTTP/1.1")


def test_no_server_name() -> None:
    """G-50."""
    found = HelloParser().feed(real_hello(name=None))
    assert found is not None
    assert found.server_name is None


@given(st.lists(st.integers(1, 200), max_size=40), st.integers(1, 600))
def test_cut_anywhere_it_reads_the_same(cuts: list[int], record: int) -> None:
    message = hello(sni(b"a.example"), (0xFE0D, b"x"))
    data = records(message, record)
    parser = HelloParser()
    found = None
    for cut in [*cuts, len(data)]:
        piece, data = data[:cut], data[cut:]
        if piece:
            found = parser.feed(piece)
        if found is not None:
            break
    assert found == ClientHello("a.example", (), encrypted=True)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        b"\x16\x02\x01\x00\x05hello",
        b"\x16\x03\x01\x00\x00",
        b"\x16\x03\x01\x50\x00",
        records(b"\x02" + vector(3, b"x" * 50)),
        records(hello(sni(b"a.example"), sni(b"b.example"))),
        records(hello(sni(b"a.example", b"b.example"))),
        records(hello((0, vector(2, b"\x01" + vector(2, b"a.example"))))),
        records(hello(sni("ä".encode()))),
        records(hello((0, b"\x00"))),
        records(hello((16, vector(2, b"\x05h2")))),
        records(hello(tail=b"x")),
        records(b"\x01" + vector(3, b"\x03\x03")),
    ],
)
def test_what_is_no_hello_is_refused(data: bytes) -> None:
    """G-50, G-342."""
    with pytest.raises(InvalidInput):
        HelloParser().feed(data)


def test_a_hello_without_end_is_refused() -> None:
    """G-340."""
    parser = HelloParser()
    with pytest.raises(TooLarge):
        parser.feed(b"\x16\x03\x01" + vector(2, b"\x01\xff\xff\xff"))
    drops = records(hello(*[(i, b"x" * 60) for i in range(20, 300)]), 1)
    parser = HelloParser()
    assert parser.feed(drops[:MAX_HELLO]) is None
    with pytest.raises(TooLarge):
        parser.feed(drops[MAX_HELLO : MAX_HELLO + 1])


@given(st.lists(st.binary(max_size=300), max_size=20))
def test_noise_is_refused_or_waited_for(pieces: list[bytes]) -> None:
    parser = HelloParser()
    try:
        for piece in pieces:
            parser.feed(b"\x16\x03\x01" + vector(2, b"\x01" + piece) if piece else piece)
    except (InvalidInput, TooLarge):
        return
    assert len(parser.received) <= MAX_HELLO


def test_alerts_are_records() -> None:
    assert alert(Alert.UNRECOGNIZED_NAME) == b"\x15\x03\x03\x00\x02\x02\x70"

"""What stands behind a body in HTTP/1.1: it goes nowhere, in either direction, and is no way in (G-88).

The server writes down and answers bytes, so that no parser's courtesy hides what passed.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from tests.system.gateway.test_gateway_inside import HOST, SECRET, Inside, inside

from corral.model.binding import Absent, Binding
from corral.model.egress import HostRule

__all__ = ["inside"]

CHUNKED = "POST /in HTTP/1.1\nHost: H\nTransfer-Encoding: chunked\n{}\n5\nhello\n0\n"
SMUGGLED = "GET /smuggled HTTP/1.1\nHost: H\n\n"


@dataclass
class RawServer:
    """Answers each connection's first request, once its body has ended, with `answer`."""

    answer: bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    heard: bytearray = field(default_factory=bytearray)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not (self.heard.endswith(b"\r\n\r\n") and b"0\r\n" in self.heard) and (
            data := await reader.read(65536)
        ):
            self.heard += data
        writer.write(self.answer)
        try:
            await writer.drain()
        finally:
            writer.close()


@pytest.fixture
async def raw(inside: Inside, tmp_path: Path) -> AsyncIterator[RawServer]:
    """A server of bytes at the host, in the place of the one that speaks HTTP."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "certificate.pem", tmp_path / "key.pem")
    found = RawServer()
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0, ssl=context)
    async with server:
        inside.server = server.sockets[0].getsockname()[1]
        await inside.attach(HostRule(HOST, (inside.server,), ("GET", "POST"), ("/in",), private=True))
        yield found


@pytest.mark.parametrize(
    "trailer",
    ["Authorization: Bearer {stand}", f"X-Note: {SECRET}", "Cookie: a=b", "X-Smuggled: y"],
)
async def test_a_request_brings_none(inside: Inside, raw: RawServer, trailer: str) -> None:
    """G-88: no placeholder is exchanged there, no secret leaves there, and none of it frames anything."""
    stand = await inside.bind(Binding((HOST,), (inside.server,), absent=Absent.PASS))
    text = (
        CHUNKED.format("Trailer: Authorization, X-Note\nTE: trailers\n")
        + trailer.format(stand=stand)
        + "\n\n"
    )
    answer = await inside.raw(inside.request(text + SMUGGLED))
    assert answer.startswith(b"HTTP/1.1 200 OK")
    heard = bytes(raw.heard).lower()
    assert b"5\r\nhello\r\n0\r\n\r\n" in heard
    name = trailer.partition(":")[0].lower().encode()
    assert heard.endswith(b"0\r\n\r\n")
    assert name not in heard.partition(b"\r\n\r\n")[2]
    for word in (b"trailer", b"te:", SECRET.lower().encode(), stand.lower().encode(), b"smuggled", b"evil"):
        assert word not in heard


@pytest.mark.parametrize("bound", [False, True])
async def test_an_answer_brings_none(inside: Inside, raw: RawServer, *, bound: bool) -> None:
    """G-75, G-88, G-137: neither a secret nor what looks like another answer."""
    if bound:
        await inside.bind(Binding((HOST,), (inside.server,), absent=Absent.PASS))
    raw.answer = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Key, Set-Cookie\r\n\r\n2\r\nok\r\n0\r\n"
        b"X-Key: " + SECRET.encode() + b"\r\nSet-Cookie: a=b\r\n\r\n"
        b"HTTP/1.1 200 OK\r\nX-Forged: 1\r\nContent-Length: 0\r\n\r\n"
    )
    answer = await inside.raw(inside.request(CHUNKED.format("Connection: close\n") + "\n"))
    assert answer.count(b"HTTP/1.1 ") == 1
    for word in (b"trailer", b"x-key", b"set-cookie", b"forged", SECRET.lower().encode()):
        assert word not in answer.lower()
    assert answer.endswith(b"2\r\nok\r\n0\r\n\r\n")


@pytest.mark.parametrize(
    "line",
    ["X: y\0z", " folded: x", "X : y", "X(y): z", "Content-Length: 400", "Host: evil"],
)
async def test_what_is_no_trailer_ends_it(inside: Inside, raw: RawServer, line: str) -> None:
    """G-74, G-88, G-91: a request whose end can be read in two ways is not finished for the server either."""
    await inside.raw(inside.request(CHUNKED.format("") + line + "\n\n" + SMUGGLED))
    assert not raw.heard.endswith(b"0\r\n\r\n")
    assert b"smuggled" not in raw.heard


async def test_trailers_without_end_take_no_memory(inside: Inside, raw: RawServer) -> None:
    """G-91, G-340: in either direction; what has no end is finished for nobody."""
    many = b"".join(b"X-%d: %s\r\n" % (n, b"a" * 1000) for n in range(100_000))
    assert inside.bed.process is not None
    gateway = psutil.Process(inside.bed.process.pid)
    before = gateway.memory_info().rss
    _, writer = await inside.open()
    writer.write(inside.request(CHUNKED.format("")))
    with contextlib.suppress(TimeoutError, ConnectionError):  # it may read all, or stop reading
        async with asyncio.timeout(10):
            for start in range(0, len(many), 1 << 20):
                writer.write(many[start : start + (1 << 20)])
                await writer.drain()
    raw.answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n" + many
    answer = await inside.raw(inside.request(CHUNKED.format("Connection: close\n") + "\n"))
    assert answer.endswith(b"ok\r\n")
    assert gateway.memory_info().rss - before < 48 * 1024 * 1024
    writer.close()

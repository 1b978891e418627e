"""HTTP/1.1 to a server inside a sandbox, whose every byte is hostile. One connection carries one request.

h11 parses: heads are bounded, bodies are passed on as they come, and what is not HTTP is an error and never a guess.
"""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Sequence

import h11

MAX_HEAD = 64 * 1024
_READ = 128 * 1024
_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"trailer",
        b"upgrade",
        b"transfer-encoding",
        b"expect",
    }
)
Headers = list[tuple[bytes, bytes]]


class Broken(Exception):
    """What the server sent is no answer, or it broke off."""


def end_to_end(headers: Sequence[tuple[bytes, bytes]]) -> Headers:
    """Headers (lower-case names) that are not of one connection only."""
    named = {
        token.strip().lower()
        for name, value in headers
        if name == b"connection"
        for token in value.split(b",")
    }
    return [(name, value) for name, value in headers if name not in _HOP_BY_HOP and name not in named]


def _unverified() -> ssl.SSLContext:
    """For servers inside a sandbox: there is nobody to vouch for them, and nothing between them and us."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class Upstream:
    """A connection to a port of a sandbox; owns the socket. One request, then `close`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._h11 = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD)

    @classmethod
    async def open(cls, sock: socket.socket, *, tls: bool) -> "Upstream":
        """Over a connected socket. Raises Broken where TLS was asked for and is not spoken."""
        try:
            reader, writer = await asyncio.open_connection(
                sock=sock,
                limit=_READ,
                ssl=_unverified() if tls else None,
                server_hostname="localhost" if tls else None,
            )
        except (OSError, ssl.SSLError) as error:
            sock.close()
            raise Broken("the server does not speak TLS") from error
        return cls(reader, writer)

    async def send_head(self, method: bytes, target: bytes, headers: Headers) -> None:
        """Begin the request. Raises Broken for a head that HTTP/1.1 cannot carry."""
        try:
            await self._send(h11.Request(method=method, target=target, headers=headers))
        except h11.LocalProtocolError as error:
            raise Broken("the request cannot be forwarded") from error

    async def send_body(self, data: bytes) -> None:
        """A piece of the request's body."""
        await self._send(h11.Data(data=data))

    async def end_body(self) -> None:
        """The request is whole."""
        await self._send(h11.EndOfMessage())

    async def head(self) -> h11.Response:
        """The response's head; interim responses are skipped. Raises Broken."""
        while True:
            event = await self._next()
            if isinstance(event, h11.Response):
                return event
            if not isinstance(event, h11.InformationalResponse) or event.status_code == 101:
                raise Broken("the server did not answer")

    async def body(self) -> AsyncIterator[bytes]:
        """The response's body. Raises Broken for one that breaks off."""
        while True:
            event = await self._next()
            if isinstance(event, h11.Data):
                yield bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return
            else:
                raise Broken("the response broke off")

    def close(self) -> None:
        """Let go of the connection."""
        self._writer.transport.abort()

    async def _send(self, event: h11.Event) -> None:
        data = self._h11.send(event)
        if data:
            self._writer.write(data)
            await self._writer.drain()

    async def _next(self) -> object:
        while True:
            try:
                event = self._h11.next_event()
            except h11.RemoteProtocolError as error:
                raise Broken("what the server sent is not HTTP") from error
            if event is not h11.NEED_DATA:
                return event
            try:
                self._h11.receive_data(await self._reader.read(_READ))
            except OSError as error:
                raise Broken("the connection broke off") from error

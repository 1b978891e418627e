"""WebSockets: a request like any other, and then frames both ways.

The handshake is decided on, and gets its secrets, as every request. Frames pass as they are. Where secrets went to the
server, its text is searched for them, and what its pings, pongs and closes say; what the sandbox says is searched for secrets
themselves (G-44). For that, compression is not negotiated (G-103, G-104).
"""

import asyncio
import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import aiohttp
from aiohttp import hdrs, web

from corral.errors import InvalidInput
from corral.gateway import framing
from corral.gateway.redact import Forms, Redactor
from corral.gateway.rewrite import Guard, LeakError
from corral.wire.websocket import POLICY, Change, Frames, close

BUFFER = 256 * 1024
_LOOK_AGAIN = 0.01


def is_handshake(request: web.BaseRequest) -> bool:
    """Whether a request that wants another protocol is a WebSocket's handshake, and a good one."""
    named = framing.by_name(request.raw_headers)
    try:
        key = base64.b64decode(request.headers.get("Sec-WebSocket-Key", ""), validate=True)
    except binascii.Error:
        return False
    return (
        request.method == "GET"
        and request.version == aiohttp.HttpVersion11
        and not request.body_exists
        and [value.strip().lower() for value in named.get(b"upgrade", [])] == [b"websocket"]
        and request.headers.get("Sec-WebSocket-Version") == "13"
        and len(key) == 16
    )


def offer(headers: "Any", *, inspected: bool) -> None:
    """Make the fields of a request those of a handshake."""
    headers[hdrs.CONNECTION] = "Upgrade"
    headers[hdrs.UPGRADE] = "websocket"
    if inspected:
        headers.popall("Sec-WebSocket-Extensions", None)


@dataclass(slots=True)
class Talk:
    """Bytes that a WebSocket has moved after its handshake, which aiohttp does not count: from the sandbox and to it."""

    said: int = 0
    told: int = 0


class _Toward:
    """One direction: what aiohttp's connections give their bytes to once they are no longer HTTP."""

    def __init__(
        self,
        source: asyncio.Transport,
        target: asyncio.Transport,
        change: Callable[[bytes], bytes],
        count: Callable[[int, int], None],
        ended: asyncio.Event,
    ) -> None:
        self._source = source
        self._target = target
        self._change = change
        self._count = count
        self._ended = ended

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Pass bytes on; whether that was the end, and what is left."""
        try:
            out = self._change(bytes(data))
        except (InvalidInput, LeakError):  # a leak is kept by the guard that found it
            self._ended.set()
            return True, b""
        self._count(len(data), len(out))
        if out and not self._target.is_closing():
            self._target.write(out)
            if self._target.get_write_buffer_size() > BUFFER:
                self._source.pause_reading()
                asyncio.get_running_loop().call_later(_LOOK_AGAIN, self._go_on)
        return False, b""

    def _go_on(self) -> None:
        if self._source.is_closing() or self._target.is_closing():
            return
        if self._target.get_write_buffer_size() > BUFFER // 2:
            asyncio.get_running_loop().call_later(_LOOK_AGAIN, self._go_on)
        else:
            self._source.resume_reading()

    def feed_eof(self) -> None:
        """The source has ended."""
        self._ended.set()


async def relay(
    request: web.BaseRequest,
    upstream: aiohttp.ClientResponse,
    fields: list[tuple[str, str]],
    forms: Forms | None,
    guard: Guard | None,
    talk: Talk,
) -> Redactor | None:
    """Answer an accepted handshake, and pass frames both ways until one side ends, counted in `talk`. `fields` are the
    answer's; what took out secrets, if there were any to look for. What `guard` looks for is not passed on, and ends it.
    Raises InvalidInput for an answer that was not offered.
    """
    connection, client = upstream.connection, request.transport
    if connection is None or connection.transport is None or connection.protocol is None or client is None:
        return None
    if (forms or guard) and any(name.lower() == "sec-websocket-extensions" for name, _ in fields):
        raise InvalidInput(
            "the server compresses the WebSocket unasked", "this server cannot be used with secrets"
        )
    server = connection.transport
    redactor = Redactor(forms) if forms is not None else None
    shown = Change(Frames(), redactor.feed, redactor.finish, redactor.whole) if redactor else Change(Frames())
    said = Change(Frames(client=True), guard.feed, guard.finish, guard.whole) if guard is not None else None
    ended = asyncio.Event()
    lines = ["HTTP/1.1 101 Switching Protocols", "Connection: Upgrade", "Upgrade: websocket"]
    lines += [f"{name}: {redactor.text(value) if redactor else value}" for name, value in fields]
    client.write(("\r\n".join(lines) + "\r\n\r\n").encode())
    connection.protocol.read_timeout = None

    def count_said(came: int, _: int) -> None:
        talk.said += came

    def count_told(_: int, went: int) -> None:
        talk.told += went

    try:
        # Both take any parser; they are declared for aiohttp's own.
        cast(Any, request.protocol).set_parser(
            _Toward(client, server, said.feed if said else bytes, count_said, ended)
        )
        cast(Any, connection.protocol).set_parser(
            _Toward(server, client, shown.feed if redactor or said else bytes, count_told, ended),
            _NoPayload(),
        )
        await ended.wait()
        if guard is not None and guard.leaked is not None and shown.between:
            client.write(close(POLICY, "a secret of this host stands in it, which no sandbox is given"))
    finally:
        server.close()
        client.close()
    return redactor


class _NoPayload:
    """What a client's connection tells of its end, which the parser hears too."""

    def set_exception(self, *_: object) -> None:
        """Nothing waits here."""

    def feed_eof(self) -> None:
        """Nothing waits here."""

    def is_eof(self) -> bool:
        """There is no more of what never was."""
        return True

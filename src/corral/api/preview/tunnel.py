"""Connections that change to another protocol (WebSocket): after the head, bytes go both ways unread.

The server hands such a connection over with the request's head, rebuilt from what it parsed. It is admitted like any other
request. What the server inside answers is read as far as its head: with 101 the connection belongs to the two ends until one
of them closes it. Any other answer ends the connection, so that no later request on it reaches the sandbox unseen.
"""

import asyncio
import json
from typing import Any, cast

from starlette.types import Scope

from corral.api.e2b.failures import Refusal
from corral.api.preview import access
from corral.api.preview.hosts import Target
from corral.api.preview.proxy import Previews, refusal_of, request_headers
from corral.api.preview.upstream import MAX_HEAD, Broken, Headers
from corral.api.preview.where import Where
from corral.errors import CorralError
from corral.model.sandbox import Sandbox

_READ = 64 * 1024
_HIGH = 256 * 1024
_ANSWER_SECONDS = 60.0


class Tunnel(asyncio.Protocol):
    """One such connection, from the client's side. Made by uvicorn's HTTP protocol in place of a WebSocket protocol."""

    def __init__(self, where: Where, previews: Previews, connections: set[Any]) -> None:
        self._where = where
        self._previews = previews
        self._connections = connections
        self._head = b""
        self._early = bytearray()
        self._back: asyncio.StreamWriter | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._task: asyncio.Task[None] | None = None
        self._relief: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None

    # -- the client's side ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is handed over."""
        self._transport = cast(asyncio.Transport, transport)
        self._connections.add(self)

    def data_received(self, data: bytes) -> None:
        """First the head, whole; then whatever the client sends."""
        if not self._head:
            self._head = data
            self._task = asyncio.get_running_loop().create_task(self._run())
        elif self._back is None:
            self._early += data
            if len(self._early) > _HIGH:
                self._close()
        else:
            self._back.write(data)
            if self._relief is None and self._back.transport.get_write_buffer_size() > _HIGH:
                self._relief = asyncio.get_running_loop().create_task(self._relieve(self._back))

    def eof_received(self) -> bool:
        """The client has said all."""
        if self._back is not None and self._back.can_write_eof():
            self._back.write_eof()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """The client went."""
        self._connections.discard(self)
        self._writable.set()
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        """The client is slow."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """It has caught up."""
        self._writable.set()

    def shutdown(self) -> None:
        """The server ends."""
        self._close()

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # -- the work ---------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        scope = _scope_of(self._head, self._transport)
        target = Target("", 0)
        try:
            found = self._where.target(scope)
            if found is None:
                raise Refusal(404, "there is nothing to upgrade to here")
            target = found
            sandbox = await self._previews.admit(target, scope)
            with self._previews.counted(sandbox):
                await self._join(sandbox, target, scope)
        except access.Enter:
            self._answer(401, "a WebSocket sends its token by header or cookie")
        except (access.Denied, Refusal, CorralError, Broken, TimeoutError, OSError) as error:
            response = refusal_of(error if not isinstance(error, OSError) else Broken("it broke off"), target)
            self._answer(response.status_code, json.loads(bytes(response.body))["message"])
        finally:
            if self._back is not None:
                self._back.transport.abort()
            self._close()

    async def _join(self, sandbox: Sandbox, target: Target, scope: Scope) -> None:
        sock = await self._previews.dial(sandbox, target.port)
        reader, writer = await asyncio.open_connection(sock=sock, limit=MAX_HEAD)
        try:
            writer.write(_request(scope, request_headers(scope, sandbox, target.port)))
            async with asyncio.timeout(_ANSWER_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            status = head.split(b" ", 2)[1:2]
            if status != [b"101"]:
                number = int(status[0]) if status and status[0].isdigit() and len(status[0]) == 3 else 502
                self._answer(max(number, 400), "the server in the sandbox refused the upgrade")
                return
            assert self._transport is not None  # noqa: S101  set before the head came
            self._transport.write(head)
            self._back = writer
            if self._early:
                writer.write(bytes(self._early))
            await self._pump(sandbox, reader)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            raise Broken("it did not answer the upgrade") from None
        finally:
            writer.transport.abort()

    async def _pump(self, sandbox: Sandbox, reader: asyncio.StreamReader) -> None:
        down = asyncio.ensure_future(self._previews.until_down(sandbox))
        down.add_done_callback(lambda _: self._close())
        try:
            while data := await reader.read(_READ):
                await self._writable.wait()
                assert self._transport is not None  # noqa: S101  set before the head came
                self._transport.write(data)
        finally:
            down.cancel()
            if self._relief is not None:
                self._relief.cancel()

    async def _relieve(self, writer: asyncio.StreamWriter) -> None:
        """Read on from the client once the server inside has taken what was sent."""
        assert self._transport is not None  # noqa: S101  set before the first byte came
        self._transport.pause_reading()
        try:
            await writer.drain()
        except OSError:
            return  # the reading side sees the end
        finally:
            self._relief = None
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def _answer(self, status: int, message: str) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        body = json.dumps({"code": status, "message": message}).encode()
        head = (
            f"HTTP/1.1 {status} Refused\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self._transport.write(head.encode() + body)


def _scope_of(head: bytes, transport: asyncio.Transport | None) -> Scope:
    """The request as ASGI would describe it."""
    lines = head.partition(b"\r\n\r\n")[0].split(b"\r\n")
    method, target, _ = lines[0].split(b" ", 2)
    path, _, query = target.partition(b"?")
    pairs = [line.partition(b": ") for line in lines[1:]]
    secure = transport is not None and transport.get_extra_info("ssl_object") is not None
    return {
        "type": "http",
        "method": method.decode("latin-1"),
        "path": path.decode("latin-1"),
        "raw_path": path,
        "query_string": query,
        "headers": [(name, value) for name, _, value in pairs],
        "client": transport.get_extra_info("peername") if transport else None,
        "server": transport.get_extra_info("sockname") if transport else None,
        "scheme": "https" if secure else "http",
    }


def _request(scope: Scope, headers: Headers) -> bytes:
    """The head that asks the server inside for the upgrade."""
    query = scope["query_string"]
    target = scope["raw_path"] + (b"?" + query if query else b"")
    lines = [b"%s %s HTTP/1.1" % (scope["method"].encode("latin-1"), target)]
    lines += [
        b"%s: %s" % pair for pair in [*headers, (b"connection", b"Upgrade"), (b"upgrade", b"websocket")]
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n"

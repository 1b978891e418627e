"""Remote procedure calls of the Connect protocol over ASGI: one message in, one or many out, or many in.

A client that goes ends the answer, and nothing else. A sandbox that goes down, or is paused, cuts it: the connection is
dropped without an end of the stream, which is how clients tell that from a failure of the call.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import TypeVar

from pydantic import ValidationError
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from corral.api.e2b.calls import digits
from corral.api.failures import public_error
from corral.api.server import reset
from corral.errors import Conflict, CorralError, InvalidInput, TooLarge
from corral.protocol.e2b.base import Wire
from corral.protocol.e2b.codecs import Codec
from corral.wire import connect
from corral.wire.connect import Code

M = TypeVar("M", bound=Wire)
_CODES = {
    400: Code.INVALID_ARGUMENT,
    401: Code.UNAUTHENTICATED,
    403: Code.PERMISSION_DENIED,
    404: Code.NOT_FOUND,
    408: Code.DEADLINE_EXCEEDED,
    409: Code.FAILED_PRECONDITION,
    413: Code.RESOURCE_EXHAUSTED,
    501: Code.UNIMPLEMENTED,
    502: Code.UNAVAILABLE,
    503: Code.RESOURCE_EXHAUSTED,
    507: Code.RESOURCE_EXHAUSTED,
}


class RpcError(Exception):
    """A failure of a call, as the protocol tells it."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    def body(self) -> dict[str, str]:
        """As JSON."""
        return connect.error_body(self.code, self.message)


class Cut(Exception):
    """The sandbox is no longer there to answer: drop the connection."""


class _ClientGone(Exception):
    pass


def rpc_error(error: Exception) -> RpcError:
    """Any failure as one of the protocol. What is not public is logged and told without detail."""
    if isinstance(error, RpcError):
        return error
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return RpcError(
            Code.INVALID_ARGUMENT, f"{'.'.join(map(str, first['loc']))[:80]}: {first['msg'][:200]}"
        )
    public = public_error(error)
    return RpcError(_CODES.get(public.status, Code.INTERNAL), f"{public.message} ({public.hint})")


def parse(codec: Codec, model: type[M], raw: bytes) -> M:
    """A message. Raises RpcError."""
    try:
        return codec.decode(model, raw)
    except (ValidationError, CorralError) as error:
        raise rpc_error(error) from None


async def read_message(request: Request) -> bytes:
    """The body of a unary call. Raises RpcError."""
    kept = bytearray()
    try:
        async for chunk in request.stream():
            kept += chunk
            if len(kept) > connect.MAX_MESSAGE:
                raise RpcError(Code.RESOURCE_EXHAUSTED, f"a message is over {connect.MAX_MESSAGE} bytes")
    except ClientDisconnect:
        raise RpcError(Code.CANCELED, "the request broke off") from None
    return bytes(kept)


async def read_envelopes(request: Request) -> AsyncGenerator[bytes, None]:
    """The messages of a stream, as they come. Raises RpcError."""
    decoder = connect.EnvelopeDecoder()
    try:
        async for chunk in request.stream():
            for piece in decoder.feed(chunk):
                if piece.end:
                    return
                yield piece.data
        decoder.close()
    except (InvalidInput, TooLarge) as error:
        raise rpc_error(error) from None
    except ClientDisconnect:
        raise RpcError(Code.CANCELED, "the request broke off") from None


def unary_response(error: RpcError) -> Response:
    """The response to a call of one message that failed."""
    return JSONResponse(error.body(), error.code.status)


def deadline(headers: Headers) -> float | None:
    """Seconds that the call may take. Raises RpcError."""
    try:
        return connect.parse_timeout(headers.get("connect-timeout-ms"))
    except InvalidInput as error:
        raise RpcError(Code.INVALID_ARGUMENT, error.message) from None


class StreamAnswer:
    """The response of a call that answers with many messages.

    `down` returns when the sandbox no longer runs. After `silence` seconds without a message `beat` is sent.
    """

    def __init__(
        self,
        messages: AsyncIterator[Wire],
        codec: Codec,
        *,
        beat: Wire | None = None,
        silence: float = 90.0,
        down: Callable[[], Awaitable[None]],
    ) -> None:
        self._messages = messages
        self._codec = codec
        self._beat = beat
        self._silence = silence
        self._down = down
        self._sending = asyncio.Lock()
        self._last = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve."""
        headers = [(b"content-type", self._codec.stream.encode()), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        cut = False
        try:
            async with asyncio.TaskGroup() as tasks:
                others = [
                    tasks.create_task(_until_gone(receive)),
                    tasks.create_task(self._until_down()),
                    tasks.create_task(self._keep_alive(send)),
                ]
                last = await self._pump(send)
                for task in others:
                    task.cancel()
            await self._emit(send, last, more=False)
        except* _ClientGone:
            pass
        except* Cut:
            cut = True
        if cut:
            reset(scope)
            raise Conflict("the sandbox ended or was paused while it answered")

    async def _pump(self, send: Send) -> bytes:
        """Send all messages; the end of the stream, which the caller sends."""
        try:
            async for message in self._messages:
                await self._emit(send, connect.envelope(self._codec.encode(message)))
        except Cut:
            raise
        except Exception as error:  # noqa: BLE001  the boundary: told to the client and logged
            return connect.end_of_stream(rpc_error(error).body())
        return connect.end_of_stream()

    async def _emit(self, send: Send, data: bytes, *, more: bool = True) -> None:
        async with self._sending:
            self._last = asyncio.get_running_loop().time()
            await send({"type": "http.response.body", "body": data, "more_body": more})

    async def _until_down(self) -> None:
        await self._down()
        raise Cut

    async def _keep_alive(self, send: Send) -> None:
        if self._beat is None:
            return
        loop = asyncio.get_running_loop()
        beat = connect.envelope(self._codec.encode(self._beat))
        self._last = loop.time()
        while True:
            left = self._last + self._silence - loop.time()
            if left > 0:
                await asyncio.sleep(left)
            else:
                await self._emit(send, beat)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    raise _ClientGone


def silence_of(headers: Headers) -> float:
    """Seconds of silence after which the client wants to hear something."""
    seconds = digits(headers.get("keepalive-ping-interval", ""), 8)
    return 90.0 if seconds is None else float(min(max(seconds, 1), 3600))

"""Requests for one sandbox: its processes, its files, its health. Whoever holds the sandbox's token may send them."""

import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from corral.api.e2b import filesystem, process, rpc, transfer
from corral.api.e2b.box import Box
from corral.api.e2b.calls import digits, sandbox_id
from corral.api.e2b.failures import Refusal, not_running, response_of
from corral.api.e2b.metrics import own_metrics
from corral.api.e2b.rpc import RpcError, StreamAnswer
from corral.api.e2b.states import KNOWN
from corral.api.e2b.wake import awake, wakes_by_traffic
from corral.api.e2b.watching import Watchers
from corral.engine.engine import Engine
from corral.model.ids import SandboxId
from corral.model.lifecycle import State
from corral.model.sandbox import Sandbox
from corral.protocol.e2b import filesystem as files_wire
from corral.protocol.e2b import process as process_wire
from corral.protocol.e2b.base import ENVD_PORT, Wire
from corral.protocol.e2b.codecs import BY_STREAM, BY_UNARY, Codec
from corral.wire import connect
from corral.wire.connect import Code

_RESERVED = frozenset({"/init", "/freeze", "/unfreeze", "/fsfreeze", "/fsthaw", "/collapse", "/upgrade"})
_PROCESS, _FILES = "/process.Process/", "/filesystem.Filesystem/"
_NOT_YOURS = (
    "This sandbox can't be resumed with the credentials provided. Check your access token and try again."
)

Unary = tuple[type[Wire], Callable[[Box, Any], Awaitable[Wire]]]


class DataPlane:
    """An ASGI application."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._watchers = Watchers()
        self._unary: dict[str, Unary] = {
            _PROCESS + "List": (process_wire.Nothing, lambda box, _: process.list_all(box)),
            _PROCESS + "Update": (process_wire.UpdateRequest, process.update),
            _PROCESS + "SendInput": (process_wire.SendInputRequest, process.send_input),
            _PROCESS + "SendSignal": (process_wire.SendSignalRequest, process.send_signal),
            _PROCESS + "CloseStdin": (process_wire.ProcessRequest, process.close_stdin),
            _FILES + "Stat": (files_wire.PathRequest, filesystem.stat),
            _FILES + "MakeDir": (files_wire.PathRequest, filesystem.make_dir),
            _FILES + "Move": (files_wire.MoveRequest, filesystem.move),
            _FILES + "ListDir": (files_wire.ListDirRequest, filesystem.list_dir),
            _FILES + "Remove": (files_wire.PathRequest, filesystem.remove),
            _FILES + "CreateWatcher": (files_wire.WatchRequest, self._watchers.create),
            _FILES + "GetWatcherEvents": (files_wire.WatcherRequest, self._watchers.events),
            _FILES + "RemoveWatcher": (files_wire.WatcherRequest, self._watchers.remove),
        }

    def at(self, sandbox: str) -> ASGIApp:
        """The same for a host name that names the sandbox: headers that name one are ignored."""

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            kept = [pair for pair in scope["headers"] if not pair[0].startswith(b"e2b-sandbox-")]
            named = [(b"e2b-sandbox-id", sandbox.encode()), (b"e2b-sandbox-port", str(ENVD_PORT).encode())]
            await self({**scope, "headers": [*kept, *named]}, receive, send)

        return app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
        except Exception as error:  # noqa: BLE001  the boundary: told to the client and logged
            response = response_of(error)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> "Response | StreamAnswer":
        path = request.url.path
        if "e2b-sandbox-id" not in request.headers and "e2b-sandbox-port" not in request.headers:
            # A signed address names no sandbox: it is the one whose token it was signed with.
            sandbox = await awake(self._engine, await self._signed(request))
            return await self._plain(request, Box(self._engine, sandbox, request.headers), path)
        sandbox = self._named(request)
        if path in _RESERVED:
            message = "This endpoint is reserved for the E2B control plane and is not reachable through the sandbox URL"
            raise Refusal(404, message, path=path)
        if wakes_by_traffic(sandbox):
            # Whether it runs is told to anybody; to wake it needs its token.
            try:
                await self._authorize(request, sandbox)
            except Refusal:
                raise Refusal(403, _NOT_YOURS) from None
        sandbox = await awake(self._engine, sandbox)
        if path == "/health":
            return Response(status_code=204, headers={"cache-control": "no-store"})
        await self._authorize(request, sandbox)
        box = Box(self._engine, sandbox, request.headers)
        if path.startswith((_PROCESS, _FILES)):
            return await self._call(request, box, path)
        return await self._plain(request, box, path)

    def _named(self, request: Request) -> Sandbox:
        name, port = request.headers.get("e2b-sandbox-id"), request.headers.get("e2b-sandbox-port")
        if name is None or port is None:
            raise Refusal(400, "missing header: E2b-Sandbox-Id and E2b-Sandbox-Port go together")
        if digits(port, 5) != ENVD_PORT:  # any other port of a sandbox is the preview proxy's
            raise Refusal(400, "Invalid sandbox port")
        found = self._engine.sandboxes.by_id(SandboxId(sandbox_id(name)))
        if found is None or found.state not in KNOWN:
            raise not_running(name[:64])
        return found

    async def _signed(self, request: Request) -> Sandbox:
        for sandbox in self._engine.sandboxes.all():
            token = await self._engine.sandbox_token(sandbox.id)
            if transfer.is_signed(request, token.reveal()):
                transfer.check_signature(request, token.reveal())
                return sandbox
        raise Refusal(401, "invalid signature")

    async def _authorize(self, request: Request, sandbox: Sandbox) -> None:
        expected = (await self._engine.sandbox_token(sandbox.id)).reveal()
        given = request.headers.get("x-access-token", "").encode("utf-8", "surrogateescape")
        if hmac.compare_digest(expected.encode(), given):
            return
        if request.url.path == "/files":
            if given:
                raise Refusal(401, "access token present in header but does not match")
            transfer.check_signature(request, expected)
            return
        raise Refusal(
            401,
            "unauthorized access, please provide a valid access token or method signing if supported",
        )

    # -- calls ------------------------------------------------------------------------------------------------------

    async def _call(self, request: Request, box: Box, path: str) -> "Response | StreamAnswer":
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if request.method != "POST":
            raise Refusal(405, "calls are sent by POST")
        if kind in BY_STREAM:
            return await self._stream(request, BY_STREAM[kind], box, path)
        if kind not in BY_UNARY:
            known = ", ".join((*BY_UNARY, *BY_STREAM))
            message = f"{kind[:80]!r} is not supported: send one of {known}"
            return JSONResponse(connect.error_body(Code.UNIMPLEMENTED, message), 415)
        codec = BY_UNARY[kind]
        try:
            if path not in self._unary:
                raise RpcError(Code.UNIMPLEMENTED, f"{path[:100]} is not a call of one message")
            model, handler = self._unary[path]
            reply = await handler(box, rpc.parse(codec, model, await rpc.read_message(request)))
        except Exception as error:  # noqa: BLE001  the boundary: told to the client and logged
            return rpc.unary_response(rpc.rpc_error(error))
        return Response(codec.encode(reply), media_type=codec.unary)

    async def _stream(self, request: Request, codec: Codec, box: Box, path: str) -> StreamAnswer:
        beat = {_PROCESS: process.KEEPALIVE, _FILES: filesystem.KEEPALIVE}[
            _PROCESS if path.startswith(_PROCESS) else _FILES
        ]
        if path == _PROCESS + "StreamInput":
            # Its body is read while the answer waits: nothing else may listen to the client meanwhile.
            pieces = (
                rpc.parse(codec, process_wire.StreamInputRequest, raw)
                async for raw in rpc.read_envelopes(request)
            )
            reply = await _collected(process.stream_input(box, pieces))
            return StreamAnswer(_once(reply), codec, down=lambda: self._down(box))
        try:
            messages = await self._messages(request, codec, box, path)
        except (RpcError, ValidationError) as error:
            messages = _once(error)
        return StreamAnswer(
            messages, codec, beat=beat, silence=rpc.silence_of(request.headers), down=lambda: self._down(box)
        )

    async def _messages(self, request: Request, codec: Codec, box: Box, path: str) -> AsyncIterator[Wire]:
        seconds = rpc.deadline(request.headers)
        raw = [message async for message in rpc.read_envelopes(request)]
        if len(raw) != 1:
            raise RpcError(Code.INVALID_ARGUMENT, f"{len(raw)} messages were sent; this call takes one")
        if path == _PROCESS + "Start":
            return process.start(box, rpc.parse(codec, process_wire.StartRequest, raw[0]), seconds)
        if path == _PROCESS + "Connect":
            return process.connect(box, rpc.parse(codec, process_wire.ProcessRequest, raw[0]))
        if path == _FILES + "WatchDir":
            return self._watchers.stream(box, rpc.parse(codec, files_wire.WatchRequest, raw[0]))
        raise RpcError(Code.UNIMPLEMENTED, f"{path[:100]} is not a call that streams")

    async def _down(self, box: Box) -> None:
        """Return once the sandbox no longer runs."""
        async for event in self._engine.sandboxes.events(box.tenant):
            if event.sandbox == box.id and event.state != State.RUNNING.value:
                return

    # -- plain requests ---------------------------------------------------------------------------------------------

    async def _plain(self, request: Request, box: Box, path: str) -> Response:
        match request.method, path:
            case "GET", "/envs":
                return JSONResponse({**box.sandbox.spec.env, **box.environment()})
            case "GET", "/metrics":
                return await own_metrics(self._engine, box.sandbox)
            case "GET", "/files":
                return await transfer.download(request, box)
            case "POST", "/files":
                return await transfer.upload(request, box, self._watchers)
            case "POST", "/files/compose":
                return await transfer.compose(request, box, self._watchers)
        raise Refusal(404, "there is no such path")


async def _collected(work: Awaitable[Wire]) -> Wire | Exception:
    try:
        return await work
    except Exception as error:  # noqa: BLE001  the boundary: told to the client by the stream's end
        return rpc.rpc_error(error)


async def _once(outcome: Wire | Exception) -> AsyncIterator[Wire]:
    if isinstance(outcome, Exception):
        raise outcome
    yield outcome

"""The preview proxy: requests from outside to ports inside sandboxes.

It speaks HTTP/1.1 to the server inside, streams both ways, and cuts the answer (a reset) when the sandbox goes down under
it. Upgraded connections are `tunnel`'s.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from starlette.responses import RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from corral.api.e2b.failures import Refusal, not_running, response_of
from corral.api.e2b.states import KNOWN
from corral.api.e2b.wake import awake
from corral.api.preview import access
from corral.api.preview.hosts import Target
from corral.api.preview.upstream import Broken, Headers, Upstream, end_to_end
from corral.api.server import reset
from corral.engine.engine import Engine
from corral.errors import CorralError
from corral.model.ids import SandboxId
from corral.model.lifecycle import State
from corral.model.sandbox import Sandbox

MAX_CONNECTIONS = 2_000
"""Requests to the ports of one sandbox under way at once."""


class _Gone(Exception):
    """The client is no longer there."""


class _Down(Exception):
    """The sandbox no longer runs."""


class Previews:
    """All traffic to ports of sandboxes."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._open: Counter[SandboxId] = Counter()

    # -- one request ------------------------------------------------------------------------------------------------

    async def serve(self, target: Target, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request (ASGI) for a port."""
        try:
            sandbox = await self.admit(target, scope)
            with self.counted(sandbox):
                upstream = await Upstream.open(
                    await self.dial(sandbox, target.port), tls=target.port in _options(sandbox)["httpsPorts"]
                )
                try:
                    await self._exchange(upstream, sandbox, target.port, scope, receive, send)
                finally:
                    upstream.close()
        except access.Enter as entered:
            response: Response = RedirectResponse(
                entered.location, 303, headers={"cache-control": "no-store"}
            )
            response.set_cookie(
                access.COOKIE, entered.token, httponly=True, samesite="lax", secure=scope["scheme"] == "https"
            )
            await response(scope, receive, send)
        except (access.Denied, Refusal, CorralError, Broken) as error:
            await refusal_of(error, target)(scope, receive, send)

    async def admit(self, target: Target, scope: Scope) -> Sandbox:
        """The running sandbox of a request that may pass. Raises Refusal, access.Denied, access.Enter."""
        found = self._engine.sandboxes.by_id(SandboxId(target.sandbox))
        if found is None or found.state not in KNOWN:
            raise not_running(target.sandbox)
        query = scope.get("query_string", b"").decode("latin-1")
        await access.check(self._engine, found, target.port, scope["headers"], query, scope.get("path", "/"))
        return await awake(self._engine, found)

    async def dial(self, sandbox: Sandbox, port: int) -> Any:
        """A connected socket to a port. Raises Refusal."""
        sock = await self._engine.dial(sandbox, port)
        if sock is None:
            raise Refusal(502, "The sandbox is running but port is not open", sandboxId=sandbox.id, port=port)
        return sock

    @contextmanager
    def counted(self, sandbox: Sandbox) -> Iterator[None]:
        """Around a connection. Raises Refusal for one too many."""
        if self._open[sandbox.id] >= MAX_CONNECTIONS:
            raise Refusal(
                429,
                f"The sandbox has too many concurrent incoming connections (limit: {MAX_CONNECTIONS})",
                sandboxId=sandbox.id,
                connectionLimit=MAX_CONNECTIONS,
            )
        self._open[sandbox.id] += 1
        try:
            yield
        finally:
            self._open[sandbox.id] -= 1
            if not self._open[sandbox.id]:
                del self._open[sandbox.id]

    async def until_down(self, sandbox: Sandbox) -> None:
        """Return once the sandbox no longer runs."""
        async for event in self._engine.sandboxes.events(sandbox.spec.tenant):
            if event.sandbox == sandbox.id and event.state != State.RUNNING.value:
                return

    # -- the exchange -----------------------------------------------------------------------------------------------

    async def _exchange(
        self, upstream: Upstream, sandbox: Sandbox, port: int, scope: Scope, receive: Receive, send: Send
    ) -> None:
        started = False

        async def told(message: Any) -> None:
            nonlocal started
            started = True
            await send(message)

        failure: Refusal | Broken | None = None
        gone = False
        try:
            async with asyncio.TaskGroup() as tasks:
                others = [
                    tasks.create_task(_send_request(upstream, sandbox, port, scope, receive)),
                    tasks.create_task(self._raise_when_down(sandbox)),
                ]
                await _send_response(upstream, told)
                for task in others:
                    task.cancel()
        except* _Gone:
            gone = True
        except* _Down:
            failure = not_running(sandbox.id)
        except* (Broken, OSError):
            failure = Broken("the connection broke off")
        if failure is None or gone:
            return
        if started:
            reset(scope)
            return
        raise failure

    async def _raise_when_down(self, sandbox: Sandbox) -> None:
        await self.until_down(sandbox)
        raise _Down


def request_headers(scope: Scope, sandbox: Sandbox, port: int) -> Headers:
    """The headers that a server inside sees, but those of the connection."""
    headers = end_to_end(access.forwarded(scope["headers"]))
    if mask := _options(sandbox)["maskRequestHost"]:
        masked = str(mask).replace("${PORT}", str(port)).encode("ascii", "replace")
        headers = [(name, masked if name == b"host" else value) for name, value in headers]
    client = scope.get("client")
    given = {b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host", b"forwarded"}
    headers = [(name, value) for name, value in headers if name not in given]
    if client:
        headers.append((b"x-forwarded-for", str(client[0]).encode()))
    headers.append((b"x-forwarded-proto", str(scope.get("scheme", "http")).replace("ws", "http").encode()))
    hosts = [value for name, value in scope["headers"] if name == b"host"]
    headers += ((b"x-forwarded-host", host) for host in hosts[:1])
    # As most clients write them: there are servers that compare.
    return [(b"-".join(part.capitalize() for part in name.split(b"-")), value) for name, value in headers]


def target_bytes(scope: Scope) -> bytes:
    """The request's target as it was sent."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode("utf-8", "surrogateescape")
    query = scope["query_string"]
    return raw.partition(b"?")[0] + (b"?" + query if query else b"")


async def _send_request(
    upstream: Upstream, sandbox: Sandbox, port: int, scope: Scope, receive: Receive
) -> None:
    headers = request_headers(scope, sandbox, port)
    names = {name for name, _ in scope["headers"]}
    if b"transfer-encoding" in names:
        headers = [(name, value) for name, value in headers if name != b"Content-Length"]
        headers.append((b"Transfer-Encoding", b"chunked"))
    headers.append((b"Connection", b"close"))
    await upstream.send_head(scope["method"].encode("latin-1"), target_bytes(scope), headers)
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _Gone
        if data := message.get("body"):
            await upstream.send_body(data)
        if not message.get("more_body"):
            break
    await upstream.end_body()
    while (await receive())["type"] != "http.disconnect":
        pass
    raise _Gone


async def _send_response(upstream: Upstream, send: Callable[[Any], Awaitable[None]]) -> None:
    head = await upstream.head()
    headers = end_to_end([(bytes(name), bytes(value)) for name, value in head.headers])
    await send({"type": "http.response.start", "status": head.status_code, "headers": headers})
    async for piece in upstream.body():
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _options(sandbox: Sandbox) -> dict[str, Any]:
    """What the creation of a sandbox by E2B's API said of traffic to its ports."""
    noted = json.loads(sandbox.spec.attributes.get(access.NETWORK_NOTE, "{}"))
    return {
        "httpsPorts": noted.get("httpsPorts") or [],
        "maskRequestHost": noted.get("maskRequestHost") or "",
    }


def refusal_of(error: Exception, target: Target) -> Response:
    """The response to a request that was not forwarded."""
    if isinstance(error, access.Denied):
        return response_of(Refusal(error.status, error.message, sandboxId=target.sandbox))
    if isinstance(error, Broken):
        error = Refusal(502, f"no answer from port {target.port}: {error}", sandboxId=target.sandbox)
    return response_of(error)

"""The outermost layer of the API: which of its three faces a request is for, seen from its head alone.

A host name of a sandbox's port leads to the preview proxy, or to the sandbox's own service; E2B's clients name a sandbox by
headers; everything else is the API's. Web pages of other sites may call E2B's API, whose credentials are headers that a
page must hold itself; the native one refuses them.
"""

import logging

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from corral.api.e2b.app import is_e2b
from corral.api.e2b.dataplane import DataPlane
from corral.api.e2b.failures import Refusal, response_of
from corral.api.guard import check_host
from corral.api.preview.hosts import Target
from corral.api.preview.proxy import Previews
from corral.api.preview.where import Where
from corral.api.server import reset
from corral.protocol.e2b.base import ENVD_PORT

log = logging.getLogger(__name__)

_CORS = [
    (b"access-control-allow-origin", b"*"),
    (b"access-control-allow-methods", b"HEAD, GET, POST, PUT, PATCH, DELETE"),
    (b"access-control-allow-headers", b"*, authorization"),
    (
        b"access-control-expose-headers",
        b"connect-content-encoding, connect-accept-encoding, content-disposition, content-range, location, "
        b"x-next-token, x-total-running",
    ),
    (b"access-control-max-age", b"7200"),
]


class Front:
    """ASGI middleware. `data` serves sandboxes' own services; `app` everything that is not for a sandbox's host."""

    def __init__(self, app: ASGIApp, where: Where, previews: Previews, data: DataPlane) -> None:
        self.app = app
        self._where = where
        self._previews = previews
        self._data = data

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def told(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._route(scope, receive, told)
        except Exception as error:  # noqa: BLE001  the boundary: told to the client and logged
            if started:
                log.warning("a response to %s was cut short: %s", scope["path"], error)
                reset(scope)
            else:
                await response_of(error)(scope, receive, send)

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            target = self._where.by_host(scope)
        except ValueError as error:
            raise Refusal(400, f"Invalid sandbox port: {error}") from None
        if target is not None:
            await self._to_sandbox(target, scope, receive, send)
        elif is_e2b(scope):
            check_host(scope, self._where.own_names)
            await self._to_e2b(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _to_sandbox(self, target: Target, scope: Scope, receive: Receive, send: Send) -> None:
        if target.port == ENVD_PORT:
            await _with_cors(self._data.at(target.sandbox), scope, receive, send)
        else:
            await self._previews.serve(target, scope, receive, send)

    async def _to_e2b(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self._where.by_headers(scope)
        if found is not None and found.port != ENVD_PORT:
            await self._previews.serve(found, scope, receive, send)
        else:
            await _with_cors(self.app, scope, receive, send)


async def _with_cors(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    if not any(name == b"origin" for name, _ in scope["headers"]):
        await app(scope, receive, send)
        return
    if scope["method"] == "OPTIONS":
        await Response(status_code=204, headers={n.decode(): v.decode() for n, v in _CORS})(
            scope, receive, send
        )
        return

    async def told(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", []), *_CORS]}
        await send(message)

    # What is behind sees no page: it has nothing more to decide by it.
    headers = [(name, value) for name, value in scope["headers"] if name != b"origin"]
    await app({**scope, "headers": headers}, receive, told)

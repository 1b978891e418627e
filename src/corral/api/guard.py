"""The outermost layer of the API: who may talk to it at all, and no exception past it.

A browser on the same machine can be made to send requests to a local port by any page (DNS rebinding). It cannot lie
about `Host` and `Origin`, so over TCP only the daemon's own names are accepted; a unix socket is out of a browser's reach.
"""

import logging
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from corral.api.failures import error_of_status, error_response, public_error
from corral.errors import CorralError, Forbidden

log = logging.getLogger(__name__)

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


def over_unix_socket(scope: Scope) -> bool:
    """Whether a request came over a unix socket, by the server's own word; what it does not say counts as TCP."""
    server = scope.get("server")
    return server is not None and server[1] is None


def host_of(authority: str) -> str:
    """The host of a `Host` header, lower case, without port and brackets; empty if it is malformed."""
    try:
        parts = urlsplit(f"//{authority}")
        parts.port  # noqa: B018  raises for a malformed port
    except ValueError:
        return ""
    if parts.username is not None or parts.path or parts.query or parts.fragment:
        return ""
    return (parts.hostname or "").rstrip(".")


def check_host(scope: Scope, names: Collection[str]) -> None:
    """Raise Forbidden for a request over TCP that does not come to one of our own names."""
    hosts = [value for key, value in scope["headers"] if key == b"host"]
    if not over_unix_socket(scope) and (len(hosts) != 1 or host_of(hosts[0].decode("latin-1")) not in names):
        raise Forbidden(
            "the Host header does not name this daemon",
            "use the address that it listens on; see `corral config get`",
        )


def check_origin(headers: dict[bytes, list[bytes]], *, tcp: bool, names: Collection[str]) -> None:
    """Raise Forbidden unless a request comes to one of our own names, and from a page of ours if from a page at all."""
    hosts = headers.get(b"host", [])
    if tcp and (len(hosts) != 1 or host_of(hosts[0].decode("latin-1")) not in names):
        raise Forbidden(
            "the Host header does not name this daemon",
            "use the address that it listens on; see `corral config get`",
        )
    for origin in headers.get(b"origin", []):
        parts = urlsplit(origin.decode("latin-1"))
        if parts.scheme not in ("http", "https") or host_of(parts.netloc) not in names:
            raise Forbidden(
                "requests from web pages of other sites are refused", "call the API from a program"
            )


class Guard:
    """ASGI middleware: refuse foreign names and pages; answer unexpected exceptions with an error body."""

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        self.app = app
        self.names = frozenset(name.lower() for name in names) | LOOPBACK_NAMES

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = replaced = False

        async def watched(message: Message) -> None:
            nonlocal started, replaced
            if message["type"] == "http.response.start":
                started, replaced = True, _is_foreign_error(message)
                if replaced:
                    await error_response(error_of_status(message["status"]))(scope, receive, send)
            if not replaced:
                await send(message)

        try:
            self._check(scope)
            await self.app(scope, receive, watched)
        except Exception as error:  # noqa: BLE001  the boundary: told to the client and logged
            if not started:
                await error_response(public_error(error))(scope, receive, send)
                return
            # Too late for an error body. The response stays unfinished, so the server cuts the connection and the
            # client does not take a part for the whole.
            cause = error.__cause__ if isinstance(error.__cause__, CorralError) else error
            log.warning("a response to %s was cut short: %s", scope["path"], public_error(cause))

    def _check(self, scope: Scope) -> None:
        headers: dict[bytes, list[bytes]] = {}
        for key, value in scope["headers"]:
            if key in (b"host", b"origin"):
                headers.setdefault(key, []).append(value)
        check_origin(headers, tcp=not over_unix_socket(scope), names=self.names)


def _is_foreign_error(start: Message) -> bool:
    """Whether a response is an error in another form than ours, as the framework's own limits send them."""
    kinds = [value for key, value in start["headers"] if key == b"content-type"]
    return bool(start["status"] >= 400 and not any(kind.startswith(b"application/json") for kind in kinds))

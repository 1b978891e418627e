"""The HTTP side of a sandbox: parsing, framing, and which service a request is for."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol, cast

from aiohttp import hdrs, web
from aiohttp.http_exceptions import LineTooLong

from corral.errors import InvalidInput
from corral.gateway import exchange, framing
from corral.gateway.box import Box
from corral.gateway.names import GATEWAY
from corral.gateway.replies import closing, plain
from corral.policy.egress import GATEWAY_HOST, Allowed, Decision, Denied, Reason, split_authority
from corral.wire.http2 import ALPN

_MALFORMED = "bad-request"
KEEP_ALIVE = 75.0
"""Seconds for a request's head to be complete, on a new connection or after the last answer."""
_LINGER = 2.0

_log = logging.getLogger(__name__)


class Egress(Protocol):
    """Sends requests on to other hosts."""

    async def serve(self, request: web.BaseRequest, address: str, port: int) -> web.StreamResponse:
        """Answer a plain request that came in on an address and port."""

    async def serve_inside(self, request: web.BaseRequest, allowed: Allowed) -> web.StreamResponse:
        """Answer a request on a connection whose TLS the gateway has ended."""

    def multiplexed(self, decision: Decision) -> asyncio.Protocol:
        """Serves a connection of HTTP/2 whose TLS the gateway has ended."""

    def refuse(self, request: web.BaseRequest, refusal: Denied, status: int) -> web.Response:
        """Refuse a request."""


Handler = Callable[[web.BaseRequest, str, int], Awaitable[web.StreamResponse]]
"""Answers a request that came in on a local address and port."""


class _Connection(web.RequestHandler):
    """One client connection, counted by its box."""

    __slots__ = ("_admitted", "_box")

    def __init__(self, server: "_Server", box: Box) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=KEEP_ALIVE,
            logger=_log,
            access_log=None,  # type: ignore[arg-type]  # how aiohttp itself switches it off
            max_line_size=framing.MAX_LINE,
            max_field_size=framing.MAX_FIELD,
            max_headers=framing.MAX_FIELDS,
            lingering_time=_LINGER,
            auto_decompress=False,
        )
        self._box = box
        self._admitted: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._box.admit(transport):
            self._admitted = transport
        else:
            cast(asyncio.Transport, transport).abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._admitted is not None:
            self._box.release(self._admitted)
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """A request that cannot be parsed, or a defect of a handler: refused in words, and closed (G-342)."""
        if request.writer.output_size > 0:
            raise ConnectionError("the response has begun")
        if status >= 500:
            _log.error("answering a request failed", exc_info=exc)
            return closing(plain(status, "The gateway failed to answer this request.", reason="internal"))
        exchange.begin()
        note_malformed(self._box, 431 if isinstance(exc, LineTooLong) else 400)
        if isinstance(exc, LineTooLong):
            return closing(plain(431, "The request line or a header field is too long.", reason=_MALFORMED))
        return closing(plain(400, "This is not a valid HTTP/1.1 request.", reason=_MALFORMED))


class _Server(web.Server):
    """Makes the connections of one box and port."""

    def __init__(self, box: Box, handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> None:
        super().__init__(handler, handler_cancellation=True)
        self._box = box

    def __call__(self) -> web.RequestHandler:
        return _Connection(self, self._box)


class Front:
    """Accepts a box's HTTP requests and gives them to `own` (the gateway's name) or `egress` (any other
    host).
    """

    def __init__(self, box: Box, own: Handler, egress: Egress) -> None:
        self._box = box
        self._own = own
        self._egress = egress

    def server(self, port: int) -> Callable[[], asyncio.Protocol]:
        """A maker of protocols for a listener at `port`."""
        return _Server(self._box, partial(self._handle, port))

    def inside(self, decision: Decision, spoken: str | None) -> asyncio.Protocol:
        """The protocol for a connection whose TLS was ended, which is one to the decision's host; `spoken` is what was
        negotiated.
        """
        if spoken == ALPN:
            return self._egress.multiplexed(decision)
        return _Server(self._box, partial(self._handle_inside, decision))()

    def _malformed(self, request: web.BaseRequest) -> web.Response | None:
        """The refusal of a request that parsers could read differently."""
        version = (request.version.major, request.version.minor)
        bad = framing.check(request.method, request.raw_path, version, request.raw_headers)
        if bad is None:
            return None
        note_malformed(self._box, bad.status, request.method)
        return closing(
            plain(bad.status, f"Refused by the sandbox's gateway: {bad.message}.", reason=_MALFORMED)
        )

    async def _handle_inside(self, decision: Decision, request: web.BaseRequest) -> web.StreamResponse:
        exchange.begin()
        if (bad := self._malformed(request)) is not None:
            return bad
        if isinstance(decision, Denied):
            return self._egress.refuse(request, decision, 403)
        if not _is_for(request.headers[hdrs.HOST], decision):
            mismatch = Denied(
                decision.host, decision.port, Reason.MISMATCH, "the request names another host than the TLS connection",
                "make one connection for each host",
            )  # fmt: skip
            return self._egress.refuse(request, mismatch, 421)
        return await self._egress.serve_inside(request, decision)

    async def _handle(self, port: int, request: web.BaseRequest) -> web.StreamResponse:
        exchange.begin()
        if (bad := self._malformed(request)) is not None:
            return bad
        address = _local_address(request)
        if not _is_own(request.headers[hdrs.HOST], address):
            return await self._egress.serve(request, address, port)
        if not self._box.names.stands_for(address, GATEWAY_HOST):
            text = f"Refused: this connection was not made to {GATEWAY_HOST}."
            return closing(plain(421, text, reason=Reason.MISMATCH.value))
        return await self._own(request, address, port)


def note_malformed(box: Box, status: int, method: str = "") -> None:
    """Record a request that was refused for its form, of which nothing else is believed."""
    box.note("http", "denied", method=method, reason=_MALFORMED, status=status)


def _is_for(host_field: str, allowed: Allowed) -> bool:
    """Whether a request is for the host that its connection was made to (G-47, G-49)."""
    try:
        return split_authority(host_field, allowed.port) == (allowed.host, allowed.port)
    except InvalidInput:
        return False


def _local_address(request: web.BaseRequest) -> str:
    """The address that the client connected to."""
    found = request.transport.get_extra_info("sockname") if request.transport is not None else None
    return str(found[0]) if isinstance(found, tuple) else ""


def _is_own(host_field: str, address: str) -> bool:
    """Whether the gateway itself is asked, by its name or by its address."""
    try:
        host, _ = split_authority(host_field, 80)
    except InvalidInput:
        return False
    return host == GATEWAY_HOST or host == address == str(GATEWAY)

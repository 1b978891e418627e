"""Plain HTTP to allowed hosts: one request in, the same request out, the answer back as it comes."""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator

import aiohttp
from aiohttp import hdrs, web
from aiohttp.abc import AbstractResolver, ResolveResult
from multidict import CIMultiDict
from yarl import URL

from corral.errors import InvalidInput
from corral.gateway import framing
from corral.gateway.box import Box
from corral.gateway.dial import CONNECT_TIMEOUT, Dialer, proxy_refusal
from corral.gateway.replies import Relayed, denial
from corral.policy.egress import Allowed, Decision, Denied, Reason, literal, split_authority

BODY_IDLE = 600.0
"""Seconds without a byte of a body; there is no limit to the whole (G-95)."""
_POOL = 256

_log = logging.getLogger(__name__)


class _RefusedError(OSError):
    """Carries a refusal through aiohttp's connector."""

    def __init__(self, refusal: Denied) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class PolicyResolver(AbstractResolver):
    """Gives aiohttp only addresses that may be dialled; it dials exactly these (G-62)."""

    def __init__(self, box: Box, dialer: Dialer) -> None:
        self._box = box
        self._dialer = dialer

    async def resolve(self, host: str, port: int = 0, family: int = 0) -> list[ResolveResult]:
        """See AbstractResolver. Raises OSError."""
        decision = self._box.decide(host, port)
        found = (
            decision if isinstance(decision, Denied) else await self._dialer.addresses(self._box, decision)
        )
        if isinstance(found, Denied):
            raise _RefusedError(found)
        return [
            ResolveResult(
                hostname=host,
                host=str(address),
                port=port,
                family=2 if address.version == 4 else 10,
                proto=0,
                flags=0,
            )
            for address in found
        ]

    async def close(self) -> None:
        """Nothing is open."""


class Forwarder:
    """Sends one box's requests on. Its connections are used for no other box (G-57)."""

    def __init__(self, box: Box, dialer: Dialer) -> None:
        self._box = box
        self._dialer = dialer
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                resolver=PolicyResolver(box, dialer), use_dns_cache=False, limit=_POOL, ssl=dialer.tls
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT, sock_read=BODY_IDLE),
            max_line_size=framing.MAX_LINE,
            max_field_size=framing.MAX_FIELD,
        )

    async def close(self) -> None:
        """Close its connections."""
        await self._session.close()

    def decide(self, host_field: str, address: str, port: int) -> Decision:
        """Where a request goes, from its Host field, the address connected to and the listener's port (G-47)."""
        try:
            host, named_port = split_authority(host_field, port)
        except InvalidInput as error:
            return Denied("", port, Reason.BAD_HOST, error.message, error.hint)
        decision = self._box.decide(host, port)
        if isinstance(decision, Denied):
            return decision
        if named_port != port or not self._names_match(host, address):
            return Denied(
                host, port, Reason.MISMATCH, f"the connection was made to another host than {host}",
                "connect to the host and port that the request names",
            )  # fmt: skip
        return decision

    def _names_match(self, host: str, address: str) -> bool:
        if literal(host) is not None:
            return host == address
        return self._box.names.stands_for(address, host)

    async def serve(self, request: web.BaseRequest, address: str, port: int) -> web.StreamResponse:
        """Answer one request."""
        path = request.raw_path.partition("?")[0]
        decision = self.decide(request.headers[hdrs.HOST], address, port)
        if isinstance(decision, Denied):
            status = 421 if decision.reason is Reason.MISMATCH else 403
            return self._refuse(request, decision, status, path)
        if framing.wants_upgrade(request.raw_headers):
            refusal = Denied(
                decision.host, port, Reason.BAD_REQUEST, "plain HTTP connections cannot change their protocol",
                "use TLS (wss:// for WebSockets)",
            )  # fmt: skip
            return self._refuse(request, refusal, 403, path)
        if request.transport is not None:
            self._box.bind(request.transport, decision.host, port)
        return await self._send(request, decision, path)

    async def _send(self, request: web.BaseRequest, allowed: Allowed, path: str) -> web.StreamResponse:
        proxy = self._dialer.proxies.find("http", allowed.host, allowed.port)
        fixed = literal(allowed.host)
        refusal = proxy_refusal(allowed) if proxy is not None else None
        if fixed is not None and proxy is None:
            # The connector dials addresses without asking its resolver.
            found = await self._dialer.addresses(self._box, allowed)
            refusal = found if isinstance(found, Denied) else None
        if refusal is not None:
            return self._refuse(request, refusal, 403, path)
        try:
            headers = CIMultiDict(framing.end_to_end(request.raw_headers))
        except UnicodeDecodeError:
            bad = Denied(
                allowed.host,
                allowed.port,
                Reason.BAD_REQUEST,
                "a header field is not UTF-8",
                "send ASCII fields",
            )
            return self._refuse(request, bad, 400, path)
        for_proxy, for_tunnel = proxy.credentials("http") if proxy is not None else ({}, {})
        headers.update(for_proxy)
        await continue_if_asked(request, headers)
        host = f"[{allowed.host}]" if ":" in allowed.host else allowed.host
        call = self._session.request(
            request.method,
            URL(f"http://{host}:{allowed.port}{request.raw_path}", encoded=True),
            headers=headers,
            data=_body(request) if request.body_exists else None,
            chunked=True if request.body_exists and hdrs.CONTENT_LENGTH not in headers else None,
            allow_redirects=False,
            proxy=proxy.url if proxy is not None else None,
            proxy_headers=for_tunnel,
        )
        try:
            async with call as upstream:
                self._box.allow("http", allowed, method=request.method, path=path, status=upstream.status)
                return await self._relay(request, upstream, allowed, path)
        except aiohttp.ClientConnectorError as error:
            cause = error.os_error
            found_refusal = (
                cause.refusal if isinstance(cause, _RefusedError) else _failed(allowed, "be reached")
            )
            return self._refuse(
                request, found_refusal, 403 if isinstance(cause, _RefusedError) else 502, path
            )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            _log.info("upstream of %s failed: %s", self._box.id, type(error).__name__)
            return self._refuse(request, _failed(allowed, "answer this request"), 502, path)

    async def _relay(
        self, request: web.BaseRequest, upstream: aiohttp.ClientResponse, allowed: Allowed, path: str
    ) -> web.StreamResponse:
        bad = framing.check_response(upstream.raw_headers)
        if bad is not None:
            upstream.close()
            refusal = Denied(
                allowed.host, allowed.port, Reason.BAD_REQUEST, bad.message, "this server cannot be used"
            )
            return self._refuse(request, refusal, bad.status, path)
        headers = CIMultiDict((name, value) for name, value in _fields(upstream) if name.lower() != "alt-svc")
        response = Relayed(upstream, headers)
        await response.prepare(request)
        await pump(upstream.content, response, request)
        return response

    def _refuse(self, request: web.BaseRequest, refusal: Denied, status: int, path: str) -> web.Response:
        self._box.refuse("http", refusal, method=request.method, path=path)
        return denial(
            refusal,
            status=status,
            request_id=secrets.token_hex(8),
            accept=request.headers.get(hdrs.ACCEPT, ""),
            method=request.method,
            path=path,
        )


def _fields(upstream: aiohttp.ClientResponse) -> list[tuple[str, str]]:
    fields = [(name, value.decode("utf-8", "replace").encode()) for name, value in upstream.raw_headers]
    return framing.end_to_end(fields)


async def continue_if_asked(request: web.BaseRequest, headers: CIMultiDict[str]) -> None:
    """Say 100 Continue to a client that waits for it, the request being allowed (G-84)."""
    if headers.popall(hdrs.EXPECT, None) is not None:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        # What was written does not belong to the response.
        request.writer.output_size = 0


async def _body(request: web.BaseRequest) -> AsyncIterator[bytes]:
    while True:
        async with asyncio.timeout(BODY_IDLE):
            chunk = await request.content.readany()
        if not chunk:
            return
        yield chunk


async def pump(source: aiohttp.StreamReader, response: web.StreamResponse, request: web.BaseRequest) -> None:
    """Write a body as it comes. If it breaks off, so does the client's connection: it must not look complete
    (G-102).
    """
    try:
        async for chunk in source.iter_any():
            await response.write(chunk)
    except (aiohttp.ClientError, TimeoutError):
        cut(request)
        return
    await response.write_eof()


def cut(request: web.BaseRequest) -> None:
    """End a client's connection without the end of its response."""
    if request.transport is not None:
        request.transport.abort()


def _failed(allowed: Allowed, what: str) -> Denied:
    return Denied(
        allowed.host,
        allowed.port,
        Reason.UNREACHABLE,
        f"{allowed.host} could not {what}",
        "it is allowed; try again later",
    )

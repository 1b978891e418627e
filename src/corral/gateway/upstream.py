"""One box's HTTP connections to hosts outside."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterable
from ipaddress import ip_address
from typing import Any

import aiohttp
from aiohappyeyeballs import AddrInfoType
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler

from corral.gateway import framing
from corral.gateway.box import Box
from corral.gateway.dial import CONNECT_TIMEOUT, Dialer, unreachable
from corral.gateway.relay import Side
from corral.policy.addresses import Address
from corral.policy.egress import Denied

BODY_IDLE = 600.0
"""Seconds without a byte of a body; there is no limit to the whole (G-95)."""
_POOL = 256


class RefusedError(OSError):
    """Carries a refusal through aiohttp's connector."""

    def __init__(self, refusal: Denied) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


def resolved(host: str, port: int, addresses: Iterable[Address]) -> list[ResolveResult]:
    """Addresses as aiohttp takes them from a resolver."""
    return [
        ResolveResult(
            hostname=host,
            host=str(address),
            port=port,
            family=2 if address.version == 4 else 10,
            proto=0,
            flags=0,
        )
        for address in addresses
    ]


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
            raise RefusedError(found)
        return resolved(host, port, found)

    async def close(self) -> None:
        """Nothing is open."""


class Connector(aiohttp.TCPConnector):
    """Connects where a resolver says, but to the host's own proxy where its operator said.

    aiohttp has no public place for that, nor for another way to make a connection; those who add SOCKS to it use the same
    methods.
    """

    def __init__(self, resolver: AbstractResolver, limit: int, tls: ssl.SSLContext) -> None:
        super().__init__(resolver=resolver, use_dns_cache=False, limit=limit, ssl=tls)
        self._to_proxy = aiohttp.TCPConnector(ssl=tls)  # it makes connections, and holds none

    async def _create_direct_connection(
        self, *args: Any, client_error: type[Exception] = aiohttp.ClientConnectorError, **kwargs: Any
    ) -> tuple[asyncio.Transport, ResponseHandler]:
        if client_error is aiohttp.ClientProxyConnectionError:
            return await self._to_proxy._create_direct_connection(*args, client_error=client_error, **kwargs)
        return await super()._create_direct_connection(*args, client_error=client_error, **kwargs)


class _OwnConnector(Connector):
    """Connects through the box's own proxy, where it has one."""

    def __init__(self, box: Box, dialer: Dialer) -> None:
        super().__init__(PolicyResolver(box, dialer), _POOL, dialer.tls)
        self._box = box
        self._dialer = dialer

    async def _wrap_create_connection(
        self, *args: Any, addr_infos: list[AddrInfoType], req: aiohttp.ClientRequest, **kwargs: Any
    ) -> tuple[asyncio.Transport, ResponseHandler]:
        if self._box.route.proxy is None:
            return await super()._wrap_create_connection(*args, addr_infos=addr_infos, req=req, **kwargs)
        decision = self._box.decide(req.url.host or "", req.url.port or 0)
        if isinstance(decision, Denied):
            raise aiohttp.ClientConnectorError(req.connection_key, RefusedError(decision))
        proxy = self._dialer.own_proxy(self._box, decision)
        if proxy is None:
            return await super()._wrap_create_connection(*args, addr_infos=addr_infos, req=req, **kwargs)
        addresses = [ip_address(info[4][0]) for info in addr_infos]
        side, protocol = Side(waits=True), self._factory()
        refusal = await self._dialer.tunnel(self._box, proxy, decision, addresses, side)
        if refusal is not None or side.transport is None:
            raise aiohttp.ClientConnectorError(
                req.connection_key, RefusedError(refusal or unreachable(decision))
            )
        try:
            transport = await _started(side.transport, protocol, kwargs["ssl"], kwargs["server_hostname"])
        except ssl.CertificateError as error:
            raise aiohttp.ClientConnectorCertificateError(req.connection_key, error) from error
        except OSError as error:
            raise aiohttp.ClientConnectorError(req.connection_key, error) from error
        return transport, protocol


async def _started(
    transport: asyncio.Transport, protocol: ResponseHandler, context: ssl.SSLContext | None, name: str | None
) -> asyncio.Transport:
    """The transport, or TLS over it, given to `protocol`. Raises OSError."""
    if context is None:
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        transport.resume_reading()
        return transport
    started = await asyncio.get_running_loop().start_tls(
        transport, protocol, context, server_hostname=name, ssl_handshake_timeout=CONNECT_TIMEOUT
    )
    if started is None:
        raise ConnectionResetError("the connection ended in its handshake")
    protocol.connection_made(started)
    return started


def session(box: Box, dialer: Dialer) -> aiohttp.ClientSession:
    """A session whose connections are used for no other box (G-57), and checked as the host's own (G-56)."""
    return aiohttp.ClientSession(
        connector=_OwnConnector(box, dialer),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT, sock_read=BODY_IDLE),
        max_line_size=framing.MAX_LINE,
        max_field_size=framing.MAX_FIELD,
    )


async def body_of(request: web.BaseRequest) -> AsyncIterator[bytes]:
    """A request's body as it comes. Raises TimeoutError, and aiohttp's errors for one that is badly framed."""
    while True:
        async with asyncio.timeout(BODY_IDLE):
            chunk = await request.content.readany()
        if not chunk:
            return
        yield chunk

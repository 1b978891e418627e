"""One box's HTTP connections to hosts outside."""

import asyncio
from collections.abc import AsyncIterator, Iterable

import aiohttp
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult

from corral.gateway import framing
from corral.gateway.box import Box
from corral.gateway.dial import CONNECT_TIMEOUT, Dialer
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


def session(box: Box, dialer: Dialer) -> aiohttp.ClientSession:
    """A session whose connections are used for no other box (G-57), and checked as the host's own (G-56)."""
    return aiohttp.ClientSession(
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


async def body_of(request: web.BaseRequest) -> AsyncIterator[bytes]:
    """A request's body as it comes. Raises TimeoutError, and aiohttp's errors for one that is badly framed."""
    while True:
        async with asyncio.timeout(BODY_IDLE):
            chunk = await request.content.readany()
        if not chunk:
            return
        yield chunk

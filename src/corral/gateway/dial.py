"""Connections out of the host for sandboxes: one lookup, a check of every address, and a dial of one that
passed.

Between check and dial there is no second lookup that could answer differently (G-62). Where the host goes out
through a parent proxy, that proxy looks names up itself, so no address can be checked here: then only names
that a rule spells out may go that way (G-71).

A sandbox may have a proxy of its own, whose address is one that its creator named: it is reached as any destination is, and
is asked for addresses that were looked up and checked here, never for names.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from ipaddress import IPv4Address, ip_address
from typing import cast

import psutil

from corral.errors import CorralError, UpstreamFailed
from corral.gateway.box import Box
from corral.gateway.lookup import lookup
from corral.gateway.proxies import Proxies, Proxy
from corral.gateway.relay import Side
from corral.model.egress import HostRule
from corral.model.route import EgressProxy
from corral.policy.addresses import EVERYTHING, Address, Network, parse_networks, refused_class
from corral.policy.egress import HOST_ALIAS, Allowed, Denied, Reason, literal
from corral.wire.socks import Opening

LOOKUP_TIMEOUT = 10.0
CONNECT_TIMEOUT = 10.0
_MAX_PROXY_ANSWER = 16 * 1024
_MAX_ADDRESSES = 16
_LOOPBACK = IPv4Address("127.0.0.1")
DENIED_RANGE = "an address that a rule denies"

Lookup = Callable[[str, int], Awaitable[list[Address]]]


class Dialer:
    """Opens upstream connections under the address policy. `tls` is what servers are checked by, `http2` the same for those
    that are to speak that.
    """

    def __init__(
        self, proxies: Proxies, tls: ssl.SSLContext, http2: ssl.SSLContext, executor: Executor
    ) -> None:
        self.proxies = proxies
        self.tls = tls
        self.http2 = http2
        self._executor = executor
        self._networks: tuple[Network, ...] = ()

    def set_networks(self, networks: tuple[str, ...]) -> bool:
        """Private ranges that the operator opened for all sandboxes; whether one is no longer among them. Raises InvalidInput
        and changes nothing."""
        former, self._networks = self._networks, parse_networks(networks)
        return not set(former) <= set(self._networks)

    async def addresses(self, box: Box, allowed: Allowed) -> list[Address] | Denied:
        """The addresses of an allowed host that may be dialled, at least one (G-62 to G-67)."""
        if allowed.host == HOST_ALIAS and allowed.rule.private:
            return [_LOOPBACK]
        fixed = literal(allowed.host)
        found = [fixed] if fixed is not None else await self._lookup(box, allowed.host)
        if not found:
            return Denied(
                allowed.host,
                allowed.port,
                Reason.UNRESOLVED,
                f"{allowed.host} cannot be resolved",
                "check the name; if it is right, try again later",
            )
        opened = self._opened(box)
        if allowed.rule.private:
            opened = (*opened, *EVERYTHING)
        own = _own_addresses()
        passed, refused = [], ""
        for address in found[:_MAX_ADDRESSES]:
            kind = refused_class(address, opened, own)
            if kind is None and box.rules.refusing_address(address, allowed.port):
                kind = DENIED_RANGE
            if kind is None:
                passed.append(address)
            else:
                refused = kind
        if refused and passed:
            box.note("address", "denied", host=allowed.host, port=allowed.port, reason=refused)
        return passed or _bad_address(allowed, refused)

    async def _lookup(self, box: Box, host: str) -> list[Address]:
        loop = asyncio.get_running_loop()
        async with box.lookups:
            try:
                async with asyncio.timeout(LOOKUP_TIMEOUT):
                    if box.route.resolvers:
                        return await lookup(host, self._usable(box.route.resolvers, self._opened(box)))
                    return await loop.run_in_executor(self._executor, _getaddrinfo, host)
            except (OSError, TimeoutError):
                return []

    def _opened(self, box: Box) -> tuple[Network, ...]:
        return (*self._networks, *parse_networks(box.policy.networks))

    @staticmethod
    def _usable(resolvers: Sequence[str], opened: Sequence[Network]) -> list[str]:
        """Those of a sandbox's own DNS servers that are where it may go at all (G-63 to G-65)."""
        own = _own_addresses()
        return [one for one in resolvers if refused_class(ip_address(one), opened, own) is None]

    @staticmethod
    def own_proxy(box: Box, allowed: Allowed) -> EgressProxy | None:
        """The sandbox's own proxy, if that is the way to an allowed destination: private services are the host's, and not
        that proxy's.
        """
        return None if allowed.rule.private else box.route.proxy

    def parent(self, box: Box, scheme: str, allowed: Allowed) -> Proxy | None:
        """The host's proxy, if that is the way."""
        if self.own_proxy(box, allowed) is not None:
            return None
        return self.proxies.find(scheme, allowed.host, allowed.port)

    async def connect(self, box: Box, allowed: Allowed, side: Side) -> Denied | None:
        """Connect `side` to an allowed destination; None once it is connected."""
        own = self.own_proxy(box, allowed)
        if own is None:
            return await self._directly(box, allowed, side)
        found = await self.addresses(box, allowed)
        return found if isinstance(found, Denied) else await self.tunnel(box, own, allowed, found, side)

    async def tunnel(
        self, box: Box, proxy: EgressProxy, allowed: Allowed, addresses: Sequence[Address], side: Side
    ) -> Denied | None:
        """Connect `side` to one of a destination's addresses, which may be dialled, through the sandbox's own proxy."""
        opening = Opening(
            min(addresses, key=lambda address: address.version),
            allowed.port,
            proxy.username,
            proxy.password.reveal(),
        )
        asking, first = _Asking(opening), Side(waits=True)
        there = Allowed(proxy.host, proxy.port, HostRule(proxy.host, (proxy.port,)))
        if (refusal := await self._directly(box, there, first)) is not None:
            return _proxy_failed(allowed, refusal.reason, refusal.message)
        try:
            async with asyncio.timeout(2 * CONNECT_TIMEOUT):
                await self._hand_over(first, asking, proxy)
                rest = await asking.answered
            if asking.transport is None or asking.transport.is_closing():
                raise UpstreamFailed("it closed the connection")
        except BaseException as error:
            for transport in (asking.transport, first.transport):
                if transport is not None:
                    transport.abort()
            if not isinstance(error, OSError | TimeoutError | CorralError):
                raise
            why = error.message if isinstance(error, CorralError) else "it does not answer as a proxy"
            return _proxy_failed(allowed, Reason.UNREACHABLE, why)
        side.early += rest
        _pass(asking.transport, side)
        return None

    async def _hand_over(self, first: Side, asking: "_Asking", proxy: EgressProxy) -> None:
        """Let `asking` have the connection that `first` is, inside of TLS where the proxy speaks that. Raises OSError."""
        if first.transport is None:
            raise ConnectionResetError
        if not proxy.tls:
            first.transport.set_protocol(asking)
            asking.connection_made(first.transport)
            first.transport.resume_reading()
            return
        context = ssl.create_default_context(cadata=proxy.authorities) if proxy.authorities else self.tls
        started = await asyncio.get_running_loop().start_tls(
            first.transport, asking, context, server_hostname=proxy.server_name or proxy.host
        )
        if started is None:
            raise ConnectionResetError
        asking.connection_made(started)

    async def _directly(self, box: Box, allowed: Allowed, side: Side) -> Denied | None:
        proxy = self.proxies.find("https", allowed.host, allowed.port)
        if proxy is not None:
            return await self._through(box, proxy, allowed, side)
        found = await self.addresses(box, allowed)
        if isinstance(found, Denied):
            return found
        loop = asyncio.get_running_loop()
        for address in found:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT):
                    transport, _ = await loop.create_connection(lambda: side, str(address), allowed.port)
            except (OSError, TimeoutError):
                continue
            if ip_address(transport.get_extra_info("peername")[0]) == address:
                return None
            transport.abort()
        return unreachable(allowed)

    async def _through(self, box: Box, proxy: Proxy, allowed: Allowed, side: Side) -> Denied | None:
        """Open a tunnel by CONNECT."""
        if (refusal := proxy_refusal(box, allowed)) is not None:
            return refusal
        loop = asyncio.get_running_loop()
        opening = _Opening(allowed, proxy)
        try:
            async with asyncio.timeout(2 * CONNECT_TIMEOUT):
                transport, _ = await loop.create_connection(
                    lambda: opening, proxy.host, proxy.port, ssl=self.tls if proxy.tls else None
                )
                rest = await opening.answered
        except (OSError, TimeoutError):
            if opening.transport is not None:
                opening.transport.abort()
            return unreachable(allowed)
        if rest:
            # Nobody has been asked anything yet: this is no tunnel to a TLS server.
            transport.abort()
            return unreachable(allowed)
        _pass(transport, side)
        return None


class _Opening(asyncio.Protocol):
    """Asks a proxy for a tunnel. `answered` gives what it sent after its answer, or raises OSError."""

    def __init__(self, allowed: Allowed, proxy: Proxy) -> None:
        self.answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport | None = None
        host = f"[{allowed.host}]" if ":" in allowed.host else allowed.host
        authority = f"{host}:{allowed.port}"
        lines = [f"CONNECT {authority} HTTP/1.1", f"Host: {authority}"]
        if proxy.authorization:
            lines.append(f"Proxy-Authorization: {proxy.authorization}")
        self._request = ("\r\n".join(lines) + "\r\n\r\n").encode()
        self._received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, rest = bytes(self._received).partition(b"\r\n\r\n")
        if self.answered.done():
            return
        if end and head.split(b" ")[1:2] == [b"200"]:
            if self.transport is not None:
                self.transport.pause_reading()
            self.answered.set_result(rest)
        elif end or len(self._received) > _MAX_PROXY_ANSWER:
            self.answered.set_exception(ConnectionRefusedError("the proxy refused"))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.answered.done():
            self.answered.set_exception(ConnectionResetError("the proxy closed the connection"))
            with contextlib.suppress(OSError):
                self.answered.exception()


class _Asking(asyncio.Protocol):
    """Has a sandbox's proxy open a connection. `answered` gives what the server has said already, or raises OSError or
    UpstreamFailed.
    """

    def __init__(self, opening: Opening) -> None:
        self.answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport | None = None
        self._opening = opening

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self._opening.hello)

    def data_received(self, data: bytes) -> None:
        if self.answered.done() or self.transport is None:
            return
        try:
            self.transport.write(self._opening.feed(data))
        except UpstreamFailed as error:
            self._fail(error)
            return
        if self._opening.opened:
            self.transport.pause_reading()
            self.answered.set_result(self._opening.rest)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.answered.done():
            self._fail(UpstreamFailed("it closed the connection"))

    def _fail(self, error: UpstreamFailed) -> None:
        self.answered.set_exception(error)
        self.answered.exception()  # whoever asked may have been cancelled


def _pass(transport: asyncio.Transport, side: Side) -> None:
    """Let `side` have a connection that is not being read."""
    transport.resume_reading()
    transport.set_protocol(side)
    side.connection_made(transport)


def _proxy_failed(allowed: Allowed, reason: Reason, why: str) -> Denied:
    return Denied(
        allowed.host,
        allowed.port,
        reason,
        f"this sandbox's own proxy cannot be used: {why}",
        "ask the person who made this sandbox with it",
    )


def proxy_refusal(box: Box, allowed: Allowed) -> Denied | None:
    """Why a destination may not go through a parent proxy, if so (G-71)."""
    if box.route.resolvers:
        return Denied(
            allowed.host,
            allowed.port,
            Reason.PARENT_PROXY,
            "this host goes out through a proxy, which does not ask this sandbox's own DNS servers",
            "make the sandbox without DNS servers of its own",
        )
    if box.rules.judges_addresses:
        return Denied(
            allowed.host,
            allowed.port,
            Reason.PARENT_PROXY,
            "this host goes out through a proxy, which resolves names itself: whether one leads into a denied range is unknown",
            "deny names in place of ranges",
        )
    if allowed.rule.host == allowed.host and literal(allowed.host) is None:
        return None
    return Denied(
        allowed.host,
        allowed.port,
        Reason.PARENT_PROXY,
        "this host goes out through a proxy, which resolves names itself: only names that a rule spells out may use it",
        f"ask for a rule for exactly this name: `corral create --allow {allowed.host}`",
    )


def _bad_address(allowed: Allowed, kind: str) -> Denied:
    return Denied(
        allowed.host,
        allowed.port,
        Reason.ADDRESS,
        f"{allowed.host} resolves to {kind}, which is never dialled for a sandbox",
        "if it is meant, the operator of this host can open the network (setting `networks`)"
        if kind.startswith("a private")
        else "this cannot be allowed",
    )


def unreachable(allowed: Allowed) -> Denied:
    """The refusal of a destination that nobody answers at."""
    return Denied(
        allowed.host,
        allowed.port,
        Reason.UNREACHABLE,
        f"{allowed.host} port {allowed.port} cannot be reached from this host",
        "it is allowed; try again later",
    )


def _getaddrinfo(host: str) -> list[Address]:
    """Distinct addresses, in the resolver's order of preference."""
    answers = socket.getaddrinfo(host.encode("ascii"), None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(ip_address(answer[4][0]) for answer in answers if "%" not in str(answer[4][0])))


def _own_addresses() -> frozenset[Address]:
    """Addresses of this host's interfaces, now (G-63)."""
    found = set()
    for addresses in psutil.net_if_addrs().values():
        for address in addresses:
            if address.family in (socket.AF_INET, socket.AF_INET6):
                found.add(ip_address(address.address.partition("%")[0]))
    return frozenset(found)

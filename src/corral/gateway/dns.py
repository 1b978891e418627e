"""The sandbox's resolver.

It forwards nothing: an allowed name gets the address that stands for it, everything else is answered here. So
a denied name never leaves the host, and neither does an allowed one before it is connected to (G-281, G-283).
"""

import asyncio
import socket
import struct
from ipaddress import IPv4Address
from typing import cast

from corral.errors import CorralError, InvalidInput, TooLarge
from corral.gateway.audit import TokenBucket
from corral.gateway.box import Box
from corral.gateway.names import GATEWAY
from corral.policy.egress import GATEWAY_HOST, Denied, canonical_host
from corral.wire.dns import Deframer, Query, Rcode, Type, error_reply, frame, parse_query, reply

TTL = 60
NEGATIVE_TTL = 5
QUERY_RATE, QUERY_BURST = 1000.0, 2000
MAX_LABELS = 16
TCP_IDLE = 30.0
_PER_WAKE = 64
_IP_PKTINFO = 8
_PKTINFO = struct.Struct("@I4s4s")
_LOOPBACK = IPv4Address("127.0.0.1")


class Resolver:
    """Answers one box's questions."""

    def __init__(self, box: Box) -> None:
        self._box = box
        self._bucket = TokenBucket(QUERY_RATE, QUERY_BURST)

    def answer(self, data: bytes) -> bytes | None:
        """The answer to a message, or None if there is to be none."""
        if not self._bucket.take(asyncio.get_running_loop().time()):
            return error_reply(data, Rcode.REFUSED)
        try:
            query = parse_query(data)
        except InvalidInput:
            return error_reply(data, Rcode.FORMERR)
        try:
            return self._answer(query)
        except CorralError:
            # A name that is no host name, or one too many: nothing is known of it.
            return reply(query, Rcode.REFUSED)

    def _answer(self, query: Query) -> bytes:
        if query.qtype in (Type.AXFR, Type.IXFR):
            return reply(query, Rcode.REFUSED)
        name = canonical_host(query.name)
        if name == "localhost" or name.endswith(".localhost"):
            return self._address(query, _LOOPBACK)
        if name == GATEWAY_HOST:
            return self._address(query, GATEWAY)
        if name.count(".") >= MAX_LABELS or not self._box.rules.name_allowed(name):
            return self._denied(query, name)
        return self._address(query, self._box.names.address(name) if query.qtype == Type.A else None)

    def _address(self, query: Query, address: IPv4Address | None) -> bytes:
        """The address for a question of type A; nothing for the other types of a name that exists (G-285,
        G-293).
        """
        if query.qtype != Type.A or address is None:
            return reply(query)
        return reply(query, addresses=(address,), ttl=TTL)

    def _denied(self, query: Query, name: str) -> bytes:
        decision = self._box.decide(name, 443)
        if isinstance(decision, Denied):
            self._box.refuse("dns", decision)
        return reply(query, Rcode.NXDOMAIN, explain=f"corral: not allowed, ask: corral-ask host {name} WHY")


def serve_udp(box: Box, resolver: Resolver, sock: socket.socket) -> None:
    """Answer on a datagram socket. Answers come from the address that was asked, whatever address that was."""
    loop = asyncio.get_running_loop()
    sock.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)

    def readable() -> None:
        for _ in range(_PER_WAKE):
            try:
                data, ancillary, _, sender = sock.recvmsg(4097, socket.CMSG_SPACE(_PKTINFO.size))
            except OSError:
                return
            answer = resolver.answer(data)
            if answer is None:
                continue
            try:
                sock.sendmsg([answer], _source(ancillary), 0, sender)
            except OSError:
                # The guest's buffer is full or it is gone: it asks again.
                continue

    def close() -> None:
        loop.remove_reader(sock)
        sock.close()

    loop.add_reader(sock, readable)
    box.on_close(close)


def _source(ancillary: list[tuple[int, int, bytes]]) -> list[tuple[int, int, bytes]]:
    """Ancillary data that sends from the address that a datagram was sent to."""
    for level, kind, payload in ancillary:
        if (level, kind) == (socket.IPPROTO_IP, _IP_PKTINFO) and len(payload) >= _PKTINFO.size:
            _, _, asked = _PKTINFO.unpack_from(payload)
            return [(level, kind, _PKTINFO.pack(0, asked, bytes(4)))]
    return []


class TcpResolver(asyncio.Protocol):
    """DNS over TCP: one connection of a box."""

    def __init__(self, box: Box, resolver: Resolver) -> None:
        self._box = box
        self._resolver = resolver
        self._deframer = Deframer()
        self._transport: asyncio.Transport | None = None
        self._idle: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self._box.admit(transport):
            self._transport.abort()
            return
        self._restart_idle(self._transport)

    def data_received(self, data: bytes) -> None:
        transport = self._transport
        if transport is None:
            return
        self._restart_idle(transport)
        try:
            messages = self._deframer.feed(data)
        except TooLarge:
            transport.abort()
            return
        for message in messages:
            answer = self._resolver.answer(message)
            if answer is None:
                transport.abort()
                return
            transport.write(frame(answer))

    def pause_writing(self) -> None:
        # A client that asks and never reads is not asked for more.
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._idle is not None:
            self._idle.cancel()
        if self._transport is not None:
            self._box.release(self._transport)
            self._transport = None

    def _restart_idle(self, transport: asyncio.Transport) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self._idle = asyncio.get_running_loop().call_later(TCP_IDLE, transport.abort)

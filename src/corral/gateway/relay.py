"""Bytes both ways between two connections.

Written as protocols rather than streams: measured, this is two to four times as fast. A side that cannot be
written to stops the other from being read; an end of input is passed on and leaves the other direction open;
a connection that breaks cuts the other one.
"""

import asyncio
import socket
from typing import cast

BUFFER = 256 * 1024
"""Bytes waiting to be written at which the other side is no longer read."""
IDLE = 2 * 3600.0
"""Seconds without a byte in either direction after which a relay ends."""
HALF_OPEN_IDLE = 600.0
_CHECK = 60.0


class Side(asyncio.Protocol):
    """One of the two connections. `join` makes it one side of a relay; `waits` reads nothing before that."""

    def __init__(self, *, waits: bool = False) -> None:
        self._waits = waits
        self.transport: asyncio.Transport | None = None
        self.peer: Side | None = None
        self.ended = False
        self.carried = 0
        self.early = bytearray()
        """What came before there was a peer: a transport may give what it has read already although it was told to wait."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=BUFFER)
        # A peer that vanished without a word is noticed in the end.
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if self._waits:
            self.transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        peer = self.peer
        if peer is not None and peer.transport is not None:
            self.carried += len(data)
            peer.transport.write(data)
        elif peer is None and self.transport is not None:
            self.early += data
            if len(self.early) > BUFFER:
                self.transport.abort()

    def eof_received(self) -> bool:
        """Pass the end on; keep the connection for the other direction."""
        self.ended = True
        peer = self.peer
        if peer is None or peer.transport is None:
            return False
        if peer.ended:
            peer.transport.close()
            return False
        if peer.transport.can_write_eof():
            peer.transport.write_eof()
        return True

    def pause_writing(self) -> None:
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        peer = self.peer
        if peer is None or peer.transport is None:
            return
        if exc is not None:
            peer.transport.abort()
        else:
            peer.transport.close()


def join(client: Side, upstream: Side) -> None:
    """Make a relay of two connected sides, and end it when nothing moves any more."""
    client.peer, upstream.peer = upstream, client
    for side, other in ((client, upstream), (upstream, client)):
        if side.early and other.transport is not None:
            other.transport.write(bytes(side.early))
            side.early.clear()
        if side.ended and other.transport is not None and other.transport.can_write_eof():
            other.transport.write_eof()
    _watch(asyncio.get_running_loop(), client, upstream, seen=-1, idle=0.0)


def _watch(loop: asyncio.AbstractEventLoop, client: Side, upstream: Side, seen: int, idle: float) -> None:
    if client.transport is None and upstream.transport is None:
        return
    carried = client.carried + upstream.carried
    idle = 0.0 if carried != seen else idle + _CHECK
    if idle >= (HALF_OPEN_IDLE if client.ended or upstream.ended else IDLE):
        for side in (client, upstream):
            if side.transport is not None:
                side.transport.abort()
        return
    loop.call_later(_CHECK, _watch, loop, client, upstream, carried, idle)

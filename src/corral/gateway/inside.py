"""TLS that the gateway ends itself.

The client's hello has been read by then, since it decides whether to end the connection here at all. So the loop's own
TLS is put under the connection and given those bytes first, before any that are still to come: all of it by interfaces of
asyncio that are public.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import cast

HANDSHAKE_TIMEOUT = 20.0
_SHUTDOWN_TIMEOUT = 5.0


async def end_tls(
    transport: asyncio.Transport,
    hello: bytes,
    context: ssl.SSLContext,
    protocol_for: Callable[[str | None], asyncio.Protocol],
) -> asyncio.Transport:
    """The server's end of a TLS connection that began with `hello`, given to the protocol for what was negotiated (ALPN).
    `transport` must not be reading.

    Raises OSError (ssl.SSLError among others) if the handshake fails.
    """
    loop = asyncio.get_running_loop()
    held = _Held()
    starting = loop.create_task(
        loop.start_tls(
            transport,
            held,
            context,
            server_side=True,
            ssl_handshake_timeout=HANDSHAKE_TIMEOUT,
            ssl_shutdown_timeout=_SHUTDOWN_TIMEOUT,
        )
    )
    # When the task has run once, TLS is the transport's protocol, and the loop is about to tell it of its connection and to
    # let the transport read again. What is asked of the loop now comes after that, and before it reads.
    await asyncio.sleep(0)
    loop.call_soon(_feed, transport, hello)
    try:
        started = await starting
    except asyncio.CancelledError:
        starting.cancel()
        raise
    if started is None or held.ended:
        raise ConnectionResetError("the client went away")
    protocol = protocol_for(started.get_extra_info("ssl_object").selected_alpn_protocol())
    started.set_protocol(protocol)
    protocol.connection_made(started)
    if held.received:
        protocol.data_received(bytes(held.received))
    return started


class _Held(asyncio.Protocol):
    """What came with the end of the handshake, before anybody could be told of the connection."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.ended = False

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True


def _feed(transport: asyncio.Transport, data: bytes) -> None:
    tls = cast(asyncio.BufferedProtocol, transport.get_protocol())
    while data:
        buffer = memoryview(cast(bytearray, tls.get_buffer(len(data))))
        taken = min(len(buffer), len(data))
        buffer[:taken] = data[:taken]
        tls.buffer_updated(taken)
        data = data[taken:]


def rejection(error: OSError) -> str | None:
    """What a client that does not trust the gateway's certificate said, or None for other failures (G-135)."""
    reason = (error.reason or "") if isinstance(error, ssl.SSLError) else ""
    told = (
        "UNKNOWN_CA",
        "BAD_CERTIFICATE",
        "CERTIFICATE_UNKNOWN",
        "UNSUPPORTED_CERTIFICATE",
        "ACCESS_DENIED",
    )
    return next((name.lower() for name in told if name in reason), None)

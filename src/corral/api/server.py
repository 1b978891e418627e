"""How the API is served: uvicorn's protocol over llhttp, and two things that ASGI has no words for.

* A response can be cut so that its client cannot take it for whole: `reset(scope)` drops the connection with a TCP reset.
  Clients tell a reset from the clean end of a stream; a plain close within a chunked body looks to some like the latter.
* A connection can be handed over when its client asks for another protocol (WebSocket): then `Tunnels` gets its bytes.
"""

import asyncio
import socket
import struct
from typing import Any

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_RESET = "corral.reset"
_NO_LINGER = struct.pack("ii", 1, 0)


class ApiProtocol(HttpToolsProtocol):
    """One connection."""

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self.scope["extensions"] = {_RESET: {"transport": self.transport}}


def reset(scope: Scope) -> None:
    """Drop the connection of a request, without an end of its response. Nothing where the server cannot."""
    found: Any = scope.get("extensions", {}).get(_RESET)
    if found is None:
        return
    transport: asyncio.Transport = found["transport"]
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    transport.abort()

"""Connections to ports of sandboxes whose loopback nothing outside reaches: of those with a kernel of their own.

What listens on all addresses is reached over the sandbox's network. For what listens on the loopback only, as servers for
development do, a relay inside takes the port of the sandbox's own address. It ends soon after its last connection.
"""

import asyncio
import socket
from collections import defaultdict

from corral.drivers.execfiles import Run
from corral.model.ids import SandboxId
from corral.network.networks import Networks
from corral.network.pair import SANDBOX_ADDRESS
from corral.wire.guest import PROGRAM

_SECONDS = 10.0


class Relays:
    """Dials, and starts relays where they are needed: one at a time in a sandbox."""

    def __init__(self, networks: Networks) -> None:
        self._networks = networks
        self._starting: defaultdict[SandboxId, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def connect(self, sandbox: SandboxId, port: int, run: Run) -> socket.socket | None:
        """A connected stream socket, the caller's; None where nothing listens. `run` runs a command inside."""
        found = await self._networks.connect(sandbox, port, inside=False)
        if found is not None:
            return found
        async with self._starting[sandbox]:
            found = await self._networks.connect(sandbox, port, inside=False)
            if found is None and await self._started(port, run):
                found = await self._networks.connect(sandbox, port, inside=False)
        return found

    async def _started(self, port: int, run: Run) -> bool:
        try:
            async with asyncio.timeout(_SECONDS):
                code, _, _ = await run((PROGRAM, "relay", str(SANDBOX_ADDRESS), str(port)), None, "0:0")
        except TimeoutError:
            return False
        return code == 0

    def forget(self, sandbox: SandboxId) -> None:
        """It is gone. Idempotent."""
        self._starting.pop(sandbox, None)

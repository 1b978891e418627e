"""The gateway's life: started as a process without privileges, started again when it ends."""

import asyncio
import contextlib
import hashlib
import logging
import signal
import socket
import sys

from corral.daemon.childlog import ChildLog
from corral.errors import CorralError
from corral.gateway.client import GatewayClient
from corral.host.process import Child, spawn

log = logging.getLogger(__name__)

FIRST_WAIT = 0.1
LONGEST_WAIT = 10.0
LAST_WORDS = 6.0
"""Seconds for a gateway that is asked to end to settle the calls that it has under way."""
# Above what distributions give to people and services, below what sandboxes' ranges start from; no account has it,
# so nothing else runs under it.
_FIRST_UID, _UIDS = 64_000, 1_000


def gateway_uid(instance: str) -> int:
    """The uid of an installation's gateway: its own, so that one installation's cannot touch another's."""
    return _FIRST_UID + int(hashlib.sha256(instance.encode()).hexdigest()[:8], 16) % _UIDS


class GatewayProcess:
    """Keeps one gateway process running and `client` connected to it."""

    def __init__(self, client: GatewayClient, instance: str, written: ChildLog) -> None:
        self._client = client
        self._uid = gateway_uid(instance)
        self._written = written
        self.started = asyncio.Event()

    async def supervise(self) -> None:
        """Run until cancelled. While no gateway runs, sandboxes have no network: their listeners accept nobody."""
        wait = FIRST_WAIT
        while True:
            loop = asyncio.get_running_loop()
            begun = loop.time()
            try:
                await self._run_once()
            except (OSError, CorralError) as error:
                log.error("the gateway cannot be started: %s", error)
            wait = FIRST_WAIT if loop.time() - begun > LONGEST_WAIT else min(wait * 2, LONGEST_WAIT)
            log.error("the gateway ended; starting it again in %.1f s", wait)
            await asyncio.sleep(wait)

    async def _run_once(self) -> None:
        async with self._written.pipe() as output:
            ours, child = self._spawn(output)
            try:
                await self._client.reattach(ours)
                self.started.set()
                await self._client.lost()
            except asyncio.CancelledError:
                await self._ask_to_end(child)
                raise
            finally:
                await child.kill_and_wait()

    def _spawn(self, output: int) -> tuple[socket.socket, Child]:
        """A new process, which writes to this descriptor, and our end of the link to it."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            # It starts as root, since the program's files may lie where only root can read, and drops its uid before
            # it reads its first message; setpriv makes sure that nothing gives privileges back.
            child = spawn(
                [
                    "setpriv", "--no-new-privs", "--", sys.executable, "-m", "corral.gateway.main",
                    "--control-fd", str(theirs.fileno()), "--uid", str(self._uid),
                ],
                stderr=output,
                stdout=output,
                pass_fds=[theirs.fileno()],
            )  # fmt: skip
        return ours, child

    async def _ask_to_end(self, child: Child) -> None:
        """Let it settle what it has under way, which would count as its worst case otherwise."""
        child.send_signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS):
                await self._client.lost()

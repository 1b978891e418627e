"""The gateway process.

It is started by the engine with one end of the link as an inherited descriptor, and nothing else: no
configuration file, no state of its own. It ends when the link does. If it is started as root it gives up root
before it reads its first message; from then on it can open nothing that is not open to everybody.
"""

import argparse
import asyncio
import encodings.idna
import gc
import logging
import os
import resource
import signal
import socket
import ssl
import stringprep
import sys
from concurrent.futures import ThreadPoolExecutor

import uvloop

from corral.errors import CorralError
from corral.gateway import pricing
from corral.gateway.channel import Channel
from corral.gateway.desk import Desk
from corral.gateway.dial import Dialer
from corral.gateway.outbox import Outbox
from corral.gateway.proxies import Proxies
from corral.gateway.reservations import Reservations
from corral.gateway.service import Service
from corral.gateway.spools import Spools
from corral.wire import link
from corral.wire.http2 import ALPN

PRELOADED = (encodings.idna, stringprep)
"""Modules that Python loads only when it first needs them, which after giving up root may be too late."""

_THREADS = 64
_LAST_WORDS = 5.0

_log = logging.getLogger(__name__)


class Process:
    """The link's end in this process: one call at a time, in order."""

    def __init__(self, sock: socket.socket, tls: ssl.SSLContext, http2: ssl.SSLContext) -> None:
        self._ended = asyncio.Event()
        self._stopping = asyncio.Event()
        self._calls: asyncio.Queue[tuple[link.Message, list[int]]] = asyncio.Queue()
        executor = ThreadPoolExecutor(_THREADS, "gateway")
        asyncio.get_running_loop().set_default_executor(executor)
        self._channel = Channel(
            sock,
            limit=link.MAX_FRAME,
            accept_fds=True,
            on_message=self._take,
            on_closed=self._closed,
        )
        self._reservations = Reservations(self._channel)
        self._desk = Desk(self._channel)
        self._spools = Spools(self._channel)
        self._forging: set[asyncio.Task[None]] = set()
        dialer = Dialer(Proxies.of_process(), tls, http2, executor)
        self._outbox = Outbox(self._channel)
        self._service = Service(dialer, self._outbox, self._reservations, self._desk, self._spools)

    async def run(self) -> None:
        """Serve until the link ends, or a signal asks to stop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        self._channel.send(link.Ready(link.VERSION))
        async with asyncio.TaskGroup() as tasks:
            working = tasks.create_task(self._work(), name="calls")
            stopping = tasks.create_task(self._stopping.wait(), name="stop")
            ended = tasks.create_task(self._ended.wait(), name="link")
            await asyncio.wait((stopping, ended), return_when=asyncio.FIRST_COMPLETED)
            # What is cut now is metered now; the engine gets the chance to acknowledge it.
            await self._service.close()
            await self._reservations.drained(_LAST_WORDS)
            for task in (working, stopping, ended):
                task.cancel()
        self._channel.close()

    def _closed(self, error: CorralError | None) -> None:
        if error is not None:
            _log.error("the link to the engine was cut: %s", error)
        self._ended.set()

    def _take(self, message: link.Message, fds: list[int]) -> None:
        """What calls wait for is passed on at once; what changes something is done in order."""
        match message:
            case link.UsageAck():
                self._reservations.acknowledged(message.number)
            case link.Reserved() | link.Refused() | link.Limited() | link.Unreserved():
                self._reservations.answered(message)
            case link.Flushed():
                self._outbox.take(message)
            case link.Asked() | link.Answered():
                self._desk.take(message)
            case link.Leased():
                self._reservations.leases.extended(message.lease, message.added)
            case link.CallForge():
                task = asyncio.get_running_loop().create_task(self._call_forge(message))
                self._forging.add(task)
                task.add_done_callback(self._forging.discard)
            case link.Spool() | link.Inspected() | link.PushFailed():
                self._spools.take(message, fds)
            case _:
                self._calls.put_nowait((message, fds))

    async def _call_forge(self, message: link.CallForge) -> None:
        try:
            answer = await self._service.call_forge(message)
        except CorralError as error:
            self._channel.send(link.Failed(message.seq, error.code, error.message, error.hint))
        else:
            self._channel.send(link.Forged(message.seq, answer))

    async def _work(self) -> None:
        while True:
            message, fds = await self._calls.get()
            if isinstance(message, link.Order):
                self._channel.send(await self._answer(message, fds))
            else:
                _log.error("the engine sent an unexpected %s", type(message).__name__)
                self._ended.set()

    async def _answer(
        self,
        message: link.Order,
        fds: list[int],
    ) -> link.Done | link.Failed:
        try:
            await self._service.handle(message, fds)
        except CorralError as error:
            return link.Failed(message.seq, error.code, error.message, error.hint)
        except OSError as error:
            text = f"the gateway could not serve a socket: {error.strerror}"
            return link.Failed(message.seq, "internal", text, "see `corral daemon logs`")
        return link.Done(message.seq)


def drop_privileges(uid: int) -> None:
    """Become `uid`, for good, with no other groups."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def _limit() -> None:
    """No core files, which would hold secrets; as many open files as are allowed."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _serve(sock: socket.socket, tls: ssl.SSLContext, http2: ssl.SSLContext) -> None:
    await Process(sock, tls, http2).run()


def main() -> int:
    """The entry point: `python -m corral.gateway.main --control-fd N [--uid UID]`."""
    parser = argparse.ArgumentParser(description="Corral's gateway; started by the daemon")
    parser.add_argument("--control-fd", type=int, required=True, help="the link to the engine")
    parser.add_argument("--uid", type=int, help="the user and group to become")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    _limit()
    sock = socket.socket(fileno=options.control_fd)
    sock.set_inheritable(False)
    # While files can be read that are not everybody's.
    tls, http2 = ssl.create_default_context(), ssl.create_default_context()
    http2.set_alpn_protocols([ALPN])
    pricing.load()
    if options.uid is not None:
        drop_privileges(options.uid)
    # What is loaded by now stays: no later collection need look at it.
    gc.collect()
    gc.freeze()
    gc.collect()  # else a full collection waits until there is a quarter as much as what was just put aside
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(sock, tls, http2))
    return 0


if __name__ == "__main__":
    sys.exit(main())

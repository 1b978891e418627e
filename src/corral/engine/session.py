"""A conversation with one sandbox's PID 1: which processes it runs, and waking those who wait for them.

Theory of operation. The guest keeps processes' output in spool files and what became of them in its own table, and
repeats states rather than sending events, so nothing depends on this object: it can be lost and made again. `open` says
hello and gets the guest's whole table; those processes that `save_process` kept on the host are taken up, all others
are the guest's own invention and are ignored. What the guest says decides nothing but what clients of the same sandbox
see.
"""

import asyncio
import logging
import secrets as randomness
import signal as signals
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from corral.engine.ports import GuestLink
from corral.engine.signals import Change
from corral.errors import Conflict, CorralError, UpstreamFailed
from corral.host.tasks import TaskOwner
from corral.model.ids import ProcessId
from corral.model.process import Exit, ProcessInfo, Stream
from corral.wire import guest

log = logging.getLogger(__name__)

HELLO_SECONDS = 15.0
SPOOL_KEPT = 64 * 1024 * 1024
"""Bytes of output kept per stream; older output is freed."""


@dataclass(slots=True)
class Live:
    """A process and what is known of it. `sent` bytes of stdin have gone out; `freed` bytes of output are gone;
    `failure` is set when it never ran."""

    info: ProcessInfo
    change: Change = field(default_factory=Change)
    report: guest.Report | None = None
    sent: int = 0
    stdin_open: bool = True
    freed: dict[Stream, int] = field(default_factory=dict)
    reason: str = ""
    failure: CorralError | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing more will come of it."""
        return self.info.exit is not None

    @property
    def kept(self) -> int:
        """Bytes of its output that are on disk."""
        written = self.report.stdout + self.report.stderr if self.report else 0
        return written - sum(self.freed.values())

    @property
    def window(self) -> int:
        """Bytes of stdin that may be sent now."""
        consumed = self.report.stdin_consumed if self.report else 0
        return guest.STDIN_WINDOW - (self.sent - min(consumed, self.sent))


class Session:
    """The processes of one running sandbox."""

    def __init__(
        self, link: GuestLink, tasks: TaskOwner, label: str, oom_kills: Callable[[], int] = lambda: 0
    ) -> None:
        """`oom_kills`: how often the kernel has killed a process of the sandbox for want of memory."""
        self._link = link
        self._tasks = tasks
        self._label = label
        self._decoder = guest.GuestDecoder()
        self._nonce = randomness.randbits(32)
        self._welcomed = False
        self._ready = asyncio.Event()
        self._next = 1
        self._oom_kills = oom_kills
        self._killed = oom_kills()
        self._sending = asyncio.Lock()
        self._receiving: asyncio.Task[None] | None = None
        self.processes: dict[ProcessId, Live] = {}
        self.closed = False

    async def open(self) -> None:
        """Take up the conversation; returns once the guest has told its table. Raises UpstreamFailed if it does not."""
        for info in self._link.saved_processes():
            self.processes[info.id] = Live(info, stdin_open=info.spec.stdin)
            self._next = max(self._next, info.id + 1)
        self._receiving = self._tasks.start(self._receive(), name=f"guest-{self._label}")
        await self._link.send(guest.hello(self._nonce))
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                await self._ready.wait()
        except TimeoutError:
            self.close("lost")
            raise UpstreamFailed("the sandbox's first process does not answer") from None
        if self.closed:
            raise UpstreamFailed("the sandbox ended as soon as it started", "look at `corral daemon logs`")

    def close(self, reason: str) -> None:
        """End the conversation; processes that were running count as ended for `reason`."""
        if self.closed:
            return
        for live in self.processes.values():
            if not live.ended:
                self._end(live, Exit(137, 9, live.reason or reason))
        self.detach()

    def detach(self) -> None:
        """Let go of the guest, whose processes go on."""
        if self.closed:
            return
        self.closed = True
        self._ready.set()
        self._link.close()
        if self._receiving is not None:
            self._receiving.cancel()

    # -- commands ---------------------------------------------------------------------------------------------------

    async def start(self, describe: Callable[[ProcessId], ProcessInfo], env: dict[str, str]) -> Live:
        """Start a process; `describe` makes its record once its id is known. Raises TooLarge, InvalidInput, Conflict."""
        process = ProcessId(self._next)
        info = describe(process)
        spec = info.spec
        frames = guest.exec_frames(
            process,
            argv=spec.argv,
            env=env,
            cwd=spec.cwd,
            user=spec.user,
            stdin=spec.stdin,
            terminal=spec.terminal,
        )
        self._next += 1
        live = Live(info, stdin_open=spec.stdin or spec.terminal is not None)
        self._link.save_process(info)
        self.processes[process] = live
        await self.send(*frames)
        return live

    async def send(self, *frames: bytes) -> None:
        """Send the frames of one command, in order."""
        if self.closed:
            raise Conflict("the sandbox is not running", "start it: `corral start NAME`")
        async with self._sending:
            for frame in frames:
                await self._link.send(frame)

    async def feed(self, live: Live, data: bytes) -> None:
        """Write to a process's stdin, as fast as it reads. Raises Conflict if its stdin is closed."""
        view = memoryview(data)
        while view:
            change = live.change.next()
            if live.ended or not live.stdin_open:
                raise Conflict("the process's stdin is closed", "start it with stdin open")
            if live.window <= 0:
                await asyncio.shield(change)
                continue
            piece = bytes(view[: min(live.window, guest.MAX_PAYLOAD)])
            live.sent += len(piece)
            await self.send(guest.stdin(live.info.id, piece))
            view = view[len(piece) :]

    async def close_stdin(self, live: Live) -> None:
        """End of input. Without effect on an ended process."""
        if not live.ended and live.stdin_open:
            live.stdin_open = live.info.spec.terminal is not None
            await self.send(guest.stdin_close(live.info.id))

    def written(self, live: Live, stream: Stream) -> int:
        """Bytes of output that PID 1 has told of."""
        if live.report is None:
            return 0
        return live.report.stdout if stream is Stream.STDOUT else live.report.stderr

    def read(self, live: Live, stream: Stream, offset: int, size: int) -> bytes:
        """Output from `offset`, as far as PID 1 says that it wrote it: the file is the sandbox's, whose root may have made
        it a terabyte of nothing. After the end of PID 1, which may have had no time to say it, as far as the file goes.
        """
        if live.report is not None and not self.closed:
            size = min(size, self.written(live, stream) - offset)
        return self._link.read_spool(live.info.id, stream, offset, size) if size > 0 else b""

    async def forget(self, live: Live) -> None:
        """Drop an ended process and its output.

        The record goes last: its number is not given again as long as the guest, or a spool, has something under it.
        """
        process = live.info.id
        self.processes.pop(process, None)
        try:
            if not self.closed:
                await self.send(guest.forget(process))
        finally:
            self._link.remove_spool(process)
            self._link.forget_process(process)

    # -- what the guest says --------------------------------------------------------------------------------------

    async def _receive(self) -> None:
        try:
            while data := await self._link.receive():
                for event in self._decoder.feed(data):
                    self._apply(event)
        except CorralError as error:
            log.warning("sandbox %s: %s", self._label, error)
        self.close("lost")

    def _apply(self, event: guest.GuestEvent) -> None:
        if isinstance(event, guest.Welcome):
            self._welcomed = self._welcomed or event.nonce == self._nonce
        elif not self._welcomed:
            return
        elif isinstance(event, guest.Ready):
            self._settle_unknown()
            self._ready.set()
        else:
            self._take(event)

    def _take(self, report: guest.Report) -> None:
        live = self.processes.get(report.process)
        if live is None or live.ended:
            return
        if live.report is None:
            live.sent = max(live.sent, report.stdin_received)
        live.report = report
        if report.state is guest.GuestState.FAILED:
            live.failure = guest.start_failure(report, user=live.info.spec.user, cwd=live.info.spec.cwd)
            self._end(live, Exit(126, 0, "failed"))
        elif report.exit is not None:
            self._end(live, replace(report.exit, reason=live.reason or self._why(report.exit)))
        else:
            self._bound(live, report)
        live.change.notify()

    def _why(self, exit: Exit) -> str:
        """A process that was killed, or whose child was, while the kernel killed one for want of memory."""
        if signals.SIGKILL not in (exit.signal, exit.code - 128):
            return ""
        kills, former = self._oom_kills(), self._killed
        self._killed = kills
        return "oom" if kills > former else ""

    def _settle_unknown(self) -> None:
        """A process that the guest does not know ended with the guest's former life."""
        for live in self.processes.values():
            if live.report is None and not live.ended:
                self._end(live, Exit(137, 9, "lost"))

    def _end(self, live: Live, exit: Exit) -> None:
        live.info = replace(live.info, exit=exit)
        live.stdin_open = False
        live.change.notify()
        try:
            self._link.save_process(live.info)
        except CorralError as error:  # the guest keeps the record too, until it is told to forget it
            log.error(
                "sandbox %s: the end of process %s could not be noted: %s", self._label, live.info.id, error
            )

    def _bound(self, live: Live, report: guest.Report) -> None:
        for stream, size in ((Stream.STDOUT, report.stdout), (Stream.STDERR, report.stderr)):
            surplus = size - SPOOL_KEPT
            if surplus - live.freed.get(stream, 0) >= SPOOL_KEPT // 4:
                self._link.free_spool(live.info.id, stream, surplus)
                live.freed[stream] = surplus

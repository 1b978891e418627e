"""The use cases of processes in sandboxes: start, run, follow, feed, signal, and finding them again."""

import asyncio
import contextlib
import signal as signals
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from corral.engine.ports import Clock, Driver
from corral.engine.registry import Registry
from corral.engine.session import Live, Session
from corral.errors import Conflict, InvalidInput, NotFound, TooLarge
from corral.host.tasks import TaskOwner
from corral.model.ids import ProcessId, SandboxId, TenantId, check_env, check_guest_path, check_user
from corral.model.lifecycle import State
from corral.model.process import OWN_TAG, Exit, ProcessInfo, ProcessSpec, Stream, TerminalSize
from corral.model.sandbox import Sandbox
from corral.policy.idle import wakes_on_use
from corral.wire import guest

CHUNK = 128 * 1024
KEPT_ENDED = 100
"""Ended processes that a sandbox remembers, with their output."""
KEPT_BYTES = 128 * 1024 * 1024
"""Output of ended processes that a sandbox remembers."""
MAX_PROCESSES = 1000
MAX_TIMEOUT = 30 * 24 * 3600.0
DEFAULT_OUTPUT_LIMIT = 16 * 1024 * 1024
END_SECONDS = 5.0
"""For what is asked to end, before it is killed."""

Environment = Callable[[Sandbox], Awaitable[dict[str, str]]]


@dataclass(frozen=True, slots=True)
class StartRequest:
    """A command to start. None means the sandbox's default user or working directory."""

    argv: tuple[str, ...]
    user: str | None = None
    cwd: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    stdin: bool = False
    terminal: TerminalSize | None = None
    timeout: float | None = None
    tag: str = ""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Output of a process, from byte `offset` of its stream."""

    stream: Stream
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Ended:
    """The last thing that `output` yields."""

    exit: Exit


Output = Chunk | Ended


@dataclass(frozen=True, slots=True)
class RunResult:
    """A finished command. `truncated` when output went over the limit; what is kept is its beginning."""

    info: ProcessInfo
    stdout: bytes
    stderr: bytes
    truncated: bool


class Processes:
    """All processes of all running sandboxes."""

    def __init__(
        self,
        *,
        driver: Driver,
        registry: Registry,
        clock: Clock,
        tasks: TaskOwner,
        environment: Environment,
        touch: Callable[[SandboxId], None] = lambda _: None,
        wake: Callable[[Sandbox], Awaitable[None]] | None = None,
    ) -> None:
        """`environment` gives the variables that every process of a sandbox has; `touch` hears of each use; `wake` lets a
        sandbox go on that the host has paused since nobody used it."""
        self._driver = driver
        self._registry = registry
        self._clock = clock
        self._tasks = tasks
        self._environment = environment
        self._touch = touch
        self._wake = wake
        self._sessions: dict[SandboxId, tuple[Session, dict[str, str]]] = {}

    # -- sessions ---------------------------------------------------------------------------------------------------

    async def open(self, sandbox: Sandbox) -> None:
        """Take up the conversation with a sandbox that runs; a paused one answers only once it is resumed. Idempotent."""
        if sandbox.id in self._sessions or sandbox.state is State.PAUSED:
            return
        session = Session(
            await self._driver.guest(sandbox.id),
            self._tasks,
            sandbox.id,
            lambda: self._driver.oom_kills(sandbox.id),
        )
        self._sessions[sandbox.id] = session, await self._environment(sandbox)
        try:
            await session.open()
        except BaseException:
            self._sessions.pop(sandbox.id, None)
            raise
        for live in session.processes.values():
            self._watch_timeout(sandbox.id, session, live)
            if live.info.spec.tag == OWN_TAG and not live.ended:  # nobody is there any more who waits for it
                self._tasks.start(_end(session, live), name=f"end-{sandbox.id}-{live.info.id}")

    async def refresh(self, sandbox: Sandbox) -> None:
        """Give the processes that start from now on the variables of what the sandbox has become. Raises Conflict."""
        found = self._sessions.get(sandbox.id)
        if found is None or found[0].closed:
            raise _not_running(sandbox)
        self._sessions[sandbox.id] = found[0], await self._environment(sandbox)

    async def close(self, sandbox: SandboxId) -> None:
        """End the conversation with a sandbox that is down."""
        session, _ = self._sessions.pop(sandbox, (None, None))
        if session is not None:
            session.close("lost")

    async def leave(self, sandbox: SandboxId) -> None:
        """End the conversation with a sandbox whose processes are gone from the host, and go on later."""
        session, _ = self._sessions.pop(sandbox, (None, None))
        if session is not None:
            session.detach()

    def detach(self) -> None:
        """Let go of all guests, whose processes go on: the daemon ends."""
        for session, _ in self._sessions.values():
            session.detach()
        self._sessions.clear()

    # -- use cases --------------------------------------------------------------------------------------------------

    async def start(self, tenant: TenantId, ref: str, request: StartRequest) -> ProcessInfo:
        """Start a command in the background. Raises InvalidInput, TooLarge, Conflict, NoCapacity, Forbidden."""
        session, live = await self._start(tenant, ref, request)
        while live.report is None and not live.ended:
            await asyncio.shield(live.change.next())
        if live.failure is not None:
            await session.forget(live)
            raise live.failure
        await self._trim(session)
        return live.info

    async def run(
        self, tenant: TenantId, ref: str, request: StartRequest, output_limit: int = DEFAULT_OUTPUT_LIMIT
    ) -> RunResult:
        """Run a command to its end and keep the first `output_limit` bytes of each stream. A cancelled run kills it."""
        session, live = await self._start(tenant, ref, request)
        kept = {Stream.STDOUT: bytearray(), Stream.STDERR: bytearray()}
        truncated = False
        try:
            async for item in self._follow(session, live, {}):
                if isinstance(item, Chunk):
                    room = output_limit - len(kept[item.stream])
                    kept[item.stream] += item.data[: max(room, 0)]
                    truncated = truncated or len(item.data) > room
                    if truncated and live.ended:
                        break
        except asyncio.CancelledError:
            await asyncio.shield(session.send(guest.kill(live.info.id)))
            raise
        await session.forget(live)
        if live.failure is not None:
            raise live.failure
        return RunResult(live.info, bytes(kept[Stream.STDOUT]), bytes(kept[Stream.STDERR]), truncated)

    def list(self, tenant: TenantId, ref: str) -> list[ProcessInfo]:
        """Processes that run, and the last ended ones, by id."""
        _, session = self._session(tenant, ref)
        return [live.info for _, live in sorted(session.processes.items())]

    def get(self, tenant: TenantId, ref: str, process: ProcessId) -> ProcessInfo:
        """One process. Raises NotFound."""
        return self._live(tenant, ref, process)[1].info

    async def output(
        self,
        tenant: TenantId,
        ref: str,
        process: ProcessId,
        offsets: dict[Stream, int] | None = None,
        *,
        follow: bool = True,
    ) -> AsyncIterator[Output]:
        """Output from the given offsets (default: from the first byte still kept), then as it comes, then `Ended`.

        Without `follow`: what has been written by now, and `Ended` if it has ended.
        """
        session, live = self._live(tenant, ref, process)
        async for item in self._follow(session, live, offsets or {}, follow=follow):
            yield item

    def pid(self, tenant: TenantId, ref: str, process: ProcessId) -> int:
        """Its process id inside the sandbox, as the sandbox says; 0 where it never ran."""
        report = self._live(tenant, ref, process)[1].report
        return report.pid if report else 0

    def written(self, tenant: TenantId, ref: str, process: ProcessId) -> dict[Stream, int]:
        """Bytes of output so far, by stream: where `output` goes on without what was before."""
        report = self._live(tenant, ref, process)[1].report
        return {Stream.STDOUT: report.stdout, Stream.STDERR: report.stderr} if report else {}

    async def write_stdin(self, tenant: TenantId, ref: str, process: ProcessId, data: bytes) -> None:
        """Write to its stdin; returns when all is on its way. Raises Conflict if stdin is closed."""
        session, live = self._live(tenant, ref, process)
        await session.feed(live, data)

    async def close_stdin(self, tenant: TenantId, ref: str, process: ProcessId) -> None:
        """End of its input."""
        session, live = self._live(tenant, ref, process)
        await session.close_stdin(live)

    async def resize(self, tenant: TenantId, ref: str, process: ProcessId, size: TerminalSize) -> None:
        """Change the size of its terminal. Raises Conflict if it has none."""
        session, live = self._live(tenant, ref, process)
        if live.info.spec.terminal is None:
            raise Conflict("the process has no terminal", "start it with a terminal")
        if not live.ended:
            await session.send(guest.resize(process, _checked_size(size)))

    async def signal(self, tenant: TenantId, ref: str, process: ProcessId, number: int) -> None:
        """Send a signal to its group; KILL goes to its whole tree. Without effect on an ended process."""
        session, live = self._live(tenant, ref, process)
        if not 1 <= number <= 64:
            raise InvalidInput(
                f"{number} is not a signal", "give a number from 1 to 64, or a name such as TERM"
            )
        if live.ended:
            return
        kill = number == signals.SIGKILL
        await session.send(guest.kill(process) if kill else guest.signal(process, number))

    async def kill(self, tenant: TenantId, ref: str, process: ProcessId) -> None:
        """Kill it and everything that it started."""
        await self.signal(tenant, ref, process, signals.SIGKILL)

    async def end(self, tenant: TenantId, ref: str, process: ProcessId) -> None:
        """Let it end, or kill it where it does not within some seconds; returns once it has ended."""
        await _end(*self._live(tenant, ref, process))

    def written_by(self, sandbox: SandboxId) -> int:
        """Bytes of output that all its processes have told of."""
        session, _ = self._sessions.get(sandbox, (None, None))
        lives = session.processes.values() if session else ()
        return sum(live.report.stdout + live.report.stderr for live in lives if live.report)

    # -- parts ------------------------------------------------------------------------------------------------------

    async def _start(self, tenant: TenantId, ref: str, request: StartRequest) -> tuple[Session, Live]:
        await self._wake_idle(tenant, ref)
        sandbox, session = self._session(tenant, ref)
        if sandbox.state is State.PAUSED:
            raise _not_running(sandbox)
        running = sum(1 for live in session.processes.values() if not live.ended)
        if running >= MAX_PROCESSES:
            raise TooLarge(f"{running} processes run already", "end some of them")
        spec = _spec(sandbox, request)
        now = self._clock.now()
        env = {**self._sessions[sandbox.id][1], **spec.env}
        live = await session.start(lambda process: ProcessInfo(process, spec, now), env)
        self._watch_timeout(sandbox.id, session, live)
        return session, live

    async def _wake_idle(self, tenant: TenantId, ref: str) -> None:
        sandbox = self._registry.find_any(tenant, ref)
        at_rest = sandbox.state in (State.PAUSED, State.SUSPENDED) and wakes_on_use(sandbox.reason)
        if at_rest and self._wake is not None:
            await self._wake(sandbox)

    def _session(self, tenant: TenantId, ref: str) -> tuple[Sandbox, Session]:
        sandbox = self._registry.find_any(tenant, ref)
        self._touch(sandbox.id)
        found = self._sessions.get(sandbox.id)
        if found is None:
            raise _not_running(sandbox)
        return sandbox, found[0]

    def _live(self, tenant: TenantId, ref: str, process: ProcessId) -> tuple[Session, Live]:
        sandbox, session = self._session(tenant, ref)
        live = session.processes.get(process)
        if live is None:
            raise NotFound(
                f"sandbox {sandbox.spec.name} has no process {process}",
                f"see `corral ps {sandbox.spec.name}`",
            )
        return session, live

    async def _follow(
        self, session: Session, live: Live, offsets: dict[Stream, int], *, follow: bool = True
    ) -> AsyncIterator[Output]:
        streams = (Stream.STDOUT,) if live.info.spec.terminal else (Stream.STDOUT, Stream.STDERR)
        position = {stream: max(offsets.get(stream, 0), live.freed.get(stream, 0)) for stream in streams}
        written = {stream: session.written(live, stream) for stream in streams}
        while True:
            change = live.change.next()
            ended = live.info.exit
            progress = False
            for stream in streams:
                position[stream] = max(position[stream], live.freed.get(stream, 0))
                if data := session.read(live, stream, position[stream], CHUNK):
                    progress = True
                    yield Chunk(stream, position[stream], data)
                    position[stream] += len(data)
            if not follow and ended is None and all(position[s] >= written[s] for s in streams):
                return
            if progress:
                # Reading does not wait, nor does everyone who takes it: without this a flood would hold up all others.
                await asyncio.sleep(0)
                continue
            if ended is not None:
                yield Ended(ended)
            if ended is not None or not follow:
                return
            await asyncio.shield(change)

    def _watch_timeout(self, sandbox: SandboxId, session: Session, live: Live) -> None:
        if live.info.spec.timeout is not None and not live.ended:
            self._tasks.start(self._enforce(session, live), name=f"timeout-{sandbox}-{live.info.id}")

    async def _enforce(self, session: Session, live: Live) -> None:
        timeout = live.info.spec.timeout or 0.0
        left = timeout - (self._clock.now() - live.info.started_at).total_seconds()
        try:
            async with asyncio.timeout(max(left, 0)):
                while not live.ended:
                    await asyncio.shield(live.change.next())
        except TimeoutError:
            live.reason = "timeout"
            if not session.closed:
                await session.send(guest.kill(live.info.id))

    async def _trim(self, session: Session) -> None:
        """Forget the oldest ended processes that are too many, or whose output is too much, to keep."""
        ended = [live for _, live in sorted(session.processes.items()) if live.ended]
        kept = sum(live.kept for live in ended)
        surplus = len(ended) - KEPT_ENDED
        for number, live in enumerate(ended):
            if number >= surplus and kept <= KEPT_BYTES:
                return
            kept -= live.kept
            await session.forget(live)


async def _end(session: Session, live: Live) -> None:
    for frame in (guest.signal(live.info.id, signals.SIGTERM), guest.kill(live.info.id)):
        if live.ended:
            return
        with contextlib.suppress(Conflict):  # the sandbox has ended
            await session.send(frame)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                while not live.ended:
                    await asyncio.shield(live.change.next())


def _not_running(sandbox: Sandbox) -> Conflict:
    name = sandbox.spec.name
    match sandbox.state:
        case State.PAUSED | State.SUSPENDED:
            hint = f"resume it: `corral resume {name}`"
        case State.STOPPED:
            hint = f"start it: `corral start {name}`"
        case State.RUNNING:
            return Conflict(
                f"the first process of sandbox {name} does not answer",
                f"stop and start it; its files stay: `corral stop {name} && corral start {name}`",
            )
        case _:
            hint = f"see what becomes of it: `corral show {name}`"
    return Conflict(f"sandbox {name} is {sandbox.state}", hint)


def _spec(sandbox: Sandbox, request: StartRequest) -> ProcessSpec:
    if not request.argv or not request.argv[0]:
        raise InvalidInput("the command is empty", "give a program and its arguments")
    if any("\0" in argument for argument in request.argv):
        raise InvalidInput("an argument holds a NUL character", "remove it")
    if request.timeout is not None and not 0 < request.timeout <= MAX_TIMEOUT:
        raise InvalidInput(
            f"timeout {request.timeout} is out of range", "use more than 0 and at most 30 days"
        )
    return ProcessSpec(
        argv=request.argv,
        user=check_user(request.user) if request.user is not None else sandbox.spec.user,
        cwd=check_guest_path(request.cwd) if request.cwd is not None else sandbox.spec.workdir,
        env=check_env(request.env),
        stdin=request.stdin,
        terminal=_checked_size(request.terminal) if request.terminal else None,
        timeout=request.timeout,
        tag=request.tag[:128],
    )


def _checked_size(size: TerminalSize) -> TerminalSize:
    if not (1 <= size.rows <= 4096 and 1 <= size.cols <= 4096):
        raise InvalidInput(
            f"a terminal of {size.rows} × {size.cols} is not possible", "use 1 to 4096 rows and columns"
        )
    return size

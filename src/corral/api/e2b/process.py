"""The service `process.Process`, on the engine's processes."""

import asyncio
import signal as signals
from collections.abc import AsyncGenerator, AsyncIterator

from corral.api.e2b.box import Box
from corral.api.e2b.rpc import Cut, RpcError
from corral.engine.processes import Chunk, Ended, StartRequest
from corral.errors import Conflict, CorralError, NotFound
from corral.model.process import Exit, ProcessInfo, Stream, TerminalSize
from corral.protocol.e2b import process as wire
from corral.wire.connect import Code

KEEPALIVE = wire.EventReply(event=wire.ProcessEvent(keepalive=wire.Nothing()))
_SIGNALS: dict[str | int, int] = {
    "SIGNAL_SIGKILL": signals.SIGKILL,
    "SIGNAL_SIGTERM": signals.SIGTERM,
    9: signals.SIGKILL,
    15: signals.SIGTERM,
}
_NAMES = {
    1: "hangup",
    2: "interrupt",
    3: "quit",
    6: "aborted",
    9: "killed",
    11: "segmentation fault",
    13: "broken pipe",
    15: "terminated",
}


async def start(
    box: Box, request: wire.StartRequest, seconds: float | None
) -> AsyncGenerator[wire.EventReply, None]:
    """Start a process and follow it. It goes on when the client goes, and is started also if that goes before; `seconds`
    bound its life."""
    beginning = asyncio.ensure_future(_begin(box, request, seconds))
    beginning.add_done_callback(_looked_at)
    info = await asyncio.shield(beginning)
    async for reply in _follow(box, info, {}):
        yield reply


def _looked_at(beginning: "asyncio.Future[ProcessInfo]") -> None:
    """Why it could not be started is told to nobody where the client is gone, and is no fault of the daemon's either."""
    if not beginning.cancelled():
        beginning.exception()


async def _begin(box: Box, request: wire.StartRequest, seconds: float | None) -> ProcessInfo:
    command = request.process
    user = await box.user()
    cwd = await box.path(command.cwd or "", user)
    try:
        return await box.engine.processes.start(
            box.tenant,
            box.id,
            StartRequest(
                argv=(command.cmd, *command.args),
                user=user,
                cwd=cwd,
                env={**box.environment(), **command.envs},
                stdin=request.stdin is not False and request.pty is None,
                terminal=_size(request.pty) if request.pty else None,
                timeout=seconds,
                tag=request.tag or "",
            ),
        )
    except CorralError as error:
        raise await _start_error(box, command.cmd, cwd, error, terminal=request.pty is not None) from None


async def _start_error(box: Box, command: str, cwd: str, error: CorralError, *, terminal: bool) -> RpcError:
    if error.status not in (400, 403, 409):
        return RpcError(Code.RESOURCE_EXHAUSTED, f"{error.message} ({error.hint})")
    try:
        await (await box.files()).stat(cwd)
    except NotFound:
        return RpcError(Code.INVALID_ARGUMENT, f"cwd '{cwd}' does not exist")
    except CorralError:
        pass  # what failed is told below
    what = "pty with command" if terminal else "process"
    return RpcError(Code.INVALID_ARGUMENT, f"error starting {what} '{command[:200]}': {error.message}")


async def connect(box: Box, request: wire.ProcessRequest) -> AsyncGenerator[wire.EventReply, None]:
    """Follow a process from now on."""
    info = _find(box, request.process)
    offsets = box.engine.processes.written(box.tenant, box.id, info.id)
    async for reply in _follow(box, info, offsets):
        yield reply


async def _follow(box: Box, info: ProcessInfo, offsets: dict[Stream, int]) -> AsyncIterator[wire.EventReply]:
    processes = box.engine.processes
    yield _reply(start=wire.StartEvent(pid=processes.pid(box.tenant, box.id, info.id)))
    async for item in processes.output(box.tenant, box.id, info.id, offsets):
        if isinstance(item, Chunk):
            yield _reply(data=_data(item, terminal=info.spec.terminal is not None))
        elif isinstance(item, Ended):
            if item.exit.reason == "lost":
                raise Cut
            if item.exit.reason == "failed":
                # It was seen to run before its directory was entered, or its program found.
                never = Conflict("it never ran")
                spec = info.spec
                raise await _start_error(
                    box, spec.argv[0], spec.cwd, never, terminal=spec.terminal is not None
                )
            if item.exit.reason == "timeout":
                raise RpcError(Code.DEADLINE_EXCEEDED, "context deadline exceeded")
            yield _reply(end=end_event(item.exit))


def _reply(
    start: wire.StartEvent | None = None, data: wire.DataEvent | None = None, end: wire.EndEvent | None = None
) -> wire.EventReply:
    return wire.EventReply(event=wire.ProcessEvent(start=start, data=data, end=end))


def _data(chunk: Chunk, *, terminal: bool) -> wire.DataEvent:
    if terminal:
        return wire.DataEvent.model_construct(pty=chunk.data)
    if chunk.stream is Stream.STDOUT:
        return wire.DataEvent.model_construct(stdout=chunk.data)
    return wire.DataEvent.model_construct(stderr=chunk.data)


def end_event(exit: Exit) -> wire.EndEvent:
    """How a process ended, in the words that clients know."""
    if exit.signal:
        status = f"signal: {_NAMES.get(exit.signal, f'signal {exit.signal}')}"
        return wire.EndEvent(exit_code=-1, exited=False, status=status, error=status)
    status = f"exit status {exit.code}"
    return wire.EndEvent(exit_code=exit.code, exited=True, status=status, error=status if exit.code else None)


async def list_all(box: Box) -> wire.ListReply:
    """All processes that were started here and run."""
    return wire.ListReply(
        processes=[
            wire.ProcessInfo(
                config=wire.ProcessConfig(
                    cmd=info.spec.argv[0],
                    args=list(info.spec.argv[1:]),
                    envs={k: v for k, v in info.spec.env.items() if k not in box.environment()},
                    cwd=info.spec.cwd,
                ),
                pid=box.engine.processes.pid(box.tenant, box.id, info.id),
                tag=info.spec.tag or None,
            )
            for info in box.engine.processes.list(box.tenant, box.id)
            if info.exit is None
        ]
    )


async def update(box: Box, request: wire.UpdateRequest) -> wire.Nothing:
    """Change a terminal's size."""
    info = _find(box, request.process, running=True)
    if request.pty is not None:
        if info.spec.terminal is None:
            raise RpcError(Code.INTERNAL, "error resizing tty: tty not assigned to process")
        await box.engine.processes.resize(box.tenant, box.id, info.id, _size(request.pty))
    return wire.Nothing()


async def send_input(box: Box, request: wire.SendInputRequest) -> wire.Nothing:
    """Write to a process."""
    await _write(box, _find(box, request.process, running=True), request.input)
    return wire.Nothing()


async def stream_input(box: Box, messages: AsyncIterator[wire.StreamInputRequest]) -> wire.Nothing:
    """Write to a process, piece by piece, in order."""
    info: ProcessInfo | None = None
    async for message in messages:
        if message.start is not None:
            info = _find(box, message.start.process, running=True)
        elif message.data is not None:
            if info is None:
                raise RpcError(Code.INVALID_ARGUMENT, "the stream begins without `start`")
            await _write(box, info, message.data.input)
        elif message.keepalive is None:
            raise RpcError(Code.UNIMPLEMENTED, "invalid event type: none is set")
    return wire.Nothing()


async def _write(box: Box, info: ProcessInfo, data: wire.ProcessInput) -> None:
    terminal = info.spec.terminal is not None
    if data.stdin is None and data.pty is None:
        raise RpcError(Code.UNIMPLEMENTED, "invalid input type: none is set")
    if data.stdin is not None and terminal:
        raise RpcError(Code.INTERNAL, "error writing to stdin: tty assigned to process")
    if data.pty is not None and not terminal:
        raise RpcError(Code.INTERNAL, "error writing to tty: tty not assigned to process")
    piece = data.stdin if data.stdin is not None else data.pty or b""
    try:
        await box.engine.processes.write_stdin(box.tenant, box.id, info.id, piece)
    except Conflict:
        raise RpcError(Code.INTERNAL, "error writing to stdin: stdin not enabled or closed") from None


async def close_stdin(box: Box, request: wire.ProcessRequest) -> wire.Nothing:
    """End of a process's input."""
    info = _find(box, request.process, running=True)
    if info.spec.terminal is not None:
        raise RpcError(
            Code.UNKNOWN,
            "error closing stdin: cannot close stdin for PTY process; send Ctrl+D (0x04) to it instead",
        )
    await box.engine.processes.close_stdin(box.tenant, box.id, info.id)
    return wire.Nothing()


async def send_signal(box: Box, request: wire.SendSignalRequest) -> wire.Nothing:
    """Signal a process; KILL goes to all that it started."""
    info = _find(box, request.process, running=True)
    number = _SIGNALS.get(request.signal)
    if number is None:
        named = "SIGNAL_UNSPECIFIED" if request.signal == 0 else str(request.signal)[:40]
        raise RpcError(Code.UNIMPLEMENTED, f"invalid signal: {named}")
    await box.engine.processes.signal(box.tenant, box.id, info.id, number)
    return wire.Nothing()


def _size(pty: wire.Pty) -> TerminalSize:
    size = pty.size or wire.Size()
    return TerminalSize(rows=size.rows or 24, cols=size.cols or 80)


def _find(box: Box, selector: wire.Selector, *, running: bool = False) -> ProcessInfo:
    """The process that a request names, one that runs before those that ended. Raises RpcError."""
    processes = box.engine.processes
    if selector.pid is None and selector.tag is None:
        raise RpcError(Code.UNIMPLEMENTED, "invalid selector: neither pid nor tag is set")
    found = [
        info
        for info in processes.list(box.tenant, box.id)
        if (not running or info.exit is None)
        and (
            info.spec.tag == selector.tag
            if selector.pid is None
            else processes.pid(box.tenant, box.id, info.id) == selector.pid
        )
    ]
    if not found:
        what = f"tag {selector.tag}" if selector.pid is None else f"pid {selector.pid}"
        raise RpcError(Code.NOT_FOUND, f"process with {what} not found")
    return max(found, key=lambda info: (info.exit is None, info.id))

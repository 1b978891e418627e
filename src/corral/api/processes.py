"""Routes of processes in a sandbox."""

from collections.abc import AsyncGenerator
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response
from starlette.requests import Request

from corral.api import shapes
from corral.api.bodies import BINARY_REQUEST, body_of
from corral.api.context import Caller, CallerDep, ProcessPath, RefPath
from corral.api.failures import documented
from corral.api.sandboxes import EVENT_STREAM, FollowQuery
from corral.api.streams import event, stream, while_connected
from corral.engine.processes import Chunk, Ended, RunResult, StartRequest
from corral.errors import Conflict, InvalidInput
from corral.model.ids import ProcessId
from corral.model.process import OWN_TAG, ProcessInfo, Stream, TerminalSize
from corral.protocol import processes as protocol
from corral.protocol.base import MAX_JSON_BODY, Done

router = APIRouter(prefix="/v1/sandboxes/{ref}", tags=["processes"])

STDIN_PIECE = 256 * 1024
Offset = Annotated[int, Query(ge=0, description="Byte to go on from.")]


def start_request(body: protocol.StartProcess | protocol.Exec) -> StartRequest:
    """The engine's request."""
    background = body if isinstance(body, protocol.StartProcess) else None
    terminal = background.terminal if background else None
    if body.tag == OWN_TAG:
        raise InvalidInput(
            f"the tag {OWN_TAG!r} marks what Corral runs itself, which ends with the daemon",
            "use another tag",
        )
    return StartRequest(
        argv=tuple(body.argv),
        user=body.user,
        cwd=body.cwd,
        env=body.env,
        stdin=background.stdin if background else body.input is not None,  # type: ignore[union-attr]
        terminal=TerminalSize(terminal.rows, terminal.cols) if terminal else None,
        timeout=body.timeout,
        tag=body.tag,
    )


@router.post(
    "/exec",
    responses=documented(),
    max_body_size=MAX_JSON_BODY + protocol.MAX_INPUT * 4 // 3,
)
async def exec_command(
    request: Request, caller: CallerDep, ref: RefPath, body: protocol.Exec
) -> protocol.ExecResult:
    """Run a command to its end and answer with its exit code and output.

    A command that fails, or passes its own `timeout`, is an answer with status 200: look at `exit`. When the client
    goes first, the command is killed.
    """
    command = start_request(body)
    if body.input is None:
        work = caller.engine.processes.run(caller.tenant, ref, command, body.output_limit)
    else:
        work = _run_fed(caller, ref, command, body.input, body.output_limit)
    return shapes.exec_result(await while_connected(request, work))


async def _run_fed(caller: Caller, ref: str, command: StartRequest, data: bytes, limit: int) -> RunResult:
    processes, tenant = caller.engine.processes, caller.tenant
    info = await processes.start(tenant, ref, command)
    try:
        try:
            await _feed(caller, ref, info.id, data)
            await processes.close_stdin(tenant, ref, info.id)
        except Conflict:
            pass  # it ended before it had read all; its exit code tells
        return await _collect(caller, ref, info, limit)
    except BaseException:
        await processes.kill(tenant, ref, info.id)
        raise


async def _feed(caller: Caller, ref: str, process: ProcessId, data: bytes) -> None:
    for start in range(0, len(data), STDIN_PIECE):
        await caller.engine.processes.write_stdin(
            caller.tenant, ref, process, data[start : start + STDIN_PIECE]
        )


async def _collect(caller: Caller, ref: str, info: ProcessInfo, limit: int) -> RunResult:
    kept = {Stream.STDOUT: bytearray(), Stream.STDERR: bytearray()}
    truncated = False
    async for item in caller.engine.processes.output(caller.tenant, ref, info.id):
        if isinstance(item, Chunk):
            room = limit - len(kept[item.stream])
            kept[item.stream] += item.data[: max(room, 0)]
            truncated = truncated or len(item.data) > room
    ended = caller.engine.processes.get(caller.tenant, ref, info.id)
    return RunResult(ended, bytes(kept[Stream.STDOUT]), bytes(kept[Stream.STDERR]), truncated)


@router.post("/processes", status_code=201, responses=documented())
async def start_process(caller: CallerDep, ref: RefPath, body: protocol.StartProcess) -> protocol.ProcessInfo:
    """Start a process that runs on its own. It outlives its client and the daemon; follow its output by its id."""
    return shapes.process_info(await caller.engine.processes.start(caller.tenant, ref, start_request(body)))


@router.get("/processes", responses=documented())
async def list_processes(caller: CallerDep, ref: RefPath) -> protocol.ProcessList:
    """Processes that run, and the last ones that ended."""
    found = caller.engine.processes.list(caller.tenant, ref)
    return protocol.ProcessList(processes=[shapes.process_info(item) for item in found])


@router.get("/processes/{process}", responses=documented())
async def get_process(caller: CallerDep, ref: RefPath, process: ProcessPath) -> protocol.ProcessInfo:
    """A process as it stands."""
    return shapes.process_info(caller.engine.processes.get(caller.tenant, ref, process))


@router.get(
    "/processes/{process}/output", response_class=Response, responses={**documented(), **EVENT_STREAM}
)
async def follow_output(
    caller: CallerDep,
    ref: RefPath,
    process: ProcessPath,
    stdout: Offset = 0,
    stderr: Offset = 0,
    follow: FollowQuery = True,
) -> Response:
    """Output from the given offsets on, then as it comes, until the process ends.

    Events: `start` (the process), `stdout` and `stderr` (`offset`, and `data` in base64), and at last `exit`, which
    comes after all output, or `error`. After a broken connection, go on from the last offset plus its data's length.
    """
    processes = caller.engine.processes
    offsets = {Stream.STDOUT: stdout, Stream.STDERR: stderr}

    async def events() -> AsyncGenerator[bytes, None]:
        yield event("start", shapes.process_info(processes.get(caller.tenant, ref, process)))
        async for item in processes.output(caller.tenant, ref, process, offsets, follow=follow):
            match item:
                case Chunk():
                    yield event(item.stream.value, protocol.OutputChunk(offset=item.offset, data=item.data))
                case Ended():
                    yield event("exit", shapes.process_exit(item.exit))

    return await stream(events())


@router.post(
    "/processes/{process}/stdin",
    responses=documented(),
    openapi_extra=BINARY_REQUEST,
    max_body_size=protocol.MAX_STDIN_BODY,
)
async def write_stdin(request: Request, caller: CallerDep, ref: RefPath, process: ProcessPath) -> Done:
    """Write the raw body to its standard input; answered when all is on its way. Refused where stdin is closed."""
    async for chunk in body_of(request):
        await _feed(caller, ref, process, chunk)
    return Done()


@router.post("/processes/{process}/stdin/close", responses=documented())
async def close_stdin(caller: CallerDep, ref: RefPath, process: ProcessPath) -> Done:
    """End its standard input."""
    await caller.engine.processes.close_stdin(caller.tenant, ref, process)
    return Done()


@router.post("/processes/{process}/resize", responses=documented())
async def resize_terminal(
    caller: CallerDep, ref: RefPath, process: ProcessPath, body: protocol.Terminal
) -> Done:
    """Change the size of its terminal."""
    await caller.engine.processes.resize(caller.tenant, ref, process, TerminalSize(body.rows, body.cols))
    return Done()


@router.post("/processes/{process}/signal", responses=documented())
async def signal_process(
    caller: CallerDep, ref: RefPath, process: ProcessPath, body: protocol.Signal
) -> Done:
    """Send a signal to its process group; KILL (9) goes to everything that it started. No effect once it has ended."""
    await caller.engine.processes.signal(caller.tenant, ref, process, body.signal)
    return Done()

"""Requests about processes, as operations, and the following of output across broken connections."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass, field
from typing import Any, TypedDict

from corral.errors import Conflict, DaemonUnreachable
from corral.model.process import Stream
from corral.protocol import processes as protocol
from corral.protocol.base import Done
from corral.sdk.operations import (
    AsyncTransport,
    Call,
    Content,
    Event,
    Operation,
    Request,
    SyncTransport,
    build,
    parse,
    raise_error_event,
    reply,
)
from corral.sdk.requests import EVENTS, get, post, url
from corral.sdk.results import CommandResult, Output

Command = str | Sequence[str]
"""A program and its arguments; or a text for `/bin/sh -c`."""

RECONNECT_PAUSES = (0.05, 0.1, 0.2, 0.5, 1, 2, 2, 5, 5, 5, 5)
"""Seconds between attempts to take up a broken stream; then it is given up."""


class CommandOptions(TypedDict, total=False):
    """How to run a command: `user` (default: the sandbox's), `cwd` (default: its work directory), `env` (laid over the
    sandbox's), `timeout` in seconds (then it and its children are killed), `tag` (a mark to find it by)."""

    user: str | None
    cwd: str | None
    env: Mapping[str, str] | None
    timeout: float | None
    tag: str


def argv_of(command: Command) -> list[str]:
    """The program and its arguments."""
    return ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)


def exec_command(
    ref: str,
    command: Command,
    *,
    user: str | None = None,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    tag: str = "",
    input: str | bytes | None = None,
    output_limit: int = protocol.DEFAULT_OUTPUT_LIMIT,
    check: bool = False,
) -> Call[CommandResult]:
    """Run a command to its end. A text is run by `/bin/sh -c`; a list is run as it is.

    `input` is its standard input as a whole (default: at its end). At most `output_limit` bytes are kept of each of its
    outputs. `timeout` in seconds. With `check`, Timeout or CommandFailed is raised if it did not end with 0.
    """
    data = input.encode() if isinstance(input, str) else input
    options = _options(user=user, cwd=cwd, env=env, timeout=timeout, tag=tag)
    if data is not None:
        options["input"] = data
    body = build(protocol.Exec, argv=argv_of(command), output_limit=output_limit, **options)

    def decode(raw: bytes) -> CommandResult:
        result = CommandResult.of(parse(protocol.ExecResult, raw))
        return result.check() if check else result

    return Call(post(url("sandboxes", ref, "exec"), body, quick=False), decode)


def start_process(
    ref: str,
    command: Command,
    *,
    user: str | None = None,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    tag: str = "",
    stdin: bool = False,
    terminal: tuple[int, int] | None = None,
) -> Call[protocol.ProcessInfo]:
    """Start a process that runs on its own: it outlives its client and the daemon. `terminal` is (rows, columns)."""
    options = _options(user=user, cwd=cwd, env=env, timeout=timeout, tag=tag)
    if terminal is not None:
        options["terminal"] = build(protocol.Terminal, rows=terminal[0], cols=terminal[1])
    body = build(protocol.StartProcess, argv=argv_of(command), stdin=stdin, **options)
    return Call(post(url("sandboxes", ref, "processes"), body), reply(protocol.ProcessInfo))


def list_processes(ref: str) -> Call[list[protocol.ProcessInfo]]:
    """Processes that run, and the last ones that ended."""
    request = get(url("sandboxes", ref, "processes"))
    return Call(request, lambda body: parse(protocol.ProcessList, body).processes)


def get_process(ref: str, process: int) -> Call[protocol.ProcessInfo]:
    """A process as it stands. Raises NotFound."""
    return Call(get(url("sandboxes", ref, "processes", process)), reply(protocol.ProcessInfo))


def write_stdin(ref: str, process: int, data: Content) -> Call[None]:
    """Write to its standard input. Raises Conflict where that is closed."""
    return Call(
        Request("POST", url("sandboxes", ref, "processes", process, "stdin"), data, timeout=None), _done
    )


def close_stdin(ref: str, process: int) -> Call[None]:
    """End its standard input."""
    return Call(post(url("sandboxes", ref, "processes", process, "stdin", "close")), _done)


def resize_terminal(ref: str, process: int, rows: int, cols: int) -> Call[None]:
    """Change the size of its terminal."""
    body = build(protocol.Terminal, rows=rows, cols=cols)
    return Call(post(url("sandboxes", ref, "processes", process, "resize"), body), _done)


def signal_process(ref: str, process: int, signal: int) -> Call[None]:
    """Send a signal to its process group; KILL (9) goes to everything that it started."""
    body = build(protocol.Signal, signal=signal)
    return Call(post(url("sandboxes", ref, "processes", process, "signal"), body), _done)


@dataclass(slots=True)
class Follower:
    """How far a process's output has been read. Decides what to ask for next; does no I/O.

    Without `wait`, what is there now is all that is asked for.
    """

    ref: str
    process: int
    offsets: dict[Stream, int] = field(default_factory=lambda: dict.fromkeys(Stream, 0))
    wait: bool = True
    exit: protocol.Exit | None = None
    _pauses: list[float] = field(default_factory=lambda: list(RECONNECT_PAUSES))

    def ended(self) -> bool:
        """Whether the process has ended and all its output was read."""
        return self.exit is not None

    def ended_as(self) -> protocol.Exit:
        """How it ended. Raises Conflict before the end."""
        if self.exit is None:
            raise Conflict("the process has not ended", "read its output to the end first")
        return self.exit

    def request(self) -> Request:
        """What to ask for now."""
        offsets = {stream.value: offset for stream, offset in self.offsets.items() if offset}
        follow = None if self.wait else "false"
        path = url("sandboxes", self.ref, "processes", self.process, "output", follow=follow, **offsets)
        return Request("GET", path, accept=EVENTS)

    def take(self, event: Event) -> Output | None:
        """The output that an event holds, if any. Raises what an event `error` tells."""
        raise_error_event(event)
        self._pauses = list(RECONNECT_PAUSES)
        if event.name == "exit":
            self.exit = parse(protocol.Exit, event.data)
        if event.name not in ("stdout", "stderr"):
            return None
        stream, chunk = Stream(event.name), parse(protocol.OutputChunk, event.data)
        self.offsets[stream] = chunk.offset + len(chunk.data)
        return Output(stream, chunk.offset, chunk.data)

    def pause(self, error: DaemonUnreachable) -> float:
        """Seconds to wait before the stream is taken up again; raises `error` once that has been tried enough."""
        if not self._pauses:
            raise error
        return self._pauses.pop(0)


class FollowOutput(Operation[Iterator[Output], AsyncIterator[Output]]):
    """Output until the process ends. A broken connection, or a restart of the daemon, is not seen but as a delay."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower

    def run(self, transport: SyncTransport) -> Iterator[Output]:
        """Pieces of output as they come."""
        follower = self._follower
        while not follower.ended():
            try:
                with closing(transport.events(follower.request())) as events:
                    for event in events:
                        if (output := follower.take(event)) is not None:
                            yield output
                if follower.ended() or not follower.wait:
                    return
                pause = follower.pause(_ended_early())
            except DaemonUnreachable as error:
                pause = follower.pause(error)
            transport.sleep(pause)

    async def run_async(self, transport: AsyncTransport) -> AsyncIterator[Output]:
        """Pieces of output as they come."""
        follower = self._follower
        while not follower.ended():
            try:
                async with aclosing(transport.events(follower.request())) as events:
                    async for event in events:
                        if (output := follower.take(event)) is not None:
                            yield output
                if follower.ended() or not follower.wait:
                    return
                pause = follower.pause(_ended_early())
            except DaemonUnreachable as error:
                pause = follower.pause(error)
            await transport.sleep(pause)


def follow_output(
    ref: str, process: int, stdout: int = 0, stderr: int = 0, *, wait: bool = True
) -> FollowOutput:
    """Output from the given offsets on, then as it comes, until the process ends; without `wait`, what is there now."""
    return FollowOutput(Follower(ref, process, {Stream.STDOUT: stdout, Stream.STDERR: stderr}, wait))


def _options(**values: Any) -> dict[str, Any]:
    given = {key: value for key, value in values.items() if value not in (None, "")}
    if "env" in given:
        given["env"] = dict(given["env"])
    return given


def _done(body: bytes) -> None:
    parse(Done, body)


def _ended_early() -> DaemonUnreachable:
    return DaemonUnreachable("the daemon ended the stream before the process ended")

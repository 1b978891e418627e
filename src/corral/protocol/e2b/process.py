"""Messages of the service `process.Process`. Of several optional fields that exclude each other one is set. In binary form
a field's number is its place (`proto.py`)."""

from typing import Annotated

from pydantic import Field

from corral.protocol.base import Data
from corral.protocol.e2b.base import Wire

Pid = Annotated[int, Field(ge=0, le=2**32 - 1)]


class ProcessConfig(Wire):
    """A command."""

    cmd: str = ""
    args: list[str] = Field(default_factory=list)
    envs: dict[str, str] = Field(default_factory=dict)
    cwd: str | None = None


class Size(Wire):
    """Of a terminal."""

    cols: int = 0
    rows: int = 0


class Pty(Wire):
    """A terminal."""

    size: Size | None = None


class Selector(Wire):
    """Which process: by its id in the sandbox or by the tag that it was started with."""

    pid: Pid | None = None
    tag: str | None = None


class StartRequest(Wire):
    """Start a process and follow it. Without `stdin` its input stays open."""

    process: ProcessConfig = Field(default_factory=ProcessConfig)
    pty: Pty | None = None
    tag: str | None = None
    stdin: bool | None = None


class ProcessRequest(Wire):
    """A request about a process: Connect and CloseStdin."""

    process: Selector = Field(default_factory=Selector)


class UpdateRequest(ProcessRequest):
    """Change a terminal's size."""

    pty: Pty | None = None


class ProcessInput(Wire):
    """Bytes for a pipe or a terminal."""

    stdin: Data | None = None
    pty: Data | None = None


class SendInputRequest(ProcessRequest):
    """Write to a process."""

    input: ProcessInput = Field(default_factory=ProcessInput)


class SendSignalRequest(ProcessRequest):
    """Signal a process: by name or number."""

    signal: str | int = "SIGNAL_UNSPECIFIED"


class InputData(Wire):
    """A piece of input."""

    input: ProcessInput = Field(default_factory=ProcessInput)


class Nothing(Wire):
    """No fields."""


class StreamInputRequest(Wire):
    """First `start`, then pieces."""

    start: ProcessRequest | None = None
    data: InputData | None = None
    keepalive: Nothing | None = None


class StartEvent(Wire):
    """A process runs."""

    pid: int


class DataEvent(Wire):
    """Output."""

    stdout: Data | None = None
    stderr: Data | None = None
    pty: Data | None = None


class EndEvent(Wire):
    """A process ended. `exit_code` is -1 where a signal ended it."""

    exit_code: int
    exited: bool
    status: str
    error: str | None = None


class ProcessEvent(Wire):
    """One of them."""

    start: StartEvent | None = None
    data: DataEvent | None = None
    end: EndEvent | None = None
    keepalive: Nothing | None = None


class EventReply(Wire):
    """A message of Start's and Connect's answers."""

    event: ProcessEvent


class ProcessInfo(Wire):
    """A process that runs."""

    config: ProcessConfig
    pid: int
    tag: str | None = None


class ListReply(Wire):
    """All that run."""

    processes: list[ProcessInfo]

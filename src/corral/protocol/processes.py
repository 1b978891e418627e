"""Shapes of processes: start, output, end."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from corral.errors import InvalidInput, TooLarge
from corral.model.process import MAX_COMMAND
from corral.protocol.base import Data, Env, GuestPath, Reply, Request, Text, Time, User

DEFAULT_OUTPUT_LIMIT = 8 * 1024 * 1024
MAX_OUTPUT_LIMIT = 64 * 1024 * 1024
MAX_INPUT = 4 * 1024 * 1024
MAX_STDIN_BODY = 64 * 1024 * 1024
MAX_TIMEOUT = 30 * 24 * 3600
MAX_PROCESS_ID = 2**31 - 1

Argument = Annotated[str, Field(max_length=MAX_COMMAND)]
Cells = Annotated[int, Field(ge=1, le=4096)]


class Terminal(Request):
    """Rows and columns of a terminal."""

    rows: Cells
    cols: Cells


class _Command(Request):
    argv: list[Argument] = Field(
        min_length=1,
        max_length=65536,
        description="Not interpreted by a shell.",
        examples=[["echo", "hello"]],
    )
    user: User | None = Field(default=None, description="Default: the sandbox's.")
    cwd: GuestPath | None = Field(default=None, description="Default: the sandbox's work directory.")
    env: Env = Field(default_factory=dict, description="Laid over the sandbox's environment.")
    timeout: float | None = Field(
        default=None,
        gt=0,
        le=MAX_TIMEOUT,
        description="Seconds; then the process and all its children are killed.",
    )
    tag: Text = Field(default="", max_length=128, description="A caller's mark, to find the process by.")

    @model_validator(mode="after")
    def _check_command(self) -> Self:
        if not self.argv[0] or any("\0" in word for word in self.argv):
            raise InvalidInput("the command is not valid", "give a program first, and no NUL characters")
        size = sum(len(word) for word in self.argv) + sum(len(k) + len(v) for k, v in self.env.items())
        if size > MAX_COMMAND:
            raise TooLarge(
                f"a command of {size} bytes is too large", f"at most {MAX_COMMAND}; write a file instead"
            )
        return self


class StartProcess(_Command):
    """A process that runs on its own; its output is kept and can be followed by id at any time."""

    stdin: bool = Field(
        default=False, description="Keep standard input open for writing; otherwise it is at its end."
    )
    terminal: Terminal | None = Field(
        default=None, description="Give it a terminal of this size; then it has no stderr."
    )


class Exec(_Command):
    """A command to wait for."""

    input: Data | None = Field(default=None, description="Standard input as a whole. Default: at its end.")
    output_limit: int = Field(
        default=DEFAULT_OUTPUT_LIMIT,
        ge=0,
        le=MAX_OUTPUT_LIMIT,
        description="Bytes kept of stdout and of stderr each.",
    )

    @model_validator(mode="after")
    def _check_input(self) -> Self:
        if self.input is not None and len(self.input) > MAX_INPUT:
            raise TooLarge(
                f"an input of {len(self.input)} bytes is too large",
                f"at most {MAX_INPUT}; start the process with stdin and write to it, or write a file",
            )
        return self


class Exit(Reply):
    """How a process ended (event `exit`). `code` is 128 + n after signal n."""

    code: int
    signal: int = 0
    reason: str = Field(
        default="", description="Empty, `timeout`, `oom`, or `lost` (the sandbox stopped first)."
    )


class ProcessInfo(Reply):
    """A process as it stands (event `start`). stdout and stderr are complete once `exit` is set."""

    id: int
    argv: list[str]
    user: str
    cwd: str
    env: dict[str, str] = Field(default_factory=dict)
    stdin: bool
    terminal: Terminal | None = None
    timeout: float | None = None
    tag: str
    started_at: Time
    exit: Exit | None = None


class ProcessList(Reply):
    """Processes that Corral started in a sandbox, in the order of their ids."""

    processes: list[ProcessInfo]


class ExecResult(Reply):
    """A command that has ended, and what it wrote."""

    process: int
    exit: Exit
    stdout: Data
    stderr: Data
    truncated: bool = Field(description="More was written than was kept.")


class OutputChunk(Reply):
    """Bytes of an output (events `stdout`, `stderr`). Follow on from `offset` plus the length of `data`."""

    offset: int
    data: Data


class Signal(Request):
    """A signal for a process and its children."""

    signal: int = Field(ge=1, le=64, examples=[15])

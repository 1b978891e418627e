"""Processes that Corral starts in a sandbox."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from corral.model.ids import ProcessId

MAX_COMMAND = 128 * 1024
"""Bytes of a command's arguments and environment together."""


class Stream(StrEnum):
    """An output of a process. A process with a terminal has STDOUT only."""

    STDOUT = "stdout"
    STDERR = "stderr"


OWN_TAG = "corral"
"""Tag of processes that are steps of Corral's own work: a clone, a diff, an installation."""


@dataclass(frozen=True, slots=True)
class TerminalSize:
    """Rows and columns of a terminal, each 1 to 4096."""

    rows: int
    cols: int


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """A command to run.

    `argv` is not interpreted by a shell. `env` is laid over the sandbox's. `stdin` False means end of file at once.
    `timeout` in seconds; the whole process tree is killed when it has passed.
    """

    argv: tuple[str, ...]
    user: str
    cwd: str
    env: dict[str, str] = field(default_factory=dict)
    stdin: bool = False
    terminal: TerminalSize | None = None
    timeout: float | None = None
    tag: str = ""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended. `code` is 128 + n for an end by signal n; `signal` is then n, else 0.

    `reason` is empty, or `timeout`, or `oom`, or `lost` (the sandbox stopped before the process ended).
    """

    code: int
    signal: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """A process as it stands. `exit` is None while it runs; stdout and stderr are complete once it is set."""

    id: ProcessId
    spec: ProcessSpec
    started_at: datetime
    exit: Exit | None = None

"""The protocol between the daemon and a sandbox's PID 1 (`guest/corral-init.c`), without I/O.

Frames go both ways over two FIFOs. A frame is a header of 8 bytes and a payload of at most 4,088, so that it
never exceeds what a pipe takes in one piece:

```
u8 type   u8 flags   u16 length of payload   u32 id        (little-endian; id is the process's, or a nonce)
```

Nothing that the guest sends is an event that could be lost: it repeats *states*. A `Report` holds all that is
known of one process (how it ended, bytes in its spool files, bytes of stdin taken); the guest sends a new one
whenever the last one is out of date and the FIFO has room, and keeps an ended process until it is told to
forget it. A daemon that starts anew empties the FIFO, sends `hello(nonce)`, drops what comes before the
`Welcome` of that nonce, and has the whole table when the `Ready` of that nonce arrives.

Stdin is controlled by cumulative counts: at most `STDIN_WINDOW` bytes may be under way, that is
`sent - report.stdin_consumed`; what exceeds it is dropped by the guest.

What the guest sends is hostile: anything malformed raises UpstreamFailed, and at most one frame is buffered.
"""

import errno
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag

from corral.errors import Conflict, CorralError, Forbidden, InvalidInput, NoCapacity, TooLarge, UpstreamFailed
from corral.model.ids import ProcessId
from corral.model.process import MAX_COMMAND, Exit, TerminalSize

VERSION = 1
PROGRAM = "/run/corral/init"
"""Where the program is in each sandbox; with arguments it changes files (`guest/files.c`)."""
DISK_FULL = 4
"""Its exit code for a full disk."""
MAX_FRAME = 4096
"""Bytes of a frame with its header: what a pipe takes at once or not at all."""
STDIN_WINDOW = 64 * 1024
"""Bytes of stdin that may be on the way to one process."""

_HEADER = struct.Struct("<BBHI")
MAX_PAYLOAD = MAX_FRAME - _HEADER.size
"""Bytes of stdin that fit into one frame."""

_EXEC = struct.Struct("<IHHHHI")
_REPORT = struct.Struct("<BBBBHHiIQQQQ")
_WELCOME = struct.Struct("<HHI")
_SIZE = struct.Struct("<HH")
_SIGNAL = struct.Struct("<BB")
_MAX_BLOB = MAX_COMMAND + 64 * 1024


class _To(IntEnum):
    """Frames to the guest."""

    HELLO = 1
    EXEC = 2
    EXEC_DATA = 3
    STDIN = 4
    STDIN_CLOSE = 5
    RESIZE = 6
    SIGNAL = 7
    KILL = 8
    FORGET = 9
    SHUTDOWN = 10
    HOSTNAME = 11
    ANNOUNCE = 12


class _From(IntEnum):
    """Frames from the guest."""

    WELCOME = 65
    READY = 66
    REPORT = 67


class _ExecFlag(IntFlag):
    STDIN = 1
    TERMINAL = 2


class GuestState(IntEnum):
    """What a process does. FAILED: it never ran; see `start_failure`."""

    RUNNING = 1
    EXITED = 2
    FAILED = 3


class GuestFlag(IntFlag):
    """Marks of a process."""

    STDOUT_TRUNCATED = 1
    """Output was dropped, since the sandbox's disk was full."""
    STDERR_TRUNCATED = 2
    STDIN_BROKEN = 4
    """The process closed its stdin; what is sent is consumed and dropped."""
    TREE_GONE = 8
    """After `kill`: no process of its tree is left."""


class StartStage(IntEnum):
    """Where the start of a process failed."""

    NONE = 0
    COMMAND = 1
    FORK = 2
    TERMINAL = 3
    USER = 4
    CREDENTIALS = 5
    WORKDIR = 6


@dataclass(frozen=True, slots=True)
class Welcome:
    """The guest's answer to `hello(nonce)`; `version` is its protocol's. `processes` reports follow, then
    `Ready`."""

    nonce: int
    version: int
    processes: int


@dataclass(frozen=True, slots=True)
class Ready:
    """All reports of the table have been sent."""

    nonce: int


@dataclass(frozen=True, slots=True)
class Report:
    """All that the guest knows of a process. Counts are cumulative bytes; `stdout` and `stderr` count what is
    in the spool files, and are final once `exit` is set. `pid` is the guest kernel's. A new report replaces
    the former."""

    process: ProcessId
    state: GuestState
    flags: GuestFlag
    exit: Exit | None
    pid: int
    stdout: int
    stderr: int
    stdin_received: int
    stdin_consumed: int
    stage: StartStage = StartStage.NONE
    errno: int = 0


GuestEvent = Welcome | Ready | Report


def _frame(kind: _To, ident: int, payload: bytes = b"") -> bytes:
    return _HEADER.pack(kind, 0, len(payload), ident) + payload


def hello(nonce: int) -> bytes:
    """Ask for the version and the table of processes; also discards commands that arrived in part. `nonce`:
    32 bits."""
    return _frame(_To.HELLO, nonce, _WELCOME.pack(VERSION, 0, 0))


def exec_frames(
    process: ProcessId,
    *,
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str,
    user: str,
    stdin: bool = False,
    terminal: TerminalSize | None = None,
) -> list[bytes]:
    """The frames that start a process, to be sent in order; frames of others may come between.

    `user` is a name of the guest's /etc/passwd, `uid` or `uid:gid`. HOME, USER, LOGNAME, SHELL and PATH are
    set by the guest unless `env` gives them. A process id that the guest knows already is not started again.
    Raises InvalidInput, TooLarge.
    """
    strings = [user, cwd, *argv, *(f"{key}={value}" for key, value in env.items())]
    if not argv or not argv[0]:
        raise InvalidInput("the command is empty", "give at least a program's name")
    blob = b"".join(_c_string(text) for text in strings)
    if len(blob) > _MAX_BLOB or len(argv) > 0xFFFF or len(env) > 0xFFFF:
        raise TooLarge(
            f"a command of {len(blob)} bytes is too large",
            f"arguments and environment together may have {MAX_COMMAND} bytes; pass the rest in a file or by "
            f"stdin",
        )
    flags = (_ExecFlag.STDIN if stdin else 0) | (_ExecFlag.TERMINAL if terminal else 0)
    size = terminal or TerminalSize(0, 0)
    head = _EXEC.pack(len(blob), len(argv), len(env), size.rows, size.cols, flags)
    pieces = (blob[start : start + MAX_PAYLOAD] for start in range(0, len(blob), MAX_PAYLOAD))
    return [_frame(_To.EXEC, process, head), *(_frame(_To.EXEC_DATA, process, piece) for piece in pieces)]


def _c_string(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogateescape")
    if b"\0" in raw:
        raise InvalidInput("the command holds a NUL character", "remove it; pass binary data by stdin")
    return raw + b"\0"


def stdin(process: ProcessId, data: bytes) -> bytes:
    """Input for a process: at most MAX_PAYLOAD bytes, and within the window."""
    if len(data) > MAX_PAYLOAD:
        raise TooLarge(f"{len(data)} bytes do not fit into a frame", f"send at most {MAX_PAYLOAD}")
    return _frame(_To.STDIN, process, data)


def stdin_close(process: ProcessId) -> bytes:
    """End of input after what was sent; to a terminal in line mode, its end-of-file character."""
    return _frame(_To.STDIN_CLOSE, process)


def resize(process: ProcessId, size: TerminalSize) -> bytes:
    """A new size of the process's terminal."""
    return _frame(_To.RESIZE, process, _SIZE.pack(size.rows, size.cols))


def signal(process: ProcessId, number: int, *, tree: bool = False) -> bytes:
    """A signal to the process's group, or to its whole tree."""
    if not 1 <= number <= 64:
        raise InvalidInput(f"{number} is not a signal", "give a number from 1 to 64")
    return _frame(_To.SIGNAL, process, _SIGNAL.pack(number, tree))


def kill(process: ProcessId) -> bytes:
    """KILL the whole tree, again and again until nothing of it is left (then GuestFlag.TREE_GONE is
    reported)."""
    return _frame(_To.KILL, process)


def forget(process: ProcessId) -> bytes:
    """Drop the record of an ended process. Without effect on one that runs."""
    return _frame(_To.FORGET, process)


def shutdown(grace: float) -> bytes:
    """TERM to everything, KILL after `grace` seconds; PID 1 exits when nothing is left."""
    return _frame(_To.SHUTDOWN, min(max(int(grace * 1000), 0), 0x7FFFFFFF))


def hostname(name: str) -> bytes:
    """Set the host name, where PID 1 has the right to: under gVisor."""
    return _frame(_To.HOSTNAME, 0, name.encode())


def announce(path: str, content: bytes) -> bytes:
    """Let a file below `/run` hold this, root's and readable for all; commands that are sent later find it. Raises TooLarge
    for more than a frame holds."""
    payload = path.encode() + b"\0" + content
    if len(payload) > MAX_PAYLOAD:
        raise TooLarge(
            f"{path} would hold {len(content)} bytes", f"announce at most {MAX_PAYLOAD} with its path"
        )
    return _frame(_To.ANNOUNCE, 0, payload)


class GuestDecoder:
    """Turns bytes from the guest into events, however they are cut."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def buffered(self) -> int:
        """Bytes of a frame that has not come whole."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[GuestEvent]:
        """The events that `data` completes. Raises UpstreamFailed on what no Corral init sends; then the
        stream is lost: make a new decoder and say `hello` again."""
        self._buffer += data
        events: list[GuestEvent] = []
        position = 0
        while len(self._buffer) - position >= _HEADER.size:
            kind, _flags, length, ident = _HEADER.unpack_from(self._buffer, position)
            _check_header(kind, length)
            end = position + _HEADER.size + length
            if end > len(self._buffer):
                break
            events.append(_decode(kind, ident, bytes(self._buffer[position + _HEADER.size : end])))
            position = end
        del self._buffer[:position]
        return events


_LENGTHS = {_From.WELCOME: _WELCOME.size, _From.READY: 0, _From.REPORT: _REPORT.size}


def _malformed(what: str) -> UpstreamFailed:
    return UpstreamFailed(
        f"the sandbox's init sent {what}",
        "something in the sandbox disturbed its PID 1: stop and start the sandbox",
    )


def _check_header(kind: int, length: int) -> None:
    """A later version may append fields to a frame, so longer ones pass."""
    try:
        least = _LENGTHS[_From(kind)]
    except ValueError:
        raise _malformed(f"a frame of unknown type {kind}") from None
    if not least <= length <= MAX_PAYLOAD:
        raise _malformed(f"a frame of {length} bytes, which its type excludes")


def _decode(kind: int, ident: int, payload: bytes) -> GuestEvent:
    if kind == _From.WELCOME:
        version, _reserved, count = _WELCOME.unpack_from(payload)
        return Welcome(ident, version, count)
    if kind == _From.READY:
        return Ready(ident)
    return _decode_report(ident, payload)


def _decode_report(ident: int, payload: bytes) -> Report:
    state, flags, number, stage, error, code, pid, _reserved, out, err, received, consumed = (
        _REPORT.unpack_from(payload)
    )
    try:
        state, stage = GuestState(state), StartStage(stage)
    except ValueError:
        raise _malformed(f"a report with state {state} and stage {stage}") from None
    if not 1 <= ident <= 0x7FFFFFFF or number > 64 or code > 255 or flags > 15:
        raise _malformed("a report that is out of range")
    if max(out, err, received, consumed) > 0x7FFFFFFFFFFFFFFF or consumed > received:
        raise _malformed("a report with impossible counts")
    ended = Exit(code, number) if state is GuestState.EXITED else None
    return Report(
        ProcessId(ident), state, GuestFlag(flags), ended, pid, out, err, received, consumed, stage, error
    )


def start_failure(report: Report, *, user: str, cwd: str) -> CorralError:
    """The error for a process in state FAILED."""
    name = errno.errorcode.get(report.errno, f"error {report.errno}")
    if report.stage is StartStage.USER:
        return InvalidInput(
            f"there is no user {user!r} in the sandbox", "give a name of its /etc/passwd, or a uid"
        )
    if report.stage is StartStage.WORKDIR:
        if report.errno == errno.EACCES:
            return Forbidden(
                f"user {user!r} may not enter the working directory {cwd!r}",
                "give another one with --workdir",
            )
        return InvalidInput(
            f"the working directory {cwd!r} cannot be entered ({name})", "create it, or give another one"
        )
    if report.errno in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC):
        return NoCapacity(
            f"the sandbox cannot start another process ({name})",
            "end some of its processes, or create it with higher limits (pids, memory)",
        )
    return Conflict(
        f"the process could not be started ({report.stage.name.lower()}: {name})",
        "look at the sandbox with `corral show`",
    )

"""The link to a sandbox's PID 1: two FIFOs, the spool that it writes, and what the daemon keeps of its
processes.

```
<run dir>/sandboxes/<id>/in, out        the FIFOs; PID 1 holds both open, so either side may come and go
<run dir>/sandboxes/<id>/processes/     one JSON file per process, out of the guest's reach
<store>/sandboxes/<id>/io/              the spool; the sandbox's root can put anything here
```

The end of the guest is seen by the pidfd of its first process: the FIFOs, which this side holds open too,
have no end.
"""

import asyncio
import contextlib
import errno
import fcntl
import os
import stat
import sys
import termios
from pathlib import Path

from corral.drivers.records import decode_process, encode_process
from corral.errors import Conflict, HostError
from corral.host import syscalls
from corral.model.ids import ProcessId
from corral.model.process import ProcessInfo, Stream

IN_FIFO = "in"
OUT_FIFO = "out"
RECORDS = "processes"
_CHUNK = 65536
# A whole FIFO is read at once, so this many reads empty it even while the guest writes.
_DRAIN_READS = 64
_MAX_RECEIVED = 4 * _CHUNK
_HOLE = 65536
_SUFFIX = {Stream.STDOUT: "out", Stream.STDERR: "err"}
# What opening something else than a regular file of ours says.
_NOT_THERE = frozenset({errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.ENOTDIR, errno.EISDIR, errno.ENODEV})


def make_fifos(place: Path) -> None:
    """Make a sandbox's FIFOs anew, so that nothing from a former life is in them."""
    for name in (IN_FIFO, OUT_FIFO):
        (place / name).unlink(missing_ok=True)
        os.mkfifo(place / name, 0o600)
    (place / RECORDS).mkdir(mode=0o700, exist_ok=True)


def clear_spool(spool: Path, place: Path) -> None:
    """Before a start: remove what is in the spool of processes that are no longer known, whose ids may come
    again."""
    kept = {path.stem for path in (place / RECORDS).glob("*.json")}
    for entry in spool.iterdir():
        if entry.name.partition(".")[0] not in kept:
            with contextlib.suppress(FileNotFoundError, IsADirectoryError, PermissionError):
                entry.unlink()


def pending(place: Path) -> int:
    """Bytes that PID 1 has been told and has not read yet."""
    fd = os.open(place / IN_FIFO, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)), sys.byteorder)
    finally:
        os.close(fd)


class FifoLink:
    """A GuestLink. Belongs to the event loop that it is made on; takes over `pidfd`.

    Making one drops what the guest had said to a former one: say `hello` first.
    """

    def __init__(self, place: Path, spool: Path, pidfd: int) -> None:
        self._records = place / RECORDS
        # By path, so that output can be read after the guest's end. The guest can replace what is in the
        # directory, not the directory: only the last component needs care.
        self._spool = spool
        self._loop = asyncio.get_running_loop()
        self._sending = asyncio.Lock()
        self._changed = asyncio.Event()  # data has come, or the end
        self._writable = asyncio.Event()
        self._received = bytearray()
        self._reading = False
        self._gone = False
        self._closed = False
        with contextlib.ExitStack() as opened:
            opened.callback(os.close, pidfd)
            self._pidfd = pidfd
            self._in = _open_fifo(place / IN_FIFO, opened)
            self._out = _open_fifo(place / OUT_FIFO, opened)
            self._descriptors = opened.pop_all()
        self._read_all()
        self._received.clear()
        self._set_reading(reading=True)
        self._loop.add_reader(self._pidfd, self._on_gone)

    # -- frames
    # ---------------------------------------------------------------------------------------------------

    async def send(self, frame: bytes) -> None:
        """As GuestLink says. Frames go out in the order of the calls."""
        async with self._sending:
            while True:
                if self._closed or self._gone:
                    raise Conflict("the sandbox is not running", "start it: `corral start NAME`")
                try:
                    os.write(self._in, frame)  # all or nothing, for it is at most PIPE_BUF bytes
                except BlockingIOError:
                    await self._wait_writable()
                else:
                    return

    async def receive(self) -> bytes:
        """As GuestLink says."""
        while not self._received:
            if self._closed or self._gone:
                return b""
            self._changed.clear()
            await self._changed.wait()
        data = bytes(self._received)
        self._received.clear()
        if not self._closed:
            self._set_reading(reading=True)
        return data

    def close(self) -> None:
        """As GuestLink says. Idempotent."""
        if self._closed:
            return
        self._set_reading(reading=False)
        self._loop.remove_reader(self._pidfd)
        self._loop.remove_writer(self._in)
        self._closed = True
        self._changed.set()
        self._writable.set()
        self._descriptors.close()

    async def _wait_writable(self) -> None:
        self._writable.clear()
        self._loop.add_writer(self._in, self._writable.set)
        try:
            await self._writable.wait()
        finally:
            if not self._closed:
                self._loop.remove_writer(self._in)

    def _set_reading(self, *, reading: bool) -> None:
        if reading == self._reading:
            return
        self._reading = reading
        if reading:
            self._loop.add_reader(self._out, self._on_readable)
        else:
            self._loop.remove_reader(self._out)

    def _on_readable(self) -> None:
        if self._read_some() and len(self._received) >= _MAX_RECEIVED:
            self._set_reading(reading=False)
        self._changed.set()

    def _on_gone(self) -> None:
        """PID 1 has ended: nothing more will come, after what is in the FIFO."""
        self._loop.remove_reader(self._pidfd)
        self._set_reading(reading=False)
        self._read_all()
        self._gone = True
        self._changed.set()
        self._writable.set()

    def _read_all(self) -> None:
        for _ in range(_DRAIN_READS):
            if not self._read_some():
                break

    def _read_some(self) -> bool:
        try:
            data = os.read(self._out, _CHUNK)
        except BlockingIOError:
            return False
        self._received += data
        return True

    # -- output
    # ---------------------------------------------------------------------------------------------------

    def read_spool(self, process: ProcessId, stream: Stream, offset: int, size: int) -> bytes:
        """As GuestLink says. Raises HostError if the disk cannot be read."""
        fd = self._open_spool(process, stream, os.O_RDONLY)
        if fd is None:
            return b""
        try:
            return os.pread(fd, size, offset)
        except OSError as error:
            raise HostError(f"cannot read the output of process {process}: {error.strerror}") from error
        finally:
            os.close(fd)

    def free_spool(self, process: ProcessId, stream: Stream, upto: int) -> None:
        """As GuestLink says; in steps of 64 KiB."""
        length = upto - upto % _HOLE
        fd = self._open_spool(process, stream, os.O_WRONLY) if length else None
        if fd is None:
            return
        try:
            syscalls.punch_hole(fd, 0, length)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:  # a file system without holes keeps it all
                raise HostError(f"cannot free the output of process {process}: {error.strerror}") from error
        finally:
            os.close(fd)

    def remove_spool(self, process: ProcessId) -> None:
        """As GuestLink says."""
        for suffix in _SUFFIX.values():
            # What the guest put in its place instead of a file is the guest's to keep.
            with contextlib.suppress(FileNotFoundError, IsADirectoryError, PermissionError):
                (self._spool / f"{process}.{suffix}").unlink()

    def _open_spool(self, process: ProcessId, stream: Stream, mode: int) -> int | None:
        """A descriptor of a regular file, or None. O_NONBLOCK: opening a FIFO must not wait."""
        flags = mode | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        try:
            fd = os.open(self._spool / f"{process}.{_SUFFIX[stream]}", flags)
        except OSError as error:
            if error.errno in _NOT_THERE:
                return None
            raise HostError(f"cannot open the output of process {process}: {error.strerror}") from error
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        os.close(fd)
        return None

    # -- records
    # --------------------------------------------------------------------------------------------------

    def save_process(self, info: ProcessInfo) -> None:
        """As GuestLink says; at once or not at all."""
        record = encode_process(info)
        try:
            fd = os.open(self._record(info.id), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                written = os.write(fd, record)
            finally:
                os.close(fd)
            if written != len(record):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise HostError(f"cannot keep the record of process {info.id}: {error.strerror}") from error

    def saved_processes(self) -> list[ProcessInfo]:
        """As GuestLink says."""
        paths = sorted(self._records.glob("*.json"), key=lambda path: int(path.stem))
        found = [decode_process(path.read_bytes()) for path in paths]
        return [info for info in found if info is not None]

    def forget_process(self, process: ProcessId) -> None:
        """As GuestLink says."""
        self._record(process).unlink(missing_ok=True)

    def _record(self, process: ProcessId) -> Path:
        return self._records / f"{process}.json"


def _open_fifo(path: Path, opened: contextlib.ExitStack) -> int:
    """For reading and writing, so that it never ends; not blocking."""
    fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    opened.callback(os.close, fd)
    return fd

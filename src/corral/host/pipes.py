"""The pipes between the spawner and a child: outputs read by the event loop, inputs that need no feeding."""

import asyncio
import contextlib
import fcntl
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from typing import Self

# What a pipe can hold is 1 MiB at most; whoever keeps writing after that is not the child.
_DRAIN_READS = 16


class Collector:
    """One output of a child: a pipe read by the event loop, of which the first `limit` bytes are kept."""

    def __init__(self, limit: int, on_line: Callable[[str], None] | None) -> None:
        self._read_end: int | None
        self._read_end, self.write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._read_end, False)
        self._loop = asyncio.get_running_loop()
        self._room = limit
        self._kept: list[bytes] = []
        self._on_line = on_line
        self._partial = b""
        self._on_error: Callable[[], None] = lambda: None
        self.truncated = False
        self.error: Exception | None = None

    def listen(self, on_error: Callable[[], None]) -> None:
        """The child has its end: read until it is closed. `on_error` is called if `on_line` raises."""
        self._close_write_end()
        self._on_error = on_error
        if self._read_end is not None:
            self._loop.add_reader(self._read_end, self._read_some)

    def detach(self) -> int:
        """Hand over the reading end instead."""
        self._close_write_end()
        if self._read_end is None:
            raise ValueError("the pipe is closed")
        fd, self._read_end = self._read_end, None
        return fd

    def drain(self) -> None:
        """Take what is in the pipe after the child's end. A process that it left behind may hold the pipe
        open.
        """
        for _ in range(_DRAIN_READS):
            if not self._read_some():
                break
        if self._partial:
            self._tell([self._partial])
            self._partial = b""
        if self.error is not None:
            raise self.error

    def kept(self) -> bytes:
        """What was kept."""
        return b"".join(self._kept)

    def close(self) -> None:
        """Close both ends."""
        self._close_write_end()
        if self._read_end is not None:
            self._loop.remove_reader(self._read_end)
            os.close(self._read_end)
            self._read_end = None

    def _close_write_end(self) -> None:
        if self.write_end >= 0:
            os.close(self.write_end)
            self.write_end = -1

    def _read_some(self) -> bool:
        if self._read_end is None:
            return False
        try:
            data = os.read(self._read_end, 65536)
        except BlockingIOError:
            return False
        if not data:
            self.close()
            return False
        if len(data) > self._room:
            self.truncated = True
        if self._room:
            self._kept.append(data[: self._room])
            self._room -= len(self._kept[-1])
        if self._on_line is not None:
            *lines, self._partial = (self._partial + data).split(b"\n")
            # A line without end is told in pieces, so that it cannot fill memory.
            if len(self._partial) > 65536:
                lines, self._partial = [*lines, self._partial], b""
            self._tell(lines)
        return True

    def _tell(self, lines: Sequence[bytes]) -> None:
        if self._on_line is None or self.error is not None:
            return
        try:
            for line in lines:
                self._on_line(line.decode("utf-8", "replace").rstrip("\r"))
        except Exception as error:  # noqa: BLE001 - raised again by drain(), where the caller is
            self.error = error
            self._on_error()


class Pipes:
    """Both outputs of a child."""

    def __init__(self, limit: int, on_line: Callable[[str], None] | None) -> None:
        self.out = Collector(limit, on_line)
        try:
            self.err = Collector(limit, on_line)
        except OSError:
            self.out.close()
            raise

    def listen(self, on_error: Callable[[], None]) -> None:
        """The child has its ends: read both."""
        self.out.listen(on_error)
        self.err.listen(on_error)

    def drain(self) -> None:
        """Take what is left in both after the child's end."""
        self.out.drain()
        self.err.drain()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.out.close()
        self.err.close()


@contextlib.contextmanager
def input_file(data: bytes | None) -> Iterator[int]:
    """A descriptor to read `data` from: an anonymous file needs no feeding, and cannot deadlock."""
    if data is None:
        yield subprocess.DEVNULL
        return
    fd = os.memfd_create("input", os.MFD_CLOEXEC)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(data)
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def nowhere() -> Iterator[int]:
    """A descriptor that reads as empty and cannot be written to, and whose owner and mode are nobody's concern.

    crun gives a container's root what the container gets as its standard streams: /dev/null would be the host's own.
    """
    fd = os.memfd_create("nowhere", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL)
        yield fd
    finally:
        os.close(fd)

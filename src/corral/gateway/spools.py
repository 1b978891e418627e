"""Pushes that wait in a file until they were read and judged. The gateway has no file system of its own to speak of: the
engine makes the files, and reads them too.
"""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from corral.errors import CorralError, DiskFull, InternalError, TooLarge, UpstreamFailed, all_errors
from corral.gateway.channel import Channel
from corral.model.ids import SandboxId
from corral.model.push import PushReport, PushToInspect
from corral.wire import link

_T = TypeVar("_T")
_BLOCK = 1024 * 1024
_OPEN_SECONDS = 30.0
_INSPECT_SECONDS = 1500.0


class Spools:
    """Numbers pushes, and asks the engine for their files and reports."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._number = 0
        self._files: dict[int, asyncio.Future[int]] = {}
        self._reports: dict[int, asyncio.Future[PushReport]] = {}

    async def open(self, sandbox: SandboxId, limit: int) -> "Spool":
        """A file for a push of at most `limit` bytes. Raises CorralError if there is none."""
        self._number += 1
        number = self._number
        waiting = self._files[number] = asyncio.get_running_loop().create_future()
        self._channel.send(link.OpenSpool(number, sandbox))
        try:
            async with asyncio.timeout(_OPEN_SECONDS):
                return Spool(self, number, await waiting, limit)
        except TimeoutError:
            self.close(number)
            raise UpstreamFailed("the engine does not answer", "push again") from None
        except asyncio.CancelledError:
            self.close(number)
            raise
        finally:
            del self._files[number]

    async def inspect(self, number: int, push: PushToInspect) -> PushReport:
        """What a file brings. Raises CorralError."""
        waiting: asyncio.Future[PushReport] = asyncio.get_running_loop().create_future()
        self._reports[number] = waiting
        self._channel.send(link.Inspect(number, push))
        try:
            async with asyncio.timeout(_INSPECT_SECONDS):
                return await waiting
        except TimeoutError:
            raise UpstreamFailed("reading the push takes too long", "push again") from None
        finally:
            del self._reports[number]

    def close(self, number: int) -> None:
        """A file is not needed any more."""
        self._channel.send(link.CloseSpool(number))

    def take(self, message: link.Spool | link.Inspected | link.PushFailed, fds: list[int]) -> None:
        """The engine's word. That on a push which nobody waits for is late, and ignored."""
        waiting: asyncio.Future[int] | asyncio.Future[PushReport] | None
        match message:
            case link.Spool():
                file = self._files.get(message.number)
                if file is None or file.done():
                    os.close(fds[0])
                else:
                    file.set_result(fds[0])
            case link.Inspected():
                report = self._reports.get(message.number)
                if report is not None and not report.done():
                    report.set_result(message.report)
            case link.PushFailed():
                waiting = self._files.get(message.number) or self._reports.get(message.number)
                if waiting is not None and not waiting.done():
                    waiting.set_exception(_error_of(message))


class Spool:
    """One file. `digest` is that of all that was written, in hexadecimal."""

    def __init__(self, spools: Spools, number: int, fd: int, limit: int) -> None:
        self._spools = spools
        self._number = number
        self._fd = fd
        self._limit = limit
        self._waiting = bytearray()
        self._sha = hashlib.sha256()
        self._busy: asyncio.Future[Any] | None = None
        self.size = 0

    async def write(self, data: bytes) -> None:
        """Append. Raises TooLarge or DiskFull."""
        self.size += len(data)
        if self.size > self._limit:
            raise TooLarge(
                f"the push is larger than {self._limit // 1024**2} MiB", "push less at once, or use LFS"
            )
        self._waiting += data
        if len(self._waiting) >= _BLOCK:
            await self.flush()

    async def flush(self) -> None:
        """Write what waits."""
        data, self._waiting = self._waiting, bytearray()
        try:
            await self._off_loop(self._store, data)
        except OSError as error:
            raise DiskFull(f"the host has no room for the push: {error.strerror}") from None

    async def _off_loop(self, work: Callable[..., _T], *args: object) -> _T:
        future = asyncio.get_running_loop().run_in_executor(None, work, *args)
        self._busy = future
        return await asyncio.shield(future)

    def _store(self, data: bytearray) -> None:
        self._sha.update(data)
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]

    @property
    def digest(self) -> str:
        """Of what was written until now."""
        return self._sha.hexdigest()

    async def inspect(self, push: PushToInspect) -> PushReport:
        """What it brings. Raises CorralError."""
        return await self._spools.inspect(self._number, push)

    async def read(self) -> AsyncIterator[bytes]:
        """All of it. Raises InternalError if it is not what was written: then it must not be sent (G-261)."""
        at, sha = 0, hashlib.sha256()
        while at < self.size:
            data = await self._off_loop(os.pread, self._fd, min(_BLOCK, self.size - at), at)
            if not data:
                raise InternalError("a push was cut on its way")
            sha.update(data)
            at += len(data)
            if at == self.size and sha.hexdigest() != self.digest:
                raise InternalError("a push was changed on its way")
            yield data

    def close(self) -> None:
        """Give the file back."""
        if self._busy is None or self._busy.done():
            os.close(self._fd)
        else:  # a thread still uses the descriptor, whose number must not become another file's
            self._busy.add_done_callback(lambda _: os.close(self._fd))
        self._spools.close(self._number)


def _error_of(failed: link.PushFailed) -> CorralError:
    return all_errors().get(failed.code, InternalError)(failed.message, failed.hint)

"""Following a directory of a sandbox, as the event loop sees it."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable

from corral.engine.ports import Watch, WatchEvent, WatchEventKind
from corral.host.fileerrors import translated
from corral.host.turns import Turns
from corral.host.watch import TreeWatch

_PATROL = 5.0
"""Seconds after which the end of the watched directory is noticed."""
_DRAIN_READS = 64
"""Whoever changes files without a pause could keep a drain busy for ever."""


@contextlib.asynccontextmanager
async def watch_tree(
    turns: Turns, path: str, open_root: Callable[[], int], *, recursive: bool
) -> AsyncIterator[Watch]:
    """Changes below `path`, which `open_root` opens (O_PATH), from entering to leaving the block."""

    def begin() -> TreeWatch:
        with translated(path):
            return TreeWatch(open_root(), recursive=recursive)

    watch = await turns.call(begin, TreeWatch.close)
    try:
        yield _Watch(turns, watch, path)
    finally:
        watch.close()


class _Watch:
    def __init__(self, turns: Turns, watch: TreeWatch, path: str) -> None:
        self._turns = turns
        self._watch = watch
        self._path = path
        self._pending: deque[WatchEvent] = deque()
        self._reading = asyncio.Lock()

    def __aiter__(self) -> AsyncIterator[WatchEvent]:
        return self

    async def __anext__(self) -> WatchEvent:
        while not self._pending:
            if self._watch.ended:
                raise StopAsyncIteration
            await _readable(self._watch.fileno())
            await self._read_more()
        return self._pending.popleft()

    async def drain(self) -> list[WatchEvent]:
        """As Watch says."""
        for _ in range(_DRAIN_READS):
            if self._watch.ended or not await self._read_more():
                break
        told, self._pending = list(self._pending), deque()
        return told

    async def _read_more(self) -> bool:
        async with self._reading:
            events = await self._turns.call(self._read)
            self._pending += events
            return bool(events)

    def _read(self) -> list[WatchEvent]:
        base = self._path.rstrip("/")
        with translated(self._path):
            return [
                WatchEvent(
                    WatchEventKind(change.kind.value), f"{base}/{change.path}" if change.path else self._path
                )
                for change in self._watch.read()
            ]


async def _readable(fd: int) -> None:
    """Return when `fd` is readable, or it is time to look anyway."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    timer = loop.call_later(_PATROL, wake)
    loop.add_reader(fd, wake)
    try:
        await ready
    finally:
        loop.remove_reader(fd)
        timer.cancel()

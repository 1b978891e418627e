"""Following a directory of a sandbox, as the event loop sees it."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable

from corral.engine.ports import WatchEvent, WatchEventKind
from corral.host.fileerrors import translated
from corral.host.turns import Turns
from corral.host.watch import TreeWatch

_PATROL = 5.0
"""Seconds after which the end of the watched directory is noticed."""


@contextlib.asynccontextmanager
async def watch_tree(
    turns: Turns, path: str, open_root: Callable[[], int], *, recursive: bool
) -> AsyncIterator[AsyncIterator[WatchEvent]]:
    """Changes below `path`, which `open_root` opens (O_PATH), from entering to leaving the block."""

    def begin() -> TreeWatch:
        with translated(path):
            return TreeWatch(open_root(), recursive=recursive)

    watch = await turns.call(begin, TreeWatch.close)
    events = _events(turns, watch, path)
    try:
        yield events
    finally:
        await events.aclose()
        watch.close()


async def _events(turns: Turns, watch: TreeWatch, path: str) -> AsyncGenerator[WatchEvent, None]:
    def read() -> list[WatchEvent]:
        with translated(path):
            return [
                WatchEvent(
                    WatchEventKind(change.kind.value), f"{base}/{change.path}" if change.path else path
                )
                for change in watch.read()
            ]

    base = path.rstrip("/")
    while not watch.ended:
        await _readable(watch.fileno())
        for event in await turns.call(read):
            yield event


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

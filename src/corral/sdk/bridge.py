"""Between synchronous and asynchronous streams of bytes."""

import asyncio
from collections.abc import AsyncIterator, Iterator


async def in_thread(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    """A blocking iterator, read in a thread, one step at a time."""
    while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
        yield chunk


def from_loop(chunks: AsyncIterator[bytes], loop: asyncio.AbstractEventLoop) -> Iterator[bytes]:
    """An asynchronous iterator, read from a thread other than its loop's."""

    async def step() -> bytes | None:
        return await anext(chunks, None)

    while (chunk := asyncio.run_coroutine_threadsafe(step(), loop).result()) is not None:
        yield chunk

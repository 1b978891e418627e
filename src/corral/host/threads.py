"""Blocking work beside the event loop."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any, TypeVar

_T = TypeVar("_T")


@asynccontextmanager
async def in_thread(context: AbstractContextManager[_T]) -> AsyncIterator[_T]:
    """A context whose both ends may block, entered and left in threads.

    What was entered is left, also when the caller is cancelled while that is under way, which it then waits for. The context
    is not told of failures in the block.
    """
    entering = asyncio.ensure_future(asyncio.to_thread(context.__enter__))
    try:
        entered = await asyncio.shield(entering)
    except asyncio.CancelledError:
        await asyncio.shield(_left_once_entered(context, entering))
        raise
    try:
        yield entered
    finally:
        await asyncio.shield(_leave(context))


async def _left_once_entered(context: AbstractContextManager[Any], entering: "asyncio.Future[Any]") -> None:
    await asyncio.wait((entering,))
    if not entering.cancelled() and entering.exception() is None:
        await _leave(context)


async def _leave(context: AbstractContextManager[Any]) -> None:
    await asyncio.to_thread(context.__exit__, None, None, None)

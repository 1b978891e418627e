"""Blocking work on threads, in turns, and never left behind."""

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

_T = TypeVar("_T")


class Turns:
    """At most `at_once` calls of one user run on `threads`: where many share them, nobody, however slow, takes
    them all.
    """

    def __init__(self, threads: Executor, at_once: int) -> None:
        self._threads = threads
        self._free = asyncio.Semaphore(at_once)

    async def call(self, work: Callable[[], _T], undo: Callable[[_T], object] | None = None) -> _T:
        """The result of `work`. A cancelled call still waits for its end, since what the work uses or makes is
        closed or removed next; `undo` then gets the result that nobody takes.
        """
        async with self._free:
            future = asyncio.get_running_loop().run_in_executor(self._threads, work)
            try:
                return await asyncio.shield(future)
            except asyncio.CancelledError:
                while not future.done():
                    with contextlib.suppress(asyncio.CancelledError):
                        await asyncio.wait([future])
                if not future.cancelled() and future.exception() is None and undo is not None:
                    undo(future.result())
                raise

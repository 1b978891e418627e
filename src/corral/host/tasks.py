"""The one owner of background tasks: of those that outlive the function that starts them."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

from corral.errors import InternalError

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class TaskOwner:
    """Runs tasks until they end or the block is left; leaving cancels those that run and waits for them.

    A task that fails is logged at once, and given to `on_failure` with its name; it does not stop the
    others. (Work whose failure must stop its siblings belongs in an asyncio.TaskGroup.)
    """

    def __init__(self, on_failure: Callable[[str, BaseException], None] | None = None) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._on_failure = on_failure
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, coro: Coroutine[Any, Any, _T], *, name: str) -> "asyncio.Task[_T]":
        """Run `coro` in the background; `name` is for the log. Raises InternalError after `close`."""
        if self._closed:
            coro.close()
            raise InternalError(f"the task {name!r} was started after its owner had ended")
        task = asyncio.get_running_loop().create_task(coro, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def close(self) -> None:
        """Cancel all tasks and wait until they have ended. Idempotent. Not to be called from one of them."""
        self._closed = True
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(set(self._tasks))

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        failure = task.exception()
        if failure is not None:
            _log.error("task %s failed", task.get_name(), exc_info=failure)
            if self._on_failure is not None:
                self._on_failure(task.get_name(), failure)

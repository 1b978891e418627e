"""Waking everybody who waits for something to change."""

import asyncio


class Change:
    """Wakes all waiters at each `notify`. A waiter that reads state, then awaits `next` taken before the read, misses nothing."""

    def __init__(self) -> None:
        self._future: asyncio.Future[None] | None = None

    def next(self) -> asyncio.Future[None]:
        """A future that the next `notify` completes; shared by all waiters, so shield it before adding a time limit."""
        if self._future is None:
            self._future = asyncio.get_running_loop().create_future()
        return self._future

    def notify(self) -> None:
        """Wake everybody who waits now."""
        future, self._future = self._future, None
        if future is not None and not future.done():
            future.set_result(None)

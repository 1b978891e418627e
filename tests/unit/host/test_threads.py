"""Contexts that are entered and left in threads."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from corral.host.threads import in_thread


class Gate:
    """A context that takes until it is opened to enter."""

    def __init__(self) -> None:
        self.opened, self.begun = threading.Event(), threading.Event()
        self.seen: list[str] = []

    @contextmanager
    def passing(self) -> Iterator[str]:
        self.begun.set()
        assert self.opened.wait(20)
        self.seen.append("entered")
        try:
            yield "through"
        finally:
            self.seen.append("left")


async def test_it_is_entered_and_left_in_threads() -> None:
    gate = Gate()
    gate.opened.set()

    async def work() -> None:
        async with in_thread(gate.passing()) as what:
            gate.seen.append(what)
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        await work()
    assert gate.seen == ["entered", "through", "left"]


async def test_a_caller_that_is_cancelled_while_it_enters_leaves_nothing_entered() -> None:
    gate = Gate()

    async def work() -> None:
        async with in_thread(gate.passing()):
            gate.seen.append("worked")

    async with asyncio.timeout(20):
        task = asyncio.ensure_future(work())
        await asyncio.to_thread(gate.begun.wait, 20)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        gate.opened.set()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert gate.seen == ["entered", "left"]


class Shut(AbstractContextManager[None]):
    """A context that nobody enters."""

    def __enter__(self) -> None:
        raise OSError("shut")

    def __exit__(self, *_: object) -> None:
        raise AssertionError("it was never entered")


async def test_what_cannot_be_entered_is_told_and_not_left() -> None:
    with pytest.raises(OSError, match="shut"):
        async with in_thread(Shut()):
            pytest.fail("it was entered")

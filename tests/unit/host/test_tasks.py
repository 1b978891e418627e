"""The owner of background tasks."""

import asyncio
import logging

import pytest

from corral.errors import InternalError
from corral.host.tasks import TaskOwner


async def test_leaving_cancels_what_runs_and_waits_for_it() -> None:
    cleaned = False
    started = asyncio.Event()

    async def work() -> None:
        nonlocal cleaned
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned = True

    async with TaskOwner() as owner:
        owner.start(work(), name="waiting")
        await started.wait()
        assert len(owner) == 1
    assert cleaned
    assert len(owner) == 0


async def test_a_failure_is_logged_and_told_and_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    failures: list[tuple[str, BaseException]] = []
    told = asyncio.Event()

    def on_failure(name: str, error: BaseException) -> None:
        failures.append((name, error))
        told.set()

    async def fail() -> None:
        raise ValueError("broken")

    async with TaskOwner(on_failure) as owner:
        other = owner.start(asyncio.Event().wait(), name="other")
        with caplog.at_level(logging.ERROR):
            owner.start(fail(), name="failing")
            await told.wait()
        assert not other.done()
    assert [(name, str(error)) for name, error in failures] == [("failing", "broken")]
    assert "task failing failed" in caplog.text


async def test_a_result_can_be_awaited() -> None:
    async def answer() -> int:
        return 42

    async with TaskOwner() as owner:
        assert await owner.start(answer(), name="answer") == 42


async def test_nothing_starts_after_the_end() -> None:
    owner = TaskOwner()
    await owner.close()
    with pytest.raises(InternalError):
        owner.start(asyncio.sleep(0), name="late")

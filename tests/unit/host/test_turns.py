"""Work on threads that is cancelled is waited for."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from corral.host.turns import Turns


async def test_results_and_errors_pass() -> None:
    with ThreadPoolExecutor(2) as threads:
        turns = Turns(threads, 1)
        assert await turns.call(lambda: 7) == 7
        with pytest.raises(ZeroDivisionError):
            await turns.call(lambda: 1 // 0)


async def test_a_cancelled_call_ends_before_its_caller_goes_on() -> None:
    started, release, undone = threading.Event(), threading.Event(), list[str]()

    def work() -> str:
        started.set()
        release.wait(30)
        return "made"

    with ThreadPoolExecutor(1) as threads:
        turns = Turns(threads, 1)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(turns.call(work, undone.append))
            await asyncio.to_thread(started.wait, 30)
            task.cancel()
            done, _ = await asyncio.wait([task], timeout=0)
            assert not done
            release.set()
        assert task.cancelled()
    assert undone == ["made"]


async def test_one_user_takes_its_share_only() -> None:
    with ThreadPoolExecutor(4) as threads:
        turns = Turns(threads, 2)
        running, most, lock = 0, 0, threading.Lock()
        barrier = threading.Barrier(2, timeout=30)

        def work() -> None:
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            barrier.wait()
            with lock:
                running -= 1

        async with asyncio.TaskGroup() as group:
            for _ in range(8):
                group.create_task(turns.call(work))
    assert most == 2

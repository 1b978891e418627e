"""Server-sent events: a response that beats while it is idle and ends its work when the client goes."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from corral.api.failures import public_error
from corral.errors import Timeout
from corral.protocol.base import Error, ProgressLine

HEARTBEAT_SECONDS = 15.0
IDLE_SECONDS = 0.2
PROGRESS_KEPT = 1000
"""Progress lines that wait for a slow client; more are dropped."""

Emit = Callable[[bytes], Awaitable[None]]
Tell = Callable[[str], None]
T = TypeVar("T")


class _ClientGone(Exception):
    """Ends the tasks of a response whose client is no longer there."""


def event(name: str, payload: BaseModel) -> bytes:
    """One event. JSON holds no raw line break, so the data is always one line."""
    return f"event: {name}\ndata: {payload.model_dump_json()}\n\n".encode()


def error_event(error: BaseException) -> bytes:
    """The event `error`, for what fails after the status has been sent."""
    return event("error", Error.model_validate(public_error(error).to_dict()))


class EventStream(Response):
    """A response of events, sent by `produce`, which may return the last one. When the client goes, `produce` is
    cancelled."""

    media_type = "text/event-stream"

    def __init__(
        self, produce: Callable[[Emit], Awaitable[bytes | None]], heartbeat: float = HEARTBEAT_SECONDS
    ) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._produce = produce
        self._heartbeat = heartbeat

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve."""
        sending = asyncio.Lock()

        async def emit(data: bytes) -> None:
            async with sending:
                await send({"type": "http.response.body", "body": data, "more_body": True})

        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            async with asyncio.TaskGroup() as tasks:
                aside = [tasks.create_task(_watch(receive)), tasks.create_task(_beat(emit, self._heartbeat))]
                last = await self._produce_all(emit)
                for task in aside:
                    task.cancel()
                # With the end of the response in one packet, so that the client has all of it at once.
                await send({"type": "http.response.body", "body": last, "more_body": False})
        except* _ClientGone:
            pass  # nobody is left to answer

    async def _produce_all(self, emit: Emit) -> bytes:
        try:
            return await self._produce(emit) or b""
        except Exception as error:  # noqa: BLE001  the boundary: told to the client and logged
            return error_event(error)


async def stream(events: AsyncGenerator[bytes, None]) -> Response:
    """Respond with events once the first is there: what fails before it still gets a status of its own."""
    first = await anext(events, b"")

    async def produce(emit: Emit) -> None:
        try:
            await emit(first)
            async for item in events:
                await emit(item)
        finally:
            await events.aclose()

    return EventStream(produce)


async def until_idle(items: AsyncIterator[T]) -> AsyncIterator[T]:
    """The same items, until none has come for a while: what is there now, rather than what will come."""
    while True:
        try:
            async with asyncio.timeout(IDLE_SECONDS):
                item = await anext(items)
        except (TimeoutError, StopAsyncIteration):
            return
        yield item


def progress_stream(work: Callable[[Tell], Coroutine[Any, Any, BaseModel]]) -> Response:
    """Respond with what long work tells (events `progress`) and with its outcome (`result` or `error`)."""

    async def produce(emit: Emit) -> bytes:
        loop = asyncio.get_running_loop()
        lines: asyncio.Queue[str | None] = asyncio.Queue()

        def put(line: str) -> None:
            if lines.qsize() < PROGRESS_KEPT:
                lines.put_nowait(line)

        async def run() -> bytes:
            try:
                # Lines may come from any thread; the end goes the same way, so that it is the last.
                return event("result", await work(lambda line: _to_loop(loop, put, line)))
            except Exception as error:  # noqa: BLE001  the boundary: told to the client and logged
                return error_event(error)
            finally:
                loop.call_soon(lines.put_nowait, None)

        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(run())
            while (line := await lines.get()) is not None:
                await emit(event("progress", ProgressLine(message=line)))
        return task.result()

    return EventStream(produce)


def _to_loop(loop: asyncio.AbstractEventLoop, put: Tell, line: str) -> None:
    loop.call_soon_threadsafe(put, line)


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client goes."""
    failure: Exception | None = None
    result: T | None = None
    try:
        async with asyncio.TaskGroup() as tasks:
            watcher = tasks.create_task(_watch(request.receive))
            try:
                result = await work
            except Exception as error:  # noqa: BLE001  raised below, outside of the group
                failure = error
            watcher.cancel()
    except* _ClientGone:
        failure = Timeout("the client went away before the answer")
    if failure is not None:
        raise failure
    return result  # type: ignore[return-value]  # set, since there was no failure


async def _watch(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    raise _ClientGone


async def _beat(emit: Emit, seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        await emit(b": still here\n\n")

"""Streams of the API as they are on the wire."""

import asyncio
import base64
import json
from typing import Any

import httpx2
import pytest

from corral.api.streams import EventStream, event, progress_stream, until_idle, while_connected
from corral.errors import Timeout
from corral.protocol.base import Done


def events_of(text: str) -> list[tuple[str, Any]]:
    found = []
    for block in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if line and not line.startswith(":"))
        if "event" in lines:
            found.append((lines["event"], json.loads(lines["data"])))
    return found


@pytest.fixture
async def box(http: httpx2.AsyncClient) -> str:
    return str((await http.post("/v1/sandboxes", json={"name": "box"})).json()["name"])


async def test_output_starts_with_the_process_and_ends_with_its_exit(
    http: httpx2.AsyncClient, box: str
) -> None:
    started = (await http.post(f"/v1/sandboxes/{box}/processes", json={"argv": ["echo", "hello"]})).json()
    response = await http.get(f"/v1/sandboxes/{box}/processes/{started['id']}/output")
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    names = [name for name, _ in events_of(response.text)]
    assert names == ["start", "stdout", "exit"]
    data = dict(events_of(response.text))
    assert base64.b64decode(data["stdout"]["data"]) == b"hello\n"
    assert data["stdout"]["offset"] == 0
    assert data["exit"] == {"code": 0, "signal": 0, "reason": ""}


async def test_output_goes_on_from_the_given_offset(http: httpx2.AsyncClient, box: str) -> None:
    await http.post(f"/v1/sandboxes/{box}/processes", json={"argv": ["big", "3000"]})
    response = await http.get(f"/v1/sandboxes/{box}/processes/1/output?stdout=2990")
    chunks = [data for name, data in events_of(response.text) if name == "stdout"]
    assert [(c["offset"], len(base64.b64decode(c["data"]))) for c in chunks] == [(2990, 10)]


async def test_a_stream_that_cannot_begin_has_a_status_of_its_own(http: httpx2.AsyncClient, box: str) -> None:
    response = await http.get(f"/v1/sandboxes/{box}/processes/77/output")
    assert (response.status_code, response.json()["code"]) == (404, "not_found")


async def test_a_stream_that_fails_in_the_middle_ends_with_an_error(
    http: httpx2.AsyncClient, engine: Any, box: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> Any:
        if _:
            raise ZeroDivisionError
        yield

    monkeypatch.setattr(engine.processes, "output", broken)
    await http.post(f"/v1/sandboxes/{box}/processes", json={"argv": ["echo"]})
    response = await http.get(f"/v1/sandboxes/{box}/processes/1/output")
    names = [name for name, _ in events_of(response.text)]
    assert names == ["start", "error"]
    assert events_of(response.text)[1][1]["code"] == "internal"


async def test_create_tells_progress_from_any_thread_and_the_result_last(http: httpx2.AsyncClient) -> None:
    response = await http.post("/v1/sandboxes", json={"name": "box"}, headers={"accept": "text/event-stream"})
    events = events_of(response.text)
    assert events[0] == ("progress", {"message": "unpacking\x1b[2J"})
    assert events[-1][0] == "result"
    assert events[-1][1]["name"] == "box"


async def test_a_build_that_fails_ends_with_its_error(http: httpx2.AsyncClient) -> None:
    response = await http.post("/v1/templates/build", json={"kind": "agent", "agent": "nobody"})
    assert events_of(response.text) == [
        (
            "error",
            {"code": "invalid_input", "message": "there is no agent 'nobody'", "hint": "agents: claude"},
        )
    ]


async def test_lifecycle_events_carry_ids_and_go_on_after_one(http: httpx2.AsyncClient, box: str) -> None:
    await http.post(f"/v1/sandboxes/{box}/pause")
    response = await http.get("/v1/events?after=0&follow=false")
    assert [name for name, _ in events_of(response.text)] == ["ready", "lifecycle", "lifecycle"]
    assert "id: 2\nevent: lifecycle" in response.text
    again = await http.get("/v1/events?follow=false", headers={"last-event-id": "1"})
    assert [data.get("state") for name, data in events_of(again.text) if name == "lifecycle"] == ["paused"]


async def test_watch_tells_when_it_is_in_place_and_keeps_exact_names(
    http: httpx2.AsyncClient, box: str
) -> None:
    response = await http.get(f"/v1/sandboxes/{box}/files/watch?path=/home")
    assert events_of(response.text) == [
        ("ready", {"ok": True}),
        (
            "change",
            {
                "path": "/home/bad-\ufffd",
                "raw_path": base64.b64encode(b"/home/bad-\xff").decode(),
                "kind": "create",
            },
        ),
    ]


# -- the response itself ---------------------------------------------------------------------------------------------


async def serve(response: Any, gone: asyncio.Event) -> list[Any]:
    sent: list[Any] = []

    async def receive() -> dict[str, str]:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await response({"type": "http"}, receive, send)
    return sent


async def test_an_idle_stream_beats_until_its_client_goes_and_then_ends_its_work() -> None:
    gone, ended = asyncio.Event(), asyncio.Event()
    beats = 0

    async def produce(emit: Any) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.set()

    sent: list[Any] = []

    async def receive() -> dict[str, str]:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        nonlocal beats
        sent.append(message)
        beats += message.get("body", b"").startswith(b":")
        if beats == 3:
            gone.set()

    await EventStream(produce, heartbeat=0.001)({"type": "http"}, receive, send)
    assert ended.is_set()
    assert beats >= 3
    assert all(message.get("more_body", True) for message in sent)


async def test_long_work_is_cancelled_when_its_client_goes() -> None:
    gone, started, cancelled = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work(tell: Any) -> Done:
        tell("begun")
        started.set()
        gone.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return Done()

    await serve(progress_stream(work), gone)
    assert cancelled.is_set()


async def test_the_result_of_long_work_comes_with_the_end_of_the_response() -> None:
    async def work(tell: Any) -> Done:
        tell("begun")
        return Done()

    *_, last = await serve(progress_stream(work), asyncio.Event())
    assert last == {"type": "http.response.body", "body": event("result", Done()), "more_body": False}


async def test_a_command_is_cancelled_when_its_client_goes() -> None:
    gone, cancelled = asyncio.Event(), asyncio.Event()

    class Request:
        async def receive(self) -> dict[str, str]:
            await gone.wait()
            return {"type": "http.disconnect"}

    async def work() -> None:
        gone.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            cancelled.set()

    with pytest.raises(Timeout):
        await while_connected(Request(), work())  # type: ignore[arg-type]  # all that is used of a request
    assert cancelled.is_set()


async def test_failures_of_a_command_come_out_as_they_are() -> None:
    class Request:
        async def receive(self) -> dict[str, str]:
            await asyncio.get_running_loop().create_future()
            return {}

    async def work() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await while_connected(Request(), work())  # type: ignore[arg-type]  # all that is used of a request


async def test_until_idle_ends_with_what_is_there() -> None:
    async def items() -> Any:
        yield 1
        yield 2
        await asyncio.get_running_loop().create_future()

    assert [item async for item in until_idle(items())] == [1, 2]

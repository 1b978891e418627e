"""What goes on is not cut for how long it takes; what stands still is. The gateway's own times, of minutes and hours, are
short ones here.
"""

import asyncio
import functools
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from aiohttp import web
from tests.system.gateway.conftest import gateway
from tests.system.gateway.test_gateway_inside import HOST, Inside, inside
from tests.system.gateway.test_gateway_models import STREAM, ask_for_a_stream, begin_a_stream

from corral.model.egress import HostRule

if TYPE_CHECKING:
    from tests.system.gateway.conftest import Bed

__all__ = ["inside"]

IDLE = 2.0
"""Seconds after which what stands still is cut."""
_STEPS, _STEP = 30, 0.2
"""What goes on takes three times as long."""
_TIMES = dict.fromkeys(
    ("upstream.BODY_IDLE", "llm.ANSWER_IDLE", "body.IDLE", "front.KEEP_ALIVE", "relay.IDLE", "dial.CONNECT_TIMEOUT"), IDLE
)  # fmt: skip


@pytest.fixture
def make_gateway() -> Callable[..., Any]:
    """A gateway with short times."""
    return functools.partial(gateway, seconds=_TIMES)


@pytest.fixture
async def bed(make_gateway: Any) -> AsyncIterator["Bed"]:
    async with make_gateway() as found:
        yield found


async def drip(request: web.Request, response: web.StreamResponse, piece: bytes) -> None:
    """Answer piece by piece."""
    await response.prepare(request)
    for _ in range(_STEPS):
        await asyncio.sleep(_STEP)
        await response.write(piece)


async def pieces() -> AsyncIterator[bytes]:
    for _ in range(_STEPS):
        await asyncio.sleep(_STEP)
        yield b"x"


async def test_bodies_that_go_on_are_not_cut(inside: Inside) -> None:
    """G-95, G-114: neither a slow download nor a slow upload."""
    await inside.attach(HostRule(HOST, (inside.server,), ("GET", "POST"), ("/**",), private=True))

    async def slow(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await drip(request, response, b"y")
        return response

    async with inside.client() as http:
        async with http.post(inside.url("/up"), data=pieces()) as answer:
            assert answer.status == 200
        assert inside.seen[-1][2] == b"x" * _STEPS
        inside.handler = slow
        async with http.get(inside.url("/down")) as answer:
            assert await answer.read() == b"y" * _STEPS


async def test_a_body_that_stands_still_is_cut(inside: Inside) -> None:
    """G-95, G-102."""
    await inside.attach(HostRule(HOST, (inside.server,), ("GET",), ("/**",), private=True))

    async def stuck(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"y")
        await asyncio.Event().wait()
        return response

    inside.handler = stuck
    async with inside.client() as http, http.get(inside.url("/")) as answer:
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.read()


async def test_a_websocket_may_be_silent(inside: Inside) -> None:
    """G-106: however long, with pings or without."""
    await inside.attach(HostRule(HOST, (inside.server,), ("GET",), ("/ws",), private=True))

    async def talk(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            await socket.send_str(message.data)
        return socket

    inside.handler = talk
    async with inside.client() as http, http.ws_connect(inside.url("/ws"), autoping=False) as ws:
        for ping in (False, True):
            await asyncio.sleep(IDLE * 2)
            if ping:
                await ws.ping(b"there?")
                assert (await ws.receive(timeout=30)).type is aiohttp.WSMsgType.PONG
            await ws.send_str("still there")
            assert await ws.receive_str(timeout=30) == "still there"


async def test_a_stream_goes_on_while_there_are_signs_of_life(bed: "Bed") -> None:
    """G-95, G-100: comments are enough."""
    box = await bed.attach()

    async def thinks(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await drip(request, response, b": thinking\n\n")
        for item in STREAM:
            await response.write(item)
        return response

    bed.upstream.handler = thinks
    async with await ask_for_a_stream(bed, box) as answer:
        text = await answer.read()
    assert text.count(b": thinking") == _STEPS
    assert text.endswith(STREAM[-1])
    assert (await bed.usage.get()).tokens.output == 10


async def test_a_stream_without_any_is_cut(bed: "Bed") -> None:
    """G-95, G-102."""
    box = await bed.attach()
    bed.upstream.handler = begin_a_stream
    async with await ask_for_a_stream(bed, box) as answer:
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.read()
    assert (await bed.usage.get()).tokens.input == 100

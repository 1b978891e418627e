"""Where the bodies of model calls are judged: small ones at once, large ones in threads, few at a time."""

import asyncio
import gzip
import json
import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest
from multidict import CIMultiDict

from corral.errors import InvalidInput
from corral.gateway import llm
from corral.gateway.body import INLINE, Parsed, most_decoded
from corral.gateway.box import Box
from corral.gateway.buffered import Buffered
from corral.gateway.endpoints import Endpoint, endpoint
from corral.gateway.requests import Prepared, Terms
from corral.model.secrets import Provider
from corral.wire.link import SecretSpec

MESSAGES = cast(Endpoint, endpoint(Provider.ANTHROPIC, "POST", "v1/messages"))


def request(data: bytes, coding: str) -> Any:
    protocol = SimpleNamespace(
        _reading_paused=False, resume_reading=lambda **_: None, pause_reading=lambda: None
    )
    content = aiohttp.StreamReader(cast(Any, protocol), 2**16, loop=asyncio.get_running_loop())
    content.feed_data(data)
    content.feed_eof()
    headers = CIMultiDict({"Content-Encoding": coding})
    return SimpleNamespace(
        content=content,
        headers=headers,
        content_type="application/json",
        content_length=len(data),
        raw_path="/",
    )


def box() -> Box:
    found = SimpleNamespace(tenants_secrets=None, buffered=0, large=asyncio.Semaphore(1))
    return cast(Box, found)


def service(of: Box, large: asyncio.Semaphore) -> llm.ModelService:
    made = object.__new__(llm.ModelService)
    made._box, made._large = of, large
    made._prices = made._limits = cast(Any, lambda: None)
    return made


async def judge(of: llm.ModelService, data: bytes, coding: str = "identity") -> llm._Judged:
    with Buffered(of._box) as buffered:
        return await of._judged(request(data, coding), cast(SecretSpec, None), MESSAGES, buffered)


def body(size: int) -> bytes:
    return json.dumps({"a": "x" * (size - 9)}, separators=(",", ":")).encode()


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The threads in which bodies are judged."""
    seen: list[int] = []

    def prepare(terms: Terms, wanted: Endpoint, data: bytes, parsed: Parsed) -> Prepared:
        seen.append(threading.get_ident())
        return Prepared(wanted, data)

    monkeypatch.setattr(llm, "prepare", prepare)
    return seen


@pytest.mark.parametrize(
    ("size", "coding", "inline"),
    [(100, "identity", True), (100, "gzip", True), (INLINE - 9, "gzip", True),
     (INLINE + 9, "gzip", False), (INLINE + 9, "identity", False), (1 << 20, "gzip", False)],
)  # fmt: skip
def test_what_is_large_once_decoded_is_judged_in_a_thread(
    threads: list[int], size: int, coding: str, inline: bool
) -> None:
    """G-340: however little of it came."""
    data = body(size)

    async def run() -> None:
        of = service(box(), asyncio.Semaphore(1))
        judged = await judge(of, gzip.compress(data) if coding == "gzip" else data, coding)
        assert judged.prepared.data == data
        assert of._box.buffered == 0

    asyncio.run(run())
    assert [one == threading.get_ident() for one in threads] == [inline]


def test_few_large_bodies_are_judged_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """G-340: one of a sandbox, two of all; those that are cancelled count until they are over."""
    now = most = 0
    lock = threading.Lock()

    def prepare(terms: Terms, wanted: Endpoint, data: bytes, parsed: Parsed) -> Prepared:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.02)
        with lock:
            now -= 1
        return Prepared(wanted, data)

    monkeypatch.setattr(llm, "prepare", prepare)
    data = gzip.compress(body(1 << 18))

    async def run(boxes: int, cancel: bool) -> int:
        nonlocal most
        most = 0
        large = asyncio.Semaphore(llm.LARGE_AT_ONCE)
        calls: list[asyncio.Future[Any]] = []
        for _ in range(boxes):
            of = service(box(), large)
            calls += [asyncio.ensure_future(judge(of, data, "gzip")) for _ in range(3)]
        await asyncio.sleep(0.01)
        if cancel:
            calls[0].cancel()
        await asyncio.wait(calls)
        return most

    assert asyncio.run(run(1, cancel=False)) == 1
    assert asyncio.run(run(4, cancel=False)) == llm.LARGE_AT_ONCE
    assert asyncio.run(run(1, cancel=True)) == 1


def test_what_a_large_body_may_become_counts_while_it_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """G-340: a sandbox's other requests have that much less."""
    of = service(box(), asyncio.Semaphore(1))
    data = gzip.compress(body(1 << 20))
    counted = []

    def prepare(terms: Terms, wanted: Endpoint, data: bytes, parsed: Parsed) -> Prepared:
        counted.append(of._box.buffered)
        return Prepared(wanted, data)

    monkeypatch.setattr(llm, "prepare", prepare)
    asyncio.run(judge(of, data, "gzip"))
    assert counted == [most_decoded(len(data), "gzip")]
    assert counted[0] >= 1 << 20


def test_a_bomb_is_refused_before_it_is_parsed(threads: list[int]) -> None:
    """G-182, G-340. A refusal for what it unpacks to holds nobody up, and neither does it take a thread."""
    bomb = gzip.compress(b'{"a":[' + b"[]," * (20 << 20) + b"0]}")

    async def run() -> None:
        of = service(box(), asyncio.Semaphore(1))
        with pytest.raises(llm._RefusedError, match="too large"):
            await judge(of, bomb, "gzip")
        assert of._box.buffered == 0

    asyncio.run(run())
    assert threads == []


def test_a_refusal_from_a_thread_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare(terms: Terms, wanted: Endpoint, data: bytes, parsed: Parsed) -> Prepared:
        raise InvalidInput("no", "never")

    monkeypatch.setattr(llm, "prepare", prepare)
    for size in (100, 1 << 20):
        with pytest.raises(llm._RefusedError, match="no"):
            asyncio.run(judge_alone(body(size)))


async def judge_alone(data: bytes) -> llm._Judged:
    return await judge(service(box(), asyncio.Semaphore(1)), data)

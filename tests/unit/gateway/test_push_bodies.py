"""Bodies of pushes: unpacked a little at a time, and counted while they are in memory."""

import asyncio
import gzip
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import InvalidInput
from corral.gateway.box import MAX_BUFFERED, Box
from corral.gateway.gitupstream import GitRefusedError
from corral.gateway.pushbody import AT_ONCE, PushBody
from corral.gateway.spools import Spool
from corral.wire.pktline import FLUSH, encode

HEAD = encode(b"0" * 40 + b" " + b"1" * 40 + b" refs/heads/x\0 report-status") + FLUSH


class Content:
    """A request's body in pieces."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces

    async def readany(self) -> bytes:
        return next(self._pieces, b"")


class Kept:
    """A spool in memory."""

    def __init__(self, box: Box) -> None:
        self.box = box
        self.data = b""
        self.largest = 0

    async def write(self, data: bytes) -> None:
        self.largest = max(self.largest, len(data))
        self.data += data

    async def flush(self) -> None:
        assert self.box.buffered == 0


def box(held: int = 0) -> Box:
    return cast(Box, SimpleNamespace(buffered=held))


def body(of: Box, data: bytes, coding: str, size: int = 1 << 16) -> PushBody:
    pieces = (data[start : start + size] for start in range(0, len(data), size))
    request: Any = SimpleNamespace(content=Content(pieces), headers={"Content-Encoding": coding})
    return PushBody(cast(web.BaseRequest, request), of)


async def taken(data: bytes, coding: str, size: int = 1 << 16) -> Kept:
    of = box()
    push = body(of, data, coding, size)
    head = await push.head()
    assert head.raw == HEAD
    kept = Kept(of)
    await push.into(cast(Spool, kept))
    assert push.ended
    return kept


@given(st.binary(max_size=300), st.integers(1, 200), st.sampled_from(["gzip", "identity"]))
def test_a_push_is_what_was_sent(pack: bytes, size: int, coding: str) -> None:
    """G-243: however it is cut."""
    data = HEAD + pack
    sent = gzip.compress(data) if coding == "gzip" else data
    assert asyncio.run(taken(sent, coding, size)).data == pack


def test_little_of_it_is_unpacked_at_a_time() -> None:
    """G-340."""
    pack = bytes(7 * AT_ONCE)
    kept = asyncio.run(taken(gzip.compress(HEAD + pack), "gzip"))
    assert kept.data == pack
    assert kept.largest <= AT_ONCE


def test_what_unpacks_to_far_more_than_was_sent_is_refused() -> None:
    """G-340."""
    with pytest.raises(InvalidInput, match="compressed too much"):
        asyncio.run(taken(gzip.compress(HEAD + bytes(32 * AT_ONCE)), "gzip"))
    with pytest.raises(GitRefusedError, match="behind its end"):
        asyncio.run(taken(gzip.compress(HEAD) + b"more", "gzip", 1 << 20))


def test_what_came_with_the_head_counts_until_it_is_taken() -> None:
    """G-340."""

    async def run() -> None:
        of = box()
        push = body(of, HEAD + b"PACK", "identity")
        await push.head()
        assert of.buffered == len(HEAD) + 4
        push.close()
        assert of.buffered == 0
        full = body(box(MAX_BUFFERED), HEAD, "identity")
        with pytest.raises(GitRefusedError) as refused:
            await full.head()
        assert refused.value.status == 429

    asyncio.run(run())

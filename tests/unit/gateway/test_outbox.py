"""Records on their way to the engine, and what waits for them."""

import asyncio
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from corral.errors import UpstreamFailed
from corral.gateway.channel import Channel
from corral.gateway.outbox import MAX_QUEUED, Outbox
from corral.model.ids import SandboxId, TenantId
from corral.wire.link import AuditRecord, Flush, Flushed

RECORD = AuditRecord(
    datetime(2026, 1, 1, tzinfo=UTC), TenantId("t"), SandboxId("s"), "git", "allowed", refs="r"
)


class Engine:
    """The other end: keeps what is sent, and does not answer by itself."""

    def __init__(self) -> None:
        self.queued = 0
        self.sent: list[Any] = []

    def send(self, message: object) -> None:
        self.sent.append(message)


@pytest.fixture
def engine() -> Engine:
    return Engine()


def outbox(engine: Engine, timeout: float = 5.0) -> Outbox:
    return Outbox(cast(Channel, engine), timeout)


async def test_a_flush_is_over_when_the_engine_says_so(engine: Engine) -> None:
    """G-325."""
    found = outbox(engine)
    found.audit(RECORD)
    waiting = asyncio.ensure_future(found.flush())
    await asyncio.sleep(0)
    assert engine.sent == [RECORD, Flush(1)]
    found.take(Flushed(7))
    await asyncio.sleep(0)
    assert not waiting.done()
    found.take(Flushed(1))
    await waiting
    found.take(Flushed(1))


async def test_what_is_not_recorded_in_time_is_not_done(engine: Engine) -> None:
    """G-326."""
    with pytest.raises(UpstreamFailed):
        await outbox(engine, 0.01).flush()


async def test_what_was_dropped_is_not_done(engine: Engine) -> None:
    """G-326: an answer would tell of the other records."""
    found = outbox(engine)
    engine.queued = MAX_QUEUED + 1
    found.audit(RECORD)
    with pytest.raises(UpstreamFailed):
        await found.flush()
    assert engine.sent == []

"""Records on their way to the engine.

A usage record is money: it is kept until the engine has acknowledged it. An audit record is dropped, and
counted in the log, if the engine has stopped reading altogether; a sandbox cannot bring that about, since its
rate is bounded.
"""

import asyncio
import contextlib
import logging

from corral.gateway.channel import Channel
from corral.model.usage import Usage
from corral.wire.link import AuditRecord, UsageRecord

MAX_QUEUED = 64 * 1024 * 1024

_log = logging.getLogger(__name__)


class Outbox:
    """Numbers, sends and keeps records."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._number = 0
        self._kept: dict[int, UsageRecord] = {}
        self._empty = asyncio.Event()
        self._empty.set()
        self._dropped = 0

    def usage(self, usage: Usage) -> None:
        """Send a record of the ledger."""
        self._number += 1
        record = UsageRecord(self._number, usage)
        self._kept[self._number] = record
        self._empty.clear()
        self._channel.send(record)

    def audit(self, record: AuditRecord) -> None:
        """Send a record of a decision."""
        if self._channel.queued > MAX_QUEUED:
            self._dropped += 1
            return
        if self._dropped:
            _log.error("%d audit records were lost: the engine did not read them", self._dropped)
            self._dropped = 0
        self._channel.send(record)

    def acknowledged(self, number: int) -> None:
        """The engine has the record with this number."""
        self._kept.pop(number, None)
        if not self._kept:
            self._empty.set()

    async def drained(self, seconds: float) -> None:
        """Wait until every record is acknowledged, the link has ended, or the time is over."""
        if self._channel.closed:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._empty.wait()

"""Audit records on their way to the engine.

One is dropped, and counted in the log, if the engine has stopped reading altogether; a sandbox cannot bring that
about, since its rate is bounded. Nobody waits for a record but those whose effect may not be without it: they wait until
the engine says that all before are where they stay.
"""

import asyncio
import logging

from corral.errors import UpstreamFailed
from corral.gateway.channel import Channel
from corral.wire.link import AuditRecord, Flush, Flushed

MAX_QUEUED = 64 * 1024 * 1024
FLUSH_TIMEOUT = 30.0
"""Seconds that an effect waits for its record."""

_log = logging.getLogger(__name__)


class Outbox:
    """Sends records."""

    def __init__(self, channel: Channel, timeout: float = FLUSH_TIMEOUT) -> None:
        self._channel = channel
        self._timeout = timeout
        self._dropped = 0
        self._number = 0
        self._waiting: dict[int, asyncio.Future[None]] = {}

    def audit(self, record: AuditRecord) -> None:
        """Send a record of a decision."""
        if self._channel.queued > MAX_QUEUED:
            self._dropped += 1
            return
        if self._dropped:
            _log.error("%d audit records were lost: the engine did not read them", self._dropped)
            self._dropped = 0
        self._channel.send(record)

    async def flush(self) -> None:
        """Return once all records that were sent survive a power cut (G-325). Raises UpstreamFailed where that cannot be had
        (G-326).
        """
        self._number += 1
        number = self._number
        flushed = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            if not self._dropped:
                self._channel.send(Flush(number))
                async with asyncio.timeout(self._timeout):
                    await flushed
                return
        except TimeoutError:
            _log.error("an audit record was not taken in time, so nothing is done for which it was needed")
        finally:
            del self._waiting[number]
        raise UpstreamFailed(
            "what is done cannot be recorded", "try again; on the host, see `corral daemon logs`"
        )

    def take(self, message: Flushed) -> None:
        """The engine's word; a late one is ignored."""
        flushed = self._waiting.get(message.number)
        if flushed is not None and not flushed.done():
            flushed.set_result(None)

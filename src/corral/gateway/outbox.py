"""Audit records on their way to the engine.

One is dropped, and counted in the log, if the engine has stopped reading altogether; a sandbox cannot bring that
about, since its rate is bounded.
"""

import logging

from corral.gateway.channel import Channel
from corral.wire.link import AuditRecord

MAX_QUEUED = 64 * 1024 * 1024

_log = logging.getLogger(__name__)


class Outbox:
    """Sends records."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._dropped = 0

    def audit(self, record: AuditRecord) -> None:
        """Send a record of a decision."""
        if self._channel.queued > MAX_QUEUED:
            self._dropped += 1
            return
        if self._dropped:
            _log.error("%d audit records were lost: the engine did not read them", self._dropped)
            self._dropped = 0
        self._channel.send(record)

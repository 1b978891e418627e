"""Records of decisions, at a bounded rate per sandbox.

A sandbox that is refused ten thousand times a second must not fill the host's log or hide another's records
(G-330): over the rate records are counted instead, and the count goes with the next one. The first decision
about each host is always recorded (G-296).
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from corral.wire.link import AuditRecord

RATE = 20.0
"""Records per second."""
BURST = 200
_MAX_SEEN = 4096
_RING = 100


class TokenBucket:
    """Up to `burst` at once, `rate` per second on average. Time is an argument, in seconds."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._level = burst
        self._at = 0.0

    def take(self, now: float) -> bool:
        """Whether one more is within the rate."""
        self._level = min(self._burst, self._level + max(0.0, now - self._at) * self._rate)
        self._at = now
        if self._level < 1:
            return False
        self._level -= 1
        return True

    def due(self, now: float) -> float:
        """Take one in any case; how many seconds to wait until it is within the rate."""
        self._level = min(self._burst, self._level + max(0.0, now - self._at) * self._rate) - 1
        self._at = now
        return max(0.0, -self._level / self._rate)


@dataclass(frozen=True, slots=True)
class Denial:
    """A refusal as the sandbox may read it again."""

    at: datetime
    kind: str
    host: str
    port: int
    reason: str
    message: str
    how_to_allow: str


class AuditTrail:
    """One sandbox's records and its recent denials."""

    def __init__(self, send: Callable[[AuditRecord], None]) -> None:
        self._send = send
        self._bucket = TokenBucket(RATE, BURST)
        self._seen: set[tuple[str, str, str]] = set()
        self._suppressed = 0
        self.denials: deque[Denial] = deque(maxlen=_RING)

    def record(self, record: AuditRecord, now: float, *, always: bool = False) -> None:
        """Send a record, or count it. `now` in seconds of a clock that never goes back. `always`: what is bounded by
        other means, and must not be missing.
        """
        key = (record.kind, record.host, record.decision)
        first = key not in self._seen and len(self._seen) < _MAX_SEEN
        if first:
            self._seen.add(key)
        if not self._bucket.take(now) and not first and not always:
            self._suppressed += 1
            return
        self._send(replace(record, suppressed=self._suppressed))
        self._suppressed = 0

"""What sandboxes used over the last half hour: samples at even distances, in memory, of those that somebody may ask about."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from corral.engine.ports import Clock
from corral.errors import CorralError
from corral.model.ids import SandboxId
from corral.model.sandbox import Stats

EVERY = 5.0
"""Seconds between two samples."""
KEPT = 360


@dataclass(frozen=True, slots=True)
class Sample:
    """At one moment: bytes of memory and disk, and microseconds of processors so far; bytes of memory that files hold."""

    at: datetime
    memory: int
    disk: int
    cpu_usec: int
    file_cache: int = 0


class Samples:
    """The last samples of each sandbox. After a restart of the daemon they begin anew."""

    def __init__(
        self,
        sampled: Callable[[], Iterable[SandboxId]],
        known: Callable[[SandboxId], bool],
        stats: Callable[[SandboxId], Awaitable[Stats]],
        clock: Clock,
    ) -> None:
        """`sampled` tells which sandboxes are to be looked at now, `known` whether there is one still."""
        self._sampled = sampled
        self._known = known
        self._stats = stats
        self._clock = clock
        self._kept: dict[SandboxId, deque[Sample]] = {}

    async def run(self) -> None:
        """Take samples until cancelled."""
        while True:
            await self.take()
            await asyncio.sleep(EVERY)

    async def take(self) -> None:
        """A sample of each sandbox; those that are gone are forgotten."""
        for gone in [sandbox for sandbox in self._kept if not self._known(sandbox)]:
            del self._kept[gone]
        for sandbox in list(self._sampled()):
            try:
                sample = await self.now(sandbox)
            except (CorralError, OSError):
                continue  # it ended meanwhile
            self._kept.setdefault(sandbox, deque(maxlen=KEPT)).append(sample)

    async def now(self, sandbox: SandboxId) -> Sample:
        """A sample of this moment, which is not kept. Raises what the driver raises."""
        stats = await self._stats(sandbox)
        return Sample(self._clock.now(), stats.memory, stats.disk, stats.cpu_usec, stats.file_cache)

    def of(self, sandbox: SandboxId) -> list[Sample]:
        """What is kept of a sandbox, oldest first."""
        return list(self._kept.get(sandbox, ()))

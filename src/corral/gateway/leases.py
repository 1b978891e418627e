"""Money that the ledger has set aside for a sandbox's next model calls, so that these need not wait for it.

A lease is what a sandbox's calls have in common: it is wanted with the first of them, grows by what the engine adds after
each, shrinks by what each draws, and is given back when no call came for a while, when the sandbox leaves, and whenever
the engine wants to decide on each call itself.
"""

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass

from corral.gateway.journal import Journal
from corral.model.ids import SandboxId

IDLE_SECONDS = 60.0
"""After this long without a call a lease is given back."""


@dataclass(eq=False, slots=True)
class _Lease:
    number: int
    sandbox: SandboxId
    used: float
    timer: asyncio.TimerHandle
    left: int = 0
    total: int = 0
    extended: bool = False


class Leases:
    """One for each sandbox that makes calls. `give_back` tells the engine of the end of one."""

    def __init__(self, give_back: Callable[[int], None]) -> None:
        self._tell = give_back
        self.given_back = 0
        """How many were, so far."""
        self._journal: Journal | None = None
        self._numbers = itertools.count(1)
        self._of: dict[SandboxId, _Lease] = {}
        self._by_number: dict[int, _Lease] = {}

    def use(self, journal: Journal) -> None:
        """Keep this journal; without one nothing is leased."""
        self._journal = journal

    def draw(self, sandbox: SandboxId, amount: int) -> int:
        """The number of the lease that covers the call, which is drawn from it now; 0 if none does."""
        lease = self._of.get(sandbox)
        if self._journal is None or lease is None or not lease.extended or lease.left < amount:
            return 0
        lease.used = asyncio.get_running_loop().time()
        lease.left -= amount
        lease.total += amount
        self._journal.draw(lease.number, lease.total)
        return lease.number

    def wanted(self, sandbox: SandboxId) -> int:
        """The number of the lease that a sandbox would have; 0 if it can have none."""
        lease = self._of.get(sandbox) or self._new(sandbox)
        if lease is None:
            return 0
        lease.used = asyncio.get_running_loop().time()
        return lease.number

    def extended(self, number: int, added: int) -> None:
        """The engine has added to a lease. One that is gone meanwhile goes back whole."""
        lease = self._by_number.get(number)
        if lease is None:
            self._give_back(number)
            return
        lease.extended = True
        lease.left += added

    def _give_back(self, number: int) -> None:
        self.given_back += 1
        self._tell(number)

    def drop(self, sandbox: SandboxId) -> None:
        """Give a sandbox's back, if it has one."""
        if (lease := self._of.get(sandbox)) is not None:
            self._end(lease)

    def drop_all(self) -> None:
        """Give all back."""
        for lease in list(self._of.values()):
            self._end(lease)

    def recall(self, sandbox: SandboxId | None) -> None:
        """Give a sandbox's back, or (None) all."""
        if sandbox is None:
            self.drop_all()
        else:
            self.drop(sandbox)

    def _new(self, sandbox: SandboxId) -> _Lease | None:
        number = next(self._numbers)
        if self._journal is None or not self._journal.open(number):
            return None
        loop = asyncio.get_running_loop()
        lease = _Lease(number, sandbox, loop.time(), loop.call_later(IDLE_SECONDS, self._look, number))
        self._of[sandbox] = self._by_number[number] = lease
        return lease

    def _look(self, number: int) -> None:
        """End it if it was not used for long."""
        lease = self._by_number[number]
        loop = asyncio.get_running_loop()
        left = lease.used + IDLE_SECONDS - loop.time()
        if left <= 0:
            self._end(lease)
        else:
            lease.timer = loop.call_later(left, self._look, number)

    def _end(self, lease: _Lease) -> None:
        lease.timer.cancel()
        del self._of[lease.sandbox], self._by_number[lease.number]
        if self._journal is not None:
            self._journal.close(lease.number)
        if lease.extended:
            self._give_back(lease.number)

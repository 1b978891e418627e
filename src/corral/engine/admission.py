"""Room for sandboxes: what is held of the host, who waits for it, and refusing what does not fit.

What counts is each sandbox's row in the registry, and what was admitted and has no row yet. So nothing is kept that a
restart could lose: the rows are there, and those who waited have lost their connection. A decision and its reservation are
one step of the event loop, so a hundred creates at once cannot all take the same room.
"""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from corral.engine.activity import Activity
from corral.engine.ports import Driver, Machine, Progress
from corral.engine.registry import Registry
from corral.errors import CorralError, DiskFull, NoCapacity
from corral.host.tasks import TaskOwner
from corral.model.capacity import Amounts, Holding, Line, Resource, Rules, Shortage, Ticket, Whose
from corral.model.ids import SandboxId, TenantId
from corral.model.lifecycle import State
from corral.model.sandbox import Limits, Sandbox
from corral.policy import admission as policy


class Others(Protocol):
    """What takes disk of the host beside sandboxes, and waits in no queue."""

    def holdings(self) -> Sequence[Holding]:
        """Each as a sandbox that is stopped."""

    async def measure(self) -> None:
        """See how much they take now."""


MAX_WAITING = 1000
LOOK_SECONDS = 0.5
"""How often it is looked whether a waiter fits by now: what sandboxes use changes without anybody telling."""
SAMPLE_SECONDS = 2.0
"""How long it is believed what was measured of sandboxes."""


@dataclass(frozen=True, slots=True)
class QueueWish:
    """That a create waits for room, `seconds` at most."""

    seconds: float | None = None


@dataclass(slots=True)
class _Waiter:
    ticket: Ticket
    served: asyncio.Event
    tell: Progress | None
    told: int = 0
    short: Shortage | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """Someone in the queue, as it is shown: place 1 is next; `seconds` since it came."""

    tenant: TenantId
    name: str
    place: int
    seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class Overview:
    """The host's resources, what counts against them, and who waits."""

    lines: list[Line]
    holdings: list[Holding]
    queue: list[Waiting]


class Admission:
    """All of one daemon's sandboxes against its host."""

    def __init__(
        self,
        *,
        registry: Registry,
        driver: Driver,
        machine: Machine,
        activity: Activity,
        tasks: TaskOwner,
        rules: Callable[[], Rules],
    ) -> None:
        self._registry = registry
        self._driver = driver
        self._machine = machine
        self._activity = activity
        self._tasks = tasks
        self._rules = rules
        self._others: Others | None = None
        self._held: dict[str, Holding] = {}
        self._waiting: dict[int, _Waiter] = {}
        self._came: dict[int, float] = {}
        self._numbers = itertools.count(1)
        self._turn = itertools.count(1)
        self._served: dict[TenantId, int] = {}
        self._looking = asyncio.Lock()
        self._look = asyncio.Event()
        self._looker: asyncio.Task[None] | None = None
        self._samples: dict[SandboxId, Amounts] = {}
        self._sampled_at = float("-inf")

    def count(self, others: Others) -> None:
        """Count these, too."""
        self._others = others

    def require(self, holding: Holding) -> None:
        """Raise DiskFull, with the numbers, unless there is disk for something that is no sandbox."""
        short = policy.host_shortage(holding, self._machine.room(), self._rules(), self.holdings())
        if short is not None:
            hint = policy.advice(short, holding.tenant, self._of_people(), self._rules(), queued=True)
            raise DiskFull(f"{holding.name} {policy.reason(short)}", f"free space on the data disk: {hint}")

    @contextlib.asynccontextmanager
    async def place(
        self,
        sandbox: SandboxId,
        tenant: TenantId,
        limits: Limits,
        *,
        name: str = "",
        wish: QueueWish | None = None,
        tell: Progress | None = None,
    ) -> AsyncIterator[None]:
        """Room for a sandbox that is about to run, kept while the block runs; afterwards its row counts.

        Raises NoCapacity or DiskFull, with the numbers, if there is none now; with a `wish`, once that has waited in vain.
        """
        known = self._registry.get(sandbox)
        used = self._samples.get(sandbox, {}) if known else {}
        holding = Holding(sandbox, name, tenant, limits, State.STARTING, used)
        await self._admit(holding, wish, tell)
        try:
            yield
        finally:
            self._held.pop(sandbox, None)
            self.changed()

    @property
    def tenant_bound(self) -> int | None:
        """How many sandboxes of one tenant may run at once; None for any number."""
        return self._rules().tenant_sandboxes

    def changed(self) -> None:
        """Room may have become free."""
        self._look.set()

    async def overview(self) -> Overview:
        """How the host stands, with everybody's sandboxes."""
        await self._sample()
        holdings = self._of_sandboxes()
        lines = policy.overview(self._machine.room(), self._rules(), [*holdings, *self._beside()])
        return Overview(lines, holdings, self.queue())

    def queue(self) -> list[Waiting]:
        """Those who wait, the next first."""
        now = time.monotonic()
        ordered = policy.in_turn([item.ticket for item in self._waiting.values()], self._served)
        return [
            Waiting(
                ticket.tenant,
                ticket.holding.name,
                place,
                now - self._came[ticket.number],
                _why(self._waiting[ticket.number].short),
            )
            for place, ticket in enumerate(ordered, 1)
        ]

    def holdings(self) -> list[Holding]:
        """Whatever counts."""
        return [*self._of_sandboxes(), *self._beside()]

    def _of_sandboxes(self) -> list[Holding]:
        """Rows, and what was admitted for another state than its row's."""
        found: dict[str, Holding] = {item.id: self._holding(item) for item in self._registry.all()}
        return list({**found, **self._held}.values())

    def _of_people(self) -> list[Holding]:
        """Those that somebody can stop: no spares of pools, which have no name that is known."""
        spares = {spare.id for spare in self._registry.spares()}
        return [item for item in self._of_sandboxes() if item.id not in spares]

    def _beside(self) -> Sequence[Holding]:
        return () if self._others is None else self._others.holdings()

    def _holding(self, sandbox: Sandbox) -> Holding:
        spec = sandbox.spec
        return Holding(
            spec.id,
            spec.name,
            spec.tenant,
            spec.limits,
            sandbox.state,
            self._samples.get(spec.id, {}),
            self._activity.idle(spec.id),
        )

    # -- deciding -------------------------------------------------------------------------------------------------

    async def _admit(self, holding: Holding, wish: QueueWish | None, tell: Progress | None) -> None:
        if len(self._waiting) >= MAX_WAITING:
            raise NoCapacity(f"{MAX_WAITING} creates wait for room already", "try again later")
        number = next(self._numbers)
        waiter = _Waiter(Ticket(number, holding.tenant, holding), asyncio.Event(), tell)
        self._waiting[number] = waiter
        self._came[number] = time.monotonic()
        try:
            await self._serve()
            if not waiter.served.is_set():
                if wish is None or policy.never_fits(holding, self._machine.room(), self._rules()):
                    raise self._refusal(waiter, queued=False)
                await self._wait(waiter, wish)
        except BaseException:
            self._held.pop(holding.id, None)
            raise
        finally:
            self._waiting.pop(number, None)
            self._came.pop(number, None)

    async def _wait(self, waiter: _Waiter, wish: QueueWish) -> None:
        if self._looker is None or self._looker.done():
            self._looker = self._tasks.start(self._look_again(), name="admission")
        self._tell()
        try:
            async with asyncio.timeout(wish.seconds):
                await waiter.served.wait()
        except TimeoutError:
            raise self._refusal(waiter, queued=True) from None

    async def _look_again(self) -> None:
        while self._waiting:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._look.wait()
            self._look.clear()
            try:
                await self._serve()
            except CorralError:  # the host could not be looked at now: it is looked at again
                continue
            self._tell()

    async def _serve(self) -> None:
        """Give room to those whose turn it is, as long as there is some."""
        async with self._looking:
            while waiting := self._in_turn():
                ticket = self._next(waiting)
                if ticket is None and await self._sample():
                    ticket = self._next(self._in_turn())
                if ticket is None:
                    return
                self._hold(ticket)

    def _in_turn(self) -> list[Ticket]:
        tickets = (item.ticket for item in self._waiting.values() if not item.served.is_set())
        return policy.in_turn(tickets, self._served)

    def _next(self, waiting: list[Ticket]) -> Ticket | None:
        room, rules, holdings = self._machine.room(), self._rules(), self.holdings()
        found = policy.next_served(waiting, room, rules, holdings)
        if found is None:
            for ticket in waiting:
                self._waiting[ticket.number].short = policy.shortage(ticket.holding, room, rules, holdings)
        return found

    def _hold(self, ticket: Ticket) -> None:
        self._held[ticket.holding.id] = ticket.holding
        self._served[ticket.tenant] = next(self._turn)
        self._waiting[ticket.number].served.set()

    def _tell(self) -> None:
        waiting = self._in_turn()
        for place, ticket in enumerate(waiting, 1):
            waiter = self._waiting[ticket.number]
            if waiter.tell is not None and waiter.told != place:
                waiter.told = place
                waiter.tell(f"waiting for room: place {place} of {len(waiting)}; {_why(waiter.short)}")

    def _refusal(self, waiter: _Waiter, *, queued: bool) -> CorralError:
        ticket, short = waiter.ticket, waiter.short
        waited = f" after {time.monotonic() - self._came[ticket.number]:.0f} s in the queue" if queued else ""
        if short is None:
            ahead = self._in_turn().index(ticket)
            return NoCapacity(
                f"{ahead} creates that came before wait for room{waited}",
                "wait for your turn with --queue" if not queued else "wait longer with --queue-timeout",
            )
        of_tenant = short.whose is Whose.TENANT
        if policy.never_fits(ticket.holding, self._machine.room(), self._rules()):
            return NoCapacity(
                f"{policy.reason(short)}: more than this host has, or your tenant may have",
                "ask for less",
                of_tenant=of_tenant,
            )
        hint = policy.advice(short, ticket.tenant, self._of_people(), self._rules(), queued=queued)
        if short.resource is Resource.DISK and not of_tenant:
            return DiskFull(
                f"the new sandbox {policy.reason(short)}{waited}", f"free space on the data disk: {hint}"
            )
        where = "your tenant is at its bound" if of_tenant else "the host has no room for it"
        return NoCapacity(f"{where}{waited}: {policy.reason(short)}", hint, of_tenant=of_tenant)

    # -- measuring ------------------------------------------------------------------------------------------------

    async def _sample(self) -> bool:
        """Measure all sandboxes, unless that was done just now; whether it was done."""
        if time.monotonic() - self._sampled_at < SAMPLE_SECONDS:
            return False
        samples: dict[SandboxId, Amounts] = {}
        for sandbox in self._registry.all():
            with contextlib.suppress(CorralError, OSError):
                stats = await self._driver.stats(sandbox.id)
                samples[sandbox.id] = {
                    Resource.MEMORY: float(stats.memory),
                    Resource.PIDS: float(stats.pids),
                    Resource.DISK: float(stats.disk),
                }
        if self._others is not None:
            await self._others.measure()
        self._samples = samples
        self._sampled_at = time.monotonic()
        self._held = {
            key: replace(item, used=samples.get(SandboxId(key), item.used))
            for key, item in self._held.items()
        }
        return True


def _why(short: Shortage | None) -> str:
    return "others come first" if short is None else policy.reason(short)

"""Warm pools: kept full in the background, and handed out by `Sandboxes.create`.

A spare is a sandbox like any other, made by the same path and under the same admission, whose spec says `spare`: it is
shown to nobody until a create whose template, runtime and limits it was made with takes it over. What is left of a
create then are those things that can be given to a running sandbox: its name, grant, policy, environment, repository.
So a spare needs no table of its own: after a crash it is taken up again as a running sandbox, or undone as a half made one.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from corral.engine.plan import CreateRequest, machine_for
from corral.engine.ports import Clock, Store
from corral.engine.registry import Registry
from corral.engine.sandboxes import Sandboxes
from corral.engine.templates import Templates
from corral.errors import CorralError, NotFound
from corral.model.ids import SandboxId, TemplateId, TenantId
from corral.model.lifecycle import State
from corral.model.pool import Pool, PoolStatus
from corral.model.sandbox import Isolation, Limits, Sandbox, SandboxSpec
from corral.policy.pools import LONGEST_PAUSE, is_asleep, pause_after, refill

log = logging.getLogger(__name__)

MAKES_AT_ONCE = 2
"""Spares of one pool that are made at the same time: creates that people wait for go before."""
QUIET_SECONDS = 0.2
"""A pool is refilled once nobody has taken a spare for so long: a burst shall not share the machine with its refill."""
MAX_BUSY_SECONDS = 2.0

_Key = tuple[TenantId, str, Isolation]


@dataclass(slots=True)
class _Kept:
    """A pool and what is remembered of it between two looks."""

    pool: Pool
    last_wanted: datetime
    template: TemplateId | None = None
    failures: int = 0
    problem: str = ""
    retry_at: datetime | None = None


class Pools:
    """The warm pools of all tenants."""

    def __init__(
        self,
        *,
        store: Store,
        sandboxes: Sandboxes,
        templates: Templates,
        registry: Registry,
        clock: Clock,
        usable: Callable[[], dict[Isolation, tuple[str, ...]]],
    ) -> None:
        """`usable` as `Driver.runtimes`."""
        self._store = store
        self._sandboxes = sandboxes
        self._templates = templates
        self._registry = registry
        self._clock = clock
        self._usable = usable
        self._pools: dict[_Key, _Kept] = {}
        self._wake = asyncio.Event()
        self._taken_at = 0.0

    async def load(self) -> None:
        """Read the pools from the store."""
        now = self._clock.now()
        for pool in await self._store.pools():
            self._pools[_key(pool)] = _Kept(pool, now)

    # -- use cases ------------------------------------------------------------------------------------------------

    async def set(
        self,
        tenant: TenantId,
        template: str,
        size: int,
        *,
        isolation: Isolation | None = None,
        runtime: str | None = None,
        limits: Limits | None = None,
        idle: int | None = None,
    ) -> PoolStatus:
        """Keep `size` spares of a template ready; replaces the pool of the same template and isolation.

        Raises NotFound (template), InvalidInput, Unsupported.
        """
        found = await self._templates.resolve(tenant, template, None, None)
        request = CreateRequest(isolation=isolation, runtime=runtime, limits=limits)
        level, chosen, most = machine_for(self._usable(), request, found)
        pool = Pool(tenant, found.name, level, chosen, most, size, idle).checked()
        await self._store.put_pool(pool)
        kept = self._pools[_key(pool)] = _Kept(pool, self._clock.now(), found.id)
        self.wake()
        return self._status(kept)

    def statuses(self, tenant: TenantId) -> list[PoolStatus]:
        """A tenant's pools, by template and isolation."""
        mine = (kept for key, kept in sorted(self._pools.items()) if key[0] == tenant)
        return [self._status(kept) for kept in mine]

    async def remove(self, tenant: TenantId, template: str, isolation: Isolation | None = None) -> None:
        """End a template's pools, or the one of an isolation, and remove their spares. Raises NotFound."""
        keys = [key for key in self._pools if key[:2] == (tenant, template) and isolation in (None, key[2])]
        if not keys:
            raise NotFound(f"there is no pool of template {template[:80]!r}", "list yours: `corral pool ls`")
        for key in keys:
            await self._store.remove_pool(*key)
            self._pools.pop(key, None)
        await self._drop_stale()

    def demand(self, spec: SandboxSpec) -> None:
        """A sandbox of this kind was asked for, whether a spare was there or not."""
        for kept in self._pools.values():
            if kept.template is not None and kept.pool.serves(spec, kept.template):
                kept.last_wanted = self._clock.now()
                self._taken_at = asyncio.get_running_loop().time()
                self.wake()

    def wake(self) -> None:
        """Look at the pools again: one was changed, a template was, or a spare was taken or lost."""
        self._wake.set()

    # -- keeping them full ----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep the pools full; runs until cancelled."""
        while True:
            self._wake.clear()
            try:
                next_look = await self._look()
            except CorralError as error:
                log.error("the pools could not be looked after: %s", error)
                next_look = self._clock.now() + pause_after(1)
            await self._pause(next_look)
            await self._quiet()

    async def _look(self) -> datetime | None:
        """Bring every pool a step nearer to what it shall be; when to look again at the latest."""
        for kept in list(self._pools.values()):
            kept.template = await self._current(kept.pool)
        await self._drop_stale()
        looks: list[datetime | None] = []
        async with asyncio.TaskGroup() as group:
            for kept in list(self._pools.values()):
                group.create_task(self._look_at(kept, looks))
        return min((look for look in looks if look is not None), default=None)

    async def _look_at(self, kept: _Kept, looks: list[datetime | None]) -> None:
        plan = refill(
            kept.pool,
            kept.template,
            self._spares(kept.pool.tenant),
            now=self._clock.now(),
            last_wanted=kept.last_wanted,
            retry_at=kept.retry_at,
        )
        looks.append(plan.next_look)
        for spare in plan.drop:
            await self._discard(spare)
        if kept.template is None:
            kept.problem = f"there is no template {kept.pool.template!r}"
            return
        if plan.make == 0:
            return
        async with asyncio.TaskGroup() as group:
            for _ in range(min(plan.make, MAKES_AT_ONCE)):
                group.create_task(self._make(kept))
        if kept.retry_at is None:
            self.wake()  # more may be missing
        looks.append(kept.retry_at)

    async def _make(self, kept: _Kept) -> None:
        pool = kept.pool
        request = CreateRequest(
            template=pool.template, isolation=pool.isolation, runtime=pool.runtime, limits=pool.limits
        )
        try:
            await self._sandboxes.make_spare(pool.tenant, request)
        except CorralError as error:
            kept.failures += 1
            kept.retry_at = self._clock.now() + pause_after(kept.failures)
            kept.problem = f"{error.message} ({error.hint})"
            log.warning("the pool of %s could not be filled: %s", pool.template, error)
        else:
            kept.failures, kept.problem, kept.retry_at = 0, "", None

    async def _current(self, pool: Pool) -> TemplateId | None:
        with contextlib.suppress(NotFound):
            return (await self._templates.get(pool.tenant, pool.template)).id
        return None

    async def _drop_stale(self) -> None:
        """Remove spares that no pool asks for any more: of replaced templates, of removed or changed pools."""
        pools = [(kept.pool, kept.template) for kept in self._pools.values() if kept.template is not None]
        for spare in self._registry.spares():
            if not any(pool.serves(spare.spec, template) for pool, template in pools):
                await self._discard(spare.id)

    async def _discard(self, spare: SandboxId) -> None:
        try:
            await self._sandboxes.discard_spare(spare)
        except CorralError as error:
            log.error("a spare could not be removed: %s", error)

    async def _pause(self, until: datetime | None) -> None:
        """Until the next look is due, or something wakes us."""
        seconds = LONGEST_PAUSE.total_seconds()  # at most: the clock may be set meanwhile
        if until is not None:
            seconds = min(max((until - self._clock.now()).total_seconds(), 0.05), seconds)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    async def _quiet(self) -> None:
        """Let a burst of creates pass."""
        loop = asyncio.get_running_loop()
        end = loop.time() + MAX_BUSY_SECONDS
        while (wait := min(self._taken_at + QUIET_SECONDS, end) - loop.time()) > 0:  # noqa: ASYNC110 - time is awaited
            await asyncio.sleep(wait)

    def _spares(self, tenant: TenantId) -> list[Sandbox]:
        return [
            spare
            for spare in self._registry.spares()
            if spare.spec.tenant == tenant and spare.state is State.RUNNING
        ]

    def _status(self, kept: _Kept) -> PoolStatus:
        template = kept.template
        ready = [
            spare
            for spare in self._spares(kept.pool.tenant)
            if template is not None and kept.pool.serves(spare.spec, template)
        ]
        asleep = is_asleep(kept.pool, self._clock.now(), kept.last_wanted)
        return PoolStatus(kept.pool, len(ready), kept.problem, kept.retry_at, asleep)


def _key(pool: Pool) -> _Key:
    return pool.tenant, pool.template, pool.isolation

"""Every sandbox that the daemon knows: looked up in memory, changed only through the lifecycle table and the store.

The daemon is the only writer of its store, so memory and store agree; the store is written first.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import replace
from datetime import datetime

from corral.engine.events import Events
from corral.engine.granted import given
from corral.engine.ports import Clock, Store
from corral.errors import Conflict, NotFound
from corral.model.audit import AuditItem
from corral.model.egress import EgressPolicy
from corral.model.grants import Grant
from corral.model.ids import SandboxId, TenantId
from corral.model.lifecycle import STANDING_STILL, Event, State, advance
from corral.model.pool import interchangeable
from corral.model.sandbox import Expiry, Sandbox, SandboxSpec
from corral.policy.idle import by_host

WITH_IMAGE = frozenset((State.SUSPENDING, State.SUSPENDED, State.RESUMING))
"""States in which a sandbox has an image of its memory. They survive a power cut, as the image does: the image of a sandbox
that is known to run is removed, and one that has gone on since must not go on from it again."""


class Registry:
    """Sandboxes by id and by name.

    Whoever changes a sandbox's state holds its lock (`lock(id)`); reading needs none.
    """

    def __init__(self, store: Store, events: Events, clock: Clock) -> None:
        self._store = store
        self._events = events
        self._clock = clock
        self._sandboxes: dict[SandboxId, Sandbox] = {}
        self._names: dict[tuple[TenantId, str], SandboxId] = {}
        self._promised: set[tuple[TenantId, str]] = set()
        self._locks: dict[SandboxId, asyncio.Lock] = {}
        self._spares: dict[SandboxId, Sandbox] = {}

    async def load(self) -> None:
        """Read all sandboxes from the store."""
        for sandbox in await self._store.sandboxes():
            self._remember(sandbox)

    def lock(self, sandbox: SandboxId) -> asyncio.Lock:
        """The lock that serialises changes of one sandbox."""
        return self._locks.setdefault(sandbox, asyncio.Lock())

    def locked(self, tenant: TenantId, ref: str) -> AbstractAsyncContextManager[Sandbox]:
        """A sandbox that nobody else changes meanwhile. Raises NotFound."""
        return _Locked(self, tenant, ref)

    def all(self) -> list[Sandbox]:
        """All tenants' sandboxes, oldest first, spares of warm pools included."""
        return list(self._sandboxes.values())

    def spares(self) -> list[Sandbox]:
        """All tenants' spares, oldest first, also those that are being made or removed."""
        return list(self._spares.values())

    def spare_like(self, spec: SandboxSpec) -> Sandbox | None:
        """A ready spare that can become `spec`, and that nobody is taking: take its lock before anything else."""
        for spare in self._spares.values():
            if (
                spare.state is State.RUNNING
                and interchangeable(spare.spec, spec)
                and not self.lock(spare.id).locked()
            ):
                return spare
        return None

    def of(self, tenant: TenantId, labels: dict[str, str] | None = None) -> list[Sandbox]:
        """A tenant's sandboxes, oldest first, that carry all of `labels`."""
        wanted = (labels or {}).items()
        return [
            s
            for s in self._sandboxes.values()
            if s.spec.tenant == tenant and not s.spec.spare and wanted <= s.spec.labels.items()
        ]

    def find(self, tenant: TenantId, ref: str) -> Sandbox:
        """By name or id. Raises NotFound, also for another tenant's, and for a spare."""
        sandbox = self.find_any(tenant, ref)
        if sandbox.spec.spare:
            raise _not_found(ref)
        return sandbox

    def find_any(self, tenant: TenantId, ref: str) -> Sandbox:
        """As `find`, and a spare by its id, which nobody is told: its services are started in it before it is anybody's."""
        by_name = self._names.get((tenant, ref))
        sandbox = self._sandboxes.get(by_name or SandboxId(ref))
        if sandbox is None or sandbox.spec.tenant != tenant:
            raise _not_found(ref)
        return sandbox

    def get(self, sandbox: SandboxId) -> Sandbox | None:
        """By id, whatever its tenant."""
        return self._sandboxes.get(sandbox)

    def taken(self, tenant: TenantId, name: str) -> bool:
        """Whether a sandbox of the tenant has that name, or will have it."""
        return (tenant, name) in self._names or (tenant, name) in self._promised

    @contextmanager
    def promised(self, tenant: TenantId, name: str) -> Iterator[None]:
        """Keep a name for a sandbox that is about to be made. Raises Conflict if it is taken."""
        if self.taken(tenant, name):
            holder = self._names.get((tenant, name), "that is being made")
            raise Conflict(
                f"the name {name!r} is taken by sandbox {holder}",
                f"choose another, or remove it: corral rm {name}",
            )
        self._promised.add((tenant, name))
        try:
            yield
        finally:
            self._promised.discard((tenant, name))

    async def add(self, sandbox: Sandbox, grant: Grant) -> None:
        """Record a new sandbox. Raises Conflict if its name is taken."""
        await self._store.add_sandbox(sandbox, grant, given(sandbox.spec, grant))
        self._remember(sandbox)
        self._publish(sandbox)

    async def claim(self, sandbox: Sandbox, grant: Grant) -> None:
        """Make a spare what `sandbox` says, with another grant. Raises Conflict, and changes nothing, if its name is taken."""
        former = self._sandboxes[sandbox.id]
        await self._store.claim_sandbox(sandbox, grant, given(sandbox.spec, grant))
        self._names.pop((former.spec.tenant, former.spec.name), None)
        self._remember(sandbox)
        self._events.publish(sandbox)

    async def advance(
        self, sandbox: SandboxId, event: Event, reason: str = "", *, durable: bool = True
    ) -> Sandbox:
        """Apply a lifecycle event. Raises Conflict, and changes nothing, if the table does not list it.

        Not `durable`: after a crash the former state counts, unless `settle` was called.
        """
        current = self._sandboxes.get(sandbox)
        if current is None:
            raise NotFound("the sandbox is gone")
        then = advance(current.state, event)
        current = await self._keep_end(current, then)
        changed = current.with_state(then, self._clock.now(), reason)
        if durable:
            lasting = bool({current.state, changed.state} & WITH_IMAGE)
            await self._store.set_state(changed, lasting=lasting)
        self._remember(changed)
        self._publish(changed)
        return changed

    async def settle(self, sandbox: SandboxId) -> None:
        """Make the state durable."""
        await self._store.set_state(self._sandboxes[sandbox])

    async def settle_all(self, sandboxes: Sequence[SandboxId]) -> None:
        """Make the states of several durable at once. Those that are gone meanwhile are left out."""
        await self._store.set_states([self._sandboxes[each] for each in sandboxes if each in self._sandboxes])

    async def correct(self, sandbox: SandboxId, state: State, reason: str) -> Sandbox:
        """Set the state that the kernel shows, after a time without a daemon."""
        current = await self._keep_end(self._sandboxes[sandbox], state)
        changed = current.with_state(state, self._clock.now(), reason)
        await self._store.set_state(changed)
        self._remember(changed)
        self._publish(changed)
        return changed

    async def _keep_end(self, sandbox: Sandbox, then: State) -> Sandbox:
        """The sandbox, which is about to be in another state. Where it is stopped while its time stands still, that would run
        on, with all the time that it was paused: so it has no end any more, or, paused by the host alone, a later one. Nor
        has one an end that was stopped to rest."""
        if then is State.STOPPED and sandbox.spec.rests:
            return await self._respec(sandbox.id, replace(sandbox.spec, ttl=None, rests=False))
        if then is not State.STOPPED or sandbox.state not in STANDING_STILL or sandbox.spec.ttl is None:
            return sandbox
        if sandbox.state is not State.SUSPENDING and not by_host(sandbox.reason):
            return await self.set_ttl(sandbox.id, None)
        await self.add_pause(sandbox.id)
        return self._sandboxes[sandbox.id]

    async def set_ttl(self, sandbox: SandboxId, ttl: int | None, *, rests: bool = False) -> Sandbox:
        """Change the time to live, counted in seconds from now; `rests`: it goes if the sandbox is stopped."""
        current = self._sandboxes[sandbox]
        age = (self._clock.now() - current.spec.created_at).total_seconds()
        changed = replace(current.spec, ttl=None if ttl is None else age + ttl, rests=rests)
        return await self._respec(sandbox, changed)

    async def set_expiry(self, sandbox: SandboxId, expiry: Expiry) -> Sandbox:
        """Change what happens at the end of its life."""
        return await self._respec(sandbox, replace(self._sandboxes[sandbox].spec, expiry=expiry))

    async def set_rests(self, sandbox: SandboxId, *, rests: bool) -> None:
        """Note that the end of its life goes once it is stopped, or that it does not. Nothing to do for one that is gone."""
        current = self._sandboxes.get(sandbox)
        if current is not None and current.spec.rests != rests:
            await self._respec(sandbox, replace(current.spec, rests=rests))

    async def put_off(self, sandbox: SandboxId, seconds: float) -> None:
        """Move the end of a sandbox's life, if it has one and is still there."""
        current = self._sandboxes.get(sandbox)
        if current is not None and current.spec.ttl is not None:
            await self._respec(sandbox, replace(current.spec, ttl=current.spec.ttl + seconds))

    async def add_pause(self, sandbox: SandboxId, since: datetime | None = None) -> None:
        """Put off the end of a paused sandbox's life by the time that it was paused: since its last change, or `since`."""
        paused = self._clock.now() - (since or self._sandboxes[sandbox].changed_at)
        await self.put_off(sandbox, paused.total_seconds())

    async def set_egress(
        self,
        sandbox: SandboxId,
        egress: EgressPolicy,
        route: str | None = None,
        notes: Mapping[str, str] | None = None,
        record: AuditItem | None = None,
    ) -> Sandbox:
        """Change what the sandbox may reach; its sealed route, unless that is None; and what is noted of both."""
        spec = self._sandboxes[sandbox].spec
        attributes = {**spec.attributes, **(notes or {})}
        changed = replace(
            spec, egress=egress, route=spec.route if route is None else route, attributes=attributes
        )
        return await self._respec(sandbox, changed, record)

    async def set_secrets(self, sandbox: SandboxId, secrets: tuple[str, ...]) -> Sandbox:
        """Change which secrets its grant covers."""
        return await self._respec(sandbox, replace(self._sandboxes[sandbox].spec, secrets=secrets))

    async def _respec(
        self, sandbox: SandboxId, spec: SandboxSpec, record: AuditItem | None = None
    ) -> Sandbox:
        changed = replace(self._sandboxes[sandbox], spec=spec)
        await self._store.set_spec(spec, record)
        self._remember(changed)
        return changed

    async def drop(self, sandbox: SandboxId) -> bool:
        """Forget a sandbox of which nothing is left; whether a template that was kept for it alone went with it."""
        last = await self._store.remove_sandbox(sandbox)
        gone = self._sandboxes.pop(sandbox, None)
        self._locks.pop(sandbox, None)
        if gone is not None:
            self._names.pop((gone.spec.tenant, gone.spec.name), None)
            self._spares.pop(sandbox, None)
            self._publish(gone.with_state(State.GONE, self._clock.now(), gone.reason))
        return last

    def _publish(self, sandbox: Sandbox) -> None:
        if not sandbox.spec.spare:
            self._events.publish(sandbox)

    def _remember(self, sandbox: Sandbox) -> None:
        self._sandboxes[sandbox.id] = sandbox
        if sandbox.spec.spare:
            self._spares[sandbox.id] = sandbox
        else:
            self._spares.pop(sandbox.id, None)
        self._names[sandbox.spec.tenant, sandbox.spec.name] = sandbox.id


class _Locked:
    """A sandbox, looked up again once its lock is held: what was waited for may have removed it."""

    def __init__(self, registry: Registry, tenant: TenantId, ref: str) -> None:
        self._registry = registry
        self._tenant = tenant
        self._ref = ref

    async def __aenter__(self) -> Sandbox:
        self._lock = self._registry.lock(self._registry.find(self._tenant, self._ref).id)
        await self._lock.acquire()
        try:
            return self._registry.find(self._tenant, self._ref)
        except NotFound:
            self._lock.release()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()


def _not_found(ref: str) -> NotFound:
    return NotFound(f"there is no sandbox {ref[:80]!r}", "list yours with `corral ls`")

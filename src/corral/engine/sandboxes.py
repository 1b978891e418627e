"""The use cases of a sandbox's life: create, start, stop, pause, resume, remove, and finding all again after a crash.

Order of every change: the intent goes to the store, then the driver acts, then the outcome goes to the store. What a
crash leaves in between is finished or undone by `recover`, from the state in the store and what the kernel shows.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from functools import partial

from corral.engine.activity import Activity
from corral.engine.admission import Admission
from corral.engine.creation import Creation
from corral.engine.events import Events
from corral.engine.granted import regiven
from corral.engine.hooks import Hooks
from corral.engine.plan import CreateRequest, check_ttl
from corral.engine.ports import Clock, Driver, Gateway, Store
from corral.engine.recovery import Recovery
from corral.engine.registry import Registry
from corral.engine.running import Running, own_image
from corral.engine.suspension import Captured, Suspension
from corral.engine.templates import Templates
from corral.engine.volumes import Volumes
from corral.errors import Conflict, CorralError, HostError, NotFound
from corral.host.tasks import TaskOwner
from corral.model.audit import AuditItem
from corral.model.egress import EgressPolicy
from corral.model.events import LifecycleEvent
from corral.model.ids import ImageId, SandboxId, TenantId
from corral.model.lifecycle import STANDING_STILL, Event, State, advance
from corral.model.route import Route
from corral.model.sandbox import Expiry, Sandbox, SandboxSpec, Stats
from corral.model.template import Template
from corral.model.usage import UsageTotal
from corral.policy.routes import checked_route

log = logging.getLogger(__name__)

SWEEP_SECONDS = 1.0
STEP_SECONDS = 5.0
"""By how much the clock must be off, from one look to the next, to have been set or to have slept."""


class Sandboxes:
    """All sandboxes of this daemon."""

    def __init__(
        self,
        *,
        store: Store,
        driver: Driver,
        gateway: Gateway,
        templates: Templates,
        registry: Registry,
        events: Events,
        clock: Clock,
        tasks: TaskOwner,
        admission: Admission,
        activity: Activity,
        hooks: Hooks,
        volumes: Volumes,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """`steady` gives seconds that pass while the host runs, whatever is done to its clock."""
        self._store = store
        self._driver = driver
        self._steady = steady
        self._registry = registry
        self._events = events
        self._clock = clock
        self._tasks = tasks
        self.admission = admission
        self._activity = activity
        self._hooks = hooks
        self._running = Running(
            store=store,
            driver=driver,
            gateway=gateway,
            templates=templates,
            registry=registry,
            clock=clock,
            tasks=tasks,
            admission=admission,
            activity=activity,
            hooks=hooks,
        )
        self._suspension = Suspension(
            store=store,
            driver=driver,
            gateway=gateway,
            templates=templates,
            registry=registry,
            admission=admission,
            activity=activity,
            hooks=hooks,
            running=self._running,
        )
        self._creation = Creation(
            store=store,
            driver=driver,
            templates=templates,
            registry=registry,
            clock=clock,
            admission=admission,
            activity=activity,
            hooks=hooks,
            running=self._running,
            suspension=self._suspension,
            volumes=volumes,
        )
        self._recovery = Recovery(
            driver=driver,
            templates=templates,
            registry=registry,
            hooks=hooks,
            running=self._running,
            suspension=self._suspension,
        )

    def get(self, tenant: TenantId, ref: str) -> Sandbox:
        """By name or id. Raises NotFound."""
        return self._registry.find(tenant, ref)

    def by_id(self, sandbox: SandboxId) -> Sandbox | None:
        """Of any tenant: for callers who prove by the sandbox's own token that they may use it."""
        return self._registry.get(sandbox)

    def all(self) -> list[Sandbox]:
        """Of all tenants, for the same callers, who do not say which they mean."""
        return [sandbox for sandbox in self._registry.all() if not sandbox.spec.spare]

    def events(self, tenant: TenantId, after: int | None = None) -> AsyncIterator[LifecycleEvent]:
        """Lifecycle events from now, or after a sequence number."""
        return self._events.lives(tenant, after)

    async def stats(self, tenant: TenantId, ref: str) -> Stats:
        """What a sandbox uses now."""
        return await self._driver.stats(self.get(tenant, ref).id)

    async def usage(self, tenant: TenantId, ref: str) -> list[UsageTotal]:
        """What its model calls cost, by model."""
        return await self._store.usage(self.get(tenant, ref).id)

    def locked(self, tenant: TenantId, ref: str) -> "AbstractAsyncContextManager[Sandbox]":
        """A sandbox that nobody else changes meanwhile. Raises NotFound."""
        return self._registry.locked(tenant, ref)

    async def create(self, tenant: TenantId, request: CreateRequest) -> Sandbox:
        """A new running sandbox. A create that fails leaves nothing.

        Raises InvalidInput, NotFound (template, secret, volume), Conflict (name), Unsupported, NoCapacity and DiskFull (there is no
        room, and `request` does not queue, or did in vain).
        """
        return await self._creation.create(tenant, request)

    async def make_spare(self, tenant: TenantId, request: CreateRequest) -> Sandbox:
        """A sandbox that waits for a create to take it over. Raises what `create` raises."""
        return await self._creation.make_spare(tenant, request)

    async def discard_spare(self, spare: SandboxId) -> None:
        """Remove a spare, unless somebody has taken it meanwhile. Idempotent."""
        await self._creation.discard_spare(spare)

    async def fork(self, origin: SandboxSpec, template: Template, name: str, ttl: int | None) -> Sandbox:
        """A sandbox that is what another one was when `template` was made of it, but for who it is."""
        return await self._creation.fork(origin, template, name, ttl)

    async def start(self, tenant: TenantId, ref: str, *, ttl: int | None = None) -> Sandbox:
        """Start a stopped sandbox; its files are as they were. `ttl`: its life ends so many seconds after its start; if that
        fails, never."""
        check_ttl(ttl)
        async with self.locked(tenant, ref) as sandbox:
            advance(sandbox.state, Event.START)  # what the table excludes is not a matter of room
            async with self._running.place_again(sandbox):
                started = await self._start(sandbox, ttl)
        try:  # without the lock: it can be stopped while it gets ready
            await self._hooks.on_up(started, started.spec.services, None)
        except CorralError as error:  # it runs, and that is what was asked for
            log.warning("sandbox %s: %s", started.spec.name, error)
        return started

    async def _start(self, sandbox: Sandbox, ttl: int | None) -> Sandbox:
        await self._registry.advance(sandbox.id, Event.START)
        try:
            await self._running.renew(sandbox.id)
            await self._running.bring_up(sandbox.spec, await self._store.template(sandbox.spec.template))
            if ttl is not None:
                await self._registry.set_ttl(sandbox.id, ttl, rests=True)
        except BaseException as error:
            await asyncio.shield(self._running.failed_start(sandbox.id, str(error)))
            raise
        await self._registry.advance(sandbox.id, Event.STARTED)
        self._running.supervise(sandbox.id)
        self._activity.touch(sandbox.id)
        await self._registry.set_rests(sandbox.id, rests=False)
        return self._registry.find_any(sandbox.spec.tenant, sandbox.id)

    async def stop(
        self,
        tenant: TenantId,
        ref: str,
        grace: float = 10.0,
        *,
        reason: str = "",
        only_if: Callable[[], bool] = lambda: True,
        endless: bool = False,
    ) -> Sandbox:
        """End its processes: TERM, KILL after `grace` seconds. Its files stay. `reason` is kept for those who ask; nothing is
        done if `only_if` says no once its turn has come. `endless`: with it the end of its life goes; a stop that fails, or
        is cut and undone, leaves that as it was."""
        async with self.locked(tenant, ref) as sandbox:
            if not only_if():
                return sandbox
            advance(sandbox.state, Event.STOP)  # what the table excludes changes nothing
            if not endless:
                return await self._stop(sandbox, grace, reason)
            await self._registry.set_rests(sandbox.id, rests=True)
            try:
                return await self._stop(sandbox, grace, reason)
            except BaseException:
                await asyncio.shield(self._registry.set_rests(sandbox.id, rests=False))
                raise

    async def _stop(self, sandbox: Sandbox, grace: float, reason: str) -> Sandbox:
        if sandbox.state is State.SUSPENDED:
            stopped = await self._registry.advance(sandbox.id, Event.STOP, reason)
            await self._driver.remove_image(own_image(sandbox.id))
            return stopped
        await self._hooks.before_down(sandbox)
        await self._running.take_down(sandbox.id, grace)
        return await self._registry.advance(sandbox.id, Event.STOP, reason)

    async def pause(
        self,
        tenant: TenantId,
        ref: str,
        *,
        memory: bool = False,
        reason: str = "",
        only_if: Callable[[], bool] = lambda: True,
    ) -> Sandbox:
        """Freeze its processes where they are; with `memory`, write them to disk and free all that they hold of the host
        but the disk. Raises Unsupported where its runtime cannot do that. `reason` and `only_if` as for `stop`."""
        if memory:
            return await self._suspension.suspend(tenant, ref, reason, only_if)
        async with self.locked(tenant, ref) as sandbox:
            if not only_if():
                return sandbox
            if sandbox.state is State.RUNNING:
                await self._driver.pause(sandbox.id)
            paused = await self._registry.advance(sandbox.id, Event.PAUSE, reason)
            self.admission.changed()
            return paused

    async def resume(self, tenant: TenantId, ref: str) -> Sandbox:
        """Let a paused sandbox go on."""
        async with self.locked(tenant, ref) as sandbox:
            if sandbox.state is State.SUSPENDED:
                return await self._suspension.wake(sandbox)
            if sandbox.state is not State.PAUSED:
                return await self._registry.advance(sandbox.id, Event.RESUME)
            async with self._running.place_again(sandbox):
                await self._driver.resume(sandbox.id)
                await self._registry.add_pause(sandbox.id)
                resumed = await self._registry.advance(sandbox.id, Event.RESUME)
            self._activity.touch(sandbox.id)
            await self._hooks.on_running(resumed)
            return resumed

    async def remove(self, tenant: TenantId, ref: str, *, only_if: Callable[[], bool] = lambda: True) -> None:
        """Kill it and remove all that is left of it, its files included. `only_if` as for `stop`."""
        await self._remove(tenant, ref, asyncio.Event(), only_if)

    async def begin_removal(self, tenant: TenantId, ref: str) -> None:
        """The same, but return once it is certain: from then on the sandbox answers nothing, and is removed in the
        background, or by the next daemon."""
        sandbox, begun = self.get(tenant, ref), asyncio.Event()
        removal = self._tasks.start(self._remove(tenant, sandbox.id, begun), name=f"remove-{sandbox.id}")
        waiting = asyncio.ensure_future(begun.wait())
        try:
            await asyncio.wait({removal, waiting}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if not begun.is_set():
            await removal

    async def _remove(
        self, tenant: TenantId, ref: str, begun: asyncio.Event, only_if: Callable[[], bool] = lambda: True
    ) -> None:
        async with self.locked(tenant, ref) as sandbox:
            if not only_if():
                return
            await self._hooks.before_down(sandbox)
            await self._registry.advance(sandbox.id, Event.REMOVE)
            begun.set()
            await asyncio.shield(self._running.discard(sandbox.id))

    async def set_ttl(self, tenant: TenantId, ref: str, seconds: int | None) -> Sandbox:
        """End its life `seconds` from now, or never."""
        check_ttl(seconds)
        async with self.locked(tenant, ref) as sandbox:
            return await self._registry.set_ttl(sandbox.id, seconds)

    async def set_expiry(self, tenant: TenantId, ref: str, expiry: Expiry) -> Sandbox:
        """Change what happens at the end of its life."""
        async with self.locked(tenant, ref) as sandbox:
            return await self._registry.set_expiry(sandbox.id, expiry)

    async def set_egress(
        self,
        tenant: TenantId,
        ref: str,
        policy: EgressPolicy,
        route: Route | None = None,
        notes: Mapping[str, str] | None = None,
        record: AuditItem | None = None,
    ) -> None:
        """Replace what a sandbox may reach; open connections that it may no longer have are cut. `route`: and how its
        requests go out, None leaving that as it is. `notes` are added to its attributes. `record`: what the audit log is told
        in place of the rules that are new or gone. Raises InvalidInput.
        """
        sealed = None
        if route is not None:
            sealed = await self._store.seal_route(tenant, checked_route(route))
        async with self.locked(tenant, ref) as sandbox:
            rerouted = route is not None and route != await self.route(tenant, sandbox.id)
            told = record or regiven(sandbox.spec, policy, rerouted=rerouted)
            changed = await self._registry.set_egress(sandbox.id, policy, sealed, notes, told)
            await self._running.tell_egress(changed)

    async def route(self, tenant: TenantId, ref: str) -> Route:
        """How its requests go out."""
        return await self._store.open_route(tenant, self.get(tenant, ref).spec.route)

    async def refresh_egress(self, sandbox: SandboxId) -> None:
        """Let a sandbox reach what `egress_of` says now. Nothing to do for one that does not run."""
        async with self._registry.lock(sandbox):
            current = self._registry.get(sandbox)
            if current is not None:
                await self._running.tell_egress(current)

    def egress(self, tenant: TenantId, ref: str) -> EgressPolicy:
        """All that decides what a sandbox may reach."""
        return self._hooks.egress_of(self.get(tenant, ref).spec)

    async def secret_changed(self, tenant: TenantId, name: str) -> None:
        """Let the sandboxes that may use a secret reach the hosts that it goes to now, and no others for it."""
        for sandbox in self._registry.of(tenant):
            if name in sandbox.spec.secrets:
                await self.refresh_egress(sandbox.id)

    async def expire(self, tenant: TenantId, ref: str, only_if: Callable[[], bool] = lambda: True) -> None:
        """End its life now: remove it, or if it was made so, pause or stop it. One of those that is stopped already is left
        as it is, without an end, and one that starts is looked at again when it runs. `only_if` as for `stop`."""
        sandbox = self.get(tenant, ref)
        if sandbox.spec.expiry is Expiry.REMOVE or sandbox.state is State.FAILED:
            await self.remove(tenant, sandbox.id, only_if=only_if)
        elif sandbox.state is State.STOPPED:
            await self._let_rest(tenant, sandbox.id)
        elif sandbox.state is not State.RUNNING:
            return
        elif sandbox.spec.expiry is Expiry.PAUSE:
            await self._pause_at_end(sandbox, only_if)
        else:
            await self.stop(tenant, sandbox.id, 0, only_if=only_if, endless=True)

    def _is_over(self, sandbox: SandboxId, now: datetime) -> bool:
        """Whether its time to live has passed, and runs."""
        current = self._registry.get(sandbox)
        if current is None or current.state in STANDING_STILL:
            return False
        return current.spec.ends_at is not None and now >= current.spec.ends_at

    async def _let_rest(self, tenant: TenantId, ref: str) -> None:
        async with self.locked(tenant, ref) as sandbox:
            if sandbox.state is State.STOPPED:
                await self._registry.set_ttl(sandbox.id, None)

    async def _pause_at_end(self, sandbox: Sandbox, only_if: Callable[[], bool]) -> None:
        """With its memory on disk, where that can be; else it keeps standing where it is."""
        tenant, id = sandbox.spec.tenant, sandbox.id
        if self._driver.saves_memory(sandbox.spec.runtime):
            try:
                await self.pause(tenant, id, memory=True, only_if=only_if)
            except HostError as error:
                log.warning("sandbox %s is paused in memory: %s", sandbox.spec.name, error)
            else:
                return
        await self.pause(tenant, id, only_if=only_if)

    async def sweep(self) -> None:
        """Remove, pause or stop sandboxes whose time to live has passed; runs until cancelled.

        A time to live is time that passes on this host: steps of its clock are none, nor is its sleep.
        """
        now, passed = self._clock.now(), self._steady()
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            former = now, passed
            now, passed = self._clock.now(), self._steady()
            step = (now - former[0]).total_seconds() - (passed - former[1])
            if abs(step) >= STEP_SECONDS:
                try:
                    await self._follow_step(step)
                except CorralError as error:
                    log.error("the ends of some sandboxes' lives did not move with the clock: %s", error)
            for sandbox in self._registry.all():
                is_over = partial(self._is_over, sandbox.id, now)
                if not is_over():
                    continue
                log.info("sandbox %s reached its time to live", sandbox.spec.name)
                try:
                    # It may be put off, paused or put to rest while its turn is waited for.
                    await self.expire(sandbox.spec.tenant, sandbox.id, is_over)
                except (Conflict, NotFound):
                    continue
                except CorralError as error:
                    log.error("sandbox %s could not be ended: %s", sandbox.spec.name, error)

    async def _follow_step(self, step: float) -> None:
        log.warning("the host's clock has moved by %.0f s: the ends of sandboxes' lives move with it", step)
        for sandbox in self._registry.all():
            if sandbox.state not in STANDING_STILL:  # those are put off by all of it when they go on
                async with self._registry.lock(sandbox.id):
                    await self._registry.put_off(sandbox.id, step)

    async def capture(self, sandbox: Sandbox, *, memory: bool) -> Captured:
        """What is in a sandbox at one moment, as a layer and, with `memory`, an image. It stands still for that moment
        only. The caller holds its lock, and layers. Raises Conflict, Unsupported, DiskFull."""
        return await self._suspension.capture(sandbox, memory=memory)

    async def release_image(self, image: ImageId) -> None:
        """An image that was captured is used by a template now, or by nobody."""
        await self._suspension.release_image(image)

    async def sweep_images(self) -> None:
        """Remove images that nothing will go on from."""
        await self._suspension.sweep_images()

    async def recover(self) -> None:
        """Bring store and kernel to agreement: finish or undo what was cut, re-adopt what runs, sweep what nobody owns."""
        await self._recovery.recover()

    def list(self, tenant: TenantId, labels: dict[str, str] | None = None) -> list[Sandbox]:
        """A tenant's sandboxes, oldest first."""
        return self._registry.of(tenant, labels)

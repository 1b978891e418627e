"""The use cases of a sandbox's life: create, start, stop, pause, resume, remove, and finding all again after a crash.

Order of every change: the intent goes to the store, then the driver acts, then the outcome goes to the store. What a
crash leaves in between is finished or undone by `recover`, from the state in the store and what the kernel shows.
"""

import asyncio
import contextlib
import logging
import secrets as randomness
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from coolname import generate_slug

from corral.engine.activity import Activity
from corral.engine.admission import Admission, QueueWish
from corral.engine.events import Events
from corral.engine.plan import CreateRequest, build_spec, check_ttl, checked
from corral.engine.ports import Attachment, Clock, Driver, DriverStatus, Gateway, Progress, Saved, Store
from corral.engine.registry import Registry
from corral.engine.templates import Templates
from corral.errors import Conflict, CorralError, HostError, NoCapacity, NotFound, Unsupported
from corral.host.tasks import TaskOwner
from corral.model.budget import Window
from corral.model.egress import EgressPolicy
from corral.model.events import LifecycleEvent
from corral.model.grants import Grant
from corral.model.ids import GrantId, ImageId, LayerDigest, SandboxId, TenantId
from corral.model.lifecycle import Event, State, advance
from corral.model.pool import spare_name
from corral.model.sandbox import Expiry, Sandbox, SandboxSpec, Stats
from corral.model.secrets import Secret
from corral.model.service import Service
from corral.model.template import Template
from corral.model.usage import UsageTotal
from corral.policy.tokens import token_hash

log = logging.getLogger(__name__)

STARTS_AT_ONCE = 4
"""Sandboxes being started at the same time: the kernel serialises most of the work, more only adds waiting."""
MAX_SANDBOXES = 10_000
SWEEP_SECONDS = 1.0
BUILD = "build"
"""Attribute of a sandbox that is a step of a template's build, and goes with it."""

_STANDING_STILL = (State.PAUSED, State.SUSPENDING, State.SUSPENDED, State.RESUMING)
"""States in which a time to live does not run."""
_WITH_IMAGE = (State.SUSPENDING, State.SUSPENDED, State.RESUMING)

Ready = Callable[[Sandbox], Coroutine[Any, Any, None]]


async def _nothing(_: Sandbox) -> None:
    """There is nothing to do."""


@dataclass(frozen=True, slots=True)
class Captured:
    """What was in a sandbox at one moment: its changes as a layer, and its memory, of `size` bytes, if asked for."""

    layer: LayerDigest
    image: ImageId | None
    size: int


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
        on_running: Ready,
        on_down: Callable[[SandboxId], Awaitable[None]],
        provision: Callable[[Sandbox, CreateRequest], Awaitable[None]],
        complete: Callable[[TenantId, CreateRequest], Awaitable[CreateRequest]],
        on_claimed: Ready,
        on_up: Callable[[Sandbox, tuple[Service, ...], Progress | None], Awaitable[None]],
        on_leave: Callable[[SandboxId], Awaitable[None]],
        on_demand: Callable[[SandboxSpec], None] = lambda _: None,
        egress_of: Callable[[SandboxSpec], EgressPolicy] = lambda spec: spec.egress,
        before_down: Callable[[Sandbox], Awaitable[object]] = _nothing,
    ) -> None:
        """`on_running` and `on_down` open and close the session with a guest; `on_leave` lets
        go of one whose processes go on later; `on_claimed` tells the session of one that
        was a spare what it is now; `provision` fills a new sandbox (agent, repository); `complete` checks what a request
        names outside of the engine and fills in its defaults; `on_up` starts services in a running sandbox; `on_demand`
        hears what is asked for, and of lost spares; `egress_of` adds to a sandbox's own policy what was allowed it since,
        and where its secrets go; `before_down` looks at one once more before its processes end."""
        self._store = store
        self._driver = driver
        self._gateway = gateway
        self._templates = templates
        self._registry = registry
        self._events = events
        self._clock = clock
        self._tasks = tasks
        self.admission = admission
        self._activity = activity
        self._on_running = on_running
        self._on_down = on_down
        self._provision = provision
        self._complete = complete
        self._egress_of = egress_of
        self._before_down = before_down
        self._on_claimed = on_claimed
        self._on_leave = on_leave
        self._on_demand = on_demand
        self._on_up = on_up
        self._saving: set[ImageId] = set()  # of which no template is in the store yet
        self._starting = asyncio.Semaphore(STARTS_AT_ONCE)
        self._waits: dict[SandboxId, asyncio.Task[None]] = {}

    # -- reading ------------------------------------------------------------------------------------------------

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

    # -- life ---------------------------------------------------------------------------------------------------

    async def create(self, tenant: TenantId, request: CreateRequest) -> Sandbox:
        """A new running sandbox. A create that fails leaves nothing.

        Raises InvalidInput, NotFound (template, secret), Conflict (name), Unsupported, NoCapacity and DiskFull (there is no
        room, and `request` does not queue, or did in vain).
        """
        request = await self._complete(tenant, checked(request))
        await self._check_money(tenant, request)
        spec, template = await self._plan(tenant, request)
        self._on_demand(spec)
        while (spare := self._registry.spare_like(spec)) is not None:
            if (claimed := await self._claim(spare, spec, template, request)) is not None:
                return claimed
        return await self._make(spec, template, request)

    async def make_spare(self, tenant: TenantId, request: CreateRequest) -> Sandbox:
        """A sandbox that waits for a create to take it over. Raises what `create` raises."""
        spec, template = await self._plan(tenant, checked(request), spare=True)
        return await self._make(spec, template, request)

    async def discard_spare(self, spare: SandboxId) -> None:
        """Remove a spare, unless somebody has taken it meanwhile. Idempotent."""
        async with self._registry.lock(spare):
            sandbox = self._registry.get(spare)
            if sandbox is not None and sandbox.spec.spare:
                await self._registry.advance(spare, Event.REMOVE)
                await asyncio.shield(self._discard(spare))

    async def _plan(
        self, tenant: TenantId, request: CreateRequest, *, spare: bool = False
    ) -> tuple[SandboxSpec, Template]:
        template = await self._templates.resolve(tenant, request.template, request.agent, request.progress)
        id = SandboxId(randomness.token_hex(8))
        spec = build_spec(
            request,
            id=id,
            tenant=tenant,
            name=spare_name(id) if spare else request.name or self._free_name(tenant),
            template=template,
            usable=self._driver.runtimes(),
            secrets=request.secrets or (),
            now=self._clock.now(),
            spare=spare,
        )
        return spec, template

    async def _make(self, spec: SandboxSpec, template: Template, request: CreateRequest) -> Sandbox:
        if len(self._registry.all()) >= MAX_SANDBOXES:
            raise NoCapacity(
                f"this host holds {MAX_SANDBOXES} sandboxes, its limit", "remove some: `corral rm`"
            )
        place = self.admission.place(
            spec.id,
            spec.tenant,
            spec.limits,
            name=request.name or "",
            wish=QueueWish(request.queue_timeout) if request.queue else None,
            tell=request.progress,
        )
        async with place:
            return await self._build(spec, template, request)

    async def _build(self, spec: SandboxSpec, template: Template, request: CreateRequest) -> Sandbox:
        async with self._registry.lock(spec.id):
            grant = await self._admit(spec, request)
            try:
                if request.budget is not None:
                    await self._store.set_cap(spec.tenant, spec.id, Window.TOTAL, request.budget)
                await self._bring_up(spec, template, grant, await self._saved_of(template, grant))
                # It runs, so that it can be filled; but it was not created before that is done, should a crash cut it.
                sandbox = await self._registry.advance(spec.id, Event.CREATED, durable=False)
                self._supervise(spec.id)
                if not request.forked:
                    await self._provision(sandbox, request)
                running = template.memory.services if template.memory else ()
                missing = tuple(item for item in spec.services if item not in running)
                await self._on_up(sandbox, missing, request.progress)
                if not request.forked:  # forks are settled all at once
                    await self._registry.settle(spec.id)
            except BaseException:
                await asyncio.shield(self._discard(spec.id))
                raise
        return sandbox

    async def _check_money(self, tenant: TenantId, request: CreateRequest) -> None:
        """What can make no model call any more is not begun."""
        if not request.secrets:
            return
        for balance in await self._store.balances(tenant, None, None):
            if balance.cap is not None and balance.spent >= balance.cap:
                raise NoCapacity(
                    f"the budget of your tenant is used up: {balance.spent / 1e6:.2f} of {balance.cap / 1e6:.2f} US dollars",
                    "have it raised (`corral budget --help`), or create without secrets",
                )

    async def _claim(
        self, spare: Sandbox, wanted: SandboxSpec, template: Template, request: CreateRequest
    ) -> Sandbox | None:
        """`wanted` in the place of a spare; None if that is no good any more, and gone."""
        spec = replace(wanted, id=spare.id)
        async with self._registry.lock(spare.id):
            if self._registry.get(spare.id) is not spare:
                return None
            grant = await self._new_grant(spec, request)
            if (
                template.memory is not None
            ):  # processes in it hold the token already, and nobody else has ever had it
                former = await self._store.grant_of(spare.id)
                grant = replace(grant, id=former.id, token_hash=former.token_hash)
            creating = spare.with_state(advance(spare.state, Event.CLAIM), self._clock.now())
            await self._registry.claim(replace(creating, spec=spec), grant)
            try:
                if request.budget is not None:
                    await self._store.set_cap(spec.tenant, spec.id, Window.TOTAL, request.budget)
                self._activity.touch(spec.id)
                sandbox = await self._registry.advance(spec.id, Event.CREATED, durable=False)
                await self._hand_over(sandbox, grant)
            except (Conflict, HostError) as error:
                log.warning("a spare of %s was no good: %s", wanted.template, error)
                await asyncio.shield(self._discard(spec.id))
                return None
            except BaseException:
                await asyncio.shield(self._discard(spec.id))
                raise
            try:
                await self._provision(sandbox, request)
                missing = tuple(item for item in spec.services if item not in spare.spec.services)
                await self._on_up(sandbox, missing, request.progress)
                await self._registry.settle(spec.id)
            except BaseException:
                await asyncio.shield(self._discard(spec.id))
                raise
        return sandbox

    async def _hand_over(self, sandbox: Sandbox, grant: Grant) -> None:
        """Tell all who know a running sandbox by what it was: itself, the gateway, the session with it."""
        steps = (
            self._driver.rename(sandbox.spec),
            self._serve(sandbox.spec, grant),
            self._on_claimed(sandbox),
        )
        try:
            async with asyncio.TaskGroup() as group:
                for step in steps:
                    group.create_task(step)
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures

    async def _serve(self, spec: SandboxSpec, grant: Grant) -> None:
        """Let the gateway serve it as what it is now."""
        egress = self._egress_of(spec)
        if egress.ports <= self._gateway.ports(spec.id):
            await self._gateway.attach(await self._attachment(spec, grant, egress), None)
        else:  # other ports need other sockets
            await self._gateway.detach(spec.id)
            await self._attach(spec, grant)

    async def start(self, tenant: TenantId, ref: str) -> Sandbox:
        """Start a stopped sandbox; its files are as they were."""
        async with self.locked(tenant, ref) as sandbox:
            advance(sandbox.state, Event.START)  # what the table excludes is not a matter of room
            async with self._place_again(sandbox):
                started = await self._start(sandbox)
        try:  # without the lock: it can be stopped while it gets ready
            await self._on_up(started, started.spec.services, None)
        except CorralError as error:  # it runs, and that is what was asked for
            log.warning("sandbox %s: %s", started.spec.name, error)
        return started

    async def _start(self, sandbox: Sandbox) -> Sandbox:
        await self._registry.advance(sandbox.id, Event.START)
        try:
            await self._renew(sandbox.id)
            await self._bring_up(sandbox.spec, await self._store.template(sandbox.spec.template))
        except BaseException as error:
            await asyncio.shield(self._failed_start(sandbox.id, str(error)))
            raise
        started = await self._registry.advance(sandbox.id, Event.STARTED)
        self._supervise(sandbox.id)
        self._activity.touch(sandbox.id)
        return started

    async def stop(
        self,
        tenant: TenantId,
        ref: str,
        grace: float = 10.0,
        *,
        reason: str = "",
        only_if: Callable[[], bool] = lambda: True,
    ) -> Sandbox:
        """End its processes: TERM, KILL after `grace` seconds. Its files stay. `reason` is kept for those who ask; nothing is
        done if `only_if` says no once its turn has come."""
        async with self.locked(tenant, ref) as sandbox:
            if not only_if():
                return sandbox
            if sandbox.state is State.SUSPENDED:
                stopped = await self._registry.advance(sandbox.id, Event.STOP, reason)
                await self._driver.remove_image(own_image(sandbox.id))
                return stopped
            if sandbox.state not in (State.RUNNING, State.PAUSED):
                return await self._registry.advance(sandbox.id, Event.STOP)
            await self._before_down(sandbox)
            await self._take_down(sandbox.id, grace)
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
            return await self._suspend(tenant, ref, reason, only_if)
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
                return await self._wake(sandbox)
            if sandbox.state is not State.PAUSED:
                return await self._registry.advance(sandbox.id, Event.RESUME)
            async with self._place_again(sandbox):
                await self._driver.resume(sandbox.id)
                await self._registry.add_pause(sandbox.id)
                resumed = await self._registry.advance(sandbox.id, Event.RESUME)
            self._activity.touch(sandbox.id)
            await self._on_running(resumed)
            return resumed

    async def _suspend(self, tenant: TenantId, ref: str, reason: str, only_if: Callable[[], bool]) -> Sandbox:
        async with self.locked(tenant, ref) as sandbox:
            if not only_if():
                return sandbox
            if not self._driver.saves_memory(sandbox.spec.runtime):
                raise Unsupported(
                    f"the runtime {sandbox.spec.runtime} cannot save memory",
                    "pause it without --memory: it uses no CPU then; sandboxes of isolation gvisor can be suspended",
                )
            await self._registry.advance(sandbox.id, Event.SUSPEND)
            try:
                await self._driver.hold(sandbox.id)
                await self._driver.save(
                    sandbox.id, own_image(sandbox.id), await self._token(sandbox.id), own=True
                )
            except BaseException as error:
                await asyncio.shield(self._undo_suspend(sandbox, str(error)))
                raise
            return await asyncio.shield(self._finish_suspend(sandbox.id, reason))

    async def _undo_suspend(self, sandbox: Sandbox, reason: str) -> None:
        with contextlib.suppress(Conflict):  # it has ended
            await self._driver.resume(sandbox.id)
        await self._driver.remove_image(own_image(sandbox.id))
        running = await self._registry.advance(sandbox.id, Event.FAIL, reason)
        await self._on_running(running)

    async def _finish_suspend(self, sandbox: SandboxId, reason: str = "") -> Sandbox:
        """What is in its image is to be all there is of it: its processes are killed where they stand."""
        self._abandon_wait(sandbox)
        await self._on_leave(sandbox)
        await self._driver.stop(sandbox, 0)
        await self._gateway.detach(sandbox)
        suspended = await self._registry.advance(sandbox, Event.SUSPENDED, reason)
        self.admission.changed()
        return suspended

    async def _wake(self, sandbox: Sandbox) -> Sandbox:
        """Let a suspended sandbox go on."""
        async with self._place_again(sandbox):
            await self._registry.advance(sandbox.id, Event.RESUME)
            try:
                saved = Saved(own_image(sandbox.id), await self._token(sandbox.id))
                template = await self._store.template(sandbox.spec.template)
                await self._bring_up(sandbox.spec, template, saved=saved)
            except BaseException as error:
                await asyncio.shield(self._failed_wake(sandbox.id, str(error)))
                raise
            await self._registry.add_pause(sandbox.id, since=sandbox.changed_at)
            woken = await self._registry.advance(sandbox.id, Event.STARTED)
        self._supervise(sandbox.id)
        self._activity.touch(sandbox.id)
        await self._driver.remove_image(own_image(sandbox.id))
        return woken

    async def _failed_wake(self, sandbox: SandboxId, reason: str) -> None:
        self._abandon_wait(sandbox)
        await self._on_leave(sandbox)
        await self._driver.stop(sandbox, 0)
        await self._gateway.detach(sandbox)
        await self._registry.advance(sandbox, Event.FAIL, reason)

    async def _saved_of(self, template: Template, grant: Grant) -> Saved | None:
        if template.memory is None:
            return None
        return Saved(template.memory.image, await self._store.derive_token(grant.id))

    async def _token(self, sandbox: SandboxId) -> Secret:
        return await self._store.derive_token((await self._store.grant_of(sandbox)).id)

    async def remove(self, tenant: TenantId, ref: str) -> None:
        """Kill it and remove all that is left of it, its files included."""
        await self._remove(tenant, ref, asyncio.Event())

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

    async def _remove(self, tenant: TenantId, ref: str, begun: asyncio.Event) -> None:
        async with self.locked(tenant, ref) as sandbox:
            await self._before_down(sandbox)
            await self._registry.advance(sandbox.id, Event.REMOVE)
            begun.set()
            await asyncio.shield(self._discard(sandbox.id))

    async def capture(self, sandbox: Sandbox, *, memory: bool) -> Captured:
        """What is in a sandbox at one moment, as a layer and, with `memory`, an image. It stands still for that moment
        only. The caller holds its lock, and layers. Raises Conflict, Unsupported, DiskFull."""
        if sandbox.state not in (
            State.RUNNING,
            State.PAUSED,
            *(() if memory else (State.STOPPED, State.SUSPENDED)),
        ):
            raise Conflict(
                f"cannot checkpoint {'the memory of ' if memory else ''}a sandbox that is {sandbox.state}",
                "wait until it is running",
            )
        image, size = None, 0
        try:
            if memory:
                image = ImageId(randomness.token_hex(8))
                self._saving.add(image)
                await self._driver.hold(sandbox.id)
                size = await self._driver.save(sandbox.id, image, await self._token(sandbox.id), own=False)
            elif sandbox.state is State.RUNNING:
                await self._driver.pause(sandbox.id)
            return Captured(await self._driver.commit(sandbox.id), image, size)
        except BaseException:
            if image is not None:
                await asyncio.shield(self.release_image(image))
            raise
        finally:
            if sandbox.state is State.RUNNING or memory:
                await asyncio.shield(self._driver.resume(sandbox.id))
            if sandbox.state is State.PAUSED and memory:
                await self._driver.pause(sandbox.id)

    async def release_image(self, image: ImageId) -> None:
        """An image that was captured is used by a template now, or by nobody."""
        self._saving.discard(image)
        await self.sweep_images()

    async def sweep_images(self) -> None:
        """Remove images that nothing will go on from."""
        kept = {own_image(s.id) for s in self._registry.all() if s.state in _WITH_IMAGE}
        kept |= self._saving | await self._templates.images()
        for image in await self._driver.images() - kept:
            await self._driver.remove_image(image)

    def locked(self, tenant: TenantId, ref: str) -> "AbstractAsyncContextManager[Sandbox]":
        """A sandbox that nobody else changes meanwhile. Raises NotFound."""
        return _Locked(self._registry, tenant, ref)

    async def fork(self, origin: SandboxSpec, template: Template, name: str, ttl: int | None) -> Sandbox:
        """A sandbox that is what another one was when `template` was made of it, but for who it is."""
        spec = replace(
            origin,
            id=SandboxId(randomness.token_hex(8)),
            name=name,
            template=template.id,
            created_at=self._clock.now(),
            ttl=ttl if ttl is not None else origin.ttl,
        )
        grant = await self._store.grant_of(origin.id)
        request = CreateRequest(name=name, limits=spec.limits, models=grant.models, forked=True)
        return await self._make(spec, template, request)

    async def set_ttl(self, tenant: TenantId, ref: str, seconds: int | None) -> Sandbox:
        """End its life `seconds` from now, or never."""
        check_ttl(seconds)
        async with self.locked(tenant, ref) as sandbox:
            return await self._registry.set_ttl(sandbox.id, seconds)

    async def set_egress(self, tenant: TenantId, ref: str, policy: EgressPolicy) -> None:
        """Replace what a sandbox may reach; open connections that it may no longer have are cut."""
        async with self.locked(tenant, ref) as sandbox:
            changed = await self._registry.set_egress(sandbox.id, policy)
            await self._tell_egress(changed)

    async def refresh_egress(self, sandbox: SandboxId) -> None:
        """Let a sandbox reach what `egress_of` says now. Nothing to do for one that does not run."""
        async with self._registry.lock(sandbox):
            current = self._registry.get(sandbox)
            if current is not None:
                await self._tell_egress(current)

    def egress(self, tenant: TenantId, ref: str) -> EgressPolicy:
        """All that decides what a sandbox may reach."""
        return self._egress_of(self.get(tenant, ref).spec)

    async def secret_changed(self, tenant: TenantId, name: str) -> None:
        """Let the sandboxes that may use a secret reach the hosts that it goes to now, and no others for it."""
        for sandbox in self._registry.of(tenant):
            if name in sandbox.spec.secrets:
                await self.refresh_egress(sandbox.id)

    async def _tell_egress(self, sandbox: Sandbox) -> None:
        if sandbox.state not in (State.RUNNING, State.PAUSED):
            return
        policy = self._egress_of(sandbox.spec)
        served = self._gateway.ports(sandbox.id)
        ports = frozenset(port for rule in policy.rules for port in rule.ports) - served
        listeners = await self._driver.listen(sandbox.spec, ports) if ports else ()
        try:
            await self._gateway.set_policy(sandbox.id, policy, listeners)
        finally:
            for listener in listeners:
                listener.sock.close()

    async def expire(self, tenant: TenantId, ref: str) -> None:
        """End its life now: pause or stop it if it was made so and runs, else remove it."""
        sandbox = self.get(tenant, ref)
        if sandbox.state is not State.RUNNING or sandbox.spec.expiry is Expiry.REMOVE:
            await self.remove(tenant, sandbox.id)
        elif sandbox.spec.expiry is Expiry.PAUSE:
            await self.pause(tenant, sandbox.id)
        else:
            await self.set_ttl(tenant, sandbox.id, None)  # or the next sweep would remove it
            await self.stop(tenant, sandbox.id, 0)

    # -- after a time without a daemon ----------------------------------------------------------------------------

    async def recover(self) -> None:
        """Bring store and kernel to agreement: finish or undo what was cut, re-adopt what runs, sweep what nobody owns."""
        await self._registry.load()
        for sandbox in self._registry.all():
            async with self._registry.lock(sandbox.id):
                try:
                    await self._recover_one(sandbox)
                except CorralError as error:
                    log.error("sandbox %s could not be recovered: %s", sandbox.spec.name, error)
        owned = {sandbox.id for sandbox in self._registry.all()}
        for orphan in await self._driver.known() - owned:
            log.warning("removing %s, which no sandbox owns", orphan)
            await self._driver.remove(orphan)
        await self._templates.prune()

    async def _recover_one(self, sandbox: Sandbox) -> None:
        if BUILD in sandbox.spec.attributes:  # nobody is there any more to go on with it
            await self._discard(sandbox.id)
            return
        match sandbox.state:
            case State.CREATING | State.REMOVING:
                await self._discard(sandbox.id)
            case State.STARTING:
                await self._failed_start(sandbox.id, "the daemon ended while it started")
            case State.RUNNING | State.PAUSED:
                await self._readopt(sandbox)
            case State.SUSPENDING:
                await self._recover_suspending(sandbox)
            case State.RESUMING:
                await self._recover_resuming(sandbox)
            case State.STOPPED | State.FAILED | State.GONE | State.SUSPENDED:
                await self._driver.stop(sandbox.id, 0)

    async def _recover_suspending(self, sandbox: Sandbox) -> None:
        """With a whole image and nothing that runs on, it is suspended; else it goes on running, if it does."""
        status = await self._driver.status(sandbox.id)
        if own_image(sandbox.id) in await self._driver.images() and status is not DriverStatus.RUNNING:
            await self._finish_suspend(sandbox.id)
        elif status in (DriverStatus.RUNNING, DriverStatus.PAUSED):
            await self._readopt(
                await self._registry.correct(sandbox.id, State.RUNNING, "not suspended: the daemon ended")
            )
        else:
            await self._driver.stop(sandbox.id, 0)
            await self._registry.correct(sandbox.id, State.STOPPED, "it ended while the daemon was down")

    async def _recover_resuming(self, sandbox: Sandbox) -> None:
        """What the runtime brought up meanwhile has gone on from the image, and counts."""
        if await self._driver.status(sandbox.id) is DriverStatus.RUNNING:
            await self._readopt(
                await self._registry.correct(sandbox.id, State.RUNNING, "resumed while the daemon was down")
            )
        else:
            await self._failed_wake(sandbox.id, "the daemon ended while it was resumed")

    async def _readopt(self, sandbox: Sandbox) -> None:
        status = await self._driver.status(sandbox.id)
        if sandbox.spec.spare and status is not DriverStatus.RUNNING:
            await self._discard(sandbox.id)
            return
        if status in (DriverStatus.STOPPED, DriverStatus.ABSENT):
            await self._driver.stop(sandbox.id, 0)
            await self._registry.correct(sandbox.id, State.STOPPED, "it ended while the daemon was down")
            return
        self._supervise(sandbox.id)  # first: whatever fails below, its end is noticed
        await self._attach(sandbox.spec)
        if status is DriverStatus.PAUSED and sandbox.state is State.RUNNING:
            await self._driver.resume(sandbox.id)  # frozen by a pause or a checkpoint that was cut: undone
        if status is DriverStatus.RUNNING and sandbox.state is State.PAUSED:
            sandbox = await self._registry.correct(
                sandbox.id, State.RUNNING, "as found after a restart of the daemon"
            )
        await self._on_running(sandbox)

    async def sweep(self) -> None:
        """Remove or pause sandboxes whose time to live has passed; runs until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = self._clock.now()
            for sandbox in self._registry.all():
                end = sandbox.spec.ends_at
                if end is None or now < end or sandbox.state in _STANDING_STILL:
                    continue
                log.info("sandbox %s reached its time to live", sandbox.spec.name)
                try:
                    await self.expire(sandbox.spec.tenant, sandbox.id)
                except (Conflict, NotFound):
                    continue
                except CorralError as error:
                    log.error("sandbox %s could not be ended: %s", sandbox.spec.name, error)

    # -- parts ----------------------------------------------------------------------------------------------------

    async def _admit(self, spec: SandboxSpec, request: CreateRequest) -> Grant:
        grant = await self._new_grant(spec, request)
        self._activity.touch(spec.id)
        await self._registry.add(Sandbox(spec, State.CREATING, grant.created_at), grant)
        return grant

    async def _new_grant(self, spec: SandboxSpec, request: CreateRequest) -> Grant:
        id, hashed = await self._new_token()
        now = self._clock.now()
        ends = None if request.expires is None else now + timedelta(seconds=request.expires)
        return Grant(id, spec.tenant, spec.id, hashed, spec.secrets, now, request.models, ends)

    def _place_again(self, sandbox: Sandbox) -> AbstractAsyncContextManager[None]:
        """Room for one that is known to run again."""
        spec = sandbox.spec
        return self.admission.place(spec.id, spec.tenant, spec.limits, name=spec.name)

    async def _renew(self, sandbox: SandboxId) -> None:
        """A token of its own for each run of a sandbox: that of the last one is dead (G-15)."""
        id, hashed = await self._new_token()
        old = await self._store.grant_of(sandbox)
        await self._store.set_grant(replace(old, id=id, token_hash=hashed, former_hash="", former_until=None))

    async def _new_token(self) -> tuple[GrantId, str]:
        id = GrantId(randomness.token_hex(16))
        return id, token_hash((await self._store.derive_token(id)).reveal())

    async def _bring_up(
        self, spec: SandboxSpec, template: Template, grant: Grant | None = None, saved: Saved | None = None
    ) -> None:
        async with self._starting:
            await self._driver.prepare(spec, template)
            await self._attach(spec, grant)
            await self._driver.start(spec, template, saved)
            sandbox = self._registry.get(spec.id)
            if sandbox is not None:
                await self._on_running(sandbox)

    async def _attach(self, spec: SandboxSpec, grant: Grant | None = None) -> None:
        if grant is None:
            grant = await self._store.grant_of(spec.id)
        egress = self._egress_of(spec)
        listeners = await self._driver.listen(replace(spec, egress=egress))
        try:
            await self._gateway.attach(await self._attachment(spec, grant, egress), listeners)
        finally:
            for listener in listeners:
                listener.sock.close()

    async def _attachment(self, spec: SandboxSpec, grant: Grant, egress: EgressPolicy) -> Attachment:
        seed = await self._store.derive_seed(spec.id)
        return Attachment(spec.id, spec.tenant, spec.name, grant, egress, seed, spec.repos, spec.push)

    async def _take_down(self, sandbox: SandboxId, grace: float) -> None:
        self._abandon_wait(sandbox)
        await self._driver.stop(sandbox, grace)
        await self._on_down(sandbox)
        await self._gateway.detach(sandbox)
        self.admission.changed()

    async def _discard(self, sandbox: SandboxId) -> None:
        self._abandon_wait(sandbox)
        await self._gateway.detach(sandbox)
        await self._driver.remove(sandbox)
        await self._driver.remove_image(own_image(sandbox))
        await self._on_down(sandbox)
        unused = await self._registry.drop(sandbox)
        self._activity.forget(sandbox)
        self.admission.changed()
        if unused:
            await self._templates.prune()

    async def _failed_start(self, sandbox: SandboxId, reason: str) -> None:
        await self._take_down(sandbox, 0)
        await self._registry.advance(sandbox, Event.FAIL, reason)

    def _supervise(self, sandbox: SandboxId) -> None:
        self._waits[sandbox] = self._tasks.start(self._follow_end(sandbox), name=f"wait-{sandbox}")

    def _abandon_wait(self, sandbox: SandboxId) -> None:
        wait = self._waits.pop(sandbox, None)
        if wait is not None:
            wait.cancel()

    async def _follow_end(self, sandbox: SandboxId) -> None:
        reason = await self._driver.wait(sandbox)
        async with self._registry.lock(sandbox):
            self._waits.pop(sandbox, None)
            current = self._registry.get(sandbox)
            if current is None or current.state not in (State.RUNNING, State.PAUSED):
                return
            if current.spec.spare:
                await self._registry.advance(sandbox, Event.REMOVE)
                await self._discard(sandbox)
                self._on_demand(current.spec)
                return
            await self._driver.stop(sandbox, 0)
            await self._on_down(sandbox)
            await self._gateway.detach(sandbox)
            await self._registry.advance(sandbox, Event.EXITED, reason or "its first process ended")
            self.admission.changed()

    def _free_name(self, tenant: TenantId) -> str:
        for words in (2, 2, 2, 2, 3, 3, 3, 4):
            name = generate_slug(words)
            if not self._registry.taken(tenant, name) and len(name) <= 63:
                return name
        return f"sandbox-{randomness.token_hex(4)}"

    def list(self, tenant: TenantId, labels: dict[str, str] | None = None) -> list[Sandbox]:
        """A tenant's sandboxes, oldest first."""
        return self._registry.of(tenant, labels)


def own_image(sandbox: SandboxId) -> ImageId:
    """The image that a sandbox is suspended to."""
    return ImageId(sandbox)


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

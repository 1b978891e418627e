"""New sandboxes: made, taken over from a spare, or forked. A create that fails leaves nothing."""

import asyncio
import logging
import secrets as randomness
from dataclasses import replace

from coolname import generate_slug

from corral.engine.activity import Activity
from corral.engine.admission import Admission, QueueWish
from corral.engine.granted import capped
from corral.engine.hooks import Hooks
from corral.engine.plan import CreateRequest, build_spec, checked
from corral.engine.ports import Clock, Driver, Store
from corral.engine.registry import Registry
from corral.engine.running import Running
from corral.engine.suspension import Suspension
from corral.engine.templates import Templates
from corral.engine.volumes import Volumes
from corral.errors import Conflict, HostError, NoCapacity, NotFound
from corral.model.budget import Window
from corral.model.grants import Grant
from corral.model.ids import SandboxId, TenantId
from corral.model.lifecycle import Event, State, advance
from corral.model.pool import spare_name
from corral.model.sandbox import Sandbox, SandboxSpec
from corral.model.template import Template

log = logging.getLogger(__name__)

MAX_SANDBOXES = 10_000


class Creation:
    """Takes the locks that it needs itself."""

    def __init__(
        self,
        *,
        store: Store,
        driver: Driver,
        templates: Templates,
        registry: Registry,
        clock: Clock,
        admission: Admission,
        activity: Activity,
        hooks: Hooks,
        running: Running,
        suspension: Suspension,
        volumes: Volumes,
    ) -> None:
        self._store = store
        self._driver = driver
        self._templates = templates
        self._registry = registry
        self._clock = clock
        self._admission = admission
        self._activity = activity
        self._hooks = hooks
        self._running = running
        self._suspension = suspension
        self._volumes = volumes

    async def create(self, tenant: TenantId, request: CreateRequest) -> Sandbox:
        """A new running sandbox. A create that fails leaves nothing.

        Raises InvalidInput, NotFound (template, secret, volume), Conflict (name), Unsupported, NoCapacity and DiskFull (there is no
        room, and `request` does not queue, or did in vain).
        """
        return await self._create(tenant, checked(request))

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
                await asyncio.shield(self._running.discard(spare))

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

    async def _create(self, tenant: TenantId, asked: CreateRequest, *, again: bool = False) -> Sandbox:
        request = await self._hooks.complete(tenant, asked)
        await self._check_money(tenant, request)
        spec, template = await self._plan(tenant, request)
        self._hooks.on_demand(spec)
        try:
            with self._registry.promised(tenant, spec.name):
                while (spare := self._registry.spare_like(spec)) is not None:
                    if (claimed := await self._claim(spare, spec, template, request)) is not None:
                        return claimed
                return await self._make(spec, template, request)
        except NotFound:
            # A template may be made anew before its sandbox is there, which in a queue may be minutes: its name was asked
            # for, and has another one now.
            if again or await self._is_there(template):
                raise
        except Conflict:
            # A name that was found here may be one of another host's, on the same database.
            if again or request.name is not None or await self._store.is_free_name(tenant, spec.name):
                raise
        return await self._create(tenant, asked, again=True)

    async def _is_there(self, template: Template) -> bool:
        try:
            await self._store.template(template.id)
        except NotFound:
            return False
        return True

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
            volumes=self._volumes.resolve(tenant, request.volumes),
            now=self._clock.now(),
            spare=spare,
        )
        sealed = await self._store.seal_route(tenant, request.route)
        return replace(spec, route=sealed), template

    async def _make(self, spec: SandboxSpec, template: Template, request: CreateRequest) -> Sandbox:
        if len(self._registry.all()) >= MAX_SANDBOXES:
            raise NoCapacity(
                f"this host holds {MAX_SANDBOXES} sandboxes, its limit", "remove some: `corral rm`"
            )
        place = self._admission.place(
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
            grant = await self._admit(spec, template, request)
            try:
                self._volumes.require(spec.tenant, spec.volumes)
                await self._cap(spec, request)
                await self._running.bring_up(
                    spec, template, grant, await self._suspension.saved_of(template, grant)
                )
                # It runs, so that it can be filled; but it was not created before that is done, should a crash cut it.
                sandbox = await self._registry.advance(spec.id, Event.CREATED, durable=False)
                self._running.supervise(spec.id)
                if not request.forked:
                    await self._hooks.provision(sandbox, request)
                running = template.memory.services if template.memory else ()
                missing = tuple(item for item in spec.services if item not in running)
                await self._hooks.on_up(sandbox, missing, request.progress)
                if not request.forked:  # forks are settled all at once
                    await self._registry.settle(spec.id)
            except BaseException:
                await asyncio.shield(self._running.discard(spec.id))
                raise
        return sandbox

    async def _cap(self, spec: SandboxSpec, request: CreateRequest) -> None:
        if (cap := request.budget) is not None:
            record = capped(spec.tenant, spec.id, Window.TOTAL, cap)
            await self._store.set_caps(spec.tenant, spec.id, {Window.TOTAL: cap}, record=record)

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
            grant = await self._running.new_grant(spec, template, request)
            if (
                template.memory is not None
            ):  # processes in it hold the token already, and nobody else has ever had it
                former = await self._store.grant_of(spare.id)
                grant = replace(grant, id=former.id, token_hash=former.token_hash)
            creating = spare.with_state(advance(spare.state, Event.CLAIM), self._clock.now())
            await self._registry.claim(replace(creating, spec=spec), grant)
            try:
                await self._cap(spec, request)
                self._activity.touch(spec.id)
                sandbox = await self._registry.advance(spec.id, Event.CREATED, durable=False)
                await self._running.hand_over(sandbox, grant)
            except (Conflict, HostError) as error:
                log.warning("a spare of %s was no good: %s", wanted.template, error)
                await asyncio.shield(self._running.discard(spec.id))
                return None
            except BaseException:
                await asyncio.shield(self._running.discard(spec.id))
                raise
            try:
                await self._hooks.provision(sandbox, request)
                missing = tuple(item for item in spec.services if item not in spare.spec.services)
                await self._hooks.on_up(sandbox, missing, request.progress)
                await self._registry.settle(spec.id)
            except BaseException:
                await asyncio.shield(self._running.discard(spec.id))
                raise
        return sandbox

    async def _admit(self, spec: SandboxSpec, template: Template, request: CreateRequest) -> Grant:
        grant = await self._running.new_grant(spec, template, request)
        self._activity.touch(spec.id)
        await self._registry.add(Sandbox(spec, State.CREATING, grant.created_at), grant)
        return grant

    def _free_name(self, tenant: TenantId) -> str:
        for words in (2, 2, 2, 2, 3, 3, 3, 4):
            name = generate_slug(words)
            if not self._registry.taken(tenant, name) and len(name) <= 63:
                return name
        return f"sandbox-{randomness.token_hex(4)}"

"""A running sandbox, put together and taken apart: its grant, what the driver holds of it, its place at the gateway, and the
watch over its end. The use cases of a sandbox's life are made of these; who calls them holds its lock.
"""

import asyncio
import logging
import secrets as randomness
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import timedelta

from corral.engine.activity import Activity
from corral.engine.admission import Admission
from corral.engine.hooks import Hooks
from corral.engine.plan import CreateRequest
from corral.engine.ports import Attachment, Clock, Driver, Gateway, Saved, Store
from corral.engine.registry import Registry
from corral.engine.templates import Templates
from corral.errors import HostError
from corral.host.tasks import TaskOwner
from corral.model.egress import EgressPolicy
from corral.model.grants import Grant
from corral.model.ids import GrantId, ImageId, SandboxId
from corral.model.lifecycle import Event, State
from corral.model.sandbox import Sandbox, SandboxSpec
from corral.model.secrets import Secret
from corral.model.template import Template
from corral.policy.models import over
from corral.policy.tokens import token_hash

log = logging.getLogger(__name__)

STARTS_AT_ONCE = 4
"""Sandboxes being started at the same time: the kernel serialises most of the work, more only adds waiting."""

AGAIN_SECONDS = 2.0
"""What the store could not take, because its database is away, is offered again so often."""


class Running:
    """What all use cases share. `hooks` are told of every turn."""

    def __init__(
        self,
        *,
        store: Store,
        driver: Driver,
        gateway: Gateway,
        templates: Templates,
        registry: Registry,
        clock: Clock,
        tasks: TaskOwner,
        admission: Admission,
        activity: Activity,
        hooks: Hooks,
    ) -> None:
        self._store = store
        self._driver = driver
        self._gateway = gateway
        self._templates = templates
        self._registry = registry
        self._clock = clock
        self._tasks = tasks
        self._admission = admission
        self._activity = activity
        self._hooks = hooks
        self._starting = asyncio.Semaphore(STARTS_AT_ONCE)
        self._waits: dict[SandboxId, asyncio.Task[None]] = {}

    async def new_grant(self, spec: SandboxSpec, template: Template, request: CreateRequest) -> Grant:
        """A grant for a sandbox, with a token that nobody has had."""
        id, hashed = await self._new_token()
        now = self._clock.now()
        ends = None if request.expires is None else now + timedelta(seconds=request.expires)
        models = over(request.models, template.config.models)
        return Grant(id, spec.tenant, spec.id, hashed, spec.secrets, now, models, ends)

    async def renew(self, sandbox: SandboxId) -> None:
        """A token of its own for each run of a sandbox: that of the last one is dead (G-15)."""
        id, hashed = await self._new_token()
        old = await self._store.grant_of(sandbox)
        await self._store.set_grant(replace(old, id=id, token_hash=hashed, former_hash="", former_until=None))

    async def _new_token(self) -> tuple[GrantId, str]:
        id = GrantId(randomness.token_hex(16))
        return id, token_hash((await self._store.derive_token(id)).reveal())

    async def token(self, sandbox: SandboxId) -> Secret:
        """The token that its processes hold."""
        return await self._store.derive_token((await self._store.grant_of(sandbox)).id)

    def place_again(self, sandbox: Sandbox) -> AbstractAsyncContextManager[None]:
        """Room for one that is known to run again."""
        spec = sandbox.spec
        return self._admission.place(spec.id, spec.tenant, spec.limits, name=spec.name)

    async def bring_up(
        self, spec: SandboxSpec, template: Template, grant: Grant | None = None, saved: Saved | None = None
    ) -> None:
        """Make it run: its parts on the host, its place at the gateway, its first process."""
        async with self._starting:
            await self._driver.prepare(spec, template)
            await self.attach(spec, grant)
            await self._driver.probe(spec, self._gateway.ports(spec.id))
            await self._driver.start(spec, template, saved)
            sandbox = self._registry.get(spec.id)
            if sandbox is not None:
                await self._hooks.on_running(sandbox)

    async def attach(self, spec: SandboxSpec, grant: Grant | None = None) -> None:
        """Let the gateway serve it, on new sockets."""
        if grant is None:
            grant = await self._store.grant_of(spec.id)
        egress = self._hooks.egress_of(spec)
        listeners = await self._driver.listen(replace(spec, egress=egress))
        try:
            await self._gateway.attach(await self._attachment(spec, grant, egress), listeners)
        finally:
            for listener in listeners:
                listener.sock.close()

    async def _attachment(self, spec: SandboxSpec, grant: Grant, egress: EgressPolicy) -> Attachment:
        seed = await self._store.derive_seed(spec.id)
        route = await self._store.open_route(spec.tenant, spec.route)
        return Attachment(spec.id, spec.tenant, spec.name, grant, egress, seed, spec.repos, spec.push, route)

    async def _serve(self, spec: SandboxSpec, grant: Grant) -> None:
        """Let the gateway serve it as what it is now."""
        egress = self._hooks.egress_of(spec)
        if egress.ports <= self._gateway.ports(spec.id):
            await self._gateway.attach(await self._attachment(spec, grant, egress), None)
        else:  # other ports need other sockets
            await self._gateway.detach(spec.id)
            await self.attach(spec, grant)

    async def hand_over(self, sandbox: Sandbox, grant: Grant) -> None:
        """Tell all who know a running sandbox by what it was: itself, the gateway, the session with it."""
        steps = (
            self._driver.rename(sandbox.spec),
            self._serve(sandbox.spec, grant),
            self._hooks.on_claimed(sandbox),
        )
        try:
            async with asyncio.TaskGroup() as group:
                for step in steps:
                    group.create_task(step)
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures

    async def tell_egress(self, sandbox: Sandbox) -> None:
        """Tell the gateway of a running sandbox what it may reach now."""
        if sandbox.state not in (State.RUNNING, State.PAUSED):
            return
        policy = self._hooks.egress_of(sandbox.spec)
        served = self._gateway.ports(sandbox.id)
        ports = frozenset(port for rule in policy.rules for port in rule.ports) - served
        listeners = await self._driver.listen(sandbox.spec, ports) if ports else ()
        try:
            route = await self._store.open_route(sandbox.spec.tenant, sandbox.spec.route)
            await self._gateway.set_policy(sandbox.id, policy, listeners, route)
        finally:
            for listener in listeners:
                listener.sock.close()

    async def take_down(self, sandbox: SandboxId, grace: float) -> None:
        """End its processes, and all that they hold but the disk."""
        self.abandon_wait(sandbox)
        await self._driver.stop(sandbox, grace)
        await self._hooks.on_down(sandbox)
        await self._gateway.detach(sandbox)
        self._admission.changed()

    async def discard(self, sandbox: SandboxId) -> None:
        """Let nothing be left of it; where the store cannot forget it now, that is done as soon as it can. Idempotent."""
        self.abandon_wait(sandbox)
        await self._gateway.detach(sandbox)
        await self._driver.remove(sandbox)
        await self._driver.remove_image(own_image(sandbox))
        await self._hooks.on_down(sandbox)
        try:
            await self._forget(sandbox)
        except HostError:
            self._tasks.start(_until_done(lambda: self._forget(sandbox)), name=f"forget-{sandbox}")
            raise

    async def _forget(self, sandbox: SandboxId) -> None:
        unused = await self._registry.drop(sandbox)
        self._activity.forget(sandbox)
        self._admission.changed()
        if unused:
            await self._templates.prune()

    async def failed_start(self, sandbox: SandboxId, reason: str) -> None:
        """Stop it, with the reason for those who ask."""
        await self.take_down(sandbox, 0)
        await self._registry.advance(sandbox, Event.FAIL, reason)

    def supervise(self, sandbox: SandboxId) -> None:
        """Notice the end of its first process from now on."""
        self._waits[sandbox] = self._tasks.start(self._follow_end(sandbox), name=f"wait-{sandbox}")

    def abandon_wait(self, sandbox: SandboxId) -> None:
        """Notice it no more."""
        wait = self._waits.pop(sandbox, None)
        if wait is not None:
            wait.cancel()

    async def _follow_end(self, sandbox: SandboxId) -> None:
        reason = await self._driver.wait(sandbox)
        await _until_done(lambda: self._note_end(sandbox, reason))

    async def _note_end(self, sandbox: SandboxId, reason: str) -> None:
        async with self._registry.lock(sandbox):
            self._waits.pop(sandbox, None)
            current = self._registry.get(sandbox)
            if current is None or current.state not in (State.RUNNING, State.PAUSED):
                return
            if current.spec.spare:
                await self._registry.advance(sandbox, Event.REMOVE)
                await self.discard(sandbox)
                self._hooks.on_demand(current.spec)
                return
            await self._driver.stop(sandbox, 0)
            await self._hooks.on_down(sandbox)
            await self._gateway.detach(sandbox)
            await self._registry.advance(sandbox, Event.EXITED, reason or "its first process ended")
            self._admission.changed()


async def _until_done(work: Callable[[], Awaitable[None]]) -> None:
    """Try something again until the host lets it be done."""
    while True:
        try:
            return await work()
        except HostError as error:
            log.error("trying again in %.0f s: %s", AGAIN_SECONDS, error)
            await asyncio.sleep(AGAIN_SECONDS)


def own_image(sandbox: SandboxId) -> ImageId:
    """The image that a sandbox is suspended to."""
    return ImageId(sandbox)

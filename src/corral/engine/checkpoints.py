"""Checkpoints and forks: what is in a sandbox at one moment, for others to start from."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from corral.engine.leaks import LeakCheck
from corral.engine.ports import Driver, Progress, Store
from corral.engine.registry import Registry
from corral.engine.sandboxes import Sandboxes
from corral.engine.suspension import Captured
from corral.engine.templates import CHECKPOINT, Templates, check_free_name, silent
from corral.errors import Conflict, InvalidInput, Unsupported
from corral.model.ids import TenantId, check_name
from corral.model.lifecycle import State
from corral.model.sandbox import Sandbox, SandboxSpec
from corral.model.service import START
from corral.model.template import MachineState, Origin, Template, TemplateConfig

MAX_FORKS = 100


@dataclass(frozen=True, slots=True)
class Forked:
    """New sandboxes; `memory`: their processes go on where those of the first one were."""

    sandboxes: list[Sandbox]
    memory: bool


class Checkpoints:
    """Makes templates and sandboxes out of sandboxes."""

    def __init__(
        self,
        *,
        store: Store,
        sandboxes: Sandboxes,
        templates: Templates,
        registry: Registry,
        driver: Driver,
        leaks: LeakCheck,
        on_made: Callable[[Template], object] = lambda _: None,
    ) -> None:
        """`on_made` hears of new checkpoints."""
        self._store = store
        self._sandboxes = sandboxes
        self._templates = templates
        self._registry = registry
        self._can_save = driver.saves_memory
        self._on_made = on_made
        self._leaks = leaks

    async def make(
        self,
        tenant: TenantId,
        ref: str,
        name: str,
        *,
        memory: bool = False,
        redact: bool = False,
        by: str = "",
    ) -> Template:
        """A template of a sandbox as it is now, which stands still for that moment: its files, and with `memory` its
        processes. Where it would hold a secret of the tenant's it is not made, or with `redact` without that.

        Raises Conflict, Unsupported, DiskFull, Forbidden.
        """
        check_free_name(name)
        await self._check_replaceable(tenant, name)
        async with self._templates.holding_layers():
            async with self._sandboxes.locked(tenant, ref) as sandbox:
                if memory and sandbox.spec.volumes:
                    raise Unsupported(
                        "a checkpoint with memory cannot be made of a sandbox with volumes: what runs in it needs them",
                        "leave --memory out, or fork it: forks mount its volumes",
                    )
                captured = await self._sandboxes.capture(sandbox, memory=memory)
            try:
                parent = await self._store.template(sandbox.spec.template)
                config = checkpoint_config(parent.config, sandbox.spec)
                config, redacted = await self._leaks.clean(sandbox.spec, captured, config, redact=redact)
                origin = Origin(sandbox.spec.name, sandbox.id, by, redacted, sandbox.spec.repo or "")
                made = await self._templates.from_layer(
                    name, parent, captured.layer, config, origin, machine_state(sandbox.spec, captured)
                )
            finally:
                await self._settle(captured)
        self._on_made(made)
        return made

    async def _check_replaceable(self, tenant: TenantId, name: str) -> None:
        """A checkpoint takes the place of an older one of its name, and of nothing that was made in another way."""
        for template in await self._templates.list(tenant):
            if template.name == name and not template.source.startswith(CHECKPOINT):
                raise Conflict(
                    f"there is a template {name!r} that is no checkpoint",
                    f"choose another name, or remove it: `corral template rm {name}`",
                )

    async def fork(
        self,
        tenant: TenantId,
        ref: str,
        count: int = 1,
        *,
        name: str | None = None,
        ttl: int | None = None,
        files_only: bool = False,
        attributes: Mapping[str, str] | None = None,
        progress: Progress = silent,
    ) -> Forked:
        """`count` sandboxes that are what this one is now, each with a name, a network, a token and limits of its own, and
        with `attributes` in place of those of this one if they are given.

        Their processes go on where the runtime can save memory, else they have its files. All are made, or none.
        """
        if not 1 <= count <= MAX_FORKS:
            raise InvalidInput(f"{count} forks are not possible", f"give 1 to {MAX_FORKS}")
        if name is not None:
            check_name(name)
        async with self._templates.holding_layers():
            async with self._sandboxes.locked(tenant, ref) as sandbox:
                memory = (
                    not files_only
                    and self._can_save(sandbox.spec.runtime)
                    and sandbox.state in (State.RUNNING, State.PAUSED)
                )
                captured = await self._sandboxes.capture(sandbox, memory=memory)
            progress(f"{sandbox.spec.name} is captured; starting {count}")
            try:
                origin = (
                    sandbox.spec if attributes is None else replace(sandbox.spec, attributes=dict(attributes))
                )
                made = await self._spread(
                    origin, captured, await self._names(tenant, name or sandbox.spec.name, count), ttl
                )
            finally:
                await self._settle(captured)
            return Forked(made, memory)

    async def _spread(
        self, origin: SandboxSpec, captured: Captured, names: list[str], ttl: int | None
    ) -> list[Sandbox]:
        parent = await self._store.template(origin.template)
        state = machine_state(origin, captured)
        layers = (*parent.layers, captured.layer)
        made: list[Sandbox] = []

        async def one(template: Template, name: str) -> None:
            made.append(await self._sandboxes.fork(origin, template, name, ttl))

        async with self._templates.hidden(origin.tenant, layers, parent.config, state) as template:
            try:
                async with asyncio.TaskGroup() as group:
                    for name in names:
                        group.create_task(one(template, name))
                await self._registry.settle_all([sandbox.id for sandbox in made])
            except BaseException as error:
                for sandbox in made:
                    await asyncio.shield(self._sandboxes.remove(origin.tenant, sandbox.id))
                if isinstance(error, BaseExceptionGroup):
                    raise error.exceptions[0] from error
                raise
        return sorted(made, key=lambda sandbox: names.index(sandbox.spec.name))

    async def _settle(self, captured: Captured) -> None:
        if captured.image is not None:
            await asyncio.shield(self._sandboxes.release_image(captured.image))

    async def _names(self, tenant: TenantId, stem: str, count: int) -> list[str]:
        """Free names: `stem-1`, `stem-2`, …"""
        found: list[str] = []
        number = 0
        while len(found) < count:
            number += 1
            suffix = f"-{number}"
            name = stem[: 63 - len(suffix)] + suffix
            taken = self._registry.taken(tenant, name)
            if not taken and await self._store.is_free_name(tenant, name):
                found.append(name)
        return found


def checkpoint_config(parent: TemplateConfig, spec: SandboxSpec) -> TemplateConfig:
    """How sandboxes of a checkpoint are run: as the one that it was made of was."""
    services = tuple(service for service in spec.services if service.name != START)
    return replace(parent, env=spec.env, user=spec.user, workdir=spec.workdir, services=services)


def machine_state(spec: SandboxSpec, captured: Captured) -> MachineState | None:
    """What runs in sandboxes that are made from what was captured."""
    if captured.image is None:
        return None
    return MachineState(
        captured.image, spec.isolation, spec.runtime, spec.limits, captured.size, spec.services
    )

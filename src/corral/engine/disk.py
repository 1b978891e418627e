"""What takes disk, and giving back what nothing needs."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum

from corral.engine.ports import Driver, Layers, Store
from corral.engine.registry import Registry
from corral.engine.templates import Templates
from corral.engine.volumes import Volumes
from corral.errors import CorralError, NotFound
from corral.model.ids import LayerDigest, TenantId
from corral.model.template import Template
from corral.policy.retention import Retention, expired, released, shares

log = logging.getLogger(__name__)

FLATTEN_OVER = 64
"""Layers of a checkpoint from which on they are made fewer; overlayfs takes 128 here."""


class UseKind(StrEnum):
    """What takes disk."""

    TEMPLATE = "template"
    CHECKPOINT = "checkpoint"
    SANDBOX = "sandbox"
    VOLUME = "volume"
    UNUSED = "unused"


@dataclass(frozen=True, slots=True)
class Use:
    """`own` bytes come back when it is removed; `shared` ones are others' too."""

    kind: UseKind
    name: str
    own: int
    shared: int


@dataclass(frozen=True, slots=True)
class Space:
    """A store's disk, in bytes: what it can hold, what is used of that, what may still be written (the disk below may have
    less than the store), and what its file takes of the host's disk (None: it has none)."""

    total: int
    used: int
    free: int
    file: int | None


@dataclass(frozen=True, slots=True)
class Overview:
    """The store, and what takes its disk, largest first."""

    space: Space
    uses: list[Use]


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was removed, or would be, and the bytes that this gives back in all: also what only they shared."""

    removed: list[Use]
    freed: int


@dataclass(frozen=True, slots=True)
class _Held:
    """All templates that are offered, and those that sandboxes run on, with the bytes of each of their layers."""

    templates: list[Template]
    sizes: dict[LayerDigest, int]


class Disk:
    """The disk of all tenants."""

    def __init__(
        self,
        *,
        store: Store,
        layers: Layers,
        driver: Driver,
        templates: Templates,
        registry: Registry,
        space: Callable[[], Awaitable[Space]],
        volumes: Volumes,
        rules: Callable[[], Retention],
    ) -> None:
        """`rules` is what the operator has said of checkpoints."""
        self._store = store
        self._layers = layers
        self._driver = driver
        self._templates = templates
        self._registry = registry
        self._space = space
        self._volumes = volumes
        self._rules = rules

    async def overview(self, tenant: TenantId) -> Overview:
        """What a tenant's templates, sandboxes and volumes take, and what nobody needs. Layers are shared with others, too."""
        uses = [*await self._of_templates(tenant, await self._held()), *await self._of_sandboxes(tenant)]
        for volume in self._volumes.list(tenant):
            uses.append(Use(UseKind.VOLUME, volume.name, await self._volumes.usage(volume), 0))
        if unused := await self._unused():
            uses.append(unused)
        return Overview(await self._space(), sorted(uses, key=lambda use: -use.own))

    async def prune(
        self, tenant: TenantId, wanted: Retention | None = None, *, dry_run: bool = False
    ) -> Pruned:
        """Remove a tenant's checkpoints beyond `wanted` (None: what the operator has set), and layers and images that
        nothing needs. A checkpoint that a pool is made of is kept, and layers that sandboxes run on."""
        held = await self._held()
        gone = await self._beyond(tenant, wanted or self._rules(), held)
        names = {item.name for item in gone}
        removed = [use for use in await self._of_templates(tenant, held) if use.name in names]
        running = {sandbox.spec.template for sandbox in self._registry.all()}
        freed = released(gone, held.templates, running, held.sizes)
        if unused := await self._unused():
            removed.append(unused)
            freed += unused.own
        if not dry_run:
            for template in gone:
                log.info("checkpoint %s is beyond what is kept, and removed", template.name)
            await self._templates.remove(tenant, *(template.id for template in gone))
        return Pruned(removed, freed)

    async def tidy(self, made: Template) -> None:
        """What a new checkpoint is the occasion for: those beyond what the operator lets be kept are removed, and one on a
        long stack of layers gets a short one."""
        rules = self._rules()
        beyond = [] if rules == Retention() else await self._beyond(made.tenant, rules, await self._held())
        for template in beyond:
            log.info("checkpoint %s is beyond what is kept, and removed", template.name)
        if beyond:
            await self._templates.remove(made.tenant, *(template.id for template in beyond))
        if len(made.layers) > FLATTEN_OVER:
            try:
                await self._templates.flatten(made)
            except CorralError as error:
                log.warning("the layers of %s could not be made fewer: %s", made.name, error)

    async def _beyond(self, tenant: TenantId, rules: Retention, held: _Held) -> list[Template]:
        mine = await self._templates.list(tenant)
        pooled = {pool.template for pool in await self._store.pools() if pool.tenant == tenant}
        loose = [item for item in mine if item.name not in pooled]
        return expired(loose, rules, held.templates, held.sizes)

    async def _of_templates(self, tenant: TenantId, held: _Held) -> list[Use]:
        mine = await self._templates.list(tenant)
        found = shares(mine, held.templates, held.sizes)
        return [
            Use(
                UseKind.TEMPLATE if item.origin is None else UseKind.CHECKPOINT,
                item.name,
                found[item.id].own,
                found[item.id].shared,
            )
            for item in mine
        ]

    async def _of_sandboxes(self, tenant: TenantId) -> list[Use]:
        uses = []
        for sandbox in self._registry.of(tenant):
            try:
                own = (await self._driver.stats(sandbox.id)).disk
            except CorralError:  # it is being made, or removed
                continue
            uses.append(Use(UseKind.SANDBOX, sandbox.spec.name, own, 0))
        return uses

    async def _unused(self) -> Use | None:
        """Layers that no template and no sandbox needs."""
        needed = await self._store.layers_in_use()
        size = sum([await self._layers.size(layer) for layer in await self._layers.unused(needed)])
        return Use(UseKind.UNUSED, "", size, 0) if size else None

    async def _held(self) -> _Held:
        found = {template.id: template for template in await self._store.templates()}
        for wanted in {sandbox.spec.template for sandbox in self._registry.all()} - found.keys():
            try:
                found[wanted] = await self._store.template(wanted)
            except NotFound:
                continue
        layers = {layer for template in found.values() for layer in template.layers}
        return _Held(list(found.values()), {layer: await self._layers.size(layer) for layer in layers})

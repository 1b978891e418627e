"""Templates: built, imported, made from a sandbox, looked up."""

import asyncio
import contextlib
import secrets as randomness
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace

from corral.engine.ports import Clock, ImportedImage, Layers, Progress, Store
from corral.errors import Conflict, NotFound
from corral.model.build import RegistryLogin
from corral.model.ids import ImageId, LayerDigest, TemplateId, TenantId, check_template_name
from corral.model.template import Assignment, MachineState, Origin, Template, TemplateConfig

BASE = "base"
CHECKPOINT = "checkpoint:"
"""How the source of a checkpoint begins; the name of what its sandbox was made from follows."""

AgentBuilder = Callable[[TenantId, str, Template, Progress], Awaitable[LayerDigest]]
"""Installs an agent in a sandbox of a template and returns what that added as a layer."""

ImageCheck = Callable[[TenantId, tuple[LayerDigest, ...], TemplateConfig], Awaitable[None]]


def silent(_: str) -> None:
    """Progress that nobody follows."""


async def _nothing() -> None:
    """Nothing more to prune."""


async def _unchecked(tenant: TenantId, layers: tuple[LayerDigest, ...], config: TemplateConfig) -> None:
    """Any image is fine."""


class Templates:
    """The templates of every tenant. What takes long runs once at a time per name; others wait for its result."""

    def __init__(
        self,
        store: Store,
        layers: Layers,
        clock: Clock,
        build_agent_layer: AgentBuilder,
        on_change: Callable[[], None] = lambda: None,
        on_prune: Callable[[], Awaitable[None]] = _nothing,
        check: ImageCheck = _unchecked,
    ) -> None:
        """`on_change` is called after a template was added, replaced or removed, `on_prune` when layers were pruned. `check`
        raises for an image of which no template may be made."""
        self._check = check
        self._store = store
        self._layers = layers
        self._clock = clock
        self._build_agent_layer = build_agent_layer
        self._on_change = on_change
        self._on_prune = on_prune
        self._offered: dict[TenantId, list[Template]] = {}  # nobody else changes them
        self._changes = 0
        self._building: dict[tuple[TenantId, str], asyncio.Lock] = {}
        self._holders = 0
        self._pruning = asyncio.Lock()
        self._prune_wanted = False
        self._hidden: dict[TemplateId, Template] = {}

    async def list(self, tenant: TenantId) -> list[Template]:
        """A tenant's templates, oldest first."""
        known, changes = self._offered.get(tenant), self._changes
        if known is None:
            known = await self._store.templates(tenant)
            if self._changes == changes:
                self._offered[tenant] = known
        return [*known]

    async def get(self, tenant: TenantId, ref: str) -> Template:
        """By name or id. Raises NotFound."""
        for template in await self.list(tenant):
            if ref in (template.name, template.id):
                return template
        raise NotFound(
            f"there is no template {ref[:80]!r}",
            "see `corral template ls`; make one with `corral template build`",
        )

    async def resolve(
        self, tenant: TenantId, ref: str | None, agent: str | None, progress: Progress | None
    ) -> Template:
        """The template that a create asks for: by name, or the agent's, or `base`; the latter two are built where missing."""
        hidden = self._hidden.get(TemplateId(ref or ""))
        if hidden is not None and hidden.tenant == tenant:
            return hidden
        if ref is not None and ref not in (BASE, agent):
            return await self.get(tenant, ref)
        if agent is not None and ref != BASE:
            return await self.build_agent(tenant, agent, progress or silent)
        return await self.build_base(tenant, progress or silent)

    async def build_base(self, tenant: TenantId, progress: Progress = silent) -> Template:
        """The `base` template of this version of Corral; built where its layers are missing."""
        async with self._lock(tenant, BASE), self.holding_layers():
            layers = await self._layers.base(progress)
            return await self._keep(tenant, (BASE,), layers, TemplateConfig(env=dict(_BASE_ENV)), source=BASE)

    async def build_agent(self, tenant: TenantId, agent: str, progress: Progress = silent) -> Template:
        """The template with an agent's program on top of `base`; built in a sandbox where it is missing or out of date."""
        base = await self.build_base(tenant, progress)
        async with self._lock(tenant, agent), self.holding_layers():
            source = f"agent:{agent}"
            for template in await self.list(tenant):
                if template.name == agent and template.source == source and template.parent == base.id:
                    return template
            layer = await self._build_agent_layer(tenant, agent, base, progress)
            return await self._keep(
                tenant, (agent,), (*base.layers, layer), base.config, source=source, parent=base
            )

    async def build_image(
        self, tenant: TenantId, name: str, reference: str, progress: Progress = silent
    ) -> Template:
        """A template from an OCI image. Its user, working directory and environment are kept."""
        await self.check_replaceable(tenant, name)
        async with self._lock(tenant, name), self.holding_layers():
            image = await self.image(tenant, reference, progress)
            source = f"{reference}@{image.digest}"
            return await self._keep(tenant, (name,), image.layers, config_of(image), source=source)

    async def import_archive(
        self, tenant: TenantId, name: str, data: AsyncIterator[bytes], progress: Progress = silent
    ) -> Template:
        """A template from an image's archive; one that Corral exported gets back all of its configuration."""
        await self.check_replaceable(tenant, name)
        async with self._lock(tenant, name), self.holding_layers():
            image = await self._layers.import_archive(data, progress)
            await self._check(tenant, image.layers, config_of(image))
            return await self._keep(
                tenant, (name,), image.layers, config_of(image), source=f"archive@{image.digest}"
            )

    async def image(
        self,
        tenant: TenantId,
        reference: str,
        progress: Progress = silent,
        login: RegistryLogin | None = None,
    ) -> ImportedImage:
        """An OCI image that may be used. The caller holds its layers. Raises Forbidden for one that holds a secret."""
        image = await self._layers.image(reference, progress, login)
        await self._check(tenant, image.layers, config_of(image))
        return image

    async def check_replaceable(self, tenant: TenantId, name: str) -> None:
        """Raise InvalidInput or Conflict for a name that a template cannot get: Corral's own, or a checkpoint's, which holds
        work that cannot be built again."""
        check_free_name(name)
        for former in await self.list(tenant):
            if former.name == name and former.origin is not None:
                raise _taken(name)

    async def export(self, tenant: TenantId, ref: str) -> AsyncIterator[bytes]:
        """A template as an OCI image archive, for other hosts and other tools. Raises NotFound, DiskFull, InvalidInput."""
        template = await self.get(tenant, ref)
        async with self.holding_layers():
            async for data in self._layers.export(template):
                yield data

    async def from_layer(
        self,
        name: str,
        parent: Template,
        layer: LayerDigest,
        config: TemplateConfig,
        origin: Origin,
        memory: MachineState | None,
    ) -> Template:
        """A template made of another one and a layer on top: a checkpoint."""
        check_free_name(name)
        return await self._keep(
            parent.tenant,
            (name,),
            (*parent.layers, layer),
            config,
            source=f"{CHECKPOINT}{parent.name}",
            parent=parent,
            memory=memory,
            origin=origin,
        )

    async def flatten(self, template: Template) -> Template | None:
        """Let a template have fewer layers with the same tree; None where it was replaced or removed meanwhile. Sandboxes
        that run on it keep the layers that they have."""
        async with self.holding_layers():
            layers = await self._layers.flatten(template.layers)
            async with self._lock(template.tenant, template.name):
                if template not in await self.list(template.tenant):
                    self._prune_wanted = True
                    return None
                size = sum([await self._layers.size(layer) for layer in layers])
                shorter = replace(template, id=TemplateId(randomness.token_hex(8)), layers=layers, size=size)
                await self._add(shorter, shortened=template.id)
                self._prune_wanted = True
                return shorter

    async def images(self) -> set[ImageId]:
        """Machine images of all templates that sandboxes can be made from."""
        offered = [*await self._store.templates(), *self._hidden.values()]
        return {template.memory.image for template in offered if template.memory is not None}

    async def tag(self, tenant: TenantId, ref: str, *names: str) -> None:
        """The same template under other names, all of them or none; templates of those names are replaced."""
        for name in names:
            check_free_name(name)
        async with contextlib.AsyncExitStack() as held:
            for name in sorted(set(names)):
                await held.enter_async_context(self._lock(tenant, name))
            await held.enter_async_context(self.holding_layers())
            template = await self.get(tenant, ref)
            await self._keep(
                tenant,
                names,
                template.layers,
                template.config,
                source=template.source,
                parent=template,
                memory=template.memory,
                origin=template.origin,
            )

    async def history(self, tenant: TenantId, name: str) -> Sequence[Assignment]:
        """What a name, and that name with each tag (`name:tag`), stood for, oldest first. A name that was removed has none,
        and of the others the last hundred are kept."""
        return await self._store.assignments(tenant, name)

    async def publish(
        self,
        tenant: TenantId,
        names: tuple[str, ...],
        layers: tuple[LayerDigest, ...],
        config: TemplateConfig,
        source: str,
    ) -> Template:
        """A template of these layers under each name, all of them or none, in the place of those of the same names; the one
        of the first. The caller holds its layers."""
        for name in names:
            check_free_name(name)
        return await self._keep(tenant, names, layers, config, source=source)

    @contextlib.asynccontextmanager
    async def hidden(
        self,
        tenant: TenantId,
        layers: tuple[LayerDigest, ...],
        config: TemplateConfig,
        memory: MachineState | None = None,
    ) -> AsyncIterator[Template]:
        """Within it, a template that nobody is shown and sandboxes can be made from by its id: a step of a build, or what
        forks are made from."""
        template = Template(
            id=TemplateId(randomness.token_hex(8)),
            tenant=tenant,
            name="step",
            layers=layers,
            config=config,
            size=0,
            created_at=self._clock.now(),
            source="build",
            memory=memory,
        )
        await self._layers.flush()
        await self._store.add_hidden_template(template)
        self._hidden[template.id] = template
        try:
            yield template
        finally:
            del self._hidden[template.id]
            await self._store.remove_template(template.id)

    async def remove(self, tenant: TenantId, *refs: str) -> None:
        """No longer offer templates, all of these or none; their layers go once nothing uses them."""
        found = [await self.get(tenant, ref) for ref in refs]
        await self._store.remove_template(*(template.id for template in found))
        self._changed(tenant)
        await self.prune()

    async def prune(self) -> None:
        """Remove layers that nothing uses, those that a crash left without an owner too; put off while some are held."""
        self._prune_wanted = True
        await self._prune()

    async def forget_steps(self) -> int:
        """Forget the layers of steps that no template has; how many. They go unless a build is under way."""
        count = await self._layers.forget(await self._store.layers_in_use())
        await self.prune()
        return count

    @contextlib.asynccontextmanager
    async def holding_layers(self) -> AsyncIterator[None]:
        """Within it no layer is removed: a new one is not in use until its template is in the store. A removal that is under way
        is waited for, since it has looked already at what is in use.

        What a failure leaves without a template is removed.
        """
        async with self._pruning:
            self._holders += 1
        try:
            yield
        except BaseException:
            self._prune_wanted = True
            raise
        finally:
            self._holders -= 1
            await self._prune()

    async def _prune(self) -> None:
        async with self._pruning:
            if self._prune_wanted and self._holders == 0:
                self._prune_wanted = False
                if not self._hidden:
                    await self._store.forget_templates()
                await self._layers.prune(await self._store.layers_in_use())
                await self._on_prune()

    async def _keep(
        self,
        tenant: TenantId,
        names: tuple[str, ...],
        layers: tuple[LayerDigest, ...],
        config: TemplateConfig,
        *,
        source: str,
        parent: Template | None = None,
        memory: MachineState | None = None,
        origin: Origin | None = None,
    ) -> Template:
        """The template of the first name; what is there already under a name is left as it is."""
        wanted = layers, config, memory, origin
        found = {template.name: template for template in await self.list(tenant)}
        missing = [
            name for name in dict.fromkeys(names) if name not in found or _substance(found[name]) != wanted
        ]
        replaced = [found[name] for name in missing if name in found]
        if origin is None and (lost := [template for template in replaced if template.origin is not None]):
            raise _taken(lost[0].name)
        self._prune_wanted |= bool(replaced)
        size = sum([await self._layers.size(layer) for layer in layers]) if missing else 0
        made = [
            Template(
                id=TemplateId(randomness.token_hex(8)),
                tenant=tenant,
                name=name,
                layers=layers,
                config=config,
                size=size,
                created_at=self._clock.now(),
                source=source,
                parent=parent.id if parent else None,
                memory=memory,
                origin=origin,
            )
            for name in missing
        ]
        if made:
            await self._add(*made)
        return {**found, **{template.name: template for template in made}}[names[0]]

    async def _add(self, *templates: Template, shortened: TemplateId | None = None) -> None:
        """Layers first: no power cut leaves a template without them."""
        await self._layers.flush()
        await self._store.add_template(*templates, shortened=shortened)
        for tenant in {template.tenant for template in templates}:
            self._changed(tenant)

    def _changed(self, tenant: TenantId) -> None:
        self._changes += 1
        self._offered.pop(tenant, None)
        self._on_change()

    def _lock(self, tenant: TenantId, name: str) -> asyncio.Lock:
        return self._building.setdefault((tenant, name), asyncio.Lock())


def config_of(image: ImportedImage) -> TemplateConfig:
    """How sandboxes of an image are run. What an image starts by itself is not started, but where Corral wrote it."""
    kept = image.kept or TemplateConfig(sudo=False)
    return replace(kept, env=image.env, user=image.user or "root", workdir=image.workdir or "/")


def _substance(template: Template) -> tuple[object, ...]:
    """What sandboxes of it have, whatever it is called."""
    return template.layers, template.config, template.memory, template.origin


def _taken(name: str) -> Conflict:
    return Conflict(
        f"there is a checkpoint {name!r}, which would be lost",
        f"choose another name, or remove it: `corral template rm {name}`",
    )


def check_free_name(name: str) -> None:
    """Raise InvalidInput or Conflict for a template's name that is malformed or Corral's own."""
    check_template_name(name)
    if name == BASE:
        raise Conflict("`base` is Corral's own template", "choose another name")


_BASE_ENV = {"LANG": "C.UTF-8", "EDITOR": "vim"}

"""Carrying out one build: stage by stage, step by step, each step that makes files a layer that is kept and found again.

A command runs in a sandbox of its own, made from the layers below under the egress policy that was given to the build.
Files are copied by a program that sees nothing but the image (see the port `Archives`). So a build needs no rights that
a sandbox does not have, and what it leaves behind when it fails is nothing but the layers of the steps that succeeded.
"""

import asyncio
import contextlib
import secrets as randomness
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from corral.engine.commands import STEP_SECONDS, CommandLines, check_exit
from corral.engine.leaks import LeakCheck, Tokens
from corral.engine.plan import CreateRequest
from corral.engine.ports import Archives, Driver, Layers, Placing
from corral.engine.processes import Chunk, Ended, Processes, StartRequest
from corral.engine.recovery import BUILD
from corral.engine.sandboxes import Sandboxes
from corral.engine.tars import once, tar_of, tar_stream
from corral.engine.templates import BASE, Templates, config_of
from corral.errors import CorralError, InvalidInput, NotFound, UpstreamFailed
from corral.model.build import SCRATCH, BuildRequest, Line, Recipe, RegistryLogin, Stage
from corral.model.ids import LayerDigest, TenantId
from corral.model.process import OWN_TAG
from corral.model.sandbox import Sandbox
from corral.model.template import Template, TemplateConfig
from corral.policy.building import (
    CopyAction,
    FetchAction,
    RunAction,
    State,
    apply,
    initial,
    layer_key,
    stage_named,
    stages_needed,
)
from corral.policy.copying import Item, Placed, choose, clean, digest_of
from corral.policy.models import over

MAX_LAYERS = 120
MAX_FETCH = 4 << 30
_HINT = "change what writes it: what a build needs of a secret the gateway adds to its requests, by `--secret NAME`"
_FETCHED = "/tmp/fetched"  # noqa: S108 - in a sandbox of its own

Tell = Callable[[int, str, bool], None]
"""Told a step's number, a line, and whether the line is what a command printed."""


@dataclass(slots=True)
class Built:
    """A stage that is done, or as far as it is: its layers, lowest first, and its state."""

    layers: list[LayerDigest] = field(default_factory=list)
    state: State = field(default_factory=State)


@dataclass(slots=True)
class Tally:
    """How far a build is."""

    step: int = 0
    steps: int = 0
    cached: int = 0


class Builder:
    """The parts of the engine that builds are made with."""

    def __init__(
        self,
        *,
        layers: Layers,
        archives: Archives,
        templates: Templates,
        sandboxes: Sandboxes,
        processes: Processes,
        driver: Driver,
        leaks: LeakCheck,
    ) -> None:
        self.layers = layers
        self.archives = archives
        self.templates = templates
        self.sandboxes = sandboxes
        self.processes = processes
        self.driver = driver
        self.leaks = leaks

    async def build(
        self, tenant: TenantId, id: str, request: BuildRequest, tally: Tally, tell: Tell
    ) -> Template:
        """Build and publish a template. Raises CorralError; then no template was made or changed."""
        async with self.templates.holding_layers():
            return await _Run(self, tenant, id, request, tally, tell).all()


class _Run:
    """One build."""

    def __init__(
        self, parts: Builder, tenant: TenantId, id: str, request: BuildRequest, tally: Tally, tell: Tell
    ) -> None:
        self._parts = parts
        self._tenant = tenant
        self._id = id
        self._request = request
        self._tally = tally
        self._tell_step = tell
        self._done: dict[int, Built] = {}
        self._archives: dict[str, Mapping[str, Item]] = {}
        self._tokens: dict[bytes, str] = {}

    async def all(self) -> Template:
        recipe = self._request.recipe
        needed = stages_needed(recipe)
        self._tally.steps = sum(len(recipe.stages[number].lines) for number in needed)
        for number in needed:
            self._done[number] = await self._stage(recipe, number)
        last = self._done[needed[-1]]
        await self._parts.leaks.check_settings(self._tenant, last.state.config(), _HINT)
        if not last.layers:
            raise InvalidInput("the template would be empty", "copy something into it, or start from a base")
        if last.state.config().start_command or last.state.ready:
            self._tell("trying what it starts")
            async with self._sandbox(tuple(last.layers), last.state.config(), starts=True):
                if not last.state.ready and self._request.settle:
                    # Nothing tells when it is ready: time is all that it can be given.
                    self._tell(f"giving it {self._request.settle:g} seconds")
                    await asyncio.sleep(self._request.settle)
        self._tell("keeping the template")
        source = f"build:{recipe.stages[needed[-1]].base}"[:200]
        layers = tuple(last.layers)
        config = replace(last.state.config(), limits=self._request.sandbox_limits)
        if self._request.models is not None:
            config = replace(config, models=over(self._request.models, config.models))
        names = (self._request.name, *self._request.tags)
        return await self._parts.templates.publish(self._tenant, names, layers, config, source)

    def _tell(self, text: str, *, output: bool = False) -> None:
        self._tell_step(self._tally.step, text, output)

    # -- stages

    async def _stage(self, recipe: Recipe, number: int) -> Built:
        stage = recipe.stages[number]
        built = await self._base(recipe.stages[:number], stage)
        for line in stage.lines:
            self._tally.step += 1
            try:
                await self._line(recipe.stages[:number], built, line)
            except CorralError as error:
                raise _placed(error, line) from error
        if built.state.pending:
            await self._layer(built, ("directories",), lambda: self._place(built, "", (), Placing("/")))
            built.state = replace(built.state, pending=())
        return built

    async def _base(self, earlier: Sequence[Stage], stage: Stage) -> Built:
        if stage.base.lower() == SCRATCH:
            return Built()
        number = stage_named(earlier, stage.base)
        if number is not None:
            former = self._done[number]
            return Built(list(former.layers), replace(former.state, args={}, pending=()))
        layers, config = await self._foreign(stage.base, self._request.login)
        return Built(list(layers), initial(config))

    async def _foreign(
        self, name: str, login: RegistryLogin | None = None
    ) -> tuple[tuple[LayerDigest, ...], TemplateConfig]:
        """The layers and configuration of a template or an OCI image."""
        templates = self._parts.templates
        if name == BASE:
            base = await templates.build_base(self._tenant, self._tell)
            return base.layers, base.config
        try:
            found = await templates.get(self._tenant, name)
        except NotFound:
            self._tell(f"taking the image {name}")
            image = await templates.image(self._tenant, name, self._tell, login)
            return image.layers, config_of(image)
        return found.layers, found.config

    async def _line(self, earlier: Sequence[Stage], built: Built, line: Line) -> None:
        self._tell(f"[{self._tally.step}/{self._tally.steps}] {line.text or type(line.step).__name__}"[:1000])
        former = built.state
        state, action = apply(former, line.step, self._request.args)
        built.state = replace(state, pending=former.pending) if action is not None else state
        match action:
            case None:
                return
            case RunAction():
                await self._command(built, action)
            case CopyAction():
                await self._copy(earlier, built, action)
            case FetchAction():
                await self._fetch(built, action)
        built.state = replace(built.state, pending=())
        if len(built.layers) > MAX_LAYERS:
            raise InvalidInput(
                f"the template would have more than {MAX_LAYERS} layers",
                "join commands with &&, or build it in two templates, one from the other",
            )

    async def _layer(
        self, built: Built, parts: tuple[object, ...], make: Callable[[], Awaitable[LayerDigest | None]]
    ) -> None:
        """Put the layer of an action on top: the one that is known, or a new one."""
        key = layer_key(self._tenant, built.layers, built.state.pending, *parts)
        known = None if self._request.fresh else await self._parts.layers.known(key)
        if known is not None:
            await self._check(known)
            self._tally.cached += 1
            self._tell("cached")
            built.layers.append(known)
            return
        layer = await make()
        if layer is None:
            return
        await self._check(layer, self._tokens)
        built.layers.append(layer)
        await self._parts.layers.remember(key, layer)

    async def _check(self, layer: LayerDigest, tokens: Tokens = MappingProxyType({})) -> None:
        """Whatever stage it is of: no secret enters a sandbox, and the layers of all steps are kept."""
        await self._parts.leaks.check_steps(self._tenant, (layer,), tokens, _HINT)

    # -- commands

    async def _command(self, built: Built, action: RunAction) -> None:
        if not built.layers:
            raise InvalidInput(
                "there is nothing to run a command with", "start from a base, or copy files first"
            )
        parts = ("run", action.argv, action.user, action.cwd, sorted(action.env.items()), action.passing)
        await self._layer(built, parts, lambda: self._run(built, action))

    async def _run(self, built: Built, action: RunAction) -> LayerDigest:
        async with self._sandbox(tuple(built.layers), built.state.config()) as sandbox:
            files = self._parts.driver.files(sandbox.spec)
            for directory in built.state.pending:
                await files.make_dir(directory.path, _directory_owner(directory.owner))
            passing = [path for path in action.passing if not await self._present(sandbox, path)]
            for path in passing:
                await files.make_dir(path, action.user, 0o755)
            await self._execute(
                sandbox,
                StartRequest(
                    action.argv, action.user, action.cwd, action.env, timeout=STEP_SECONDS, tag=OWN_TAG
                ),
            )
            for path in passing:
                if await self._present(sandbox, path):
                    await files.remove(path)
            self._tokens |= await self._parts.leaks.tokens(sandbox.spec)
            await self._parts.sandboxes.stop(self._tenant, sandbox.id, 5.0)
            return await self._parts.driver.commit(sandbox.id)

    async def _present(self, sandbox: Sandbox, path: str) -> bool:
        try:
            await self._parts.driver.files(sandbox.spec).stat(path)
        except NotFound:
            return False
        return True

    async def _execute(self, sandbox: Sandbox, request: StartRequest) -> None:
        processes = self._parts.processes
        info = await processes.start(self._tenant, sandbox.id, request)
        lines = CommandLines(lambda text: self._tell(text, output=True))
        async for item in processes.output(self._tenant, sandbox.id, info.id):
            match item:
                case Chunk(data=data):
                    lines.feed(data)
                case Ended(exit=exit):
                    lines.end()
                    check_exit(request, exit)

    @contextlib.asynccontextmanager
    async def _sandbox(
        self, layers: tuple[LayerDigest, ...], config: TemplateConfig, *, starts: bool = False
    ) -> AsyncIterator[Sandbox]:
        """A sandbox of the build. With `starts` it is as a sandbox of the template will be, and ready once this begins."""
        sandboxes = self._parts.sandboxes
        if not starts:
            config = replace(config, start_command=(), ready_command=())
        async with self._parts.templates.hidden(self._tenant, layers, config) as template:
            sandbox = await sandboxes.create(
                self._tenant,
                CreateRequest(
                    template=template.id,
                    name=f"build-{self._id[:8]}-{randomness.token_hex(3)}",
                    isolation=self._request.isolation,
                    limits=self._request.limits,
                    user=None if starts else "root",
                    workdir=None if starts else "/",
                    allow=self._request.allow,
                    secrets=self._request.secrets,
                    labels={"corral/build": self._request.name},
                    attributes={BUILD: self._id},
                ),
            )
            try:
                yield sandbox
            finally:
                await asyncio.shield(sandboxes.remove(self._tenant, sandbox.id))

    # -- files

    async def _copy(self, earlier: Sequence[Stage], built: Built, action: CopyAction) -> None:
        if action.files:
            archive = await self._parts.archives.save(self._tenant, once(tar_of(action.files)))
            names = tuple(item.name for item in action.files)
            await self._copy_from(built, archive.id, names, action)
            built.state = replace(built.state, pending=())
        if not action.sources:
            return
        sources = tuple(clean(source) for source in action.sources)
        if action.origin:
            await self._copy_from_image(earlier, built, sources, action)
            return
        context = action.context or self._request.context
        if not context:
            raise InvalidInput("the build has no context to copy from", "give one: --context DIRECTORY")
        await self._copy_from(built, context, sources, action)

    async def _copy_from(
        self, built: Built, archive: str, sources: tuple[str, ...], action: CopyAction
    ) -> None:
        if archive not in self._archives:
            self._archives[archive] = await self._parts.archives.items(self._tenant, archive)
        items = self._archives[archive]
        placed = await asyncio.to_thread(
            choose, items, sources, action.exclude, directory=action.directory, links=action.links
        )
        placing = _placing(built, action)
        await self._layer(
            built,
            ("copy", digest_of(placed), *_described(action)),
            lambda: self._place(built, archive, placed, placing),
        )

    async def _copy_from_image(
        self, earlier: Sequence[Stage], built: Built, sources: tuple[str, ...], action: CopyAction
    ) -> None:
        number = stage_named(earlier, action.origin)
        layers = (
            tuple(self._done[number].layers)
            if number is not None
            else (await self._foreign(action.origin))[0]
        )
        if not layers:
            raise InvalidInput(f"{action.origin[:80]!r} holds nothing to copy", "see the stage's steps")

        async def make() -> LayerDigest | None:
            packed = await self._parts.archives.pack(self._tenant, layers, sources)
            items = await self._parts.archives.items(self._tenant, packed.id)
            placed = await asyncio.to_thread(
                choose, items, sources, action.exclude, directory=action.directory
            )
            return await self._place(built, packed.id, placed, _placing(built, action))

        await self._layer(built, ("copy", layers, sources, action.exclude, *_described(action)), make)

    async def _place(
        self, built: Built, archive: str, placed: Sequence[Placed], placing: Placing
    ) -> LayerDigest | None:
        placing = replace(placing, directories=built.state.pending)
        return await self._parts.archives.place(self._tenant, archive, placed, built.layers, placing)

    async def _fetch(self, built: Built, action: FetchAction) -> None:
        """Download in a sandbox of Corral's own base, which has what that needs, under the build's egress policy."""
        name = action.url.split("?", 1)[0].rstrip("/").rpartition("/")[2] or "index.html"
        base = await self._parts.templates.build_base(self._tenant, self._tell)
        async with self._sandbox(base.layers, base.config) as sandbox:
            argv = (
                "curl",
                "-fsSL",
                "--retry",
                "2",
                "--max-filesize",
                str(MAX_FETCH),
                "-o",
                _FETCHED,
                "--",
                action.url,
            )
            await self._execute(
                sandbox, StartRequest(argv, "root", "/", {}, timeout=STEP_SECONDS, tag=OWN_TAG)
            )
            files = self._parts.driver.files(sandbox.spec)
            size = (await files.stat(_FETCHED)).size
            archive = await self._parts.archives.save(
                self._tenant, tar_stream(name[:200], size, files.read(_FETCHED, 0, size))
            )
        item = next(iter((await self._parts.archives.items(self._tenant, archive.id)).values()))
        if action.checksum and f"sha256:{item.digest}" != action.checksum:
            raise UpstreamFailed(
                f"{action.url[:200]} is not what its checksum says: it has sha256:{item.digest}",
                "see who changed it, then correct the checksum",
            )
        placed = [Placed(item, item.path if action.directory else "", top=True)]
        placing = Placing(
            action.target, action.directory, action.owner, 0o600 if action.mode is None else action.mode
        )
        await self._layer(
            built,
            ("copy", digest_of(placed), *_described(action)),
            lambda: self._place(built, archive.id, placed, placing),
        )


def _placed(error: CorralError, line: Line) -> CorralError:
    """The error with the place in the recipe where it happened."""
    if not line.number:
        return error
    return type(error)(f"line {line.number}: {error.message}", error.hint)


def _placing(built: Built, action: CopyAction) -> Placing:
    return Placing(action.target, action.directory, action.owner, action.mode, action.unpack)


def _described(action: CopyAction | FetchAction) -> tuple[object, ...]:
    unpack = isinstance(action, CopyAction) and action.unpack
    return (action.target, action.directory, action.owner, action.mode, unpack)


def _directory_owner(owner: str) -> str:
    return owner.partition(":")[0] or "root"

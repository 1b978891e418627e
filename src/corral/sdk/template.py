"""Templates as programs: steps one after another, built by the daemon."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, Unpack

from corral.errors import InvalidInput, NotFound
from corral.model.build import Copy
from corral.protocol.catalog import TemplateInfo
from corral.sdk.build_calls import BuildTemplate, OnLine, build_template_from
from corral.sdk.client import AsyncClient, Client
from corral.sdk.contexts import Context, read_ignore
from corral.sdk.sandbox import shared_client
from corral.wire.dockerfile import parse_dockerfile

Command = str | Sequence[str]


class BuildOptions(TypedDict, total=False):
    """Options of a build; see `build_template_from`."""

    args: Mapping[str, str]
    allow: Sequence[str]
    secrets: Sequence[str]
    limits: Mapping[str, float]
    isolation: str
    fresh: bool
    on_line: OnLine


@dataclass(frozen=True)
class Template:
    """What a template is built from. Every method gives a new value, so that one can be the beginning of several.

    ```python
    import corral

    corral.Template().from_base().run("apt-get update && apt-get install -y redis").start(
        "redis-server", ready="redis-cli ping"
    ).build("redis", allow=["deb.debian.org"])
    ```

    `context` is the directory that `copy` takes files from.
    """

    context: Path | str = "."
    base: str = "base"
    steps: tuple[Mapping[str, Any], ...] = ()
    dockerfile: str | None = None
    started: Command | None = None
    ready: Command | None = None

    def from_base(self) -> "Template":
        """Start from Corral's own base: Debian with the usual tools, Python and Node."""
        return replace(self, base="base")

    def from_template(self, name: str) -> "Template":
        """Start from a template of one's own."""
        return replace(self, base=name)

    def from_image(self, reference: str) -> "Template":
        """Start from an OCI image, such as `debian:12`."""
        return replace(self, base=reference)

    def from_scratch(self) -> "Template":
        """Start from nothing."""
        return replace(self, base="scratch")

    def from_dockerfile(self, dockerfile: Path | str) -> "Template":
        """Take the steps of a Dockerfile: a path, or its text where it holds a line break. Others cannot be added."""
        if isinstance(dockerfile, str) and "\n" in dockerfile:
            return replace(self, dockerfile=dockerfile)
        try:
            return replace(self, dockerfile=Path(dockerfile).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise NotFound(f"the Dockerfile cannot be read: {error}", "see its path") from None

    def run(self, command: Command, *, user: str = "") -> "Template":
        """Run a command: a text for the shell, or a program and its arguments. As root, unless said otherwise."""
        return self._with(kind="run", command=_command(command), **_given(user=user))

    def copy(
        self,
        sources: str | Sequence[str],
        target: str,
        *,
        owner: str = "",
        mode: int | None = None,
        origin: str = "",
        unpack: bool = False,
        exclude: Sequence[str] = (),
    ) -> "Template":
        """Copy files or patterns of the context (or of `origin`: a template or an image) to `target`."""
        given = _given(
            owner=owner,
            mode=None if mode is None else f"{mode:03o}",
            origin=origin,
            unpack=unpack,
            exclude=list(exclude),
        )
        paths = [sources] if isinstance(sources, str) else list(sources)
        return self._with(kind="copy", sources=paths, target=target, **given)

    def fetch(
        self, url: str, target: str, *, owner: str = "", mode: int | None = None, checksum: str = ""
    ) -> "Template":
        """Download a file; its host must be allowed."""
        given = _given(owner=owner, mode=None if mode is None else f"{mode:03o}", checksum=checksum)
        return self._with(kind="fetch", url=url, target=target, **given)

    def env(self, values: Mapping[str, str] | None = None, **more: str) -> "Template":
        """Set variables."""
        return self._with(kind="env", values={**(values or {}), **more})

    def workdir(self, path: str, *, owner: str = "") -> "Template":
        """The working directory from here on."""
        return self._with(kind="workdir", path=path, **_given(owner=owner))

    def user(self, name: str) -> "Template":
        """Who runs commands from here on, and in sandboxes."""
        return self._with(kind="user", name=name)

    def shell(self, *argv: str) -> "Template":
        """The shell of later commands, such as `"/bin/bash", "-c"`."""
        return self._with(kind="shell", argv=list(argv))

    def start(self, command: Command, *, ready: Command | None = None) -> "Template":
        """What runs in each sandbox from its start; the sandbox is ready once `ready` succeeds."""
        return replace(self, started=command, ready=ready)

    def build(
        self, name: str, *, client: Client | None = None, **options: Unpack[BuildOptions]
    ) -> TemplateInfo:
        """Build it as the template `name` and wait. Raises CommandFailed where a command fails."""
        return self._operation(name, options).run((client or shared_client()).transport)

    async def build_async(
        self, name: str, *, client: AsyncClient | None = None, **options: Unpack[BuildOptions]
    ) -> TemplateInfo:
        """As `build`, for asyncio."""
        operation = self._operation(name, options)
        if client is not None:
            return await operation.run_async(client.transport)
        async with AsyncClient() as own:
            return await operation.run_async(own.transport)

    # -- parts

    def _with(self, **step: Any) -> "Template":
        if self.dockerfile is not None:
            raise InvalidInput("a Dockerfile has its own steps", "write them there, or build on its template")
        return replace(self, steps=(*self.steps, step))

    def _operation(self, name: str, options: BuildOptions) -> BuildTemplate:
        recipe: dict[str, Any] = (
            {"stages": [{"base": self.base, "steps": list(self.steps)}]}
            if self.dockerfile is None
            else {"dockerfile": self.dockerfile}
        )
        start = None if self.started is None else _command(self.started)
        ready = None if self.ready is None else _command(self.ready)
        return build_template_from(
            name, start=start, ready=ready, context=self._context(options), **recipe, **options
        )

    def _context(self, options: BuildOptions) -> "partial[Iterator[bytes]] | None":
        """The files that its copies take; none where none does."""
        root = Path(self.context)
        sources = self._sources(options)
        if not sources:
            return None
        return partial(Context(root, read_ignore(root), only=sources).archive)

    def _sources(self, options: BuildOptions) -> list[str]:
        if self.dockerfile is not None:
            return context_sources(self.dockerfile, options.get("args"))
        return [
            source
            for step in self.steps
            if step["kind"] == "copy" and not step.get("origin")
            for source in step["sources"]
        ]


def context_sources(dockerfile: str, args: Mapping[str, str] | None = None, target: str = "") -> list[str]:
    """What a Dockerfile copies from its context. Raises InvalidInput, Unsupported with the line."""
    recipe = parse_dockerfile(dockerfile, given=args, target=target)
    return [
        source
        for stage in recipe.stages
        for line in stage.lines
        if isinstance(line.step, Copy) and not line.step.origin
        for source in line.step.sources
    ]


def _command(command: Command) -> str | list[str]:
    return command if isinstance(command, str) else list(command)


def _given(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value}

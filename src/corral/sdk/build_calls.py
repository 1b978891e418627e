"""Builds of templates, as operations."""

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import aclosing, closing
from dataclasses import dataclass
from typing import Any

from corral.errors import Conflict
from corral.model.build import BuildStatus
from corral.protocol import builds as protocol
from corral.protocol.base import Error
from corral.protocol.catalog import TemplateInfo
from corral.sdk import bridge
from corral.sdk.operations import (
    AsyncTransport,
    Call,
    Content,
    Event,
    Follow,
    Operation,
    Request,
    SyncTransport,
    build,
    encode,
    error_of,
    parse,
    reply,
)
from corral.sdk.requests import EVENTS, get, post, url

OnLine = Callable[[protocol.BuildLine], None]


def upload_context(data: Content) -> Call[protocol.ContextInfo]:
    """Upload a tar archive for builds to copy from; it is kept for a day after its last use."""
    return Call(
        Request("PUT", url("contexts"), data, accept="application/json", timeout=None),
        reply(protocol.ContextInfo),
    )


def has_context(id: str) -> Call[bool]:
    """Whether an upload is still there."""
    return Call(get(url("contexts", id)), lambda body: parse(protocol.ContextState, body).present)


def start_build(name: str, **recipe: Any) -> Call[protocol.BuildInfo]:
    """Build the template `name` in the background; `recipe` are the fields of the request, such as `dockerfile` or
    `stages`, `context`, `args`, `allow`, `secrets`, `limits`, `isolation`, `fresh`."""
    return _start(build(protocol.StartBuild, name=name, **recipe))


def _start(body: protocol.StartBuild) -> Call[protocol.BuildInfo]:
    return Call(
        Request("POST", url("builds"), encode(body), json=True),
        reply(protocol.BuildInfo),
    )


def list_builds() -> Call[list[protocol.BuildInfo]]:
    """The tenant's builds since the daemon's start, oldest first."""
    return Call(get(url("builds")), lambda body: parse(protocol.BuildList, body).builds)


def get_build(id: str) -> Call[protocol.BuildInfo]:
    """A build as it stands. Raises NotFound."""
    return Call(get(url("builds", id)), reply(protocol.BuildInfo))


def cancel_build(id: str) -> Call[protocol.BuildInfo]:
    """Give a build up; returns once nothing of it runs."""
    return Call(post(url("builds", id), method="DELETE", quick=False), reply(protocol.BuildInfo))


def follow_build(id: str, after: int = 0) -> Follow[protocol.BuildLine]:
    """The lines of a build's log from the one numbered `after`, as they come, until the build has ended."""
    return Follow(_log(id, after), lambda event: _line(event))


def forget_steps() -> Call[int]:
    """Forget all steps of builds that no template has, and free their disk; how many. The operator's only."""
    return Call(
        post(url("builds", "forget"), quick=False), lambda body: parse(protocol.Forgotten, body).steps
    )


def _log(id: str, after: int) -> Request:
    return Request("GET", url("builds", id, "log", after=after or None), accept=EVENTS)


def _line(event: Event) -> protocol.BuildLine | None:
    return parse(protocol.BuildLine, event.data) if event.name == "line" else None


@dataclass(frozen=True, slots=True)
class BuildTemplate(Operation[TemplateInfo, Coroutine[Any, Any, TemplateInfo]]):
    """Upload the context, if any; build; follow the log; the template. Given up in between, the build ends too."""

    body: protocol.StartBuild
    context: Callable[[], Iterator[bytes]] | None = None
    on_line: OnLine | None = None

    def run(self, transport: SyncTransport) -> TemplateInfo:
        """The template."""
        body = self.body
        if self.context is not None:
            body = self._with(upload_context(self.context()).run(transport))
        started = _start(body).run(transport)
        try:
            with closing(transport.events(_log(started.id, 0))) as events:
                for event in events:
                    if (end := self._take(event)) is not None:
                        return _outcome(end)
        except BaseException:
            cancel_build(started.id).run(transport)
            raise
        raise Conflict(
            "the build's log broke off", f"see what became of it: `corral build show {started.id}`"
        )

    async def run_async(self, transport: AsyncTransport) -> TemplateInfo:
        """The template."""
        body = self.body
        if self.context is not None:
            body = self._with(await upload_context(bridge.in_thread(self.context())).run_async(transport))
        started = await _start(body).run_async(transport)
        try:
            async with aclosing(transport.events(_log(started.id, 0))) as events:
                async for event in events:
                    if (end := self._take(event)) is not None:
                        return _outcome(end)
        except BaseException:
            await cancel_build(started.id).run_async(transport)
            raise
        raise Conflict(
            "the build's log broke off", f"see what became of it: `corral build show {started.id}`"
        )

    def _with(self, info: protocol.ContextInfo) -> protocol.StartBuild:
        return self.body.model_copy(update={"context": info.id})

    def _take(self, event: Event) -> protocol.BuildEnd | None:
        line = _line(event)
        if line is not None and self.on_line is not None:
            self.on_line(line)
        return parse(protocol.BuildEnd, event.data) if event.name == "end" else None


def _outcome(end: protocol.BuildEnd) -> TemplateInfo:
    if end.template is not None:
        return end.template
    if end.build.status is BuildStatus.CANCELLED:
        raise Conflict("the build was given up", "start it again; what it had done is found again")
    raise error_of(Error.model_validate(end.build.error))


def build_template_from(
    name: str,
    *,
    dockerfile: str | None = None,
    target: str = "",
    stages: Iterable[Mapping[str, Any]] | None = None,
    start: str | list[str] | None = None,
    ready: str | list[str] | None = None,
    context: Callable[[], Iterator[bytes]] | None = None,
    args: Mapping[str, str] | None = None,
    allow: Iterable[str] = (),
    secrets: Iterable[str] = (),
    limits: Mapping[str, float] | None = None,
    isolation: str | None = None,
    fresh: bool = False,
    models: Iterable[str] | None = None,
    aliases: Mapping[str, str] | None = None,
    on_line: OnLine | None = None,
) -> BuildTemplate:
    """Build the template `name` from the text of a Dockerfile, or from stages as the API has them, and wait for it.

    `context` gives a tar stream of the files that may be copied (see `corral.sdk.contexts`). `args`: values of build
    arguments. `allow`, `secrets`: what its commands may reach and use. `limits`: of each command's sandbox. `fresh`: do
    every step again. `models`, `aliases`: what its sandboxes may use at
    most, and model asked for → model sent. `on_line` is told the lines of the log. Raises CommandFailed where a
    command of it fails.
    """
    body = build(
        protocol.StartBuild,
        name=name,
        target=target,
        args=dict(args or {}),
        allow=list(allow),
        secrets=list(secrets),
        fresh=fresh,
        **{
            key: value
            for key, value in (
                ("dockerfile", dockerfile),
                ("stages", None if stages is None else list(stages)),
                ("start", start),
                ("ready", ready),
                ("limits", None if limits is None else dict(limits)),
                ("isolation", isolation),
                ("models", None if models is None else list(models)),
                ("aliases", None if aliases is None else dict(aliases)),
            )
            if value is not None
        },
    )
    return BuildTemplate(body, context, on_line)

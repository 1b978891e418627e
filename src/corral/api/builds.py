"""Routes of template builds and their contexts."""

import platform
from collections.abc import AsyncGenerator
from typing import Annotated

from fastapi import APIRouter, Path, Query
from fastapi.responses import Response
from starlette.requests import Request

from corral.api import shapes
from corral.api.bodies import BINARY_REQUEST, body_of
from corral.api.context import Caller, CallerDep
from corral.api.failures import documented
from corral.api.grants import model_rules
from corral.api.sandboxes import EVENT_STREAM, limits_of
from corral.api.streams import event, stream
from corral.errors import DiskFull, NoCapacity
from corral.model import build as model
from corral.model.sandbox import Limits
from corral.protocol import builds as protocol
from corral.wire.dockerfile import parse_dockerfile

router = APIRouter(prefix="/v1", tags=["builds"])

BuildPath = Annotated[str, Path(max_length=64, description="Id of a build.")]


@router.put(
    "/contexts",
    status_code=201,
    responses=documented(DiskFull),
    openapi_extra=BINARY_REQUEST,
    max_body_size=protocol.MAX_CONTEXT,
)
async def upload_context(request: Request, caller: CallerDep) -> protocol.ContextInfo:
    """Upload files for builds: the raw body is a tar archive, plain or compressed. Nothing of it is unpacked."""
    saved = await caller.engine.builds.upload(caller.tenant, body_of(request))
    return protocol.ContextInfo(id=saved.id, entries=saved.entries, size=saved.size, skipped=saved.skipped)


@router.get("/contexts/{context}", responses=documented())
async def get_context(
    caller: CallerDep, context: Annotated[str, Path(max_length=64, description="Id of an upload.")]
) -> protocol.ContextState:
    """Whether an upload is still there; it is then kept for another day."""
    return protocol.ContextState(present=await caller.engine.builds.uploaded(caller.tenant, context))


@router.post("/builds", status_code=202, responses=documented(NoCapacity))
async def start_build(caller: CallerDep, body: protocol.StartBuild) -> protocol.BuildInfo:
    """Build a template in the background. Each step is a layer that is kept and found again; commands run in sandboxes."""
    return shapes.build_info(await caller.engine.builds.start(caller.tenant, _request(body)))


@router.get("/builds", responses=documented())
async def list_builds(caller: CallerDep) -> protocol.BuildList:
    """The tenant's builds since the daemon's start, oldest first."""
    return protocol.BuildList(
        builds=[shapes.build_info(item) for item in caller.engine.builds.list(caller.tenant)]
    )


@router.get("/builds/{id}", responses=documented())
async def get_build(caller: CallerDep, id: BuildPath) -> protocol.BuildInfo:
    """A build as it stands."""
    return shapes.build_info(caller.engine.builds.get(caller.tenant, id))


@router.delete("/builds/{id}", responses=documented())
async def cancel_build(caller: CallerDep, id: BuildPath) -> protocol.BuildInfo:
    """Give a build up; the answer comes once nothing of it runs. One that has ended stays as it is."""
    return shapes.build_info(await caller.engine.builds.cancel(caller.tenant, id))


@router.get("/builds/{id}/log", response_class=Response, responses={**documented(), **EVENT_STREAM})
async def follow_build(
    caller: CallerDep,
    id: BuildPath,
    after: Annotated[int, Query(ge=0, description="Number of the first line wanted, from 0.")] = 0,
) -> Response:
    """A build's log as it grows (events `line`), then how it ended (event `end`)."""
    builds = caller.engine.builds
    builds.get(caller.tenant, id)

    async def events() -> AsyncGenerator[bytes, None]:
        async for line in builds.follow(caller.tenant, id, after):
            yield event("line", shapes.build_line(line))
        yield event("end", await _end(caller, id))

    return await stream(events())


@router.post("/builds/forget", responses=documented())
async def forget_steps(caller: CallerDep) -> protocol.Forgotten:
    """Forget all steps of builds that no template has, of all tenants, and free their disk. The operator's only."""
    caller.check_operator("forgetting the steps of builds")
    return protocol.Forgotten(steps=await caller.engine.builds.forget_steps())


async def _end(caller: Caller, id: str) -> protocol.BuildEnd:
    build = caller.engine.builds.get(caller.tenant, id)
    template = None
    if build.template is not None:
        template = shapes.template_info(await caller.engine.templates.get(caller.tenant, build.template))
    return protocol.BuildEnd(build=shapes.build_info(build), template=template)


def _request(body: protocol.StartBuild) -> model.BuildRequest:
    if body.dockerfile is not None:
        recipe = parse_dockerfile(
            body.dockerfile, given=body.args, target=body.target, machine=platform.machine()
        )
    else:
        recipe = model.Recipe(tuple(_stage(stage) for stage in body.stages or ()))
    return model.BuildRequest(
        name=body.name,
        recipe=_with_commands(recipe, body),
        context=body.context,
        args=body.args,
        allow=tuple(body.allow),
        secrets=tuple(body.secrets),
        limits=limits_of(body.limits) or Limits(pids=4096),
        isolation=body.isolation,
        fresh=body.fresh,
        models=model_rules(body.models, body.aliases) if body.models or body.aliases else None,
    )


def _with_commands(recipe: model.Recipe, body: protocol.StartBuild) -> model.Recipe:
    """What the request starts, in place of what the recipe does."""
    more: list[model.Line] = []
    if body.start is not None:
        command, by_shell = _command(body.start)
        more += [
            model.Line(model.Start((), fixed=True)),
            model.Line(model.Start(command, by_shell), f"start {' '.join(command)}"),
        ]
    if body.ready is not None:
        command, by_shell = _command(body.ready)
        more.append(model.Line(model.Ready(command, by_shell), f"ready {' '.join(command)}"))
    *earlier, last = recipe.stages
    return model.Recipe((*earlier, model.Stage(last.base, (*last.lines, *more), last.name)))


def _stage(stage: protocol.StageSteps) -> model.Stage:
    return model.Stage(
        stage.base, tuple(model.Line(_step(step), _shown(step)) for step in stage.steps), stage.name
    )


def _command(command: str | list[str]) -> tuple[tuple[str, ...], bool]:
    return ((command,), True) if isinstance(command, str) else (tuple(command), False)


def _shown(step: protocol.AnyStep) -> str:
    fields = step.model_dump(exclude={"kind"}, exclude_defaults=True)
    return f"{step.kind} {' '.join(str(value) for value in fields.values())}"[:200]


def _mode(mode: str | None) -> int | None:
    return None if mode is None else int(mode, 8)


def _step(step: protocol.AnyStep) -> model.Step:
    match step:
        case protocol.RunStep():
            command, by_shell = _command(step.command)
            return model.Run(command, by_shell, step.user, tuple(step.passing))
        case protocol.CopyStep():
            return model.Copy(
                tuple(step.sources),
                step.target,
                origin=step.origin,
                context=step.context,
                owner=step.owner,
                mode=_mode(step.mode),
                unpack=step.unpack,
                exclude=tuple(step.exclude),
            )
        case protocol.FetchStep():
            return model.Fetch(step.url, step.target, step.owner, _mode(step.mode), step.checksum)
        case protocol.EnvStep():
            return model.Env(tuple(step.values.items()))
        case protocol.ArgStep():
            return model.Arg(step.name, step.default)
        case protocol.WorkdirStep():
            return model.Workdir(step.path, step.owner)
        case protocol.UserStep():
            return model.User(step.name)
        case protocol.ShellStep():
            return model.Shell(tuple(step.argv))
        case protocol.StartStep():
            command, by_shell = _command(step.command)
            return model.Start(command, by_shell)
        case protocol.ReadyStep():
            command, by_shell = _command(step.command)
            return model.Ready(command, by_shell)

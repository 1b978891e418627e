"""Routes of sandboxes' lives."""

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query
from fastapi.responses import Response
from starlette.requests import Request

from corral.api import shapes
from corral.api.bodies import streamed
from corral.api.context import Caller, CallerDep, RefPath, opened_networks
from corral.api.failures import documented
from corral.api.grants import model_rules
from corral.api.listing import Shown
from corral.api.preview.access import HEADER, PARAMETER
from corral.api.streams import Tell, event, progress_stream, stream, until_idle, while_connected
from corral.engine.plan import CreateRequest
from corral.errors import Conflict, DiskFull, InvalidInput, NoCapacity, Unsupported
from corral.model.events import ApprovalEvent, BudgetEvent, Event
from corral.model.git import PushPolicy
from corral.model.ids import check_labels
from corral.model.project import Setup, SetupStep
from corral.model.route import Route
from corral.model.sandbox import IdlePolicy, Limits
from corral.model.service import Service
from corral.model.volume import parse_mount
from corral.policy.push import parse_push_rule
from corral.policy.repos import parse_repo
from corral.policy.routes import checked_route, parse_proxy
from corral.protocol import sandboxes as protocol
from corral.protocol.base import Done
from corral.protocol.processes import ProcessInfo

router = APIRouter(prefix="/v1")
FollowQuery = Annotated[bool, Query(description="Wait for what will come; else end after what is there.")]
PortPath = Annotated[int, Path(ge=1, le=65535, description="A TCP port inside the sandbox.")]
EVENT_STREAM: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}


def limits_of(limits: protocol.LimitsRequest | None) -> Limits | None:
    """The engine's limits; what is not given takes its default."""
    return None if limits is None else replace(Limits(), **limits.model_dump(exclude_none=True))


def _setup(setup: protocol.Setup) -> Setup:
    steps = tuple(SetupStep(step.run, tuple(step.files), step.user or "") for step in setup.steps)
    return Setup(setup.name, steps, tuple(setup.allow), setup.serve_stale)


def _service(service: protocol.ServiceRequest) -> Service:
    return Service(
        name=service.name,
        command=tuple(service.command),
        ready=tuple(service.ready or ()),
        user=service.user or "",
        cwd=service.cwd or "",
        env=service.env,
        patience=service.patience,
    )


def create_request(body: protocol.CreateSandbox, progress: Tell | None) -> CreateRequest:
    """The engine's request."""
    uses = [use.partition("=") for use in body.secrets or ()]
    return CreateRequest(
        template=body.template,
        name=body.name,
        isolation=body.isolation,
        runtime=body.runtime,
        limits=limits_of(body.limits),
        env=body.env,
        labels=body.labels,
        user=body.user,
        workdir=body.workdir,
        timezone=body.timezone,
        ttl=body.ttl,
        allow=tuple(body.allow),
        deny=tuple(body.deny),
        route=_route(body),
        secrets=None if body.secrets is None else tuple(use.partition("=")[0] for use in body.secrets),
        variables={name: variable for name, equals, variable in uses if equals},
        agent=body.agent,
        repo=body.repo,
        branch=body.branch,
        setup=None if body.setup is None else _setup(body.setup),
        services=tuple(_service(item) for item in body.services),
        budget=body.budget,
        budget_at_most=body.budget_at_most,
        idle=IdlePolicy(body.idle_pause, body.idle_stop),
        volumes=tuple(map(parse_mount, body.volumes)),
        queue=body.queue,
        queue_timeout=body.queue_timeout,
        repos=tuple(parse_repo(text) for text in body.git_repos),
        push=PushPolicy(rules=tuple(map(parse_push_rule, body.push_rules))),
        models=model_rules(body.models, body.aliases),
        expires=body.expires,
        progress=progress,
    )


def _route(body: protocol.CreateSandbox) -> Route:
    proxy = None if body.proxy is None else parse_proxy(body.proxy.get_secret_value())
    return Route(proxy=proxy, resolvers=tuple(body.dns))


def check_private(caller: Caller, rules: Iterable[str]) -> None:
    """Raise Forbidden if a rule opens a service of the host's own network to somebody who is not its operator."""
    if any("private:" in rule for rule in rules):
        caller.check_operator("opening a private service")


@router.post(
    "/sandboxes",
    tags=["sandboxes"],
    status_code=201,
    response_model=protocol.SandboxInfo,
    responses={**documented(NoCapacity, DiskFull, Unsupported), **EVENT_STREAM},
)
async def create_sandbox(
    request: Request,
    caller: CallerDep,
    body: protocol.CreateSandbox,
    accept: Annotated[str, Header()] = "",
) -> Response | protocol.SandboxInfo:
    """Make a sandbox and start it; a create that fails leaves nothing.

    With `Accept: text/event-stream` the answer is a stream of `progress` events, then one `result` (the sandbox) or
    `error`; when the client goes before the result, the sandbox is not made.
    """
    if body.repo is not None and not body.repo.startswith("https://"):
        caller.check_host_path("a repository on the daemon's host", "give the https URL of a repository")
    check_private(caller, body.allow)
    checked_route(_route(body), opened_networks(caller.engine))
    if "text/event-stream" not in accept:
        work = caller.engine.sandboxes.create(caller.tenant, create_request(body, None))
        # Who waits in the queue and goes away waits no longer.
        made = await (while_connected(request, work) if body.queue else work)
        return shapes.sandbox_info(made)

    async def told(tell: Tell) -> protocol.SandboxInfo:
        return shapes.sandbox_info(
            await caller.engine.sandboxes.create(caller.tenant, create_request(body, tell))
        )

    return progress_stream(told)


@router.get("/sandboxes", tags=["sandboxes"], response_model=protocol.SandboxList, responses=documented())
async def list_sandboxes(
    request: Request,
    caller: CallerDep,
    label: Annotated[
        list[str], Query(max_length=64, description="`KEY=VALUE`; all given ones must match.")
    ] = [],  # noqa: B006  FastAPI copies it
) -> Response:
    """The tenant's sandboxes, oldest first."""
    labels = {}
    for item in label:
        key, equals, value = item.partition("=")
        if not equals:
            raise InvalidInput(f"label {item[:80]!r} has no value", "give KEY=VALUE")
        labels[key] = value
    found = caller.engine.sandboxes.list(caller.tenant, check_labels(labels) or None)
    shown: Shown = request.app.state.shown
    return Response(shown.listing(caller.tenant, found, whole=not labels), media_type="application/json")


@router.get("/sandboxes/{ref}", tags=["sandboxes"], responses=documented())
async def get_sandbox(caller: CallerDep, ref: RefPath) -> protocol.SandboxInfo:
    """A sandbox as it stands."""
    return shapes.sandbox_info(caller.engine.sandboxes.get(caller.tenant, ref))


@router.delete("/sandboxes/{ref}", tags=["sandboxes"], responses=documented())
async def remove_sandbox(caller: CallerDep, ref: RefPath) -> Done:
    """Kill all its processes and remove all that is left of it, its files included."""
    await caller.engine.sandboxes.remove(caller.tenant, ref)
    return Done()


@router.post("/sandboxes/{ref}/start", tags=["sandboxes"], responses=documented(NoCapacity))
async def start_sandbox(caller: CallerDep, ref: RefPath) -> protocol.SandboxInfo:
    """Start a stopped sandbox; its files are as they were."""
    return shapes.sandbox_info(await caller.engine.sandboxes.start(caller.tenant, ref))


@router.post("/sandboxes/{ref}/stop", tags=["sandboxes"], responses=documented())
async def stop_sandbox(
    caller: CallerDep, ref: RefPath, body: protocol.StopSandbox | None = None
) -> protocol.SandboxInfo:
    """End its processes; its files stay."""
    grace = (body or protocol.StopSandbox()).grace
    return shapes.sandbox_info(await caller.engine.sandboxes.stop(caller.tenant, ref, grace))


@router.post("/sandboxes/{ref}/pause", tags=["sandboxes"], responses=documented(DiskFull, Unsupported))
async def pause_sandbox(
    caller: CallerDep, ref: RefPath, body: protocol.PauseSandbox | None = None
) -> protocol.SandboxInfo:
    """Freeze its processes where they are, or write them to disk."""
    memory = (body or protocol.PauseSandbox()).memory
    return shapes.sandbox_info(await caller.engine.sandboxes.pause(caller.tenant, ref, memory=memory))


@router.post("/sandboxes/{ref}/resume", tags=["sandboxes"], responses=documented())
async def resume_sandbox(caller: CallerDep, ref: RefPath) -> protocol.SandboxInfo:
    """Let a paused or suspended sandbox go on."""
    return shapes.sandbox_info(await caller.engine.sandboxes.resume(caller.tenant, ref))


@router.post(
    "/sandboxes/{ref}/fork",
    tags=["sandboxes"],
    status_code=201,
    responses=documented(NoCapacity, DiskFull, Unsupported),
)
async def fork_sandbox(
    caller: CallerDep, ref: RefPath, body: protocol.ForkSandbox | None = None
) -> protocol.Forks:
    """Make sandboxes that are what this one is now: with its processes under gVisor, with its files elsewhere. All or none."""
    wanted = body or protocol.ForkSandbox()
    forked = await caller.engine.checkpoints.fork(
        caller.tenant, ref, wanted.count, name=wanted.name, ttl=wanted.ttl, files_only=wanted.files_only
    )
    return protocol.Forks(
        sandboxes=[shapes.sandbox_info(item) for item in forked.sandboxes], memory=forked.memory
    )


@router.put("/sandboxes/{ref}/ttl", tags=["sandboxes"], responses=documented())
async def set_ttl(caller: CallerDep, ref: RefPath, body: protocol.SetTtl) -> protocol.SandboxInfo:
    """Let it end a number of seconds from now, or never."""
    return shapes.sandbox_info(await caller.engine.sandboxes.set_ttl(caller.tenant, ref, body.ttl))


@router.get("/sandboxes/{ref}/stats", tags=["sandboxes"], responses=documented())
async def get_stats(caller: CallerDep, ref: RefPath) -> protocol.Stats:
    """What it uses now."""
    return shapes.stats(await caller.engine.sandboxes.stats(caller.tenant, ref))


@router.get("/sandboxes/{ref}/usage", tags=["sandboxes"], responses=documented())
async def get_usage(caller: CallerDep, ref: RefPath) -> protocol.UsageReport:
    """What its model calls used and cost."""
    return shapes.usage_report(await caller.engine.sandboxes.usage(caller.tenant, ref))


@router.get("/sandboxes/{ref}/denials", tags=["sandboxes"], responses=documented())
async def get_denials(caller: CallerDep, ref: RefPath) -> protocol.Denials:
    """What its gateway refused it."""
    return protocol.Denials(denials=await caller.engine.denials(caller.tenant, ref))


@router.get("/sandboxes/{ref}/urls/{port}", tags=["sandboxes"], responses=documented())
async def get_url(caller: CallerDep, request: Request, ref: RefPath, port: PortPath) -> protocol.PortUrl:
    """Where a port of a sandbox is reached from outside, by those who hold its token."""
    sandbox = caller.engine.sandboxes.get(caller.tenant, ref)
    url = request.app.state.addresses.url(sandbox.id, port)
    if url is None:
        raise Conflict(
            "the API does not listen on TCP, so nothing leads to ports of sandboxes",
            "corral config set api.listen 127.0.0.1:7070 && corral daemon stop && corral daemon start",
        )
    token = (await caller.engine.port_token(sandbox.id, port)).reveal()
    return protocol.PortUrl(url=url, token=token, link=f"{url}?{PARAMETER}={token}", header=HEADER)


@router.get("/events", tags=["events"], response_class=Response, responses={**documented(), **EVENT_STREAM})
async def follow_events(
    caller: CallerDep,
    after: Annotated[int | None, Query(ge=0, description="Sequence number to go on from.")] = None,
    follow: FollowQuery = True,
    last_event_id: Annotated[int | None, Header(ge=0, description="The same, as browsers send it.")] = None,
) -> Response:
    """Sandboxes' changes of state (events `lifecycle`), approvals (events `approval`) and warnings of budgets (events
    `budget`), without end. `ready` is sent first. Whoever follows counts as somebody who may answer approvals.
    """

    async def events() -> AsyncGenerator[bytes, None]:
        found = caller.engine.follow_events(caller.tenant, after if after is not None else last_event_id)
        async with aclosing(found):
            yield event("ready", Done())
            async for item in found if follow else until_idle(found):
                yield b"id: %d\n" % item.sequence + _event(item)

    return await stream(events())


def _event(item: Event) -> bytes:
    match item:
        case ApprovalEvent():
            return event("approval", shapes.approval_info(item.approval))
        case BudgetEvent():
            return event("budget", shapes.budget_warning(item))
        case _:
            return event("lifecycle", shapes.lifecycle_event(item))


@router.post("/sandboxes/{ref}/agent", status_code=201, tags=["agents"], responses=documented())
async def start_agent(caller: CallerDep, ref: RefPath, body: protocol.StartAgent) -> ProcessInfo:
    """Start the sandbox's agent: on a prompt, or waiting in its terminal."""
    return shapes.process_info(await caller.engine.agents.start(caller.tenant, ref, body.prompt, body.model))


@router.get("/sandboxes/{ref}/agent", tags=["agents"], responses=documented())
async def get_agent_terminal(caller: CallerDep, ref: RefPath) -> protocol.AgentTerminal:
    """The command that shows the agent's terminal, to be run in the sandbox with a terminal."""
    return protocol.AgentTerminal(argv=list(await caller.engine.agents.attach_command(caller.tenant, ref)))


@router.get("/agents", tags=["agents"], responses=documented())
async def list_agents(caller: CallerDep) -> protocol.AgentList:
    """Coding agents that sandboxes can be made for."""
    return protocol.AgentList(agents=list(caller.engine.agents.names()))


@router.get("/sandboxes/{ref}/diff", tags=["repos"], response_class=Response, responses=documented())
async def get_diff(caller: CallerDep, ref: RefPath) -> Response:
    """What changed in its repository since it was cloned, commits and uncommitted work alike, as a git diff."""
    return await streamed(caller.engine.repos.diff(caller.tenant, ref), "text/x-diff")


@router.post("/sandboxes/{ref}/pull-request", tags=["repos"], responses=documented())
async def open_pull_request(
    caller: CallerDep, ref: RefPath, body: protocol.OpenPullRequest | None = None
) -> protocol.OpenedPullRequest:
    """Open a pull request at the forge for what it pushed, with the host's credential; or find the one that is open."""
    asked = body or protocol.OpenPullRequest()
    found = await caller.engine.repos.open_pull_request(
        caller.tenant, ref, asked.title, asked.body, asked.base, asked.branch, asked.draft
    )
    return protocol.OpenedPullRequest(**found)


@router.post("/sandboxes/{ref}/pull", tags=["repos"], responses=documented())
async def pull(caller: CallerDep, ref: RefPath, body: protocol.PullRequest | None = None) -> protocol.Pulled:
    """Fetch its commits, checked, into refs below `refs/corral/` of a clone on the daemon's host. Unix socket only."""
    caller.check_host_path(
        "a clone on the daemon's host", "read the changes with `corral diff`, or pull on the host itself"
    )
    target = body.target if body else None
    return protocol.Pulled(result=await caller.engine.repos.pull(caller.tenant, ref, target))

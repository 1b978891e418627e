"""From what a caller asks for to a complete, checked specification. Pure: ids, names and time are arguments."""

from dataclasses import dataclass, field, replace
from datetime import datetime

from corral.engine.ports import Progress
from corral.errors import InvalidInput, Unsupported
from corral.model.egress import EgressPolicy
from corral.model.git import PushPolicy, RepoGrant
from corral.model.grants import ModelRules
from corral.model.ids import (
    SandboxId,
    TenantId,
    check_env,
    check_guest_path,
    check_labels,
    check_name,
    check_timezone,
    check_user,
)
from corral.model.project import Setup
from corral.model.route import Route
from corral.model.sandbox import Expiry, IdlePolicy, Isolation, Limits, SandboxSpec
from corral.model.service import MAX_SERVICES, Service, services_of
from corral.model.template import Template, TemplateConfig
from corral.model.volume import VolumeMount, VolumeWish, check_mounts
from corral.policy.budget import checked_cap
from corral.policy.models import checked_rules
from corral.policy.repos import MAX_REPOS
from corral.policy.routes import checked_route
from corral.policy.rules import checked_policy, expand

MAX_TTL = 365 * 24 * 3600
MAX_ALLOW = 256
MAX_EXPIRY = 365 * 24 * 3600


@dataclass(frozen=True, slots=True)
class CreateRequest:
    """What a caller may say of a new sandbox; None means the default.

    `allow` lists destinations, `deny` what is refused whatever allows it, both as `corral.policy.rules` says.
    `secrets` names secrets of the vault; None means those that `agent` can use, and none without an agent. `variables`
    names other environment variables for their placeholders. `repo` is a directory of the host or an https URL, `branch`
    is `auto` (a branch `corral/<name>`) or a branch's name. `budget` caps what its model calls may cost, in millionths of
    a US dollar. With `queue` it waits for room, `queue_timeout` seconds at most, rather than be refused.
    `idle` says when it is paused and stopped while nobody uses it.
    `repos` are git repositories that it may use, with or without the secret that opens each;
    `push` says what it may push. `services` are started beside what the template starts. `setup`
    is done for the repository before, where it was not.
    `volumes` of the tenant are mounted in it. `timezone` is that of its commands.
    Of models, `models` may run; after `expires` seconds its grant covers nothing any more.
    `forked`: what it is made from holds all that it needs. `route` says how its requests go out.
    """

    template: str | None = None
    name: str | None = None
    isolation: Isolation | None = None
    runtime: str | None = None
    limits: Limits | None = None
    env: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    user: str | None = None
    workdir: str | None = None
    timezone: str | None = None
    ttl: int | None = None
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    secrets: tuple[str, ...] | None = None
    agent: str | None = None
    repo: str | None = None
    branch: str | None = None
    budget: int | None = None
    budget_at_most: int | None = None
    progress: Progress | None = None
    expiry: Expiry = Expiry.REMOVE
    attributes: dict[str, str] = field(default_factory=dict)
    queue: bool = False
    queue_timeout: float | None = None
    idle: IdlePolicy = field(default_factory=IdlePolicy)
    repos: tuple[RepoGrant, ...] = ()
    push: PushPolicy = field(default_factory=PushPolicy)
    services: tuple[Service, ...] = ()
    setup: Setup | None = None
    models: ModelRules = field(default_factory=ModelRules)
    expires: int | None = None
    variables: dict[str, str] = field(default_factory=dict)
    forked: bool = False
    route: Route = field(default_factory=Route)
    volumes: tuple[VolumeWish, ...] = ()


def checked(request: CreateRequest) -> CreateRequest:
    """`request`, its route in canonical form, or InvalidInput that names the first field out of bounds."""
    if request.name is not None:
        check_name(request.name)
    check_env(request.env)
    check_labels(request.labels)
    if request.user is not None:
        check_user(request.user)
    if request.workdir is not None:
        check_guest_path(request.workdir)
    if request.timezone is not None:
        check_timezone(request.timezone)
    if request.limits is not None:
        request.limits.checked()
    check_ttl(request.ttl)
    for wait in (request.idle.pause, request.idle.stop):
        check_idle(wait)
    if len(request.allow) > MAX_ALLOW:
        raise InvalidInput(f"{len(request.allow)} allowed hosts are too many", f"give at most {MAX_ALLOW}")
    if len(request.deny) > MAX_ALLOW:
        raise InvalidInput(f"{len(request.deny)} denied hosts are too many", f"give at most {MAX_ALLOW}")
    egress_policy(request.allow, request.deny)
    route = checked_route(request.route)
    check_services(request.services)
    check_mounts(request.volumes)
    checked_cap(request.budget)
    checked_cap(request.budget_at_most)
    if len(request.repos) > MAX_REPOS:
        raise InvalidInput(f"{len(request.repos)} repositories are too many", f"give at most {MAX_REPOS}")
    checked_rules(request.models)
    checked_expiry(request.expires)
    check_env(dict.fromkeys(request.variables.values(), ""))
    for name in request.variables:
        if name not in (request.secrets or ()):
            raise InvalidInput(
                f"secret {name[:63]!r} gets a variable, but not the sandbox", f"add --secret {name[:63]}"
            )
    if request.branch is not None and request.repo is None:
        raise InvalidInput("a branch needs a repository", "give --repo as well")
    return replace(request, route=route)


def check_services(services: tuple[Service, ...]) -> None:
    """Raise InvalidInput for too many, two of one name, or one that is not valid."""
    if len(services) > MAX_SERVICES:
        raise InvalidInput(f"{len(services)} services are too many", f"give at most {MAX_SERVICES}")
    names = [service.checked().name for service in services]
    if len(set(names)) < len(names):
        raise InvalidInput("two services have one name", "name each its own")


def checked_expiry(seconds: int | None) -> int | None:
    """Itself, or InvalidInput for a grant's end out of 1 second to 365 days."""
    if seconds is not None and not 1 <= seconds <= MAX_EXPIRY:
        raise InvalidInput(
            f"an expiry of {seconds} seconds is out of range", f"use 1 to {MAX_EXPIRY} seconds"
        )
    return seconds


def check_ttl(ttl: int | None) -> None:
    """Raise InvalidInput for a time to live out of 1 second to 365 days."""
    if ttl is not None and not 1 <= ttl <= MAX_TTL:
        raise InvalidInput(f"ttl {ttl} is out of range", f"use 1 to {MAX_TTL} seconds")


def check_idle(seconds: float | None) -> None:
    """Raise InvalidInput for a wait out of 1 second to 365 days, 0 for never."""
    if seconds and not 1 <= seconds <= MAX_TTL:
        raise InvalidInput(
            f"an idle time of {seconds:g} is out of range", f"use 1 to {MAX_TTL} seconds, 0 for never"
        )


def choose_runtime(
    usable: dict[Isolation, tuple[str, ...]], isolation: Isolation | None, runtime: str | None
) -> tuple[Isolation, str]:
    """The isolation and runtime to use: the runtime asked for, else the preferred one of the isolation asked for.

    Raises Unsupported where this host has no such runtime, InvalidInput where the two contradict each other.
    """
    if runtime is not None:
        for level, names in usable.items():
            if runtime in names:
                if isolation is not None and isolation is not level:
                    raise InvalidInput(
                        f"runtime {runtime} gives isolation {level}, not {isolation}",
                        "give one of the two only",
                    )
                return level, runtime
        known = ", ".join(sorted(name for names in usable.values() for name in names)) or "none"
        raise Unsupported(
            f"runtime {runtime[:40]!r} is not usable on this host",
            f"usable here: {known}; see `corral doctor`",
        )
    wanted = isolation or Isolation.CONTAINER
    if not usable.get(wanted):
        raise Unsupported(
            f"no runtime on this host gives isolation {wanted}", "see `corral doctor` for what to install"
        )
    return wanted, usable[wanted][0]


def machine_for(
    usable: dict[Isolation, tuple[str, ...]], request: CreateRequest, template: Template
) -> tuple[Isolation, str, Limits]:
    """What a sandbox runs on. What goes on from a saved memory can only do that on what it was saved from.

    Raises Unsupported, InvalidInput.
    """
    memory = template.memory
    if memory is None:
        limits = request.limits or template.config.limits or Limits()
        return *choose_runtime(usable, request.isolation, request.runtime), limits
    wanted = (request.isolation, request.runtime, request.limits)
    for asked, given in zip(wanted, (memory.isolation, memory.runtime, memory.limits), strict=True):
        if asked is not None and asked != given:
            raise InvalidInput(
                f"template {template.name} holds running processes, which go on as they were saved only: {given}",
                "leave isolation, runtime and limits out; other ones need a checkpoint without memory",
            )
    return *choose_runtime(usable, memory.isolation, memory.runtime), memory.limits


def _services(config: TemplateConfig, more: tuple[Service, ...]) -> tuple[Service, ...]:
    """What the template starts, then what else is asked for; of one name only the latter."""
    own = (*services_of(config.start_command, config.ready_command, config.ready_seconds), *config.services)
    names = {service.name for service in more}
    return (*(service for service in own if service.name not in names), *more)


def egress_policy(allow: tuple[str, ...], deny: tuple[str, ...] = ()) -> EgressPolicy:
    """The policy of a sandbox: what was allowed for it, and what was denied whatever allows it. Raises InvalidInput."""
    return checked_policy(EgressPolicy(expand(allow) + expand(deny, deny=True)))


def build_spec(
    request: CreateRequest,
    *,
    id: SandboxId,
    tenant: TenantId,
    name: str,
    template: Template,
    usable: dict[Isolation, tuple[str, ...]],
    secrets: tuple[str, ...],
    volumes: tuple[VolumeMount, ...],
    now: datetime,
    spare: bool = False,
) -> SandboxSpec:
    """The specification of a new sandbox. `request` has passed `checked`."""
    isolation, runtime, limits = machine_for(usable, request, template)
    return SandboxSpec(
        id=id,
        tenant=tenant,
        name=name,
        template=template.id,
        isolation=isolation,
        runtime=runtime,
        limits=limits,
        env={**template.config.env, **({"TZ": request.timezone} if request.timezone else {}), **request.env},
        labels=request.labels,
        user=request.user or template.config.user,
        workdir=request.workdir or template.config.workdir,
        egress=egress_policy(request.allow, request.deny),
        secrets=secrets,
        created_at=now,
        ttl=request.ttl,
        agent=request.agent,
        repo=request.repo,
        branch=request.branch,
        expiry=request.expiry,
        attributes=request.attributes,
        idle=request.idle,
        repos=request.repos,
        push=request.push,
        spare=spare,
        services=_services(template.config, request.services),
        variables=request.variables,
        template_name=template.name,
        volumes=volumes,
    )

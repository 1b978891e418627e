"""Requests that make, change and look at sandboxes."""

from collections.abc import Iterable, Mapping
from typing import Any

from corral.model.sandbox import Isolation
from corral.protocol import sandboxes
from corral.sdk.operations import (
    Call,
    Event,
    Follow,
    LongCall,
    OnProgress,
    Request,
    build,
    encode,
    parse,
    reply,
)
from corral.sdk.requests import EVENTS, Limits, done, get, given, post, url


def create_sandbox(
    template: str | None = None,
    *,
    name: str | None = None,
    isolation: Isolation | str | None = None,
    runtime: str | None = None,
    limits: Limits | None = None,
    env: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    user: str | None = None,
    workdir: str | None = None,
    timezone: str | None = None,
    ttl: int | None = None,
    allow: Iterable[str] = (),
    deny: Iterable[str] = (),
    dns: Iterable[str] = (),
    proxy: str | None = None,
    secrets: Iterable[str] | None = None,
    agent: str | None = None,
    repo: str | None = None,
    branch: str | None = None,
    setup: Mapping[str, Any] | None = None,
    services: Iterable[Mapping[str, Any]] = (),
    budget: int | None = None,
    budget_at_most: int | None = None,
    idle_pause: int | None = None,
    idle_stop: int | None = None,
    queue: bool = False,
    queue_timeout: int | None = None,
    git_repos: Iterable[str] = (),
    push_rules: Iterable[str] = (),
    models: Iterable[str] | None = None,
    aliases: Mapping[str, str] | None = None,
    expires: int | None = None,
    volumes: Iterable[str] = (),
    progress: OnProgress | None = None,
) -> LongCall[sandboxes.SandboxInfo]:
    """Make a sandbox and start it. A create that fails, or is given up before its end, leaves nothing.

    `template`: name or id (default: the agent's, or `base`). `isolation`: `container` or `gvisor`. `limits`: any of
    memory and disk (bytes), cpus, pids, io_weight. `timezone`: of its commands, as Europe/Berlin. `ttl`: seconds
    until it is removed. `allow`: what it may reach, as `host`, `host:port`, `*.domain`, `GET host/path/**` or `@preset`;
    `deny`: what it may not, whatever allows it. `dns`: addresses of servers that names are looked up by;
    `proxy`: a SOCKS5 proxy for its connections, as `socks5://[user:password@]host:port` or `socks5+tls://`.
    `secrets`: those that it may use, as `name` or `name=VARIABLE`. `agent`: the coding agent it is for. `repo`: path on
    the daemon's host, or HTTPS URL; `branch`: a name, or `auto`. `budget`: what its model calls may cost, in
    millionths of a US dollar; `budget_at_most`: the same, where that is less than holds anyway. `idle_pause`,
    `idle_stop`: seconds without use after which it is paused, and stopped; 0 for never. `queue`: wait for room on the
    host, rather than be refused (NoCapacity, DiskFull), for `queue_timeout`
    seconds at most; `progress` tells the place. `git_repos`: repositories that git in it may use with the host's
    credential, as `host/owner/name`, with `:write` behind it to push; `push_rules`: what may be pushed, as
    `allow:feature/*`, `ask:main` or `deny:v*:any`.
    `setup`: what is done once for `repo` and kept, and `services`: programs that run from each start on, both as the API
    has them (`corral.sdk.projects` reads them from a repository's corral.toml).
    `models`: patterns of models that it may use; `aliases`: model asked for → model sent; `expires`: seconds until its
    grant covers nothing any more. `volumes`: what is mounted in it, as `name:/path`, or `name:/path:ro` to only read it.
    """
    body = build(
        sandboxes.CreateSandbox,
        **given(
            template=template,
            name=name,
            isolation=isolation,
            runtime=runtime,
            limits=None if limits is None else build(sandboxes.LimitsRequest, **limits),
            env=None if env is None else dict(env),
            labels=None if labels is None else dict(labels),
            user=user,
            workdir=workdir,
            timezone=timezone,
            ttl=ttl,
            allow=list(allow) or None,
            deny=list(deny) or None,
            dns=list(dns) or None,
            proxy=proxy,
            secrets=None if secrets is None else list(secrets),
            agent=agent,
            repo=repo,
            branch=branch,
            setup=None if setup is None else dict(setup),
            services=[dict(item) for item in services] or None,
            budget=budget,
            budget_at_most=budget_at_most,
            idle_pause=idle_pause,
            idle_stop=idle_stop,
            queue=queue or None,
            queue_timeout=queue_timeout,
            git_repos=list(git_repos) or None,
            push_rules=list(push_rules) or None,
            models=None if models is None else list(models),
            aliases=None if aliases is None else dict(aliases),
            expires=expires,
            volumes=list(volumes) or None,
        ),
    )
    content = encode(body) if proxy is None else encode(body, proxy=proxy)
    request = Request("POST", url("sandboxes"), content, json=True, accept=EVENTS)
    return LongCall(request, reply(sandboxes.SandboxInfo), progress)


def list_sandboxes(labels: Mapping[str, str] | None = None) -> Call[list[sandboxes.SandboxInfo]]:
    """The tenant's sandboxes, oldest first; only those with all the given labels."""
    label = [f"{key}={value}" for key, value in (labels or {}).items()] or None
    return Call(get(url("sandboxes", label=label)), lambda body: parse(sandboxes.SandboxList, body).sandboxes)


def get_sandbox(ref: str) -> Call[sandboxes.SandboxInfo]:
    """A sandbox as it stands, by name or id. Raises NotFound."""
    return Call(get(url("sandboxes", ref)), reply(sandboxes.SandboxInfo))


def start_sandbox(ref: str) -> Call[sandboxes.SandboxInfo]:
    """Start a stopped sandbox; its files are as they were."""
    return _change(ref, "start")


def stop_sandbox(ref: str, grace: float = 10.0) -> Call[sandboxes.SandboxInfo]:
    """End its processes (TERM, KILL after `grace` seconds); its files stay."""
    return _change(ref, "stop", build(sandboxes.StopSandbox, grace=grace))


def pause_sandbox(ref: str, *, memory: bool = False) -> Call[sandboxes.SandboxInfo]:
    """Freeze its processes where they are; with `memory`, write them to disk and free its memory (isolation gvisor)."""
    return _change(ref, "pause", build(sandboxes.PauseSandbox, memory=True) if memory else None)


def resume_sandbox(ref: str) -> Call[sandboxes.SandboxInfo]:
    """Let a paused or suspended sandbox go on."""
    return _change(ref, "resume")


def fork_sandbox(
    ref: str,
    count: int = 1,
    *,
    name: str | None = None,
    ttl: int | None = None,
    files_only: bool = False,
) -> Call[sandboxes.Forks]:
    """Make `count` sandboxes that are what this one is now, each with a name, network, token and limits of its own.

    Under gVisor their processes go on where this one's are, unless `files_only`; elsewhere they have its files. They are
    called `NAME-1`, `NAME-2` and so on, after `name` or this one. All are made, or none.
    """
    body = build(sandboxes.ForkSandbox, count=count, files_only=files_only, **given(name=name, ttl=ttl))
    return Call(post(url("sandboxes", ref, "fork"), body, quick=False), reply(sandboxes.Forks))


def remove_sandbox(ref: str) -> Call[None]:
    """Kill its processes and remove all that is left of it, its files included."""
    return Call(post(url("sandboxes", ref), method="DELETE", quick=False), done)


def set_ttl(ref: str, seconds: int | None) -> Call[sandboxes.SandboxInfo]:
    """Let it end `seconds` from now, or never."""
    body = build(sandboxes.SetTtl, ttl=seconds)
    return Call(post(url("sandboxes", ref, "ttl"), body, "PUT"), reply(sandboxes.SandboxInfo))


def stats(ref: str) -> Call[sandboxes.Stats]:
    """What it uses now."""
    return Call(get(url("sandboxes", ref, "stats")), reply(sandboxes.Stats))


def usage(ref: str) -> Call[sandboxes.UsageReport]:
    """What its model calls used and cost."""
    return Call(get(url("sandboxes", ref, "usage")), reply(sandboxes.UsageReport))


def get_url(ref: str, port: int) -> Call[sandboxes.PortUrl]:
    """Where a port of a sandbox is reached from outside. Raises Conflict where the API listens on no TCP port."""
    return Call(get(url("sandboxes", ref, "urls", str(port))), reply(sandboxes.PortUrl))


def denials(ref: str) -> Call[list[dict[str, Any]]]:
    """What its gateway refused it, newest last. All text in it comes from the sandbox."""
    return Call(get(url("sandboxes", ref, "denials")), lambda body: parse(sandboxes.Denials, body).denials)


def events(after: int | None = None, *, wait: bool = True) -> Follow[sandboxes.LifecycleEvent]:
    """Sandboxes' changes of state, from now or after a sequence number, without end; without `wait`, those kept now."""

    def decode(event: Event) -> sandboxes.LifecycleEvent | None:
        return parse(sandboxes.LifecycleEvent, event.data) if event.name == "lifecycle" else None

    return Follow(
        Request("GET", url("events", after=after, follow=None if wait else "false"), accept=EVENTS), decode
    )


def _change(ref: str, verb: str, body: Any = None) -> Call[sandboxes.SandboxInfo]:
    return Call(post(url("sandboxes", ref, verb), body, quick=False), reply(sandboxes.SandboxInfo))

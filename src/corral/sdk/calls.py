"""The native API's requests, as operations. Each function is one route; both clients bind all of them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

from corral.model.sandbox import Isolation
from corral.model.secrets import Provider, SecretForm
from corral.protocol import approvals, audit, catalog, learning, pools, sandboxes
from corral.protocol import disk as disk_shapes
from corral.protocol import volumes as volume_shapes
from corral.protocol.base import Done
from corral.protocol.processes import ProcessInfo
from corral.sdk.operations import (
    Call,
    Content,
    Download,
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

EVENTS = "text/event-stream"
Limits = Mapping[str, float]


def url(*parts: str | int, **query: str | bytes | int | Sequence[str] | None) -> str:
    """A path below /v1 with its query; what is None is left out."""
    path = "/v1/" + "/".join(quote(str(part), safe="") for part in parts)
    given = {key: value for key, value in query.items() if value is not None}
    return f"{path}?{urlencode(given, doseq=True)}" if given else path


def get(path: str) -> Request:
    """A quick GET."""
    return Request("GET", path)


def post(path: str, body: Any = None, method: str = "POST", *, quick: bool = True) -> Request:
    """A request with a JSON body, if any. One that is not quick may take as long as it takes."""
    content = None if body is None else encode(body)
    request = Request(method, path, content, json=body is not None)
    return request if quick else Request(method, path, content, json=body is not None, timeout=None)


# -- sandboxes ----------------------------------------------------------------------------------------------------


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
        **_given(
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
    body = build(sandboxes.ForkSandbox, count=count, files_only=files_only, **_given(name=name, ttl=ttl))
    return Call(post(url("sandboxes", ref, "fork"), body, quick=False), reply(sandboxes.Forks))


def remove_sandbox(ref: str) -> Call[None]:
    """Kill its processes and remove all that is left of it, its files included."""
    return Call(post(url("sandboxes", ref), method="DELETE", quick=False), _done)


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
    return Call(get(url("sandboxes", ref, "denials")), lambda body: parse(catalog.Denials, body).denials)


def events(after: int | None = None, *, wait: bool = True) -> Follow[sandboxes.LifecycleEvent]:
    """Sandboxes' changes of state, from now or after a sequence number, without end; without `wait`, those kept now."""

    def decode(event: Event) -> sandboxes.LifecycleEvent | None:
        return parse(sandboxes.LifecycleEvent, event.data) if event.name == "lifecycle" else None

    return Follow(
        Request("GET", url("events", after=after, follow=None if wait else "false"), accept=EVENTS), decode
    )


# -- approvals ----------------------------------------------------------------------------------------------------


def list_approvals(
    ref: str | None = None, *, status: str | None = None, standing: bool = False
) -> Call[list[approvals.ApprovalInfo]]:
    """The latest approvals, oldest first: all, or of one sandbox; in any status, or in one (`pending`, `kept`, `allowed`,
    `denied`, `expired`, `withdrawn`). `standing`: all those whose yes still allows something.
    """
    path = url("approvals", sandbox=ref, status=status, standing="true" if standing else None)
    return Call(get(path), lambda body: parse(approvals.ApprovalList, body).approvals)


def get_approval(id: str) -> Call[approvals.ApprovalInfo]:
    """An approval. Raises NotFound."""
    return Call(get(url("approvals", id)), reply(approvals.ApprovalInfo))


def approve(id: str, scope: str | None = None, *, by: str = "") -> Call[approvals.ApprovalInfo]:
    """Say yes to what a sandbox asked: `once`, for this `sandbox`, or `always`. When it returns, it has taken effect.
    Raises Conflict for one that is over or was answered otherwise.
    """
    body = build(approvals.Approve, **_given(scope=scope), by=by)
    return Call(post(url("approvals", id, "approve"), body), reply(approvals.ApprovalInfo))


def deny(id: str, reason: str = "", *, by: str = "") -> Call[approvals.ApprovalInfo]:
    """Say no; the sandbox is told the reason. Or take back a yes that still stands."""
    body = build(approvals.Deny, reason=reason, by=by)
    return Call(post(url("approvals", id, "deny"), body), reply(approvals.ApprovalInfo))


def follow_approvals(after: int | None = None, *, wait: bool = True) -> Follow[approvals.ApprovalInfo]:
    """Approvals as they are asked for, answered and over, without end; without `wait`, those that the daemon remembers
    after a sequence number. Who follows counts as somebody who may answer.
    """

    def decode(event: Event) -> approvals.ApprovalInfo | None:
        return parse(approvals.ApprovalInfo, event.data) if event.name == "approval" else None

    path = url("events", after=after, follow=None if wait else "false")
    return Follow(Request("GET", path, accept=EVENTS), decode)


def webhook_key() -> Call[str]:
    """The key with which calls of the webhook are signed. Operator only."""
    return Call(get(url("webhook", "key")), lambda body: parse(approvals.WebhookKey, body).key)


# -- learning what is wanted --------------------------------------------------------------------------------------


def learn_egress(ref: str) -> Call[learning.LearnedPolicy]:
    """Let a sandbox reach any public name at ports 443 and 80, and record which, until it is locked."""
    return Call(post(url("sandboxes", ref, "egress", "learn")), reply(learning.LearnedPolicy))


def lock_egress(ref: str, *, dry_run: bool = False) -> Call[learning.LearnedPolicy]:
    """End learning: from now on it reaches what it has reached meanwhile, and what it could before. With `dry_run`, say
    so and change nothing. Raises Conflict for one that does not learn.
    """
    body = build(learning.Lock, dry_run=dry_run)
    return Call(
        post(url("sandboxes", ref, "egress", "lock"), body, quick=False), reply(learning.LearnedPolicy)
    )


# -- the audit log ------------------------------------------------------------------------------------------------


def read_audit(
    ref: str | None = None, *, since: datetime | None = None, after: int = 0
) -> Call[list[audit.AuditEntry]]:
    """Up to 1,000 records of decisions, in order: all, or of one sandbox, from a time on, with numbers above `after`.
    Ask again with the last one's number until none come.
    """
    path = url("audit", sandbox=ref, since=since.isoformat() if since else None, after=after)
    return Call(get(path), lambda body: parse(audit.AuditPage, body).entries)


def check_audit() -> Call[audit.AuditCheck]:
    """Whether any record of this host was altered or removed. Operator only."""
    return Call(Request("GET", url("audit", "check"), timeout=None), reply(audit.AuditCheck))


def receipt(ref: str) -> Call[audit.Receipt]:
    """What a sandbox did, until now or until it was removed: by name or id. Raises NotFound."""
    return Call(get(url("sandboxes", ref, "receipt")), reply(audit.Receipt))


# -- agents and repositories --------------------------------------------------------------------------------------


def start_agent(ref: str, prompt: str | None = None, model: str | None = None) -> Call[ProcessInfo]:
    """Start the sandbox's agent: on a prompt, or waiting in its terminal."""
    body = build(sandboxes.StartAgent, **_given(prompt=prompt, model=model))
    return Call(post(url("sandboxes", ref, "agent"), body, quick=False), reply(ProcessInfo))


def agent_terminal(ref: str) -> Call[list[str]]:
    """The command that shows the agent's terminal, to be run in the sandbox with a terminal. Raises Conflict."""
    return Call(get(url("sandboxes", ref, "agent")), lambda body: parse(sandboxes.AgentTerminal, body).argv)


def list_agents() -> Call[list[str]]:
    """Coding agents that sandboxes can be made for."""
    return Call(get(url("agents")), lambda body: parse(sandboxes.AgentList, body).agents)


def diff(ref: str) -> Download:
    """What changed in its repository since it was cloned, as a git diff."""
    return Download(Request("GET", url("sandboxes", ref, "diff"), accept="*/*", timeout=None))


def open_pull_request(
    ref: str,
    *,
    title: str | None = None,
    body: str | None = None,
    base: str | None = None,
    branch: str | None = None,
    draft: bool = False,
) -> Call[sandboxes.OpenedPullRequest]:
    """Open a pull request at the forge for what it pushed, or find the one that is open. Defaults: the title of its last
    commit, the forge's default branch, the branch that is checked out.
    """
    given = _given(title=title, body=body, base=base, branch=branch, draft=draft or None)
    asked = build(sandboxes.OpenPullRequest, **given)
    path = url("sandboxes", ref, "pull-request")
    return Call(post(path, asked, quick=False), reply(sandboxes.OpenedPullRequest))


def pull(ref: str, target: str | None = None) -> Call[dict[str, Any]]:
    """Fetch its commits, checked, into refs below `refs/corral/` of a clone on the daemon's host."""
    body = build(sandboxes.PullRequest, **_given(target=target))
    return Call(
        post(url("sandboxes", ref, "pull"), body, quick=False), lambda raw: parse(catalog.Pulled, raw).result
    )


# -- templates ----------------------------------------------------------------------------------------------------


def list_templates() -> Call[list[catalog.TemplateInfo]]:
    """The tenant's templates, oldest first."""
    return Call(get(url("templates")), lambda body: parse(catalog.TemplateList, body).templates)


def get_template(ref: str) -> Call[catalog.TemplateInfo]:
    """A template by name or id. Raises NotFound."""
    return Call(get(url("templates", ref)), reply(catalog.TemplateInfo))


def remove_template(ref: str) -> Call[None]:
    """No longer offer a template; sandboxes made from it go on."""
    return Call(post(url("templates", ref), method="DELETE", quick=False), _done)


def build_template(
    kind: str = "base",
    *,
    name: str | None = None,
    image: str | None = None,
    agent: str | None = None,
    progress: OnProgress | None = None,
) -> LongCall[catalog.TemplateInfo]:
    """Build the base (`base`), import an OCI image (`image`, with `name` and `image`), or install an agent (`agent`)."""
    body = build(catalog.BuildTemplate, kind=kind, **_given(name=name, image=image, agent=agent))
    request = Request("POST", url("templates", "build"), encode(body), json=True, accept=EVENTS)
    return LongCall(request, reply(catalog.TemplateInfo), progress)


def export_template(ref: str) -> Download:
    """A template as an OCI image archive: a tar that Corral, docker, podman and skopeo read."""
    return Download(Request("GET", url("templates", ref, "export"), accept="*/*", timeout=None))


def import_template(name: str, data: Content) -> Call[catalog.TemplateInfo]:
    """A template from an image's archive: an OCI layout as a tar, or what `docker save` writes."""
    request = Request("POST", url("templates", "import", name=name), data, timeout=None)
    return Call(request, reply(catalog.TemplateInfo))


def checkpoint(
    ref: str, name: str, *, memory: bool = False, redact: bool = False
) -> Call[catalog.TemplateInfo]:
    """A template of a sandbox as it is now: its files, and with `memory` its running processes (isolation gvisor).

    It is refused where it would hold a secret of the tenant's; with `redact`, that is overwritten in the checkpoint.
    """
    body = build(catalog.Checkpoint, sandbox=ref, name=name, memory=memory, redact=redact)
    return Call(post(url("templates", "checkpoint"), body, quick=False), reply(catalog.TemplateInfo))


def disk() -> Call[disk_shapes.DiskOverview]:
    """What the store holds, and what of the tenant's takes its disk: own, and shared with others."""
    return Call(get(url("disk")), reply(disk_shapes.DiskOverview))


def prune(
    *, keep: int | None = None, size: int | None = None, dry_run: bool = False
) -> Call[disk_shapes.Pruned]:
    """Remove what nothing needs, and checkpoints beyond `keep` of each project or `size` bytes, oldest first. Without
    both, the operator's bounds hold. `dry_run` only tells.
    """
    body = build(disk_shapes.Prune, dry_run=dry_run, **_given(keep=keep, size=size))
    return Call(post(url("disk", "prune"), body, quick=False), reply(disk_shapes.Pruned))


# -- warm pools ---------------------------------------------------------------------------------------------------


def set_pool(
    template: str,
    size: int,
    *,
    isolation: Isolation | str | None = None,
    runtime: str | None = None,
    limits: Limits | None = None,
    idle: int | None = None,
) -> Call[pools.PoolInfo]:
    """Have `size` sandboxes of a template ready, which creates of the same template, isolation and limits take.

    `idle`: seconds without such a create after which they go; the next one brings them back.
    """
    given = _given(
        isolation=isolation,
        runtime=runtime,
        limits=None if limits is None else build(sandboxes.LimitsRequest, **limits),
        idle=idle,
    )
    body = build(pools.SetPool, template=template, size=size, **given)
    return Call(post(url("pools"), body, "PUT", quick=False), reply(pools.PoolInfo))


def list_pools() -> Call[list[pools.PoolInfo]]:
    """The tenant's warm pools, and how they stand."""
    return Call(get(url("pools")), lambda body: parse(pools.PoolList, body).pools)


def remove_pool(template: str, isolation: Isolation | str | None = None) -> Call[None]:
    """End a template's pools, or the one of an isolation, and remove the sandboxes that wait in them."""
    return Call(post(url("pools", template, isolation=isolation), method="DELETE", quick=False), _done)


# -- volumes ------------------------------------------------------------------------------------------------------


def create_volume(name: str, size: int | None = None) -> Call[volume_shapes.VolumeInfo]:
    """An empty volume that can hold `size` bytes (default: 10 GiB), for sandboxes to mount."""
    body = build(volume_shapes.NewVolume, name=name, **_given(size=size))
    return Call(post(url("volumes"), body), reply(volume_shapes.VolumeInfo))


def list_volumes() -> Call[list[volume_shapes.VolumeInfo]]:
    """The tenant's volumes, by name."""
    return Call(get(url("volumes")), lambda body: parse(volume_shapes.VolumeList, body).volumes)


def get_volume(ref: str) -> Call[volume_shapes.VolumeInfo]:
    """A volume, by name or id."""
    return Call(get(url("volumes", ref)), reply(volume_shapes.VolumeInfo))


def remove_volume(ref: str) -> Call[None]:
    """Remove a volume with all that is in it; refused while a sandbox mounts it."""
    return Call(post(url("volumes", ref), method="DELETE", quick=False), _done)


# -- secrets, prices, the daemon ----------------------------------------------------------------------------------


def list_secrets() -> Call[list[catalog.SecretInfo]]:
    """What may be shown of the tenant's secrets."""
    return Call(get(url("secrets")), lambda body: parse(catalog.SecretList, body).secrets)


def put_secret(
    name: str,
    value: str,
    provider: Provider | str | None = None,
    base_url: str | None = None,
    binding: Mapping[str, Any] | None = None,
    form: SecretForm | str | None = None,
) -> Call[catalog.SecretInfo]:
    """Add or replace a secret. It is encrypted at rest, never shown again, and never enters a sandbox.

    `binding`, in place of a provider, says which hosts get it: `hosts`, and any of the other fields of `BindSecret`.
    `form` says what `value` is: the key itself (`value`), a `command` as a JSON list of words, or the auth.json of a
    `chatgpt` login.
    """
    bound = None if binding is None else build(catalog.BindSecret, **binding)
    body = build(
        catalog.AddSecret,
        name=name,
        value=value,
        **_given(provider=provider, base_url=base_url, binding=bound, form=form),
    )
    return Call(
        Request("PUT", url("secrets"), encode(body, value=value), json=True), reply(catalog.SecretInfo)
    )


def rotate_secret(name: str, value: str | None = None) -> Call[catalog.SecretInfo]:
    """Give a secret another value (None: what its command or login gives now), which sandboxes use from their next
    request on.
    """
    body = build(catalog.RotateSecret, value=value)
    content = json.dumps({**body.model_dump(mode="json"), "value": value}).encode()
    return Call(
        Request("POST", url("secrets", name, "rotate"), content, json=True), reply(catalog.SecretInfo)
    )


def remove_secret(name: str) -> Call[None]:
    """Remove a secret; calls that use it are refused from now on."""
    return Call(post(url("secrets", name), method="DELETE"), _done)


def list_prices() -> Call[list[catalog.PriceInfo]]:
    """Prices that the operator gave, in millionths of a US dollar per million tokens."""
    return Call(get(url("prices")), lambda body: parse(catalog.PriceList, body).prices)


def set_price(
    secret: str, model: str, *, input: int, output: int, cache_read: int, cache_write: int
) -> Call[None]:
    """Set the price of a model (`*`: of all models of the secret's endpoint)."""
    body = build(
        catalog.SetPrice,
        secret=secret,
        model=model,
        input=input,
        output=output,
        cache_read=cache_read,
        cache_write=cache_write,
    )
    return Call(post(url("prices"), body, "PUT"), _done)


def budget(ref: str) -> Call[catalog.Budget]:
    """What a sandbox may spend, has spent, and has set aside; its tenant's accounts included."""
    return Call(get(url("sandboxes", ref, "budget")), reply(catalog.Budget))


def follow_budgets(after: int | None = None, *, wait: bool = True) -> Follow[catalog.BudgetWarning]:
    """Budgets of which 50, 80 or 95 percent come to be spent, without end; without `wait`, what the daemon remembers after
    a sequence number. Who follows counts as somebody who may answer approvals.
    """

    def decode(event: Event) -> catalog.BudgetWarning | None:
        return parse(catalog.BudgetWarning, event.data) if event.name == "budget" else None

    path = url("events", after=after, follow=None if wait else "false")
    return Follow(Request("GET", path, accept=EVENTS), decode)


def set_budget(
    ref: str, cap: int | str | None, *, daily: bool = False, window: str = "total"
) -> Call[catalog.Budget]:
    """Let a sandbox spend `cap` millionths of a US dollar, in all (`total`), per day in UTC (`day`, or `daily`), or in any
    `hour`, `24h` or `week`; None for no cap, `default` for the host's. It holds from the next call on.
    """
    body = build(catalog.SetBudget, cap=cap, window="day" if daily else window)
    return Call(post(url("sandboxes", ref, "budget"), body, "PUT"), reply(catalog.Budget))


def tenant_budget() -> Call[catalog.Budget]:
    """What all of the tenant's sandboxes together may spend, have spent, and have set aside."""
    return Call(get(url("budget")), reply(catalog.Budget))


def set_tenant_budget(
    cap: int | None, *, daily: bool = False, window: str = "total", tenant: str | None = None
) -> Call[catalog.Budget]:
    """Let a tenant (default: one's own) spend `cap` millionths of a US dollar in a window, as for a sandbox; None for no
    cap. Operator only.
    """
    body = build(catalog.SetTenantBudget, cap=cap, window="day" if daily else window, **_given(tenant=tenant))
    return Call(post(url("budget"), body, "PUT"), reply(catalog.Budget))


def create_key(label: str) -> Call[str]:
    """A new key for the TCP interface; it is shown once."""
    return Call(
        post(url("keys"), build(catalog.CreateKey, label=label)), lambda body: parse(catalog.ApiKey, body).key
    )


def list_keys() -> Call[list[catalog.ApiKeyInfo]]:
    """What may be shown of the tenant's keys for the TCP interface."""
    return Call(get(url("keys")), lambda body: parse(catalog.ApiKeyList, body).keys)


def revoke_key(ref: str) -> Call[catalog.ApiKeyInfo]:
    """Refuse a key, by id or by a label that only one has, from the next request on."""
    return Call(post(url("keys", ref), method="DELETE"), reply(catalog.ApiKeyInfo))


def get_config() -> Call[dict[str, Any]]:
    """All settings of the daemon."""
    return Call(get(url("config")), _config)


def set_config(key: str, value: str | Sequence[str]) -> Call[dict[str, Any]]:
    """Change a setting; all settings after it."""
    body = build(catalog.SetConfig, value=value if isinstance(value, str) else list(value))
    return Call(post(url("config", key), body, "PUT"), _config)


def doctor(*, deep: bool = False) -> Call[list[catalog.Check]]:
    """What the host can do, what will not work, and what to do about it. `deep`: all layers are read and compared with what
    they were, which takes as long; those that are damaged are not used any more.
    """
    request = Request("GET", url("doctor", deep="true"), timeout=None) if deep else get(url("doctor"))
    return Call(request, lambda body: parse(catalog.Doctor, body).checks)


def host() -> Call[catalog.HostInfo]:
    """What the host can carry and carries, who waits for room, and what one's own sandboxes use."""
    return Call(get(url("host")), reply(catalog.HostInfo))


def health() -> Call[catalog.Health]:
    """Answers once the daemon can do its work."""
    return Call(get(url("health")), reply(catalog.Health))


def _change(ref: str, verb: str, body: Any = None) -> Call[sandboxes.SandboxInfo]:
    return Call(post(url("sandboxes", ref, verb), body, quick=False), reply(sandboxes.SandboxInfo))


def _done(body: bytes) -> None:
    parse(Done, body)


def _config(body: bytes) -> dict[str, Any]:
    return parse(catalog.Config, body).values


def _given(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}

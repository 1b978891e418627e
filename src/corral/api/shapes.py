"""From the model's values to the protocol's shapes."""

from dataclasses import asdict
from typing import Any

from corral.engine.admission import Overview
from corral.engine.ports import Entry, ModelPrice, WatchEvent
from corral.engine.processes import RunResult
from corral.model import approval, build, events, pool, process, sandbox, secrets, template, usage
from corral.model.binding import Binding
from corral.model.budget import Balance
from corral.model.capacity import Resource
from corral.model.grants import ModelRules
from corral.model.ids import TenantId
from corral.policy.budget import reached
from corral.policy.push import rule_text
from corral.protocol import approvals, builds, catalog, files, pools, processes, sandboxes


def sandbox_info(value: sandbox.Sandbox) -> sandboxes.SandboxInfo:
    """A sandbox as the API shows it."""
    spec = value.spec
    return sandboxes.SandboxInfo(
        id=spec.id,
        name=spec.name,
        state=value.state,
        reason=value.reason,
        exit_code=value.exit_code,
        template=spec.template,
        template_name=spec.template_name,
        isolation=spec.isolation,
        runtime=spec.runtime,
        limits=_limits(spec.limits),
        env=spec.env,
        labels=spec.labels,
        user=spec.user,
        workdir=spec.workdir,
        allow=[sandboxes.HostRule(host=rule.host, ports=list(rule.ports)) for rule in spec.egress.allowing],
        secrets=list(spec.secrets),
        push_rules=[rule_text(rule) for rule in spec.push.rules],
        git_repos=[
            sandboxes.GitRepo(name=one.name, access=one.access, secret=one.secret) for one in spec.repos
        ],
        volumes=[
            sandboxes.VolumeMount(name=one.name, path=one.path, read_only=one.read_only)
            for one in spec.volumes
        ],
        ttl=None if spec.ttl is None else round(spec.ttl),
        agent=spec.agent,
        repo=spec.repo,
        branch=spec.branch,
        idle_pause=None if spec.idle.pause is None else int(spec.idle.pause),
        idle_stop=None if spec.idle.stop is None else int(spec.idle.stop),
        created_at=spec.created_at,
        changed_at=value.changed_at,
    )


def _limits(limits: sandbox.Limits) -> sandboxes.Limits:
    return sandboxes.Limits(
        memory=limits.memory,
        cpus=limits.cpus,
        pids=limits.pids,
        disk=limits.disk,
        io_weight=limits.io_weight,
    )


def pool_info(value: pool.PoolStatus) -> pools.PoolInfo:
    """A warm pool as the API shows it."""
    wanted = value.pool
    return pools.PoolInfo(
        template=wanted.template,
        isolation=wanted.isolation,
        runtime=wanted.runtime,
        limits=_limits(wanted.limits),
        size=wanted.size,
        ready=value.ready,
        idle=wanted.idle,
        asleep=value.asleep,
        problem=value.problem,
        retry_at=value.retry_at,
    )


def stats(value: sandbox.Stats) -> sandboxes.Stats:
    """What a sandbox uses."""
    return sandboxes.Stats(
        memory=value.memory,
        memory_peak=value.memory_peak,
        cpu_usec=value.cpu_usec,
        pids=value.pids,
        disk=value.disk,
        oom_kills=value.oom_kills,
        extra=value.extra,
    )


def usage_report(totals: list[usage.UsageTotal]) -> sandboxes.UsageReport:
    """Usage by model and its sum."""
    models = [
        sandboxes.UsageTotal(
            model=item.model,
            calls=item.calls,
            input=item.tokens.input,
            output=item.tokens.output,
            cache_read=item.tokens.cache_read,
            cache_write=item.tokens.cache_write,
            cost=item.cost,
            assumed=item.assumed,
        )
        for item in totals
    ]
    return sandboxes.UsageReport(models=models, cost=sum(item.cost for item in totals))


def lifecycle_event(value: events.LifecycleEvent) -> sandboxes.LifecycleEvent:
    """A change of a sandbox's state."""
    return sandboxes.LifecycleEvent(
        sequence=value.sequence,
        sandbox=value.sandbox,
        name=value.name,
        state=value.state,
        reason=value.reason,
        at=value.at,
    )


def budget_warning(value: events.BudgetEvent) -> catalog.BudgetWarning:
    """A mark that a budget has passed."""
    warned = value.warned
    return catalog.BudgetWarning(
        scope=warned.scope,
        window=warned.window,
        sandbox=warned.sandbox,
        name=value.name,
        percent=warned.percent,
        cap=warned.cap,
        spent=warned.spent,
        at=value.at,
    )


def approval_info(value: approval.Approval) -> approvals.ApprovalInfo:
    """An approval."""
    question = value.question
    return approvals.ApprovalInfo(
        id=value.id,
        sandbox=value.sandbox,
        name=value.name,
        kind=question.kind,
        summary=question.summary,
        detail=[approvals.ApprovalField(name=field.name, text=field.text) for field in question.detail],
        status=value.status,
        scopes=list(value.scopes),
        scope=value.scope,
        reason=value.reason,
        by=value.by,
        asked_at=value.asked_at,
        deadline=value.deadline,
        answered_at=value.answered_at,
    )


def process_exit(value: process.Exit) -> processes.Exit:
    """How a process ended."""
    return processes.Exit(code=value.code, signal=value.signal, reason=value.reason)


def process_info(value: process.ProcessInfo) -> processes.ProcessInfo:
    """A process as the API shows it."""
    spec = value.spec
    terminal = spec.terminal
    return processes.ProcessInfo(
        id=value.id,
        argv=list(spec.argv),
        user=spec.user,
        cwd=spec.cwd,
        env=spec.env,
        stdin=spec.stdin,
        terminal=processes.Terminal(rows=terminal.rows, cols=terminal.cols) if terminal else None,
        timeout=spec.timeout,
        tag=spec.tag,
        started_at=value.started_at,
        exit=process_exit(value.exit) if value.exit else None,
    )


def exec_result(value: RunResult) -> processes.ExecResult:
    """A finished command."""
    return processes.ExecResult(
        process=value.info.id,
        exit=process_exit(value.info.exit or process.Exit(0)),
        stdout=value.stdout,
        stderr=value.stderr,
        truncated=value.truncated,
    )


def file_entry(value: Entry) -> files.FileEntry:
    """A file as the API shows it; its name may be any bytes."""
    path, raw = files.path_fields(value.path)
    return files.FileEntry(
        path=path,
        raw_path=raw,
        kind=value.kind.value,
        size=value.size,
        mode=value.mode,
        uid=value.uid,
        gid=value.gid,
        mtime=value.mtime,
        target=None if value.target is None else files.path_fields(value.target)[0],
    )


def watch_event(value: WatchEvent) -> files.WatchEvent:
    """A change of a file."""
    path, raw = files.path_fields(value.path)
    return files.WatchEvent(path=path, raw_path=raw, kind=value.kind.value)


def template_info(value: template.Template) -> catalog.TemplateInfo:
    """A template as the API shows it."""
    models = value.config.models or ModelRules()
    return catalog.TemplateInfo(
        id=value.id,
        name=value.name,
        layers=list(value.layers),
        env=value.config.env,
        user=value.config.user,
        workdir=value.config.workdir,
        sudo=value.config.sudo,
        start_command=list(value.config.start_command),
        ready_command=list(value.config.ready_command),
        size=value.size,
        source=value.source,
        parent=value.parent,
        created_at=value.created_at,
        services=[service.name for service in value.config.services],
        memory=_memory(value.memory),
        origin=_origin(value.origin),
        models=list(models.allow),
        aliases={one.asked: one.sent for one in models.aliases},
        limits=None if value.config.limits is None else _limits(value.config.limits),
    )


def _memory(value: template.MachineState | None) -> catalog.TemplateMemory | None:
    if value is None:
        return None
    return catalog.TemplateMemory(isolation=value.isolation, runtime=value.runtime, size=value.size)


def _origin(value: template.Origin | None) -> catalog.TemplateOrigin | None:
    if value is None:
        return None
    return catalog.TemplateOrigin(
        sandbox=value.sandbox, sandbox_id=value.sandbox_id, by=value.by, redacted=list(value.redacted)
    )


def build_info(value: build.Build) -> builds.BuildInfo:
    """A build as the API shows it."""
    return builds.BuildInfo(
        id=value.id,
        name=value.name,
        status=value.status,
        step=value.step,
        steps=value.steps,
        cached=value.cached,
        created_at=value.created_at,
        finished_at=value.finished_at,
        template=value.template,
        error=value.error,
    )


def build_line(value: build.BuildLine) -> builds.BuildLine:
    """A line of a build's log."""
    return builds.BuildLine(
        number=value.number, at=value.at, step=value.step, text=value.text, output=value.output
    )


def budget(value: list[Balance]) -> catalog.Budget:
    """Accounts as the API shows them."""
    return catalog.Budget(
        accounts=[
            catalog.BudgetAccount(
                scope=item.scope,
                window=item.window,
                cap=item.cap,
                default=item.default,
                spent=item.spent,
                reserved=item.reserved,
                warning=reached(item),
                resets_at=item.resets_at,
            )
            for item in value
        ]
    )


def secret_info(value: secrets.SecretInfo) -> catalog.SecretInfo:
    """What may be shown of a secret."""
    return catalog.SecretInfo(
        name=value.name,
        provider=value.provider,
        base_url=value.base_url,
        form=value.form,
        problem=value.problem,
        created_at=value.created_at,
        updated_at=value.updated_at,
        binding=None if value.binding is None else _secret_binding(value.binding),
    )


def _secret_binding(value: Binding) -> catalog.SecretBinding:
    shown = asdict(value)
    return catalog.SecretBinding.model_validate(
        {name: shown[name] for name in catalog.SecretBinding.model_fields}
    )


def api_key_info(value: secrets.ApiKeyInfo) -> catalog.ApiKeyInfo:
    """What may be shown of an API key."""
    return catalog.ApiKeyInfo(id=value.id, label=value.label, created_at=value.created_at)


def price_info(value: ModelPrice) -> catalog.PriceInfo:
    """An operator's price."""
    return catalog.PriceInfo(
        secret=value.secret,
        model=value.model,
        input=value.input,
        output=value.output,
        cache_read=value.cache_read,
        cache_write=value.cache_write,
    )


def host_info(value: Overview, tenant: TenantId) -> catalog.HostInfo:
    """How the host stands, as a tenant may see it: others' sandboxes count, and have no names."""
    return catalog.HostInfo(
        resources=[
            catalog.HostResource(
                resource=line.resource,
                total=line.total,
                reserve=line.reserve,
                used=line.used,
                promised=line.promised,
                expected=line.expected,
                free=line.free,
            )
            for line in value.lines
        ],
        queue=[
            catalog.HostWaiting(
                place=item.place,
                name=item.name if item.tenant == tenant else "",
                seconds=item.seconds,
                reason=item.reason,
            )
            for item in value.queue
        ],
        sandboxes=[
            catalog.HostSandbox(
                name=item.name,
                state=item.state,
                memory=int(item.used.get(Resource.MEMORY, 0)),
                disk=int(item.used.get(Resource.DISK, 0)),
                pids=int(item.used.get(Resource.PIDS, 0)),
                idle=item.idle,
            )
            for item in value.holdings
            if item.tenant == tenant
        ],
    )


def binding(value: catalog.BindSecret) -> Binding:
    """A secret's binding as it was asked for, unchecked."""
    given: dict[str, Any] = value.model_dump()
    values: dict[str, Any] = {
        name: tuple(item) if isinstance(item, list) else item for name, item in given.items()
    }
    return Binding(**values)

"""The whole native API, synchronous and asynchronous."""

from types import TracebackType
from typing import Self

from corral.sdk import binding
from corral.sdk.groups import (
    approval_calls,
    audit_calls,
    build_calls,
    daemon_calls,
    egress_calls,
    file_calls,
    grant_calls,
    process_calls,
    rate_calls,
    sandbox_calls,
    secret_calls,
    template_calls,
    work_calls,
)
from corral.sdk.settings import Settings, settings
from corral.sdk.transport import Transport


class Client:
    """The API of one daemon. Threads may share a client. Raises errors of `corral.errors` only.

    Without arguments: CORRAL_URL and CORRAL_API_KEY, else this host's daemon over its unix socket, which is started if it
    is down. Sandboxes are named by `ref`: name or id.
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        where: Settings | None = None,
    ) -> None:
        """`where` takes the place of `url`, `key` and the environment."""
        self.where = where or settings(url, key)
        self.transport = Transport(self.where)

    def close(self) -> None:
        """Close its connections."""
        self.transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    create_sandbox = binding.client(sandbox_calls.create_sandbox)
    list_sandboxes = binding.client(sandbox_calls.list_sandboxes)
    get_sandbox = binding.client(sandbox_calls.get_sandbox)
    start_sandbox = binding.client(sandbox_calls.start_sandbox)
    stop_sandbox = binding.client(sandbox_calls.stop_sandbox)
    pause_sandbox = binding.client(sandbox_calls.pause_sandbox)
    resume_sandbox = binding.client(sandbox_calls.resume_sandbox)
    fork_sandbox = binding.client(sandbox_calls.fork_sandbox)
    remove_sandbox = binding.client(sandbox_calls.remove_sandbox)
    set_ttl = binding.client(sandbox_calls.set_ttl)
    stats = binding.client(sandbox_calls.stats)
    usage = binding.client(sandbox_calls.usage)
    denials = binding.client(sandbox_calls.denials)
    get_url = binding.client(sandbox_calls.get_url)
    get_egress = binding.client(egress_calls.get_egress)
    change_egress = binding.client(egress_calls.change_egress)
    check_egress = binding.client(egress_calls.check_egress)
    list_presets = binding.client(egress_calls.list_presets)
    events = binding.client(sandbox_calls.events)
    list_approvals = binding.client(approval_calls.list_approvals)
    get_approval = binding.client(approval_calls.get_approval)
    approve = binding.client(approval_calls.approve)
    deny = binding.client(approval_calls.deny)
    follow_approvals = binding.client(approval_calls.follow_approvals)
    webhook_key = binding.client(approval_calls.webhook_key)
    read_audit = binding.client(audit_calls.read_audit)
    check_audit = binding.client(audit_calls.check_audit)
    receipt = binding.client(audit_calls.receipt)
    learn_egress = binding.client(egress_calls.learn_egress)
    lock_egress = binding.client(egress_calls.lock_egress)
    start_agent = binding.client(work_calls.start_agent)
    agent_terminal = binding.client(work_calls.agent_terminal)
    list_agents = binding.client(work_calls.list_agents)
    diff = binding.client(work_calls.diff)
    pull = binding.client(work_calls.pull)
    open_pull_request = binding.client(work_calls.open_pull_request)
    list_templates = binding.client(template_calls.list_templates)
    get_template = binding.client(template_calls.get_template)
    remove_template = binding.client(template_calls.remove_template)
    build_template = binding.client(template_calls.build_template)
    checkpoint = binding.client(template_calls.checkpoint)
    disk = binding.client(template_calls.disk)
    prune = binding.client(template_calls.prune)
    export_template = binding.client(template_calls.export_template)
    import_template = binding.client(template_calls.import_template)
    set_pool = binding.client(template_calls.set_pool)
    list_pools = binding.client(template_calls.list_pools)
    remove_pool = binding.client(template_calls.remove_pool)
    create_volume = binding.client(template_calls.create_volume)
    list_volumes = binding.client(template_calls.list_volumes)
    get_volume = binding.client(template_calls.get_volume)
    remove_volume = binding.client(template_calls.remove_volume)
    upload_context = binding.client(build_calls.upload_context)
    has_context = binding.client(build_calls.has_context)
    start_build = binding.client(build_calls.start_build)
    list_builds = binding.client(build_calls.list_builds)
    get_build = binding.client(build_calls.get_build)
    cancel_build = binding.client(build_calls.cancel_build)
    follow_build = binding.client(build_calls.follow_build)
    build_template_from = binding.client(build_calls.build_template_from)
    forget_steps = binding.client(build_calls.forget_steps)
    list_secrets = binding.client(secret_calls.list_secrets)
    put_secret = binding.client(secret_calls.put_secret)
    rotate_secret = binding.client(secret_calls.rotate_secret)
    remove_secret = binding.client(secret_calls.remove_secret)
    list_prices = binding.client(secret_calls.list_prices)
    set_price = binding.client(secret_calls.set_price)
    budget = binding.client(secret_calls.budget)
    follow_budgets = binding.client(secret_calls.follow_budgets)
    set_budget = binding.client(secret_calls.set_budget)
    tenant_budget = binding.client(secret_calls.tenant_budget)
    set_tenant_budget = binding.client(secret_calls.set_tenant_budget)

    rates = binding.client(rate_calls.rates)
    set_rates = binding.client(rate_calls.set_rates)
    tenant_rates = binding.client(rate_calls.tenant_rates)
    set_tenant_rates = binding.client(rate_calls.set_tenant_rates)

    list_grants = binding.client(grant_calls.list_grants)
    grant = binding.client(grant_calls.grant)
    change_grant = binding.client(grant_calls.change_grant)
    renew_grant = binding.client(grant_calls.renew_grant)
    revoke_grant = binding.client(grant_calls.revoke_grant)
    models = binding.client(grant_calls.models)
    set_models = binding.client(grant_calls.set_models)
    create_key = binding.client(daemon_calls.create_key)
    list_keys = binding.client(daemon_calls.list_keys)
    revoke_key = binding.client(daemon_calls.revoke_key)
    get_config = binding.client(daemon_calls.get_config)
    set_config = binding.client(daemon_calls.set_config)
    doctor = binding.client(daemon_calls.doctor)
    host = binding.client(daemon_calls.host)
    health = binding.client(daemon_calls.health)

    exec_command = binding.client(process_calls.exec_command)
    start_process = binding.client(process_calls.start_process)
    list_processes = binding.client(process_calls.list_processes)
    get_process = binding.client(process_calls.get_process)
    follow_output = binding.client(process_calls.follow_output)
    write_stdin = binding.client(process_calls.write_stdin)
    close_stdin = binding.client(process_calls.close_stdin)
    resize_terminal = binding.client(process_calls.resize_terminal)
    signal_process = binding.client(process_calls.signal_process)

    read_file = binding.client(file_calls.read)
    read_file_bytes = binding.client(file_calls.read_bytes)
    stream_file = binding.client(file_calls.stream)
    write_file = binding.client(file_calls.write)
    stat_file = binding.client(file_calls.stat)
    list_files = binding.client(file_calls.list_dir)
    make_dir = binding.client(file_calls.mkdir)
    move_file = binding.client(file_calls.move)
    remove_file = binding.client(file_calls.remove)
    watch_files = binding.client(file_calls.watch)
    read_archive = binding.client(file_calls.read_archive)
    write_archive = binding.client(file_calls.write_archive)


class AsyncClient:
    """As `Client`, for asyncio."""

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        where: Settings | None = None,
    ) -> None:
        """`where` takes the place of `url`, `key` and the environment."""
        from corral.sdk.async_transport import AsyncTransport  # asyncio and aiohttp, which others do without

        self.where = where or settings(url, key)
        self.transport = AsyncTransport(self.where)

    async def close(self) -> None:
        """Close its connections."""
        await self.transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    create_sandbox = binding.async_client(sandbox_calls.create_sandbox)
    list_sandboxes = binding.async_client(sandbox_calls.list_sandboxes)
    get_sandbox = binding.async_client(sandbox_calls.get_sandbox)
    start_sandbox = binding.async_client(sandbox_calls.start_sandbox)
    stop_sandbox = binding.async_client(sandbox_calls.stop_sandbox)
    pause_sandbox = binding.async_client(sandbox_calls.pause_sandbox)
    resume_sandbox = binding.async_client(sandbox_calls.resume_sandbox)
    fork_sandbox = binding.async_client(sandbox_calls.fork_sandbox)
    remove_sandbox = binding.async_client(sandbox_calls.remove_sandbox)
    set_ttl = binding.async_client(sandbox_calls.set_ttl)
    stats = binding.async_client(sandbox_calls.stats)
    usage = binding.async_client(sandbox_calls.usage)
    denials = binding.async_client(sandbox_calls.denials)
    get_url = binding.async_client(sandbox_calls.get_url)
    get_egress = binding.async_client(egress_calls.get_egress)
    change_egress = binding.async_client(egress_calls.change_egress)
    check_egress = binding.async_client(egress_calls.check_egress)
    list_presets = binding.async_client(egress_calls.list_presets)
    events = binding.async_client(sandbox_calls.events)
    list_approvals = binding.async_client(approval_calls.list_approvals)
    get_approval = binding.async_client(approval_calls.get_approval)
    approve = binding.async_client(approval_calls.approve)
    deny = binding.async_client(approval_calls.deny)
    follow_approvals = binding.async_client(approval_calls.follow_approvals)
    webhook_key = binding.async_client(approval_calls.webhook_key)
    read_audit = binding.async_client(audit_calls.read_audit)
    check_audit = binding.async_client(audit_calls.check_audit)
    receipt = binding.async_client(audit_calls.receipt)
    learn_egress = binding.async_client(egress_calls.learn_egress)
    lock_egress = binding.async_client(egress_calls.lock_egress)
    start_agent = binding.async_client(work_calls.start_agent)
    agent_terminal = binding.async_client(work_calls.agent_terminal)
    list_agents = binding.async_client(work_calls.list_agents)
    diff = binding.async_client(work_calls.diff)
    pull = binding.async_client(work_calls.pull)
    open_pull_request = binding.async_client(work_calls.open_pull_request)
    list_templates = binding.async_client(template_calls.list_templates)
    get_template = binding.async_client(template_calls.get_template)
    remove_template = binding.async_client(template_calls.remove_template)
    build_template = binding.async_client(template_calls.build_template)
    checkpoint = binding.async_client(template_calls.checkpoint)
    disk = binding.async_client(template_calls.disk)
    prune = binding.async_client(template_calls.prune)
    export_template = binding.async_client(template_calls.export_template)
    import_template = binding.async_client(template_calls.import_template)
    set_pool = binding.async_client(template_calls.set_pool)
    list_pools = binding.async_client(template_calls.list_pools)
    remove_pool = binding.async_client(template_calls.remove_pool)
    create_volume = binding.async_client(template_calls.create_volume)
    list_volumes = binding.async_client(template_calls.list_volumes)
    get_volume = binding.async_client(template_calls.get_volume)
    remove_volume = binding.async_client(template_calls.remove_volume)
    upload_context = binding.async_client(build_calls.upload_context)
    has_context = binding.async_client(build_calls.has_context)
    start_build = binding.async_client(build_calls.start_build)
    list_builds = binding.async_client(build_calls.list_builds)
    get_build = binding.async_client(build_calls.get_build)
    cancel_build = binding.async_client(build_calls.cancel_build)
    follow_build = binding.async_client(build_calls.follow_build)
    build_template_from = binding.async_client(build_calls.build_template_from)
    forget_steps = binding.async_client(build_calls.forget_steps)
    list_secrets = binding.async_client(secret_calls.list_secrets)
    put_secret = binding.async_client(secret_calls.put_secret)
    rotate_secret = binding.async_client(secret_calls.rotate_secret)
    remove_secret = binding.async_client(secret_calls.remove_secret)
    list_prices = binding.async_client(secret_calls.list_prices)
    set_price = binding.async_client(secret_calls.set_price)
    budget = binding.async_client(secret_calls.budget)
    follow_budgets = binding.async_client(secret_calls.follow_budgets)
    set_budget = binding.async_client(secret_calls.set_budget)
    tenant_budget = binding.async_client(secret_calls.tenant_budget)
    set_tenant_budget = binding.async_client(secret_calls.set_tenant_budget)

    rates = binding.async_client(rate_calls.rates)
    set_rates = binding.async_client(rate_calls.set_rates)
    tenant_rates = binding.async_client(rate_calls.tenant_rates)
    set_tenant_rates = binding.async_client(rate_calls.set_tenant_rates)

    list_grants = binding.async_client(grant_calls.list_grants)
    grant = binding.async_client(grant_calls.grant)
    change_grant = binding.async_client(grant_calls.change_grant)
    renew_grant = binding.async_client(grant_calls.renew_grant)
    revoke_grant = binding.async_client(grant_calls.revoke_grant)
    models = binding.async_client(grant_calls.models)
    set_models = binding.async_client(grant_calls.set_models)
    create_key = binding.async_client(daemon_calls.create_key)
    list_keys = binding.async_client(daemon_calls.list_keys)
    revoke_key = binding.async_client(daemon_calls.revoke_key)
    get_config = binding.async_client(daemon_calls.get_config)
    set_config = binding.async_client(daemon_calls.set_config)
    doctor = binding.async_client(daemon_calls.doctor)
    host = binding.async_client(daemon_calls.host)
    health = binding.async_client(daemon_calls.health)

    exec_command = binding.async_client(process_calls.exec_command)
    start_process = binding.async_client(process_calls.start_process)
    list_processes = binding.async_client(process_calls.list_processes)
    get_process = binding.async_client(process_calls.get_process)
    follow_output = binding.async_client(process_calls.follow_output)
    write_stdin = binding.async_client(process_calls.write_stdin)
    close_stdin = binding.async_client(process_calls.close_stdin)
    resize_terminal = binding.async_client(process_calls.resize_terminal)
    signal_process = binding.async_client(process_calls.signal_process)

    read_file = binding.async_client(file_calls.read)
    read_file_bytes = binding.async_client(file_calls.read_bytes)
    stream_file = binding.async_client(file_calls.stream)
    write_file = binding.async_client(file_calls.write)
    stat_file = binding.async_client(file_calls.stat)
    list_files = binding.async_client(file_calls.list_dir)
    make_dir = binding.async_client(file_calls.mkdir)
    move_file = binding.async_client(file_calls.move)
    remove_file = binding.async_client(file_calls.remove)
    watch_files = binding.async_client(file_calls.watch)
    read_archive = binding.async_client(file_calls.read_archive)
    write_archive = binding.async_client(file_calls.write_archive)

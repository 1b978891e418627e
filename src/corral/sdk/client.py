"""The whole native API, synchronous and asynchronous."""

from types import TracebackType
from typing import Self

import httpx2

from corral.sdk import (
    binding,
    build_calls,
    calls,
    egress_calls,
    file_calls,
    grant_calls,
    process_calls,
    rate_calls,
)
from corral.sdk.settings import Settings, settings
from corral.sdk.transport import AsyncTransport, Transport


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
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        """`where` takes the place of `url`, `key` and the environment; `transport` that of the network."""
        self.where = where or settings(url, key)
        self.transport = Transport(self.where, transport)

    def close(self) -> None:
        """Close its connections."""
        self.transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    create_sandbox = binding.client(calls.create_sandbox)
    list_sandboxes = binding.client(calls.list_sandboxes)
    get_sandbox = binding.client(calls.get_sandbox)
    start_sandbox = binding.client(calls.start_sandbox)
    stop_sandbox = binding.client(calls.stop_sandbox)
    pause_sandbox = binding.client(calls.pause_sandbox)
    resume_sandbox = binding.client(calls.resume_sandbox)
    fork_sandbox = binding.client(calls.fork_sandbox)
    remove_sandbox = binding.client(calls.remove_sandbox)
    set_ttl = binding.client(calls.set_ttl)
    stats = binding.client(calls.stats)
    usage = binding.client(calls.usage)
    denials = binding.client(calls.denials)
    get_url = binding.client(calls.get_url)
    get_egress = binding.client(egress_calls.get_egress)
    change_egress = binding.client(egress_calls.change_egress)
    check_egress = binding.client(egress_calls.check_egress)
    list_presets = binding.client(egress_calls.list_presets)
    events = binding.client(calls.events)
    list_approvals = binding.client(calls.list_approvals)
    get_approval = binding.client(calls.get_approval)
    approve = binding.client(calls.approve)
    deny = binding.client(calls.deny)
    follow_approvals = binding.client(calls.follow_approvals)
    webhook_key = binding.client(calls.webhook_key)
    read_audit = binding.client(calls.read_audit)
    check_audit = binding.client(calls.check_audit)
    receipt = binding.client(calls.receipt)
    learn_egress = binding.client(calls.learn_egress)
    lock_egress = binding.client(calls.lock_egress)
    start_agent = binding.client(calls.start_agent)
    agent_terminal = binding.client(calls.agent_terminal)
    list_agents = binding.client(calls.list_agents)
    diff = binding.client(calls.diff)
    pull = binding.client(calls.pull)
    open_pull_request = binding.client(calls.open_pull_request)
    list_templates = binding.client(calls.list_templates)
    get_template = binding.client(calls.get_template)
    remove_template = binding.client(calls.remove_template)
    build_template = binding.client(calls.build_template)
    checkpoint = binding.client(calls.checkpoint)
    disk = binding.client(calls.disk)
    prune = binding.client(calls.prune)
    export_template = binding.client(calls.export_template)
    import_template = binding.client(calls.import_template)
    set_pool = binding.client(calls.set_pool)
    list_pools = binding.client(calls.list_pools)
    remove_pool = binding.client(calls.remove_pool)
    create_volume = binding.client(calls.create_volume)
    list_volumes = binding.client(calls.list_volumes)
    get_volume = binding.client(calls.get_volume)
    remove_volume = binding.client(calls.remove_volume)
    upload_context = binding.client(build_calls.upload_context)
    has_context = binding.client(build_calls.has_context)
    start_build = binding.client(build_calls.start_build)
    list_builds = binding.client(build_calls.list_builds)
    get_build = binding.client(build_calls.get_build)
    cancel_build = binding.client(build_calls.cancel_build)
    follow_build = binding.client(build_calls.follow_build)
    build_template_from = binding.client(build_calls.build_template_from)
    forget_steps = binding.client(build_calls.forget_steps)
    list_secrets = binding.client(calls.list_secrets)
    put_secret = binding.client(calls.put_secret)
    rotate_secret = binding.client(calls.rotate_secret)
    remove_secret = binding.client(calls.remove_secret)
    list_prices = binding.client(calls.list_prices)
    set_price = binding.client(calls.set_price)
    budget = binding.client(calls.budget)
    follow_budgets = binding.client(calls.follow_budgets)
    set_budget = binding.client(calls.set_budget)
    tenant_budget = binding.client(calls.tenant_budget)
    set_tenant_budget = binding.client(calls.set_tenant_budget)

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
    create_key = binding.client(calls.create_key)
    list_keys = binding.client(calls.list_keys)
    revoke_key = binding.client(calls.revoke_key)
    get_config = binding.client(calls.get_config)
    set_config = binding.client(calls.set_config)
    doctor = binding.client(calls.doctor)
    host = binding.client(calls.host)
    health = binding.client(calls.health)

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
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        """`where` takes the place of `url`, `key` and the environment; `transport` that of the network."""
        self.where = where or settings(url, key)
        self.transport = AsyncTransport(self.where, transport)

    async def close(self) -> None:
        """Close its connections."""
        await self.transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    create_sandbox = binding.async_client(calls.create_sandbox)
    list_sandboxes = binding.async_client(calls.list_sandboxes)
    get_sandbox = binding.async_client(calls.get_sandbox)
    start_sandbox = binding.async_client(calls.start_sandbox)
    stop_sandbox = binding.async_client(calls.stop_sandbox)
    pause_sandbox = binding.async_client(calls.pause_sandbox)
    resume_sandbox = binding.async_client(calls.resume_sandbox)
    fork_sandbox = binding.async_client(calls.fork_sandbox)
    remove_sandbox = binding.async_client(calls.remove_sandbox)
    set_ttl = binding.async_client(calls.set_ttl)
    stats = binding.async_client(calls.stats)
    usage = binding.async_client(calls.usage)
    denials = binding.async_client(calls.denials)
    get_url = binding.async_client(calls.get_url)
    get_egress = binding.async_client(egress_calls.get_egress)
    change_egress = binding.async_client(egress_calls.change_egress)
    check_egress = binding.async_client(egress_calls.check_egress)
    list_presets = binding.async_client(egress_calls.list_presets)
    events = binding.async_client(calls.events)
    list_approvals = binding.async_client(calls.list_approvals)
    get_approval = binding.async_client(calls.get_approval)
    approve = binding.async_client(calls.approve)
    deny = binding.async_client(calls.deny)
    follow_approvals = binding.async_client(calls.follow_approvals)
    webhook_key = binding.async_client(calls.webhook_key)
    read_audit = binding.async_client(calls.read_audit)
    check_audit = binding.async_client(calls.check_audit)
    receipt = binding.async_client(calls.receipt)
    learn_egress = binding.async_client(calls.learn_egress)
    lock_egress = binding.async_client(calls.lock_egress)
    start_agent = binding.async_client(calls.start_agent)
    agent_terminal = binding.async_client(calls.agent_terminal)
    list_agents = binding.async_client(calls.list_agents)
    diff = binding.async_client(calls.diff)
    pull = binding.async_client(calls.pull)
    open_pull_request = binding.async_client(calls.open_pull_request)
    list_templates = binding.async_client(calls.list_templates)
    get_template = binding.async_client(calls.get_template)
    remove_template = binding.async_client(calls.remove_template)
    build_template = binding.async_client(calls.build_template)
    checkpoint = binding.async_client(calls.checkpoint)
    disk = binding.async_client(calls.disk)
    prune = binding.async_client(calls.prune)
    export_template = binding.async_client(calls.export_template)
    import_template = binding.async_client(calls.import_template)
    set_pool = binding.async_client(calls.set_pool)
    list_pools = binding.async_client(calls.list_pools)
    remove_pool = binding.async_client(calls.remove_pool)
    create_volume = binding.async_client(calls.create_volume)
    list_volumes = binding.async_client(calls.list_volumes)
    get_volume = binding.async_client(calls.get_volume)
    remove_volume = binding.async_client(calls.remove_volume)
    upload_context = binding.async_client(build_calls.upload_context)
    has_context = binding.async_client(build_calls.has_context)
    start_build = binding.async_client(build_calls.start_build)
    list_builds = binding.async_client(build_calls.list_builds)
    get_build = binding.async_client(build_calls.get_build)
    cancel_build = binding.async_client(build_calls.cancel_build)
    follow_build = binding.async_client(build_calls.follow_build)
    build_template_from = binding.async_client(build_calls.build_template_from)
    forget_steps = binding.async_client(build_calls.forget_steps)
    list_secrets = binding.async_client(calls.list_secrets)
    put_secret = binding.async_client(calls.put_secret)
    rotate_secret = binding.async_client(calls.rotate_secret)
    remove_secret = binding.async_client(calls.remove_secret)
    list_prices = binding.async_client(calls.list_prices)
    set_price = binding.async_client(calls.set_price)
    budget = binding.async_client(calls.budget)
    follow_budgets = binding.async_client(calls.follow_budgets)
    set_budget = binding.async_client(calls.set_budget)
    tenant_budget = binding.async_client(calls.tenant_budget)
    set_tenant_budget = binding.async_client(calls.set_tenant_budget)

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
    create_key = binding.async_client(calls.create_key)
    list_keys = binding.async_client(calls.list_keys)
    revoke_key = binding.async_client(calls.revoke_key)
    get_config = binding.async_client(calls.get_config)
    set_config = binding.async_client(calls.set_config)
    doctor = binding.async_client(calls.doctor)
    host = binding.async_client(calls.host)
    health = binding.async_client(calls.health)

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

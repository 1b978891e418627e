"""The only place where concrete classes are made and joined."""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from typing import Any

from fastapi import FastAPI

from corral.agents import chatgpt
from corral.agents.service import AgentService
from corral.api.app import create_app
from corral.api.e2b.identity import with_files, with_variables
from corral.api.e2b.shapes import is_of_e2b
from corral.api.preview.hosts import Addresses
from corral.daemon.askclient import write_client
from corral.daemon.authentication import authenticator
from corral.daemon.authority import load_authority
from corral.daemon.childlog import ChildLog
from corral.daemon.clock import SystemClock
from corral.daemon.config import ConfigFile
from corral.daemon.denials import Denials
from corral.daemon.gateway_process import GatewayProcess
from corral.daemon.places import Places
from corral.daemon.secret_command import CommandSource
from corral.daemon.trust import write_trust
from corral.daemon.webhook import Webhook
from corral.drivers.oci import OciDriver
from corral.drivers.volumes import StoreVolumes
from corral.engine.activity import Activity
from corral.engine.admission import Admission
from corral.engine.approvals import Approvals, Terms
from corral.engine.audit import AuditLog
from corral.engine.budgets import Budgets
from corral.engine.building import Builder
from corral.engine.builds import Builds
from corral.engine.checkpoints import Checkpoints
from corral.engine.disk import Disk, Space
from corral.engine.egress import Egress
from corral.engine.engine import Engine
from corral.engine.events import Events
from corral.engine.grants import Grants
from corral.engine.hooks import Hooks
from corral.engine.keys import ApiKeys
from corral.engine.leaks import LeakCheck
from corral.engine.learning import Learning
from corral.engine.models import Models
from corral.engine.permissions import Permissions
from corral.engine.plan import CreateRequest
from corral.engine.pools import Pools
from corral.engine.ports import OpenedSecret, SecretSource
from corral.engine.processes import Processes
from corral.engine.projects import Projects
from corral.engine.registry import Registry
from corral.engine.samples import Samples
from corral.engine.sandboxes import Sandboxes
from corral.engine.services import Services
from corral.engine.templates import Templates
from corral.engine.vault import Prices, Secrets
from corral.engine.vigil import Pressure, Vigil
from corral.engine.volumes import Volumes
from corral.errors import CorralError
from corral.gateway.client import GatewayClient
from corral.gateway.journal import Journals
from corral.gateway.workers import GatewayWorkers
from corral.host.capacity import room, unwritten, waiting_percent
from corral.host.tasks import TaskOwner
from corral.host.unfinished import Unfinished
from corral.model.budget import Rates, Warned
from corral.model.capacity import Room
from corral.model.grants import ModelRules
from corral.model.ids import DEFAULT_TENANT, GrantId, SandboxId, TenantId, VolumeId
from corral.model.lifecycle import State
from corral.model.sandbox import IdlePolicy, Sandbox
from corral.model.secrets import Secret, SecretForm
from corral.network.networks import Networks
from corral.policy.egress import names
from corral.policy.idle import Step
from corral.policy.models import parse_alias
from corral.policy.push import joined
from corral.policy.retention import Retention
from corral.policy.rules import with_bindings
from corral.policy.tighten import tightened_cap
from corral.rootfs.archives import ArchiveStore
from corral.rootfs.layers import LayerStore
from corral.rootfs.store import RootStore
from corral.store.store import SqlStore
from corral.work.inspect import files_digest
from corral.work.pushinspection import PushInspector
from corral.work.quarantine import make_scratch
from corral.work.service import RepositoryService

log = logging.getLogger(__name__)

SPARE_NETWORKS = 4


class _Machine:
    """`ports.Machine`: sandboxes' disk is the store's, and the data directory's below it."""

    def __init__(self, places: Places) -> None:
        self._disks = (places.data, places.data / "store")

    def room(self) -> Room:
        """As Machine says."""
        return room(self._disks)

    def unwritten(self) -> float:
        """As Machine says."""
        return unwritten()

    def waiting_percent(self) -> float | None:
        """As Machine says."""
        return waiting_percent()


class Daemon:
    """A complete engine over this host, from `open` until its block is left."""

    def __init__(self, engine: Engine, store: SqlStore, config: ConfigFile) -> None:
        self.engine = engine
        self.config = config
        self._store = store

    def app(self, names: Collection[str], addresses: Addresses) -> FastAPI:
        """The API; `names` are the host names under which it may be called over TCP."""
        return create_app(
            self.engine, authenticate=authenticator(self._store), names=names, addresses=addresses
        )

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, places: Places) -> "AsyncIterator[Daemon]":
        """Everything started and recovered. Leaving lets go of sandboxes, which go on."""
        try:
            async with AsyncExitStack() as stack:
                yield await _build(cls, places, stack)
        except BaseExceptionGroup as group:  # task groups wrap what passes through them
            public, _ = group.split(CorralError)
            raise next(_leaves(public), group) from group


def _leaves(group: BaseExceptionGroup[BaseException] | None) -> Iterator[BaseException]:
    for error in group.exceptions if group else ():
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


async def _space(store: RootStore) -> Space:
    return Space(*await asyncio.to_thread(store.space))


async def _uid_bases(store: SqlStore) -> dict[TenantId, int]:
    """First host uids by tenant, of all that have sandboxes."""
    tenants = {DEFAULT_TENANT, *(sandbox.spec.tenant for sandbox in await store.sandboxes())}
    return {tenant: (await store.tenant(tenant)).uid_base for tenant in tenants}


async def _build(cls: type[Daemon], places: Places, stack: AsyncExitStack) -> Daemon:
    clock = SystemClock()
    config = ConfigFile(places.config)
    authority = load_authority(places.authority, places.instance)
    trust = write_trust(places.trust, authority.certificate)
    store = await SqlStore.open(
        places.database_url, places.key_file, instance=places.installation(), archive=places.audit
    )
    stack.push_async_callback(store.close)
    root_store = RootStore(places.data)
    await root_store.open()
    uid_bases = await _uid_bases(store)
    networks = Networks(places.run, SPARE_NETWORKS)
    stack.push_async_callback(networks.close)
    driver = OciDriver(
        data_dir=places.data,
        run_dir=places.run,
        instance=places.instance,
        store=root_store,
        networks=networks,
        uid_base=uid_bases.__getitem__,
        ca_bundle=trust,
        ask=write_client(places.ask),
        unlimited_disk=lambda: config.value.unlimited_disk,
    )
    await driver.open()
    stack.callback(driver.close)
    denials = Denials(store)
    events = Events()
    registry = Registry(store, events, clock)
    telling = await stack.enter_async_context(TaskOwner())
    webhook = Webhook(lambda: config.value.webhook, await store.webhook_key(), telling)

    def warn(warned: Warned) -> None:
        sandbox = registry.get(warned.sandbox)
        name = warned.sandbox if sandbox is None else sandbox.spec.name
        webhook.warn(events.publish_budget(warned, name, clock.now()))

    budgets = Budgets(
        store,
        registry,
        lambda: config.value.budget,
        lambda: Rates(config.value.requests, config.value.tokens),
        warn,
        lambda sandbox: client.recall(sandbox),
    )
    journals = Journals(places.leases)
    await budgets.reconcile(journals.drawn)
    journals.remove_all()
    permissions = Permissions(store, registry, clock)
    await permissions.load()
    approvals = Approvals(
        store=store,
        registry=registry,
        permissions=permissions,
        budgets=budgets,
        events=events,
        clock=clock,
        terms=lambda: Terms(config.value.approval_limit, config.value.approval_unattended),
        listeners=webhook.listeners,
        notify=webhook.notify,
    )
    await approvals.recover()
    clients = [
        await stack.enter_async_context(
            GatewayClient(
                ledger=budgets,
                on_audit=denials.record,
                on_ask=approvals.ask,
                inspector=lambda: inspector,
                journals=journals,
            )
        )
        for _ in range(config.value.workers)
    ]
    client = GatewayWorkers(clients)
    written = ChildLog(places.gateway_log)
    stack.callback(written.close)

    async def configure_gateway() -> None:
        value = config.value
        await client.set_config(
            networks=value.networks,
            bypass=value.bypass,
            model_calls=value.model_calls,
            output=value.output,
            asking=value.asking,
            models=ModelRules(value.models, tuple(map(parse_alias, value.aliases))),
        )

    await configure_gateway()
    models = Models(store, client)
    await models.publish()
    await client.set_authority(authority.certificate, authority.key)
    tasks = await stack.enter_async_context(TaskOwner())

    async def kept_secret(tenant: TenantId, name: str) -> OpenedSecret | None:
        opened = await store.open_secrets()
        return next((item for item in opened.whole if (item.tenant, item.name) == (tenant, name)), None)

    async def save_secret(secret: OpenedSecret) -> None:
        await store.put_secret(secret, clock.now())

    token_url = os.environ.get("CODEX_REFRESH_TOKEN_URL_OVERRIDE", chatgpt.TOKEN_URL)
    sources: dict[SecretForm, SecretSource] = {
        SecretForm.COMMAND: CommandSource(),
        SecretForm.CHATGPT: chatgpt.ChatGptSource(kept_secret, save_secret, clock.now, token_url),
    }
    secrets = Secrets(
        store,
        client,
        clock,
        changed=lambda tenant, name: sandboxes.secret_changed(tenant, name),
        sources=sources,
        bypassed=lambda host: names(config.value.bypass, host),
    )
    layers = LayerStore(root_store, places.data)

    agents = AgentService(
        store=store,
        secrets=secrets,
        driver=driver,
        sandboxes=lambda: sandboxes,
        processes=lambda: processes,
        npm_registry=lambda: config.value.npm_registry,
    )
    leaks = LeakCheck(store, driver, secrets.values)
    templates = Templates(
        store,
        layers,
        clock,
        agents.build_layer,
        on_change=lambda: pools.wake(),
        on_prune=lambda: sandboxes.sweep_images(),
        check=leaks.check_image,
    )
    activity = Activity()

    async def wake(sandbox: Sandbox) -> None:
        await sandboxes.resume(sandbox.spec.tenant, sandbox.id)

    processes = Processes(
        driver=driver,
        registry=registry,
        clock=clock,
        tasks=tasks,
        environment=with_variables(agents.environment),
        touch=activity.touch,
        wake=wake,
    )
    stack.callback(processes.detach)
    inspector = PushInspector(
        sandboxes=lambda: sandboxes,
        processes=processes,
        driver=driver,
        secrets=secrets.values,
        scratch=make_scratch(places.data / "pushes"),
    )
    repos = RepositoryService(
        sandboxes=lambda: sandboxes,
        processes=processes,
        scratch=make_scratch(places.data / "quarantine"),
        secrets=secrets.list,
        call_forge=client.call_forge,
    )

    audit = AuditLog(
        store,
        registry,
        repos.summarise,
        clock,
        lambda: config.value.audit_keep,
        lambda: config.value.receipts_keep,
    )
    projects = Projects(
        layers=layers,
        templates=templates,
        sandboxes=lambda: sandboxes,
        processes=processes,
        driver=driver,
        leaks=leaks,
        tasks=tasks,
        digest=files_digest,
        strip=repos.strip,
    )

    async def complete(tenant: TenantId, request: CreateRequest) -> CreateRequest:
        if tenant not in uid_bases:
            uid_bases[tenant] = (await store.tenant(tenant)).uid_base
        request = replace(
            request,
            push=joined(request.push, config.value.pushes),
            budget=tightened_cap(request.budget, config.value.budget, request.budget_at_most),
        )
        return await projects.complete(
            tenant, await repos.complete(tenant, await agents.complete(tenant, request))
        )

    async def provision(sandbox: Sandbox, request: CreateRequest) -> None:
        await agents.configure(sandbox)
        await repos.bring_in(sandbox, request)

    machine = _Machine(places)
    admission = Admission(
        registry=registry,
        driver=driver,
        machine=machine,
        activity=activity,
        tasks=tasks,
        rules=lambda: config.value.rules,
    )
    unfinished = Unfinished(places.run / "unfinished-volumes")
    unfinished.make()
    volume_disk = StoreVolumes(root_store, lambda: config.value.unlimited_disk, unfinished)
    stack.callback(volume_disk.close)
    volumes = Volumes(store=store, disk=volume_disk, registry=registry, admission=admission, clock=clock)
    sandboxes = Sandboxes(
        store=store,
        driver=driver,
        gateway=client,
        templates=templates,
        registry=registry,
        events=events,
        clock=clock,
        tasks=tasks,
        admission=admission,
        activity=activity,
        hooks=Hooks(
            on_running=with_files(processes.open, driver.announce),
            on_down=processes.close,
            provision=provision,
            complete=complete,
            egress_of=lambda spec: with_bindings(
                permissions.egress_of(spec), secrets.bound(spec.tenant, spec.secrets)
            ),
            before_down=audit.keep_work,
            on_claimed=with_files(processes.refresh, driver.announce),
            on_up=Services(processes).start,
            on_leave=processes.leave,
            on_demand=lambda spec: pools.demand(spec),
        ),
        volumes=volumes,
    )
    checkpoints = Checkpoints(
        store=store,
        sandboxes=sandboxes,
        templates=templates,
        registry=registry,
        driver=driver,
        leaks=leaks,
        on_made=lambda made: tasks.start(disk.tidy(made), name="checkpoints"),
    )
    disk = Disk(
        store=store,
        layers=layers,
        driver=driver,
        templates=templates,
        registry=registry,
        space=lambda: _space(root_store),
        volumes=volumes,
        rules=lambda: Retention(config.value.checkpoints_keep, config.value.checkpoints_size),
    )
    pools = Pools(
        store=store,
        sandboxes=sandboxes,
        templates=templates,
        registry=registry,
        clock=clock,
        usable=driver.runtimes,
    )
    permissions.on_change(sandboxes.refresh_egress)

    archives = ArchiveStore(root_store, places.data)
    await archives.tidy()
    builder = Builder(
        layers=layers,
        archives=archives,
        templates=templates,
        sandboxes=sandboxes,
        processes=processes,
        driver=driver,
        leaks=leaks,
    )
    builds = Builds(builder, archives, clock, tasks)

    gateways = [GatewayProcess(one, places.instance, written) for one in clients]
    for gateway in gateways:
        tasks.start(gateway.supervise(), name="gateway")
    tasks.start(secrets.keep_fresh(shared=places.shares_database), name="secrets")
    if places.shares_database:
        tasks.start(models.keep_fresh(), name="models")
    for gateway in gateways:
        await gateway.started.wait()
    await secrets.publish()
    await volumes.recover()
    await sandboxes.recover()
    await inspector.recover()
    await pools.load()
    tasks.start(sandboxes.sweep(), name="ttl")
    vigil = Vigil(
        sandboxes=sandboxes,
        processes=processes,
        registry=registry,
        driver=driver,
        store=store,
        machine=machine,
        activity=activity,
        admission=admission,
        rules=lambda: config.value.rules,
        idle=lambda: IdlePolicy(config.value.idle_pause, config.value.idle_stop),
        pressure=lambda: Pressure(Step(config.value.pressure_action), config.value.pressure_idle),
        now=time.monotonic,
    )
    tasks.start(vigil.run(), name="vigil")
    tasks.start(permissions.sweep(), name="permissions")
    tasks.start(audit.keep_short(), name="audit")
    samples = Samples(
        lambda: [item.id for item in sandboxes.all() if item.state is State.RUNNING and is_of_e2b(item)],
        lambda sandbox: sandboxes.by_id(sandbox) is not None,
        driver.stats,
        clock,
    )
    tasks.start(samples.run(), name="samples")
    tasks.start(pools.run(), name="warm pools")

    async def run_doctor(deep: bool) -> list[dict[str, Any]]:
        from corral.daemon import doctor, findings

        checks = await doctor.run_checks(places.data)
        if deep:
            async with templates.holding_layers():
                total, problems = len(root_store.layers()), await layers.damaged()
            checks.append(findings.layers(problems, await store.templates(), total))
        return [asdict(check) for check in checks]

    async def config_set(key: str, value: Any) -> None:
        config.set(key, value)
        await configure_gateway()
        await client.recall(None)  # what was leased by the former settings
        await store.audit(DEFAULT_TENANT, None, "config.set", config.told(key))
        if key == "audit.keep":
            await audit.archive()
        elif key == "receipts.keep":
            await audit.forget_receipts()

    async def sandbox_token(sandbox: SandboxId) -> Secret:
        # Not of the form of any grant's id, so no grant has this token.
        return await store.derive_token(GrantId(f"sandbox access {sandbox}"))

    async def volume_token(volume: VolumeId) -> Secret:
        return await store.derive_token(GrantId(f"volume {volume}"))

    async def port_token(sandbox: SandboxId, port: int | None) -> Secret:
        what = "all ports" if port is None else f"port {port}"
        return await store.derive_token(GrantId(f"{what} of {sandbox}"))

    engine = Engine(
        sandboxes=sandboxes,
        processes=processes,
        templates=templates,
        checkpoints=checkpoints,
        disk=disk,
        pools=pools,
        volumes=volumes,
        builds=builds,
        secrets=secrets,
        prices=Prices(store, client),
        models=models,
        budgets=budgets,
        approvals=approvals,
        egress=Egress(lambda: sandboxes, secrets, store),
        grants=Grants(store, client, registry, secrets, clock, processes.refresh, sandboxes.refresh_egress),
        audit=audit,
        learning=Learning(store, sandboxes),
        agents=agents,
        repos=repos,
        driver=driver,
        doctor=run_doctor,
        recent_denials=denials.recent,
        config_get=config.get,
        config_set=config_set,
        keys=ApiKeys(store, clock),
        sandbox_token=sandbox_token,
        webhook_key=store.webhook_key,
        volume_token=volume_token,
        touch=activity.touch,
        follow_events=events.follow,
        port_token=port_token,
        samples=samples,
    )
    return cls(engine, store, config)

"""The store of `corral.engine.ports`, on a SQL database."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Concatenate, ParamSpec, Self, TypeVar

from sqlalchemy import Connection

from corral.engine.acting import actor
from corral.engine.ports import ModelPrice, OpenedSecret, OpenedSecrets, Tenant
from corral.errors import HostError
from corral.model.approval import Approval, ApprovalId, Permission, Status
from corral.model.audit import AuditCheck, AuditEntry, AuditItem
from corral.model.budget import Balance, Drawn, LedgerEntry, Outcome, Rate, Rates, Settlement, Window
from corral.model.grants import Grant, ModelRules, TenantModels
from corral.model.ids import GrantId, LayerDigest, SandboxId, TemplateId, TenantId, VolumeId
from corral.model.pool import Pool
from corral.model.receipt import Past, Work
from corral.model.route import Route
from corral.model.sandbox import Isolation, Sandbox, SandboxSpec
from corral.model.secrets import ApiKeyInfo, Identity, Secret, SecretInfo
from corral.model.template import Assignment, Template
from corral.model.usage import UsageTotal
from corral.model.volume import Volume
from corral.store import (
    approvals,
    audit,
    budgets,
    ledger,
    past,
    pools,
    sandboxes,
    templates,
    tenant_models,
    vault,
    volumes,
)
from corral.store.auditlog import AuditChain
from corral.store.database import Database
from corral.store.keys import Keys, create_key, load_key

P = ParamSpec("P")
T = TypeVar("T")

_FORGET_AT_ONCE = 20
"""Receipts that are forgotten in one transaction, for whose end model calls wait; each may be of thousands of them."""


def _now() -> datetime:
    return datetime.now(UTC)


def _by(who: str, record: AuditItem) -> AuditItem:
    return replace(record, detail={"actor": who, **record.detail}) if who else record


class SqlStore:
    """State that survives (`corral.engine.ports.Store`). Make it with `open`; `close` it at the end.

    Every method is one transaction, and its record in the audit log a part of it. After a cancelled call the transaction may
    have happened.
    """

    def __init__(
        self,
        database: Database,
        keys: Keys,
        now: Callable[[], datetime],
        uid_start: int,
        archive: Path | None,
    ) -> None:
        self._database = database
        self._keys = keys
        self._now = now
        self._uid_start = uid_start
        self._chain = AuditChain(database, keys, archive)

    @classmethod
    async def open(
        cls,
        url: str,
        key_file: Path,
        *,
        now: Callable[[], datetime] = _now,
        uid_start: int = sandboxes.UID_START,
        instance: str = "only",
        archive: Path | None = None,
    ) -> Self:
        """The store at `url` (`sqlite:////path` or `postgresql://…`), its schema made or upgraded, its key file made
        on first use. `instance` names the installation, where several share a database. `archive`: the directory of
        records that are moved out of the audit log; made when it is needed.

        The directories of both must exist. Raises HostError for a schema of a newer version, and for a key
        file that is missing, is another's, or that others may read; Unsupported for another kind of
        database.
        """
        database = Database(url, instance)
        try:
            await database.open()
            keys = await database.run_durable(_open_keys, key_file)
        except BaseException:
            await database.close()
            raise
        return cls(database, keys, now, uid_start, archive)

    async def close(self) -> None:
        """Let go of the database, once calls under way are done. Idempotent."""
        await self._database.close()

    async def tenant(self, tenant: TenantId) -> Tenant:
        """The tenant, made with a free range on first use. A range is never given to a second one."""
        known = await self._database.run(sandboxes.find_tenant, tenant)
        if known is not None:
            return known
        return await self._database.run_durable(sandboxes.tenant, tenant, self._uid_start)

    async def add_sandbox(self, sandbox: Sandbox, grant: Grant, record: AuditItem | None = None) -> None:
        """Insert, and add a record to the audit log. Raises Conflict, naming the holder, if the name is taken; NotFound
        without its template.
        """
        await self._database.run(self._recorded(record, sandboxes.add, sandbox, grant))

    async def is_free_name(self, tenant: TenantId, name: str) -> bool:
        """Whether no sandbox of the tenant has that name, on whatever host."""
        return await self._database.run(sandboxes.is_free, tenant, name)

    async def claim_sandbox(self, sandbox: Sandbox, grant: Grant, record: AuditItem | None = None) -> None:
        """Make a spare of a warm pool this sandbox, and add a record to the audit log. Raises Conflict if the name is taken,
        NotFound.
        """
        await self._database.run(self._recorded(record, sandboxes.claim, sandbox, grant))

    async def put_pool(self, pool: Pool) -> None:
        """Add a warm pool, or replace the tenant's one of the same template and isolation."""
        await self._database.run_durable(pools.put, pool)

    async def remove_pool(self, tenant: TenantId, template: str, isolation: Isolation) -> None:
        """Idempotent."""
        await self._database.run_durable(pools.remove, tenant, template, isolation)

    async def pools(self) -> list[Pool]:
        """All tenants' warm pools."""
        return await self._database.run(pools.select_all)

    async def put_volume(self, volume: Volume) -> None:
        """Add a volume, or replace what is said of it; on return it survives a power cut."""
        await self._database.run_durable(volumes.put, volume)

    async def remove_volume(self, volume: VolumeId) -> None:
        """Idempotent."""
        await self._database.run(volumes.remove, volume)

    async def volumes(self) -> list[Volume]:
        """All tenants' volumes."""
        return await self._database.run(volumes.select_all)

    async def set_state(self, sandbox: Sandbox, *, lasting: bool = False) -> None:
        """Update state, reason, exit code and time; `lasting`: on return that survives a power cut. Raises NotFound."""
        run = self._database.run_durable if lasting else self._database.run
        await run(sandboxes.set_state, sandbox)

    async def set_states(self, sandboxes: Sequence[Sandbox]) -> None:
        """The same for several at once: all, or none."""
        await self._database.run(_set_states, sandboxes)

    async def set_spec(self, spec: SandboxSpec, record: AuditItem | None = None) -> None:
        """Update what may change of a spec: time to live and egress policy. Raises NotFound."""
        await self._database.run(self._recorded(record, sandboxes.set_spec, spec))

    async def remove_sandbox(self, sandbox: SandboxId) -> bool:
        """Remove it, its grant and its caps; whether a template that was kept for it alone went with it. Its usage and
        its audit records stay. Idempotent.
        """
        return await self._database.run(sandboxes.remove, sandbox, self._now())

    async def sandboxes(self, tenant: TenantId | None = None) -> list[Sandbox]:
        """All, oldest first, of one tenant or of all."""
        return await self._database.run(sandboxes.select_all, tenant)

    async def grant_of(self, sandbox: SandboxId) -> Grant:
        """The sandbox's grant. Raises NotFound."""
        return await self._database.run(sandboxes.grant_of, sandbox)

    async def grants(self, tenant: TenantId) -> list[Grant]:
        """Those of all of a tenant's sandboxes."""
        return await self._database.run(sandboxes.grants, tenant)

    async def set_grant(self, grant: Grant, record: AuditItem | None = None) -> None:
        """Replace a sandbox's grant; on return the change survives a power cut. Raises NotFound."""
        await self._database.run_durable(self._recorded(record, sandboxes.set_grant, grant))

    async def add_template(self, *made: Template, shortened: TemplateId | None = None) -> None:
        """Insert all at once; a template of the same tenant and name is replaced (its sandboxes keep the old one's
        layers). `shortened`: the one that it is with fewer layers.
        """
        await self._database.run_durable(templates.add, *made, shortened=shortened)

    async def assignments(self, tenant: TenantId, name: str) -> list[Assignment]:
        """What a template's name, and that name with each tag, stood for, oldest first."""
        return await self._database.run(templates.assignments, tenant, name)

    async def add_hidden_template(self, template: Template) -> None:
        """Insert one that is not offered: for a sandbox that is about to be made, and forgotten with it."""
        await self._database.run(templates.add_hidden, template)

    async def forget_templates(self) -> None:
        """Forget all that are neither offered nor used by a sandbox."""
        await self._database.run(templates.forget_all_unused)

    async def templates(self, tenant: TenantId | None = None) -> list[Template]:
        """All current ones, oldest first."""
        return await self._database.run(templates.select_current, tenant)

    async def template(self, template: TemplateId) -> Template:
        """By id, also a replaced or removed one that a sandbox still uses. Raises NotFound."""
        return await self._database.run(templates.get, template)

    async def remove_template(self, *removed: TemplateId) -> None:
        """No longer offered, all at once; each is forgotten once no sandbox uses it. Idempotent."""
        await self._database.run(templates.remove, *removed)

    async def layers_in_use(self) -> set[LayerDigest]:
        """Layers of current templates and of sandboxes."""
        return await self._database.run(templates.layers)

    async def put_secret(
        self, secret: OpenedSecret, now: datetime, record: AuditItem | None = None
    ) -> SecretInfo:
        """Add or replace, encrypted."""
        return await self._database.run_durable(self._recorded(record, vault.put, self._keys, secret, now))

    async def remove_secret(self, tenant: TenantId, name: str, record: AuditItem | None = None) -> None:
        """Raises NotFound."""
        await self._database.run_durable(self._recorded(record, vault.remove, tenant, name))

    async def secrets(self, tenant: TenantId) -> list[SecretInfo]:
        """What may be shown."""
        return await self._database.run(vault.infos, tenant)

    async def open_secrets(self) -> OpenedSecrets:
        """All secrets of all tenants, decrypted, for the gateway; those that were altered apart."""
        return await self._database.run(vault.open_all, self._keys)

    async def seal_route(self, tenant: TenantId, route: Route) -> str:
        """A route as a specification holds it: encrypted; the empty one as an empty text."""
        return "" if route == Route() else self._keys.seal_route(tenant, route)

    async def open_route(self, tenant: TenantId, sealed: str) -> Route:
        """What `seal_route` made this of. Raises HostError if it was altered."""
        return self._keys.open_route(tenant, sealed) if sealed else Route()

    async def derive_token(self, grant: GrantId) -> Secret:
        """The token that belongs to a grant id: keyed by the installation's key, the same at each call."""
        return self._keys.grant_token(grant)

    async def derive_seed(self, sandbox: SandboxId) -> Secret:
        """What a sandbox's placeholders are made of: the same at each call, another for each sandbox."""
        return self._keys.placeholder_seed(sandbox)

    async def webhook_key(self) -> Secret:
        """The key that signs what is told to a webhook: keyed by the installation's key, the same at each call."""
        return self._keys.webhook_key()

    async def apply_ledger(
        self, entries: Sequence[LedgerEntry], default: int | None, rates: Rates | None = None
    ) -> list[Outcome]:
        """Reserve, settle and take leases back in one transaction, in order. `default` is the cap of a sandbox that has
        none of its own, `rates` its limits at a time.

        It is not flushed to the disk at once, which would cost each call a millisecond: the audit records of calls do
        that. So a power cut can take what the last moments before it spent, and nothing else can take anything.
        """
        return await self._database.run(budgets.apply, entries, default, self._now(), rates)

    async def abandon_reservations(
        self, holder: str | None, default: int | None, drawn: Drawn = lambda _: None
    ) -> list[Settlement]:
        """Settle at its worst case whatever a gateway process (None: any) has under way; what was settled. `drawn` tells
        what a process drew on its leases.
        """
        return await self._database.run(budgets.abandon, holder, default, self._now(), drawn)

    async def balances(
        self, tenant: TenantId, sandbox: SandboxId | None, default: int | None
    ) -> list[Balance]:
        """The accounts that count a sandbox's calls, or the tenant's own: ever, and today."""
        return await self._database.run(budgets.balances, tenant, sandbox, self._now(), default)

    async def set_caps(
        self,
        tenant: TenantId,
        sandbox: SandboxId | None,
        caps: Mapping[Window | Rate, int | None],
        cleared: Collection[Window | Rate] = (),
        record: AuditItem | None = None,
    ) -> None:
        """Set caps and limits at a time of a sandbox or a tenant, None for none; those `cleared` are the host's default
        again.
        """
        change = self._recorded(record, budgets.set_caps, tenant, sandbox, caps, cleared)
        await self._database.run_durable(change)

    async def rates(self, tenant: TenantId, sandbox: SandboxId | None, default: Rates) -> Rates:
        """The limits at a time of a sandbox, or of a tenant."""
        return await self._database.run(budgets.rates, tenant, sandbox, default, self._now())

    async def usage(self, sandbox: SandboxId) -> list[UsageTotal]:
        """Totals by model."""
        return await self._database.run(ledger.totals, sandbox)

    async def set_tenant_models(
        self, tenant: TenantId, rules: ModelRules, record: AuditItem | None = None
    ) -> None:
        """Replace which models a tenant's sandboxes may use."""
        await self._database.run_durable(self._recorded(record, tenant_models.put, tenant, rules))

    async def tenant_models(self) -> list[TenantModels]:
        """Those of all tenants that have some."""
        return await self._database.run(tenant_models.every)

    async def set_price(self, price: ModelPrice, record: AuditItem | None = None) -> None:
        """An operator's price for a model (`*` for all of a provider); replaces the former."""
        await self._database.run_durable(self._recorded(record, ledger.set_price, price))

    async def prices(self) -> list[ModelPrice]:
        """All operator's prices."""
        return await self._database.run(ledger.prices)

    async def add_approval(self, approval: Approval) -> None:
        """Record a question, and that it was put, in the audit log too; on return it survives a power cut."""
        await self._database.run_durable(approvals.add, self._keys, self._now(), approval)

    async def settle_approval(
        self, approval: Approval, permission: Permission | None = None, cap: int | None = None
    ) -> None:
        """Record how a question ended, what it allows from now on, a new cap of its sandbox, and all that in the audit
        log; on return it survives a power cut.
        """
        await self._database.run_durable(approvals.settle, self._keys, self._now(), approval, permission, cap)

    async def approval(self, tenant: TenantId, approval: ApprovalId) -> Approval:
        """By id. Raises NotFound, also for another tenant's."""
        return await self._database.run(approvals.get, tenant, approval)

    async def approvals(
        self,
        tenant: TenantId | None,
        sandbox: SandboxId | None = None,
        status: Status | None = None,
        limit: int = 1000,
    ) -> list[Approval]:
        """The latest `limit`, oldest first."""
        return await self._database.run(approvals.select_latest, tenant, sandbox, status, limit)

    async def permissions(self) -> list[Permission]:
        """What approvals still allow, all tenants'."""
        return await self._database.run(approvals.permissions)

    async def add_api_key(
        self,
        tenant: TenantId,
        label: str,
        now: datetime,
        record: Callable[[ApiKeyInfo], AuditItem] | None = None,
    ) -> tuple[Secret, ApiKeyInfo]:
        """A new API key for the TCP interface, of which only the hash is kept, and what may be shown of it."""
        told = None if record is None else lambda made: record(made[1])
        add = self._recorded(told, vault.add_api_key, self._keys, tenant, label, now)
        return await self._database.run_durable(add)

    async def api_keys(self, tenant: TenantId) -> list[ApiKeyInfo]:
        """What may be shown of a tenant's API keys, oldest first."""
        return await self._database.run(vault.api_keys, tenant)

    async def revoke_api_key(
        self, tenant: TenantId, ref: str, record: Callable[[ApiKeyInfo], AuditItem] | None = None
    ) -> ApiKeyInfo:
        """Forget a key, by id or by a label that only one has. Raises NotFound, Conflict."""
        return await self._database.run_durable(self._recorded(record, vault.revoke_api_key, tenant, ref))

    async def identity_of_key(self, key: str) -> Identity | None:
        """Whose key it is; None for a wrong one."""
        return await self._database.run(vault.identity_of_key, self._keys.api_key_hash(key))

    async def audit(
        self, tenant: TenantId, sandbox: SandboxId | None, kind: str, detail: dict[str, str]
    ) -> None:
        """Append a record to the hash-chained audit log; on return it survives a power cut. `detail` holds
        no secret. It is told who had it done, where that is known.
        """
        await self.audit_all([_by(actor(), AuditItem(tenant, sandbox, kind, detail))])

    async def audit_all(self, items: Sequence[AuditItem]) -> None:
        """Append records, in order and at once; on return they survive a power cut."""
        await self._database.run_durable(audit.append_all, self._keys, self._now(), items)

    async def audit_entries(
        self,
        tenant: TenantId,
        sandbox: SandboxId | None = None,
        since: datetime | None = None,
        after: int = 0,
        limit: int = 1000,
    ) -> list[AuditEntry]:
        """Up to `limit` records of a tenant, or of one of its sandboxes, with numbers above `after`, in order."""
        return await self._database.run(audit.entries, tenant, sandbox, since, after, limit)

    async def keep_work(self, remembered: Past, work: Work) -> None:
        """Remember what is in a sandbox's repository; it outlives the sandbox."""
        await self._database.run(past.keep_work, remembered, work)

    async def past_sandbox(self, tenant: TenantId, ref: str) -> Past | None:
        """A sandbox as it is remembered, by id, or the last one that had that name."""
        return await self._database.run(past.find, tenant, ref)

    async def forget_receipts(self, before: datetime) -> int:
        """Forget what is kept of sandboxes that were gone before that time; how many. Their tenants' accounts and the audit
        log stay.
        """
        total = 0
        while forgotten := await self._database.run(past.forget, before, _FORGET_AT_ONCE):
            total += forgotten
        return total

    async def verify_audit(self) -> AuditCheck:
        """Check the whole audit log, and the parts of it that were moved into files. Other calls go on meanwhile; what
        they append is not checked.
        """
        return await self._chain.verify()

    async def archive_audit(self, before: datetime) -> int:
        """Move audit records from before that time into files, but for the very last one; how many. Raises HostError for
        a log that was altered.
        """
        return await self._chain.move(before)

    def _recorded(
        self,
        record: AuditItem | Callable[[T], AuditItem] | None,
        change: Callable[Concatenate[Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Callable[[Connection], T]:
        """A change that adds its record to the audit log: both happen, or nothing does. A record may be made of what the
        change returned.
        """
        who = actor()

        def both(db: Connection) -> T:
            done = change(db, *args, **kwargs)
            item = record(done) if callable(record) else record
            if item is not None:
                audit.append_all(db, self._keys, self._now(), [_by(who, item)])
            return done

        return both


def _set_states(db: Connection, several: Sequence[Sandbox]) -> None:
    for sandbox in several:
        sandboxes.set_state(db, sandbox)


def _open_keys(db: Connection, key_file: Path) -> Keys:
    """The installation's keys; a new key file is made only for a database that never had one."""
    master = load_key(key_file)
    if master is None:
        if vault.key_check(db) is not None:
            raise HostError(
                f"the key file {key_file} is missing: the secrets in the database cannot be read",
                "restore it from a backup, or move the data directory away to start anew",
            )
        master = create_key(key_file)
    keys = Keys(master)
    vault.bind_key(db, keys)
    return keys

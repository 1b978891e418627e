"""State that survives."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from corral.engine.ports.gateway import ModelPrice, OpenedSecret, OpenedSecrets
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


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who owns things. `uid_base` is the first host uid of the 65,536 that its sandboxes map to."""

    id: TenantId
    uid_base: int


class Store(Protocol):
    """State that survives. Each method is one transaction; a name or id is unique per tenant."""

    async def tenant(self, tenant: TenantId) -> Tenant:
        """The tenant, made with a free range on first use."""

    async def add_sandbox(self, sandbox: Sandbox, grant: Grant, record: AuditItem | None = None) -> None:
        """Insert, and add a record to the audit log. Raises Conflict, naming the holder, if the name is taken."""

    async def is_free_name(self, tenant: TenantId, name: str) -> bool:
        """Whether no sandbox of the tenant has that name, those of other hosts on the same database included."""

    async def claim_sandbox(self, sandbox: Sandbox, grant: Grant, record: AuditItem | None = None) -> None:
        """Make a spare of a warm pool this sandbox: all of its row but id and template changes, and its grant is replaced.
        Adds a record to the audit log. Raises Conflict if the name is taken."""

    async def put_pool(self, pool: Pool) -> None:
        """Add a warm pool, or replace the tenant's one of the same template and isolation."""

    async def remove_pool(self, tenant: TenantId, template: str, isolation: Isolation) -> None:
        """Idempotent."""

    async def pools(self) -> list[Pool]:
        """All tenants' warm pools."""

    async def put_volume(self, volume: Volume) -> None:
        """Add a volume, or replace what is said of it; on return it survives a power cut."""

    async def remove_volume(self, volume: VolumeId) -> None:
        """Idempotent."""

    async def volumes(self) -> list[Volume]:
        """All tenants' volumes, those too that are being made or removed."""

    async def set_state(self, sandbox: Sandbox, *, lasting: bool = False) -> None:
        """Update state, reason, exit code and time. `lasting`: on return the change survives a power cut, with all that was
        written before it."""

    async def set_states(self, sandboxes: Sequence[Sandbox]) -> None:
        """The same for several at once: all, or none."""

    async def set_spec(self, spec: SandboxSpec, record: AuditItem | None = None) -> None:
        """Update what may change of a spec: time to live and egress policy."""

    async def remove_sandbox(self, sandbox: SandboxId) -> bool:
        """Remove it, its grant and its caps; whether a template that was kept for it alone went with it. Its usage
        stays. Idempotent."""

    async def sandboxes(self, tenant: TenantId | None = None) -> list[Sandbox]:
        """All, oldest first, of one tenant or of all."""

    async def grant_of(self, sandbox: SandboxId) -> Grant:
        """The sandbox's grant. Raises NotFound."""

    async def grants(self, tenant: TenantId) -> list[Grant]:
        """Those of all of a tenant's sandboxes."""

    async def set_grant(self, grant: Grant, record: AuditItem | None = None) -> None:
        """Replace a sandbox's grant; on return the change survives a power cut. Raises NotFound."""

    async def add_template(self, *made: Template, shortened: TemplateId | None = None) -> None:
        """Insert all at once; a template of the same tenant and name is replaced (its sandboxes keep the old one's layers).
        `shortened`: the one that it is with fewer layers, so that its name stands for what it stood for."""

    async def assignments(self, tenant: TenantId, name: str) -> list[Assignment]:
        """What a template's name, and that name with each tag, stood for, oldest first: the last hundred of each. Those of a
        name go with what it stands for."""

    async def add_hidden_template(self, template: Template) -> None:
        """Insert one that is not offered: for a sandbox that is about to be made, and forgotten with it."""

    async def forget_templates(self) -> None:
        """Forget all that are neither offered nor used by a sandbox."""

    async def templates(self, tenant: TenantId | None = None) -> list[Template]:
        """All current ones, oldest first."""

    async def template(self, template: TemplateId) -> Template:
        """By id, also a replaced or removed one that a sandbox still uses. Raises NotFound."""

    async def remove_template(self, *removed: TemplateId) -> None:
        """No longer offered, all at once; each is forgotten once no sandbox uses it. Idempotent."""

    async def layers_in_use(self) -> set[LayerDigest]:
        """Layers of current templates and of sandboxes."""

    async def put_secret(
        self, secret: OpenedSecret, now: datetime, record: AuditItem | None = None
    ) -> SecretInfo:
        """Add or replace, encrypted."""

    async def remove_secret(self, tenant: TenantId, name: str, record: AuditItem | None = None) -> None:
        """Raises NotFound."""

    async def secrets(self, tenant: TenantId) -> list[SecretInfo]:
        """What may be shown."""

    async def open_secrets(self) -> OpenedSecrets:
        """All secrets of all tenants, decrypted, for the gateway; those that were altered apart."""

    async def seal_route(self, tenant: TenantId, route: Route) -> str:
        """A route as a specification holds it: encrypted, for this tenant alone; the empty one as an empty text."""

    async def open_route(self, tenant: TenantId, sealed: str) -> Route:
        """What `seal_route` made this of. Raises HostError if it was altered."""

    async def derive_token(self, grant: GrantId) -> Secret:
        """The token that belongs to a grant id: keyed by the installation's key, the same at each call."""

    async def derive_seed(self, sandbox: SandboxId) -> Secret:
        """What a sandbox's placeholders are made of: the same at each call, another for each sandbox."""

    async def webhook_key(self) -> Secret:
        """The key that signs what is told to a webhook: keyed by the installation's key, the same at each call."""

    async def apply_ledger(
        self, entries: Sequence[LedgerEntry], default: int | None, rates: Rates | None = None
    ) -> list[Outcome]:
        """Reserve, settle and take leases back in one transaction, in order: each reservation against all before it, each
        settlement at most once, with its usage. On return it survives the end of this process, however it ends. `default` is
        the cap of a sandbox that has none of its own, `rates` its limits at a time."""

    async def abandon_reservations(
        self, holder: str | None, default: int | None, drawn: Drawn = lambda _: None
    ) -> list[Settlement]:
        """Settle at its worst case whatever a gateway process (None: any) has under way; what was settled. `drawn` tells
        what a process drew on its leases."""

    async def balances(
        self, tenant: TenantId, sandbox: SandboxId | None, default: int | None
    ) -> list[Balance]:
        """The accounts that count a sandbox's calls, or the tenant's own: ever, and today."""

    async def set_caps(
        self,
        tenant: TenantId,
        sandbox: SandboxId | None,
        caps: Mapping[Window | Rate, int | None],
        cleared: Collection[Window | Rate] = (),
        record: AuditItem | None = None,
    ) -> None:
        """Set caps and limits at a time of a sandbox or a tenant, None for none; those `cleared` are the host's default
        again."""

    async def rates(self, tenant: TenantId, sandbox: SandboxId | None, default: Rates) -> Rates:
        """The limits at a time of a sandbox, or of a tenant."""

    async def usage(self, sandbox: SandboxId) -> list[UsageTotal]:
        """Totals by model."""

    async def set_tenant_models(
        self, tenant: TenantId, rules: ModelRules, record: AuditItem | None = None
    ) -> None:
        """Replace which models a tenant's sandboxes may use. Durable."""

    async def tenant_models(self) -> list[TenantModels]:
        """Those of all tenants that have some."""

    async def set_price(self, price: "ModelPrice", record: AuditItem | None = None) -> None:
        """An operator's price for a model (`*` for all of a provider); replaces the former."""

    async def prices(self) -> list["ModelPrice"]:
        """All operator's prices."""

    async def add_approval(self, approval: Approval) -> None:
        """Record a question, and that it was put, in the audit log too; on return it survives a power cut."""

    async def settle_approval(
        self, approval: Approval, permission: Permission | None = None, cap: int | None = None
    ) -> None:
        """Record how a question ended, what it allows from now on (nothing else that it allowed before), a new cap of
        its sandbox, and all that in the audit log; on return it survives a power cut."""

    async def approval(self, tenant: TenantId, approval: ApprovalId) -> Approval:
        """By id. Raises NotFound, also for another tenant's."""

    async def approvals(
        self,
        tenant: TenantId | None,
        sandbox: SandboxId | None = None,
        status: Status | None = None,
        limit: int = 1000,
    ) -> list[Approval]:
        """The latest `limit` of a tenant or of all, oldest first. Those of a removed sandbox stay."""

    async def permissions(self) -> list[Permission]:
        """What approvals still allow, all tenants'."""

    async def add_api_key(
        self,
        tenant: TenantId,
        label: str,
        now: datetime,
        record: Callable[[ApiKeyInfo], AuditItem] | None = None,
    ) -> tuple[Secret, ApiKeyInfo]:
        """A new API key for the TCP interface, of which only the hash is kept, and what may be shown of it."""

    async def api_keys(self, tenant: TenantId) -> list[ApiKeyInfo]:
        """What may be shown of a tenant's API keys, oldest first."""

    async def revoke_api_key(
        self, tenant: TenantId, ref: str, record: Callable[[ApiKeyInfo], AuditItem] | None = None
    ) -> ApiKeyInfo:
        """Forget a key, by id or by a label that only one has. Raises NotFound, Conflict."""

    async def identity_of_key(self, key: str) -> Identity | None:
        """Whose key it is, compared in constant time; None for a wrong one."""

    async def audit(
        self, tenant: TenantId, sandbox: SandboxId | None, kind: str, detail: dict[str, str]
    ) -> None:
        """Append a record to the hash-chained audit log. `detail` holds no secret."""

    async def audit_all(self, items: Sequence[AuditItem]) -> None:
        """Append records, in order and at once; on return they survive a power cut."""

    async def audit_entries(
        self,
        tenant: TenantId,
        sandbox: SandboxId | None = None,
        since: datetime | None = None,
        after: int = 0,
        limit: int = 1000,
    ) -> list[AuditEntry]:
        """Up to `limit` records of a tenant, or of one of its sandboxes, with numbers above `after`, in order."""

    async def forget_receipts(self, before: datetime) -> int:
        """Forget what is kept of sandboxes that were gone before that time; how many. Their tenants' accounts and the audit
        log stay."""

    async def archive_audit(self, before: datetime) -> int:
        """Move audit records from before that time into files, but for the very last one; how many. Raises HostError for
        a log that was altered."""

    async def verify_audit(self) -> AuditCheck:
        """Check the whole audit log."""

    async def keep_work(self, remembered: Past, work: Work) -> None:
        """Remember what is in a sandbox's repository; it outlives the sandbox."""

    async def past_sandbox(self, tenant: TenantId, ref: str) -> Past | None:
        """A sandbox as it is remembered, by id, or the last one that had that name; None for an unknown one."""

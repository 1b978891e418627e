"""Budgets: the ledger's one owner, who reserves and settles for the gateway, and shows and changes what is allowed."""

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from corral.engine.granted import capped
from corral.engine.ports import Store
from corral.engine.registry import Registry
from corral.errors import CorralError
from corral.model.audit import AuditItem
from corral.model.budget import (
    Balance,
    Drawn,
    LedgerEntry,
    Outcome,
    Rate,
    Rates,
    Warned,
    Window,
)
from corral.model.ids import SandboxId, TenantId
from corral.policy.budget import checked_cap
from corral.policy.money import dollars
from corral.policy.rates import checked_rate

log = logging.getLogger(__name__)


class Budgets:
    """What may be spent, is set aside and is spent. Implements `ports.Ledger` for the gateway."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        default: Callable[[], int | None],
        rates: Callable[[], Rates] = Rates,
        warn: Callable[[Warned], None] = lambda _: None,
        recall: Callable[[SandboxId | None], Awaitable[None]] | None = None,
    ) -> None:
        """`default` is the cap of a sandbox that has none of its own, None for none; `rates` are its limits at a time;
        `warn` tells whoever wants to know that much of a budget is spent, and returns at once. `recall` takes back what is
        leased to a sandbox's calls, or (None) to all.
        """
        self._recall = recall
        self._store = store
        self._registry = registry
        self._default = default
        self._rates = rates
        self._tell = warn

    # -- for the gateway --------------------------------------------------------------------------------------------

    async def apply(self, entries: Sequence[LedgerEntry]) -> list[Outcome]:
        """Reserve and settle, in order, at once (G-211, G-213)."""
        outcomes = await self._store.apply_ledger(entries, self._default(), self._rates())
        for outcome in outcomes:
            for warned in outcome.warnings:
                await self._warn(warned)
        return outcomes

    async def abandon(self, holder: str, drawn: Mapping[int, int] | None) -> None:
        """Settle what a gateway that is gone had under way at its worst case (G-215)."""
        await self._abandon(holder, lambda _: drawn)

    async def reconcile(self, drawn: Drawn) -> None:
        """After a start: settle what a former daemon's gateways had under way. What they knew is lost with them, but for
        what they drew on leases.
        """
        await self._abandon(None, drawn)

    async def _abandon(self, holder: str | None, drawn: Drawn) -> None:
        for settled in await self._store.abandon_reservations(holder, self._default(), drawn):
            usage = settled.usage
            if usage is not None:
                log.warning(
                    "a call of sandbox %s was under way when its gateway ended: it counts as %s, the most that it can have cost",
                    usage.sandbox, dollars(usage.cost),
                )  # fmt: skip
                detail = {"cost": str(usage.cost), "model": usage.model, "secret": usage.secret}
                await self._record(usage.tenant, usage.sandbox, "budget.settled_at_worst", detail)

    async def _warn(self, warned: Warned) -> None:
        log.warning(
            "%d %% of the budget of %s is spent (%s, %s of %s)",
            warned.percent, warned.sandbox if warned.scope == "sandbox" else f"tenant {warned.tenant}",
            warned.window, dollars(warned.spent), dollars(warned.cap),
        )  # fmt: skip
        self._tell(warned)
        detail = {
            "scope": warned.scope.value,
            "window": warned.window.value,
            "percent": str(warned.percent),
            "cap": str(warned.cap),
            "spent": str(warned.spent),
        }
        await self._record(warned.tenant, warned.sandbox, "budget.warning", detail)

    async def _record(self, tenant: TenantId, sandbox: SandboxId, kind: str, detail: dict[str, str]) -> None:
        """A record of what the ledger holds anyway: that it cannot be written must not undo what was settled."""
        try:
            await self._store.audit(tenant, sandbox, kind, detail)
        except CorralError as error:
            log.error("%s of sandbox %s is not in the audit log: %s", kind, sandbox, error)

    # -- for people -------------------------------------------------------------------------------------------------

    async def of_sandbox(self, tenant: TenantId, ref: str) -> list[Balance]:
        """The accounts that count a sandbox's calls, its tenant's included. Raises NotFound."""
        return await self._store.balances(tenant, self._registry.find(tenant, ref).id, self._default())

    async def of_tenant(self, tenant: TenantId) -> list[Balance]:
        """The accounts that count all of a tenant's calls."""
        return await self._store.balances(tenant, None, self._default())

    async def set_for_sandbox(
        self, tenant: TenantId, ref: str, window: Window, cap: int | None
    ) -> list[Balance]:
        """Change a sandbox's cap from its next call on; None for no cap. Raises NotFound, InvalidInput."""
        sandbox = self._registry.find(tenant, ref).id
        await self._set(tenant, sandbox, window, cap)
        return await self.of_sandbox(tenant, sandbox)

    async def clear_for_sandbox(self, tenant: TenantId, ref: str, window: Window) -> list[Balance]:
        """Give a sandbox the host's default cap again."""
        sandbox = self._registry.find(tenant, ref).id
        await self._change(capped(tenant, sandbox, window, "default"), {}, (window,))
        return await self.of_sandbox(tenant, sandbox)

    async def set_for_tenant(self, tenant: TenantId, window: Window, cap: int | None) -> list[Balance]:
        """Change the cap of all of a tenant's calls together, from the next one on; None for no cap."""
        await self._set(tenant, None, window, cap)
        return await self.of_tenant(tenant)

    async def rates_of(self, tenant: TenantId, ref: str | None) -> Rates:
        """The limits at a time of a sandbox, or (None) of all of a tenant's together. Raises NotFound."""
        sandbox = None if ref is None else self._registry.find(tenant, ref).id
        return await self._store.rates(tenant, sandbox, self._rates())

    async def set_rates(
        self, tenant: TenantId, ref: str | None, limits: Mapping[Rate, int | str | None]
    ) -> Rates:
        """Change limits at a time from the next call on; None for no limit, `default` for the host's. Raises NotFound,
        InvalidInput.
        """
        sandbox = None if ref is None else self._registry.find(tenant, ref).id
        given: dict[Window | Rate, int | None] = {
            rate: checked_rate(limit) for rate, limit in limits.items() if not isinstance(limit, str)
        }
        cleared = [rate for rate in limits if rate not in given]
        detail = {rate.value: str(limit) for rate, limit in limits.items()}
        record = AuditItem(tenant, sandbox, "rate.set", detail)
        await self._change(record, given, cleared)
        return await self.rates_of(tenant, ref)

    async def _set(
        self, tenant: TenantId, sandbox: SandboxId | None, window: Window, cap: int | None
    ) -> None:
        checked_cap(cap)
        await self._change(capped(tenant, sandbox, window, cap), {window: cap})

    async def _change(
        self,
        record: AuditItem,
        caps: Mapping[Window | Rate, int | None],
        cleared: Collection[Window | Rate] = (),
    ) -> None:
        """What the record tells of its tenant or sandbox; no call goes on by what was leased before."""
        await self._store.set_caps(record.tenant, record.sandbox, caps, cleared, record)
        if self._recall is not None:
            await self._recall(record.sandbox)

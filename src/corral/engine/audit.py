"""The audit log as people read it, and receipts: what each sandbox did, also those that are gone."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta

from corral.engine.ports import Clock, Store
from corral.engine.registry import Registry
from corral.errors import CorralError, NotFound
from corral.model.audit import AuditCheck, AuditEntry
from corral.model.ids import SandboxId, TenantId
from corral.model.lifecycle import State
from corral.model.receipt import Past, Receipt, Sums, Work, past_of
from corral.model.sandbox import Sandbox

log = logging.getLogger(__name__)

PAGE = 1000
SUMMARY_SECONDS = 20.0
ARCHIVE_SECONDS = 3600.0


class AuditLog:
    """Reads what the store keeps. `summarise` says what is in a running sandbox's repository."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        summarise: Callable[[Sandbox], Awaitable[Work]],
        clock: Clock,
        keep: Callable[[], int | None],
        keep_receipts: Callable[[], int | None],
    ) -> None:
        """`keep`: days for which records stay in the database, None for ever; `keep_receipts`: the same of what is kept of
        sandboxes that are gone.
        """
        self._store = store
        self._clock = clock
        self._keep = keep
        self._keep_receipts = keep_receipts
        self._registry = registry
        self._summarise = summarise

    async def page(
        self,
        tenant: TenantId,
        ref: str | None = None,
        *,
        since: datetime | None = None,
        after: int = 0,
    ) -> list[AuditEntry]:
        """Up to PAGE records of a tenant, or of one of its sandboxes, with numbers above `after`, in order. Raises
        NotFound for a sandbox of which nothing is known."""
        sandbox = None if ref is None else (await self._known(tenant, ref)).id
        return await self._store.audit_entries(tenant, sandbox, since, after, PAGE)

    async def check(self) -> AuditCheck:
        """Check the whole log, of all tenants."""
        return await self._store.verify_audit()

    async def archive(self) -> None:
        """Move what is older than is to be kept in the database, in whole days, out of it. What is wrong is logged."""
        days = self._keep()
        if days is None:
            return
        try:
            moved = await self._store.archive_audit(self._days_ago(days))
        except (CorralError, OSError) as error:
            log.error("audit records could not be moved into files: %s", error)
        else:
            if moved:
                log.info("%d audit records were moved into files", moved)

    async def forget_receipts(self) -> None:
        """Forget the sandboxes that have been gone for longer than their receipts are to be kept. What is wrong is logged."""
        days = self._keep_receipts()
        if days is None:
            return
        try:
            forgotten = await self._store.forget_receipts(self._days_ago(days))
        except CorralError as error:
            log.error("receipts could not be forgotten: %s", error)
        else:
            if forgotten:
                log.info("the receipts of %d sandboxes were forgotten", forgotten)

    def _days_ago(self, days: int) -> datetime:
        """The begin of that day."""
        midnight = self._clock.now().astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        return midnight - timedelta(days=days)

    async def keep_short(self) -> None:
        """Do both from time to time; runs until cancelled."""
        while True:
            await self.archive()
            await self.forget_receipts()
            await asyncio.sleep(ARCHIVE_SECONDS)

    async def receipt(self, tenant: TenantId, ref: str) -> Receipt:
        """What a sandbox did, now or until it was removed. Raises NotFound."""
        past = await self._known(tenant, ref)
        sums = Sums()
        async for entries in self._pages(tenant, past.id):
            sums.add(entries)
        return Receipt(
            sandbox=past,
            usage=tuple(await self._store.usage(past.id)),
            approvals=tuple(await self._store.approvals(tenant, past.id)),
            pushes=tuple(sums.pushes),
            denials=sums.denials(),
            denied=sums.denied,
            requests=sums.requests,
        )

    async def keep_work(self, sandbox: Sandbox) -> Work | None:
        """Keep what is in a sandbox's repository, before it ends or changes hands. What cannot be read is left out: it
        must not keep anybody from ending a sandbox."""
        if sandbox.spec.repo is None or sandbox.state is not State.RUNNING:
            return None
        try:
            async with asyncio.timeout(SUMMARY_SECONDS):
                work = await self._summarise(sandbox)
            await self._store.keep_work(past_of(sandbox.spec), work)
        except (CorralError, TimeoutError) as error:
            log.warning("the work of sandbox %s is not in its receipt: %s", sandbox.spec.name, error)
            return None
        return work

    async def _pages(self, tenant: TenantId, sandbox: SandboxId) -> AsyncIterator[list[AuditEntry]]:
        after = 0
        while entries := await self._store.audit_entries(tenant, sandbox, None, after, PAGE):
            yield entries
            after = entries[-1].sequence

    async def _known(self, tenant: TenantId, ref: str) -> Past:
        """A sandbox that is there, with its work as it is now, or the last one that had the name."""
        try:
            sandbox = self._registry.find(tenant, ref)
        except NotFound:
            past = await self._store.past_sandbox(tenant, ref)
            if past is None:
                raise
            return past
        work = await self.keep_work(sandbox)
        kept = await self._store.past_sandbox(tenant, sandbox.id)
        return past_of(sandbox.spec, work or (kept.work if kept else None))

"""What approvals allow beyond the policies that sandboxes were made with: hosts, and standing answers to questions."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from corral.engine.ports import Clock, Store
from corral.engine.registry import Registry
from corral.engine.signals import Change
from corral.errors import CorralError
from corral.model.approval import ApprovalId, Kind, Permission
from corral.model.egress import EgressPolicy
from corral.model.ids import SandboxId, TenantId
from corral.model.sandbox import SandboxSpec
from corral.policy.rules import MAX_RULES, parse_rule

log = logging.getLogger(__name__)

_IDLE_SECONDS = 3600.0


class Permissions:
    """All that approvals still allow, in memory as in the store. `sweep` ends what was allowed for a time."""

    def __init__(self, store: Store, registry: Registry, clock: Clock) -> None:
        self._store = store
        self._registry = registry
        self._clock = clock
        self._all: dict[ApprovalId, Permission] = {}
        self._change = Change()
        self._refresh: Callable[[SandboxId], Awaitable[None]] | None = None

    async def load(self) -> None:
        """Read what the store holds."""
        self._all = {item.approval: item for item in await self._store.permissions()}

    def on_change(self, refresh: Callable[[SandboxId], Awaitable[None]]) -> None:
        """Call `refresh` for each sandbox whose hosts change."""
        self._refresh = refresh

    def of(self, tenant: TenantId, sandbox: SandboxId) -> list[Permission]:
        """What holds in a sandbox now."""
        now = self._clock.now()
        return [item for item in self._all.values() if item.holds_for(tenant, sandbox, now)]

    def standing(self, tenant: TenantId) -> list[Permission]:
        """What holds somewhere in a tenant's sandboxes now."""
        now = self._clock.now()
        return [p for p in self._all.values() if p.tenant == tenant and (p.until is None or now < p.until)]

    def egress_of(self, spec: SandboxSpec) -> EgressPolicy:
        """A sandbox's own policy and the hosts that were allowed since."""
        rules = list(spec.egress.rules)
        for item in self.of(spec.tenant, spec.id):
            if item.kind is Kind.HOST and len(rules) < MAX_RULES:
                rule = parse_rule(item.subject)
                # What is asked for in a sandbox never leads into the host's own network.
                if not rule.private and rule not in rules:
                    rules.append(replace(rule, origin=f"approval {item.approval}"))
        return replace(spec.egress, rules=tuple(rules))

    def covering(self, tenant: TenantId, sandbox: SandboxId, kind: Kind, subject: str) -> Permission | None:
        """The permission that answers a question about `subject`."""
        found = (item for item in self.of(tenant, sandbox) if item.kind is kind and item.subject == subject)
        return next(found, None)

    async def put(self, approval: ApprovalId, permission: Permission | None) -> None:
        """Take what the store holds of an approval now, and let the sandboxes that it is for have it at once."""
        former = self._all.pop(approval, None)
        if permission is not None:
            self._all[approval] = permission
        self._change.notify()
        for item in (former, permission):
            if item is not None and item.kind is Kind.HOST:
                await self._refresh_all(item)

    async def _refresh_all(self, item: Permission) -> None:
        if self._refresh is None:
            return
        for sandbox in self._registry.of(item.tenant):
            if item.sandbox in (None, sandbox.id):
                try:
                    await self._refresh(sandbox.id)
                except CorralError as error:
                    # The gateway is told again when it is back; what was decided stays decided.
                    log.error("the hosts of sandbox %s could not be changed: %s", sandbox.spec.name, error)

    async def sweep(self) -> None:
        """Close what was open for a time; runs until cancelled."""
        while True:
            change = self._change.next()
            now = self._clock.now()
            for item in [p for p in self._all.values() if p.until is not None and p.until <= now]:
                await self.put(item.approval, None)
            ends = [item.until for item in self._all.values() if item.until is not None]
            wait = min(((end - now).total_seconds() for end in ends), default=_IDLE_SECONDS)
            try:
                async with asyncio.timeout(min(max(wait, 0.05), _IDLE_SECONDS)):
                    await asyncio.shield(change)
            except TimeoutError:
                continue

"""The stream of events: a bounded memory of the last ones, and everybody who follows."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import datetime

from corral.engine.signals import Change
from corral.model.approval import Approval
from corral.model.budget import Warned
from corral.model.events import ApprovalEvent, BudgetEvent, Event, LifecycleEvent
from corral.model.ids import TenantId
from corral.model.sandbox import Sandbox

MEMORY = 1000
"""Events kept for clients that reconnect."""


class Events:
    """Publishes sandboxes' state changes, approvals, and warnings of budgets, to followers."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque(maxlen=MEMORY)
        self._change = Change()
        self._sequence = 0
        self._followers: Counter[TenantId] = Counter()

    def followers(self, tenant: TenantId) -> int:
        """How many follow a tenant's events now."""
        return self._followers[tenant]

    def publish(self, sandbox: Sandbox) -> None:
        """Tell followers that `sandbox` entered its state."""
        self._publish(
            LifecycleEvent(
                sequence=self._sequence + 1,
                tenant=sandbox.spec.tenant,
                sandbox=sandbox.id,
                name=sandbox.spec.name,
                state=sandbox.state.value,
                reason=sandbox.reason,
                at=sandbox.changed_at,
            )
        )

    def publish_approval(self, approval: Approval) -> None:
        """Tell followers that `approval` has come to stand as it does."""
        self._publish(ApprovalEvent(self._sequence + 1, approval.tenant, approval))

    def publish_budget(self, warned: Warned, name: str, at: datetime) -> BudgetEvent:
        """Tell followers that much of a budget is spent, by a call of the sandbox `name`."""
        event = BudgetEvent(self._sequence + 1, name, warned, at)
        self._publish(event)
        return event

    def _publish(self, event: Event) -> None:
        self._sequence = event.sequence
        self._events.append(event)
        self._change.notify()

    async def follow(self, tenant: TenantId, after: int | None = None) -> AsyncGenerator[Event, None]:
        """Events of a tenant, without end: those after sequence number `after` that are still kept, then new ones.

        Without `after`, new ones only. A follower that is slower than `MEMORY` events misses the oldest. Whoever
        follows counts as somebody who may answer approvals.
        """
        self._followers[tenant] += 1
        try:
            async with aclosing(self._follow(tenant, after)) as events:
                async for event in events:
                    yield event
        finally:
            self._followers[tenant] -= 1

    async def lives(self, tenant: TenantId, after: int | None = None) -> AsyncGenerator[LifecycleEvent, None]:
        """As `follow`, but of sandboxes' states only, and not as somebody who answers."""
        async with aclosing(self._follow(tenant, after)) as events:
            async for event in events:
                if isinstance(event, LifecycleEvent):
                    yield event

    async def _follow(self, tenant: TenantId, after: int | None) -> AsyncGenerator[Event, None]:
        last = self._sequence if after is None else after
        while True:
            change = self._change.next()
            for event in [e for e in self._events if e.sequence > last]:
                last = event.sequence
                if event.tenant == tenant:
                    yield event
            if last >= self._sequence:
                await asyncio.shield(change)

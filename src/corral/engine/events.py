"""The stream of lifecycle events: a bounded memory of the last ones, and everybody who follows."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from corral.engine.signals import Change
from corral.model.events import LifecycleEvent
from corral.model.ids import TenantId
from corral.model.sandbox import Sandbox

MEMORY = 1000
"""Events kept for clients that reconnect."""


class Events:
    """Publishes sandboxes' state changes to followers."""

    def __init__(self) -> None:
        self._events: deque[LifecycleEvent] = deque(maxlen=MEMORY)
        self._change = Change()
        self._sequence = 0

    def publish(self, sandbox: Sandbox) -> None:
        """Tell followers that `sandbox` entered its state."""
        self._sequence += 1
        self._events.append(
            LifecycleEvent(
                sequence=self._sequence,
                tenant=sandbox.spec.tenant,
                sandbox=sandbox.id,
                name=sandbox.spec.name,
                state=sandbox.state.value,
                reason=sandbox.reason,
                at=sandbox.changed_at,
            )
        )
        self._change.notify()

    async def follow(self, tenant: TenantId, after: int | None = None) -> AsyncIterator[LifecycleEvent]:
        """Events of a tenant, without end: those after sequence number `after` that are still kept, then new ones.

        Without `after`, new ones only. A follower that is slower than `MEMORY` events misses the oldest.
        """
        last = self._sequence if after is None else after
        while True:
            change = self._change.next()
            for event in [e for e in self._events if e.sequence > last]:
                last = event.sequence
                if event.tenant == tenant:
                    yield event
            if last >= self._sequence:
                await asyncio.shield(change)

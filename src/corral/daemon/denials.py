"""What the gateway refused: remembered per sandbox for its owner, and kept in the audit log."""

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any

from corral.engine.ports import Store
from corral.model.audit import AuditItem
from corral.wire.link import AuditRecord

REMEMBERED = 200


class Denials:
    """The last refusals of each sandbox."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._recent: dict[str, deque[dict[str, Any]]] = defaultdict(lambda: deque(maxlen=REMEMBERED))

    async def record(self, records: Sequence[AuditRecord]) -> None:
        """Take decisions of the gateway."""
        items = []
        for record in records:
            detail = record.detail()
            if record.decision == "denied":
                told = {"at": record.at.isoformat(), "kind": record.kind, **detail}
                self._recent[record.sandbox].append(told)
            items.append(AuditItem(record.tenant, record.sandbox, f"gateway.{record.kind}", detail))
        await self._store.audit_all(items)

    def recent(self, sandbox: str) -> list[dict[str, Any]]:
        """A sandbox's last refusals, newest last."""
        return list(self._recent.get(sandbox, ()))

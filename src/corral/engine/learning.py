"""Learning what a sandbox wants to reach, from its audit records."""

from corral.engine.ports import Store
from corral.engine.sandboxes import Sandboxes
from corral.errors import Conflict
from corral.model.audit import AuditItem
from corral.model.egress import EgressPolicy
from corral.model.ids import TenantId
from corral.policy import learning
from corral.policy.learning import BEGAN

_PAGE = 1000
LOCKED = "egress.lock"


class Learning:
    """Opens a sandbox to all names for a while, and closes it to what it has used."""

    def __init__(self, store: Store, sandboxes: Sandboxes) -> None:
        self._store = store
        self._sandboxes = sandboxes

    async def begin(self, tenant: TenantId, ref: str) -> EgressPolicy:
        """Let a sandbox reach any public name, and record which; idempotent. Raises NotFound."""
        sandbox = self._sandboxes.get(tenant, ref)
        policy = sandbox.spec.egress
        if not learning.is_learning(policy):
            policy = learning.begin(policy)
            record = AuditItem(tenant, sandbox.id, BEGAN, {"rule": learning.ORIGIN})
            await self._sandboxes.set_egress(tenant, sandbox.id, policy, record=record)
        return policy

    async def proposal(self, tenant: TenantId, ref: str) -> EgressPolicy:
        """The policy that `lock` would set. Raises Conflict for a sandbox that does not learn."""
        sandbox = self._sandboxes.get(tenant, ref)
        if not learning.is_learning(sandbox.spec.egress):
            raise Conflict(
                f"sandbox {sandbox.spec.name} does not learn",
                f"begin: `corral egress learn {sandbox.spec.name}`",
            )
        hosts: dict[str, set[int]] = {}
        after = 0
        while entries := await self._store.audit_entries(tenant, sandbox.id, None, after, _PAGE):
            hosts = learning.wanted(entries, hosts)
            after = entries[-1].sequence
        return learning.lock(sandbox.spec.egress, hosts)

    async def lock(self, tenant: TenantId, ref: str) -> EgressPolicy:
        """End learning: from now on a sandbox reaches what its policy lists, and what it has reached meanwhile."""
        policy = await self.proposal(tenant, ref)
        sandbox = self._sandboxes.get(tenant, ref)
        learned = [rule.host for rule in policy.rules if rule.origin == learning.LEARNED]
        detail = {"hosts": " ".join(learned)[:8000], "count": str(len(learned))}
        record = AuditItem(tenant, sandbox.id, LOCKED, detail)
        await self._sandboxes.set_egress(tenant, sandbox.id, policy, record=record)
        return policy

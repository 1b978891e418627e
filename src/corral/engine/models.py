"""Which models all of a tenant's sandboxes may use."""

import asyncio

from corral.engine.ports import Gateway, Store
from corral.model.grants import ModelRules
from corral.model.ids import TenantId
from corral.policy.models import checked_rules


class Models:
    """Tenants' rules. A change is durable before the gateway goes by it."""

    def __init__(self, store: Store, gateway: Gateway) -> None:
        self._store = store
        self._gateway = gateway
        self._changing = asyncio.Lock()

    async def publish(self) -> None:
        """Hand all of them to the gateway."""
        await self._gateway.set_models(await self._store.tenant_models())

    async def of(self, tenant: TenantId) -> ModelRules:
        """A tenant's; all models where none were set."""
        found = {item.tenant: item.rules for item in await self._store.tenant_models()}
        return found.get(tenant, ModelRules())

    async def change(self, tenant: TenantId, rules: ModelRules) -> ModelRules:
        """Replace a tenant's, from the next call on. Raises InvalidInput."""
        checked_rules(rules)
        # Of two changes the later one must be the last that the gateway hears of.
        async with self._changing:
            await self._store.set_tenant_models(tenant, rules)
            await self.publish()
        detail = {"models": ",".join(rules.allow)}
        if rules.aliases:
            detail["aliases"] = ",".join(f"{alias.asked}={alias.sent}" for alias in rules.aliases)
        await self._store.audit(tenant, None, "models.set", detail)
        return rules

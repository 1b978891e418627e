"""Which models all of a tenant's sandboxes may use."""

import asyncio
import logging

from corral.engine.granted import told_models
from corral.engine.ports import Gateway, Store
from corral.errors import CorralError
from corral.model.audit import AuditItem
from corral.model.grants import ModelRules, TenantModels
from corral.model.ids import TenantId
from corral.policy.models import checked_rules

log = logging.getLogger(__name__)

FRESH_SECONDS = 10.0


class Models:
    """Tenants' rules. A change is durable before the gateway goes by it."""

    def __init__(self, store: Store, gateway: Gateway) -> None:
        self._store = store
        self._gateway = gateway
        self._changing = asyncio.Lock()
        self._published: list[TenantModels] | None = None

    async def publish(self) -> None:
        """Hand all of them to the gateway, unless it has them."""
        held = await self._store.tenant_models()
        if held != self._published:
            await self._gateway.set_models(held)
            self._published = held

    async def keep_fresh(self) -> None:
        """Give the gateway what other daemons on a shared database have changed; runs until cancelled."""
        while True:
            await asyncio.sleep(FRESH_SECONDS)
            try:
                async with self._changing:
                    await self.publish()
            except CorralError as error:
                log.error("tenants' models could not be kept fresh: %s", error)

    async def of(self, tenant: TenantId) -> ModelRules:
        """A tenant's; all models where none were set."""
        found = {item.tenant: item.rules for item in await self._store.tenant_models()}
        return found.get(tenant, ModelRules())

    async def change(self, tenant: TenantId, rules: ModelRules) -> ModelRules:
        """Replace a tenant's, from the next call on. Raises InvalidInput."""
        checked_rules(rules)
        record = AuditItem(tenant, None, "models.set", told_models(rules))
        # Of two changes the later one must be the last that the gateway hears of.
        async with self._changing:
            await self._store.set_tenant_models(tenant, rules, record)
            await self.publish()
        return rules

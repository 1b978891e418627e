"""API keys, for the API over TCP."""

from corral.engine.ports import Clock, Store
from corral.model.ids import TenantId
from corral.model.secrets import ApiKeyInfo, Secret


class ApiKeys:
    """The keys of all tenants. Only their keyed hashes are kept."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def create(self, tenant: TenantId, label: str) -> Secret:
        """A new key; nobody can show it again."""
        key, made = await self._store.add_api_key(tenant, label, self._clock.now())
        await self._store.audit(tenant, None, "key.create", {"label": made.label, "id": made.id})
        return key

    async def list(self, tenant: TenantId) -> list[ApiKeyInfo]:
        """What may be shown of a tenant's keys, oldest first."""
        return await self._store.api_keys(tenant)

    async def revoke(self, tenant: TenantId, ref: str) -> ApiKeyInfo:
        """Refuse a key from the next request on. Raises NotFound, Conflict where several have that label."""
        revoked = await self._store.revoke_api_key(tenant, ref)
        await self._store.audit(tenant, None, "key.revoke", {"label": revoked.label, "id": revoked.id})
        return revoked

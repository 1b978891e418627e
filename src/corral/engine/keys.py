"""API keys, for the API over TCP."""

from corral.engine.ports import Clock, Store
from corral.model.audit import AuditItem
from corral.model.ids import TenantId
from corral.model.secrets import ApiKeyInfo, Secret


class ApiKeys:
    """The keys of all tenants. Only their keyed hashes are kept."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def create(self, tenant: TenantId, label: str) -> Secret:
        """A new key; nobody can show it again."""
        key, _ = await self._store.add_api_key(
            tenant, label, self._clock.now(), lambda made: _record(tenant, "key.create", made)
        )
        return key

    async def list(self, tenant: TenantId) -> list[ApiKeyInfo]:
        """What may be shown of a tenant's keys, oldest first."""
        return await self._store.api_keys(tenant)

    async def revoke(self, tenant: TenantId, ref: str) -> ApiKeyInfo:
        """Refuse a key from the next request on. Raises NotFound, Conflict where several have that label."""
        return await self._store.revoke_api_key(
            tenant, ref, lambda revoked: _record(tenant, "key.revoke", revoked)
        )


def _record(tenant: TenantId, kind: str, key: ApiKeyInfo) -> AuditItem:
    return AuditItem(tenant, None, kind, {"label": key.label, "id": key.id})

"""Queries on which models tenants may use."""

from sqlalchemy import Connection, delete, insert, select

from corral.model.grants import ModelRules, TenantModels
from corral.model.ids import TenantId
from corral.store.codec import decode
from corral.store.schema import tenant_models as _table
from corral.wire.codec import encode


def put(db: Connection, tenant: TenantId, rules: ModelRules) -> None:
    """Replace a tenant's rules."""
    db.execute(delete(_table).where(_table.c.tenant == tenant))
    db.execute(insert(_table).values(tenant=tenant, rules=encode(rules)))


def every(db: Connection) -> list[TenantModels]:
    """Those of all tenants that have some."""
    rows = db.execute(select(_table).order_by(_table.c.tenant))
    return [TenantModels(TenantId(row.tenant), decode(ModelRules, row.rules)) for row in rows]

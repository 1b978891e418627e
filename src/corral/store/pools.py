"""Queries on warm pools."""

from sqlalchemy import Connection, bindparam, delete, insert, select

from corral.model.ids import TenantId
from corral.model.pool import Pool
from corral.model.sandbox import Isolation
from corral.store import schema
from corral.store.codec import decode
from corral.store.instances import own
from corral.wire.codec import encode

_pools = schema.pools
_own = _pools.c.instance == bindparam("own")
_ALL = select(_pools.c.document).where(_own).order_by(_pools.c.tenant, _pools.c.template, _pools.c.isolation)
_REMOVE = delete(_pools).where(
    _own,
    _pools.c.tenant == bindparam("of_tenant"),
    _pools.c.template == bindparam("of_template"),
    _pools.c.isolation == bindparam("of_isolation"),
)


def put(db: Connection, pool: Pool) -> None:
    """Add it, or replace the one in its place."""
    remove(db, pool.tenant, pool.template, pool.isolation)
    key = {
        "instance": own(db),
        "tenant": pool.tenant,
        "template": pool.template,
        "isolation": pool.isolation.value,
    }
    db.execute(insert(_pools).values(**key, document=encode(pool)))


def remove(db: Connection, tenant: TenantId, template: str, isolation: Isolation) -> None:
    """Idempotent."""
    which = {"own": own(db), "of_tenant": tenant, "of_template": template, "of_isolation": isolation.value}
    db.execute(_REMOVE, which)


def select_all(db: Connection) -> list[Pool]:
    """Of all tenants, on this host."""
    return [decode(Pool, document) for document in db.scalars(_ALL, {"own": own(db)})]

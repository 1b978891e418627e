"""Queries on sandboxes as they are remembered, also once they are gone."""

from dataclasses import replace
from datetime import datetime

from sqlalchemy import Connection, bindparam, delete, desc, insert, or_, select, update

from corral.model.ids import TenantId
from corral.model.receipt import Past, Work
from corral.store import approvals, schema
from corral.store.codec import decode
from corral.wire.codec import encode

_table = schema.past
_ADD = insert(_table)
_SET = (
    update(_table)
    .where(_table.c.sandbox == bindparam("of_sandbox"))
    .values(name=bindparam("name"), ended_at=bindparam("ended_at"), document=bindparam("document"))
)
_OF = select(_table.c.document).where(_table.c.sandbox == bindparam("of_sandbox"))


def keep(db: Connection, past: Past) -> None:
    """Remember a sandbox as it is now; what was in its repository before stays, if nothing newer is given."""
    former = db.scalar(_OF, {"of_sandbox": past.id})
    if former is not None and past.work is None:
        past = replace(past, work=decode(Past, former).work)
    values = {"name": past.name, "ended_at": past.ended_at, "document": encode(past)}
    if former is None:
        db.execute(_ADD, {"sandbox": past.id, "tenant": past.tenant, **values})
    else:
        db.execute(_SET, {"of_sandbox": past.id, **values})


def keep_work(db: Connection, past: Past, work: Work) -> None:
    """Remember what is in a sandbox's repository."""
    keep(db, replace(past, work=work))


def find(db: Connection, tenant: TenantId, ref: str) -> Past | None:
    """The one with that id, or the last one that had that name."""
    query = (
        select(_table.c.document)
        .where(_table.c.tenant == tenant, or_(_table.c.sandbox == ref, _table.c.name == ref))
        .order_by(desc(_table.c.sandbox == ref), desc(_table.c.ended_at))
    )
    row = db.execute(query.limit(1)).first()
    return None if row is None else decode(Past, row.document)


def forget(db: Connection, before: datetime, limit: int) -> int:
    """Forget up to `limit` sandboxes that were gone before that time, with their calls, accounts and approvals; how many."""
    gone = db.scalars(select(_table.c.sandbox).where(_table.c.ended_at < before).limit(limit)).all()
    approvals.forget(db, gone)
    for column in (schema.usage.c.sandbox, schema.balances.c.subject, _table.c.sandbox):
        db.execute(delete(column.table).where(column.in_(gone)))
    return len(gone)


def end(db: Connection, past: Past, at: datetime) -> None:
    """Remember that it is gone."""
    keep(db, replace(past, ended_at=at))

"""The leases that a batch of calls touches: read once, changed in memory, written once."""

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from corral.model.budget import Lease
from corral.model.ids import SandboxId, TenantId
from corral.store import schema
from corral.store.books import padded
from corral.store.instances import own
from corral.store.prepared import Prepared

_leases = schema.leases
_FIND = Prepared(select(_leases).where(_leases.c.id.in_(bindparam("ids", expanding=True))))
_ALL = select(_leases).where(_leases.c.instance == bindparam("own"))
_ADD = Prepared(insert(_leases), _leases.c.keys())
_SET = Prepared(
    update(_leases)
    .where(_leases.c.id == bindparam("of_id"))
    .values(amount=bindparam("amount"), drawn=bindparam("drawn"), at=bindparam("at"))
)
_DROP = Prepared(delete(_leases).where(_leases.c.id == bindparam("of_id")))


class Leases:
    """Those with these ids that there are, and what is to be written."""

    def __init__(self, db: Connection, ids: Collection[str]) -> None:
        rows = _FIND.all(db, {"ids": padded(ids)}) if ids else []
        self.found = {row["id"]: _lease(row) for row in rows}
        self._stored = set(self.found)
        self._changed: set[str] = set()

    def get(self, holder: str, number: int) -> Lease | None:
        """One of them, if it is there."""
        return self.found.get(id_of(holder, number))

    def put(self, lease: Lease) -> None:
        """Add it, or change it."""
        id = id_of(lease.holder, lease.number)
        self.found[id] = lease
        self._changed.add(id)

    def pop(self, holder: str, number: int) -> Lease | None:
        """The same as `get`; it is there no more."""
        return self.found.pop(id_of(holder, number), None)

    def save(self, db: Connection) -> None:
        """Write what has changed; what is not found any more goes."""
        mine, new, old = own(db), [], []
        for id in self._changed & set(self.found):
            lease = self.found[id]
            left = {"amount": lease.amount, "drawn": lease.drawn, "at": lease.at}
            if id in self._stored:
                old.append({"of_id": id, **left})
            else:
                whose = {"holder": lease.holder, "tenant": lease.tenant, "sandbox": lease.sandbox}
                new.append({"id": id, "instance": mine, **whose, **left})
        _ADD.each(db, new)
        _SET.each(db, old)
        _DROP.each(db, [{"of_id": id} for id in self._stored - set(self.found)])


def id_of(holder: str, number: int) -> str:
    """A lease's key."""
    return f"{holder}:{number}"


def open_leases(db: Connection, holder: str | None) -> list[Lease]:
    """This installation's, of one gateway process or (None) of all."""
    chosen = _ALL if holder is None else _ALL.where(_leases.c.holder == holder)
    return [_lease(dict(row)) for row in db.execute(chosen, {"own": own(db)}).mappings()]


def of_tenant(db: Connection, tenant: TenantId) -> list[Lease]:
    """All installations' of a tenant."""
    rows = db.execute(select(_leases).where(_leases.c.tenant == tenant)).mappings()
    return [_lease(dict(row)) for row in rows]


def _lease(row: Mapping[str, Any]) -> Lease:
    holder, _, number = row["id"].rpartition(":")
    return Lease(
        holder,
        int(number),
        TenantId(row["tenant"]),
        SandboxId(row["sandbox"]),
        row["amount"],
        row["drawn"],
        row["at"],
    )

"""Queries on volumes."""

from sqlalchemy import Connection, bindparam, delete, insert, select

from corral.model.ids import VolumeId
from corral.model.volume import Volume
from corral.store import schema
from corral.store.codec import decode
from corral.store.instances import own
from corral.wire.codec import encode

_volumes = schema.volumes
_ALL = select(_volumes.c.document).where(_volumes.c.instance == bindparam("own"))
_REMOVE = delete(_volumes).where(_volumes.c.id == bindparam("volume"))


def put(db: Connection, volume: Volume) -> None:
    """Add it, or replace what is said of it."""
    remove(db, volume.id)
    values = {"id": volume.id, "instance": own(db), "tenant": volume.tenant, "name": volume.name}
    db.execute(insert(_volumes).values(**values, document=encode(volume)))


def remove(db: Connection, volume: VolumeId) -> None:
    """Idempotent."""
    db.execute(_REMOVE, {"volume": volume})


def select_all(db: Connection) -> list[Volume]:
    """Of all tenants, on this host."""
    return [decode(Volume, document) for document in db.scalars(_ALL, {"own": own(db)})]

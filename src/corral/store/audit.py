"""The audit log: records are only ever appended, and each one's hash covers the one before it.

Record n has `hash = sha256(hash of n-1, newline, canonical JSON of the record)`; before the first record
stands an empty hash. The last record's number and hash are sealed with the installation's key, so that
neither a changed record, nor a missing one, nor a log cut off at its end, nor one recomputed as a whole
passes `verify`.
"""

import hashlib
import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, bindparam, delete, desc, insert, select, update

from corral.errors import HostError, InvalidInput
from corral.model.audit import AuditEntry, AuditItem
from corral.model.ids import SandboxId, TenantId
from corral.store import schema
from corral.store.keys import Keys

MAX_DETAIL = 16 * 1024
"""Bytes of a record's detail as JSON: one sandbox's records cannot fill the disk with a few calls."""
BATCH = 2000
"""Records checked per transaction: other calls of the store go between."""

_HEAD, _START = "audit_head", "audit_start"
_table, _facts = schema.audit, schema.installation
_ADD = insert(_table)
_LAST = select(_table.c.sequence, _table.c.hash).order_by(desc(_table.c.sequence)).limit(1)
_FIND_HEAD = select(_facts.c.value).where(_facts.c.key == _HEAD)
_ADD_HEAD = insert(_facts).values(key=bindparam("head"), value=bindparam("seal"))
_SET_HEAD = update(_facts).where(_facts.c.key == bindparam("head")).values(value=bindparam("seal"))


def canonical(sequence: int, at: datetime, tenant: str, sandbox: str | None, kind: str, detail: str) -> str:
    """A record as the one text that its hash covers."""
    fields = [sequence, at.isoformat(timespec="microseconds"), tenant, sandbox, kind, detail]
    return json.dumps(fields, separators=(",", ":"))


def chain(previous: str, record: str) -> str:
    """The hash of a record that follows the one whose hash is `previous`."""
    return hashlib.sha256(f"{previous}\n{record}".encode()).hexdigest()


def append(
    db: Connection,
    keys: Keys,
    at: datetime,
    tenant: TenantId,
    sandbox: SandboxId | None,
    kind: str,
    detail: dict[str, str],
) -> None:
    """Add one record."""
    append_all(db, keys, at, [AuditItem(tenant, sandbox, kind, detail)])


def append_all(db: Connection, keys: Keys, at: datetime, items: Sequence[AuditItem]) -> None:
    """Add records, in order."""
    last = _sealed_last(db, keys)
    if last is None:
        raise HostError(
            "the audit log was altered: its last record is not the one that was sealed",
            "keep the data directory as evidence; what needs an audit record is refused until it is restored",
        )
    sequence, digest = last.sequence, last.hash
    rows = []
    for item in items:
        text = _text(item)
        sequence += 1
        digest = chain(digest, canonical(sequence, at, item.tenant, item.sandbox, item.kind, text))
        record = {
            "sequence": sequence,
            "tenant": item.tenant,
            "sandbox": item.sandbox,
            "at": at,
            "kind": item.kind,
        }
        rows.append({**record, "detail": text, "hash": digest})
    db.execute(_ADD, rows)
    _set_head(db, keys.audit_head(sequence, digest), first=last.sequence == 0)


def _text(item: AuditItem) -> str:
    text = json.dumps(item.detail, sort_keys=True, separators=(",", ":"))
    if len(text) > MAX_DETAIL:
        raise InvalidInput(f"an audit record of {len(text)} bytes is too large", f"use at most {MAX_DETAIL}")
    return text


def _set_head(db: Connection, seal: str, *, first: bool) -> None:
    db.execute(_ADD_HEAD if first else _SET_HEAD, {"head": _HEAD, "seal": seal})


def batch(db: Connection, after: int, upto: int) -> Sequence[Row[Any]]:
    """Up to BATCH records with numbers above `after`, to `upto`."""
    query = select(_table).where(_table.c.sequence > after, _table.c.sequence <= upto)
    return db.execute(query.order_by(_table.c.sequence).limit(BATCH)).all()


def entries(
    db: Connection,
    tenant: TenantId,
    sandbox: SandboxId | None,
    since: datetime | None,
    after: int,
    limit: int,
) -> list[AuditEntry]:
    """Records of a tenant, or of one of its sandboxes, in order."""
    query = select(_table).where(_table.c.tenant == tenant, _table.c.sequence > after)
    if sandbox is not None:
        query = query.where(_table.c.sandbox == sandbox)
    if since is not None:
        query = query.where(_table.c.at >= since)
    return [
        AuditEntry(
            row.sequence,
            row.at,
            TenantId(row.tenant),
            None if row.sandbox is None else SandboxId(row.sandbox),
            row.kind,
            json.loads(row.detail),
            row.hash,
        )
        for row in db.execute(query.order_by(_table.c.sequence).limit(limit))
    ]


def last_sequence(db: Connection, keys: Keys) -> int | None:
    """The number of the last record (0: none), or None if the seal does not vouch for it."""
    last = _sealed_last(db, keys)
    return None if last is None else last.sequence


def start(db: Connection, keys: Keys) -> "Place | None":
    """Where the database's part of the chain begins: the place of the last record that was moved out. None if the seal
    does not vouch for it.
    """
    noted = db.scalar(select(_facts.c.value).where(_facts.c.key == _START))
    if noted is None:
        return Place()
    number, digest, seal = (*noted.split(":"), "", "", "")[:3]
    if not number.isdecimal() or not hmac.compare_digest(seal, keys.audit_start(int(number), digest)):
        return None
    return Place(int(number), digest)


def last_before(db: Connection, moment: datetime) -> int:
    """The number of the last record with none from that time on before it, short of the very last one: the seal on the
    end of the log needs that.
    """
    later = select(_table.c.sequence).where(_table.c.at >= moment).order_by(_table.c.sequence).limit(1)
    first, last = db.scalar(later), db.execute(_LAST).first()
    end = 0 if last is None else last.sequence - 1
    return end if first is None else min(first - 1, end)


def drop(db: Connection, keys: Keys, begins: "Place", upto: "Place") -> None:
    """Take out records that were moved, unless another daemon was first."""
    if start(db, keys) != begins:
        return
    db.execute(delete(_table).where(_table.c.sequence <= upto.sequence))
    db.execute(delete(_facts).where(_facts.c.key == _START))
    seal = keys.audit_start(upto.sequence, upto.hash)
    db.execute(insert(_facts).values(key=_START, value=f"{upto.sequence}:{upto.hash}:{seal}"))


def _sealed_last(db: Connection, keys: Keys) -> "Place | None":
    """The end of the chain, or None if the seal does not vouch for it."""
    last = db.execute(_LAST).first()
    seal = db.scalar(_FIND_HEAD)
    if last is None and seal is None:
        return Place()
    if last is None or seal is None:
        return None
    sound = hmac.compare_digest(seal, keys.audit_head(last.sequence, last.hash))
    return Place(last.sequence, last.hash) if sound else None


@dataclass(slots=True)
class Place:
    """A place in the chain, the number and hash of its last record, that moves on record by record."""

    sequence: int = 0
    hash: str = ""

    def fault(self, rows: Sequence[Row[Any]]) -> str:
        """What is wrong in the next rows; empty if nothing is, and they are then behind us."""
        for row in rows:
            if row.sequence != self.sequence + 1:
                return f"record {self.sequence + 1} is missing"
            record = canonical(row.sequence, row.at, row.tenant, row.sandbox, row.kind, row.detail)
            digest = chain(self.hash, record)
            if digest != row.hash:
                return f"record {row.sequence} was altered"
            self.sequence, self.hash = row.sequence, digest
        return ""

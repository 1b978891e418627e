"""Queries on what calls did lately: of the last minute for rates, of rolling windows for budgets.

They are asked only where such a limit is set. All of it is read from the ledger, so it survives whatever the ledger does.
"""

from datetime import datetime, timedelta

from sqlalchemy import BigInteger, ColumnElement, Connection, func, select, type_coerce

from corral.policy.rates import MINUTE, Recent
from corral.store import schema

_usage, _open = schema.usage, schema.reservations
_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
_MICROSECOND = timedelta(microseconds=1)
_LONGEST_CALL = timedelta(hours=6)


def _us(at: datetime) -> int:
    return (at - _EPOCH) // _MICROSECOND


def _at(value: int | None) -> datetime | None:
    return None if value is None else _EPOCH + value * _MICROSECOND


def _of(table: object, tenant: str, sandbox: str) -> list[ColumnElement[bool]]:
    columns = _usage.c if table is _usage else _open.c
    chosen = [columns.tenant == tenant]
    return [*chosen, columns.sandbox == sandbox] if sandbox else chosen


def spent_since(db: Connection, tenant: str, sandbox: str, since: datetime) -> tuple[int, datetime | None]:
    """What calls cost that began after `since`, and when the oldest of them began. No `sandbox`: of the whole tenant."""
    row = db.execute(
        select(
            func.coalesce(func.sum(_usage.c.cost), 0), func.min(type_coerce(_usage.c.at, BigInteger))
        ).where(*_of(_usage, tenant, sandbox), _usage.c.at > since)
    ).one()
    return int(row[0]), _at(row[1])


def recent(db: Connection, tenant: str, sandbox: str, now: datetime) -> Recent:
    """The calls of the last minute, and how many are under way."""
    since = now - MINUTE
    began = type_coerce(_usage.c.at, BigInteger)
    ended = began + _usage.c.duration_ms * 1000
    tokens = _usage.c.input + _usage.c.output + _usage.c.cache_read + _usage.c.cache_write
    done = db.execute(
        select(func.count(), func.min(began)).where(*_of(_usage, tenant, sandbox), _usage.c.at > since)
    ).one()
    under_way = db.execute(
        select(
            func.count(),
            func.count().filter(_open.c.at > since),
            func.min(type_coerce(_open.c.at, BigInteger)).filter(_open.c.at > since),
        ).where(*_of(_open, tenant, sandbox))
    ).one()
    used = db.execute(
        select(func.coalesce(func.sum(tokens), 0), func.min(ended)).where(
            *_of(_usage, tenant, sandbox), _usage.c.at > now - _LONGEST_CALL, ended > _us(since)
        )
    ).one()
    begun: list[int | None] = [done[1], under_way[2]]
    firsts = [first for first in begun if first is not None]
    return Recent(
        requests=done[0] + under_way[1],
        tokens=int(used[0]),
        open=under_way[0],
        first_request=_at(min(firsts, default=None)),
        first_tokens=_at(used[1]),
    )

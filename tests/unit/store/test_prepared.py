"""Statements run by the driver itself are what SQLAlchemy would have run."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import BindParameter, Connection, bindparam, delete, insert, select, update
from tests.unit.store import where

from corral.errors import Conflict
from corral.store import schema
from corral.store.database import Database
from corral.store.prepared import Prepared

USAGE, BALANCES = schema.usage, schema.balances
COLUMNS = [column.name for column in USAGE.c if column.name != "id"]
AT = datetime(2026, 3, 4, 5, 6, 7, 89, tzinfo=UTC)
OF: BindParameter[str] = bindparam("models", expanding=True)


def call(model: str, cost: int, *, assumed: bool = False) -> dict[str, Any]:
    texts = dict.fromkeys(("tenant", "sandbox", "secret", "provider", "request_id", "path"), "x:%(y)s?é")
    numbers = dict.fromkeys(("input", "output", "cache_read", "cache_write", "status", "duration_ms"), 2**40)
    return {**texts, **numbers, "status": 200, "model": model, "cost": cost, "assumed": assumed, "at": AT}


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    found = Database(where.url_of(tmp_path), "only")
    await found.open()
    yield found
    await found.close()


async def test_rows_are_what_was_said_whatever_their_types_and_however_many(database: Database) -> None:
    def work(db: Connection) -> None:
        Prepared(insert(USAGE), COLUMNS).each(
            db, [call("a", 1, assumed=True), call("b", 2), call("c", 2**50)]
        )
        query = select(USAGE).where(USAGE.c.model.in_(OF), USAGE.c.at >= bindparam("since"))
        prepared = Prepared(query.order_by(USAGE.c.id))
        for models in (["a"], ["a", "c"], ["c", "a"], ["a", "b", "c", "c"], ["none"]):
            values = {"models": models, "since": AT}
            assert prepared.all(db, values) == [dict(row) for row in db.execute(query, values).mappings()]
        assert [row["assumed"] for row in prepared.all(db, {"models": ["a", "b"], "since": AT})] == [
            True,
            False,
        ]

    await database.run(work)


async def test_changes_are_those_that_were_meant(database: Database) -> None:
    change = Prepared(
        update(BALANCES)
        .where(BALANCES.c.subject == bindparam("of_subject"))
        .values(spent=bindparam("spent"), reserved=bindparam("reserved"))
    )
    drop = Prepared(delete(BALANCES).where(BALANCES.c.subject == bindparam("of_subject")))

    def work(db: Connection) -> list[tuple[Any, ...]]:
        for subject in ("a", "b", "c"):
            db.execute(insert(BALANCES).values(tenant="t", subject=subject, day=-1, spent=0, reserved=0))
        change.each(
            db,
            [{"of_subject": "a", "spent": 1, "reserved": 2}, {"of_subject": "b", "spent": 3, "reserved": 4}],
        )
        drop.each(db, [{"of_subject": "c"}])
        drop.each(db, [])
        found = db.execute(
            select(BALANCES.c.subject, BALANCES.c.spent, BALANCES.c.reserved).order_by("subject")
        )
        return [tuple(row) for row in found]

    assert await database.run(work) == [("a", 1, 2), ("b", 3, 4)]


async def test_what_the_database_refuses_is_told_without_values_and_undone(database: Database) -> None:
    add = Prepared(insert(BALANCES), ("tenant", "subject", "day", "spent", "reserved"))
    row = {"tenant": "canary-0123", "subject": "s", "day": -1, "spent": 0, "reserved": 0}
    with pytest.raises(Conflict) as told:
        await database.run(lambda db: add.each(db, [row, row]))
    assert "canary-0123" not in told.value.message + told.value.hint
    assert await database.run(lambda db: db.execute(select(BALANCES)).all()) == []

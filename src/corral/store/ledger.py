"""Queries on what was spent, and on what the operator says that models cost."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, case, delete, func, insert, select

from corral.engine.ports import ModelPrice
from corral.model.ids import DEFAULT_TENANT, SandboxId
from corral.model.usage import Tokens, Usage, UsageTotal
from corral.store import schema
from corral.store.prepared import Prepared

_usage, _prices = schema.usage, schema.prices
_ADD_USAGE = Prepared(insert(_usage), [column.name for column in _usage.c if column.name != "id"])
_TOTALS = (
    select(
        _usage.c.model,
        func.count().label("calls"),
        func.sum(_usage.c.input).label("input"),
        func.sum(_usage.c.output).label("output"),
        func.sum(_usage.c.cache_read).label("cache_read"),
        func.sum(_usage.c.cache_write).label("cache_write"),
        func.sum(_usage.c.cost).label("cost"),
        func.sum(case((_usage.c.assumed, 1), else_=0)).label("assumed"),
    )
    .where(_usage.c.sandbox == bindparam("sandbox"))
    .group_by(_usage.c.model)
    .order_by(_usage.c.model)
)

MAX_TEXT = 1024
"""Characters kept of a text that came out of a sandbox or from a provider."""


def add_usage(db: Connection, calls: Sequence[Usage]) -> None:
    """Append calls. What they cost is charged to their accounts by `budgets`, in the same transaction."""
    _ADD_USAGE.each(db, [_row(usage) for usage in calls])


def _row(usage: Usage) -> dict[str, Any]:
    tokens = usage.tokens
    return {
        "tenant": usage.tenant,
        "sandbox": usage.sandbox,
        "secret": usage.secret,
        "provider": usage.provider,
        "model": storable(usage.model),
        "input": tokens.input,
        "output": tokens.output,
        "cache_read": tokens.cache_read,
        "cache_write": tokens.cache_write,
        "cost": usage.cost,
        "assumed": usage.assumed,
        "status": usage.status,
        "duration_ms": usage.duration_ms,
        "at": usage.at,
        "request_id": storable(usage.request_id),
        "path": storable(usage.path),
    }


def storable(text: str) -> str:
    """`text` without what a database refuses (NUL, lone surrogates), and bounded: a call that was paid for
    is always recorded, whatever the sandbox named its model.
    """
    return text[:MAX_TEXT].replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def totals(db: Connection, sandbox: SandboxId) -> list[UsageTotal]:
    """A sandbox's calls summed by model, in order of the model's name."""
    return [
        UsageTotal(row.model, row.calls, Tokens(*map(int, row[2:6])), int(row.cost), row.assumed > 0)
        for row in db.execute(_TOTALS, {"sandbox": sandbox})
    ]


def set_price(db: Connection, price: ModelPrice) -> None:
    """Set or replace a price."""
    which = (
        _prices.c.tenant == DEFAULT_TENANT,
        _prices.c.secret == price.secret,
        _prices.c.model == price.model,
    )
    db.execute(delete(_prices).where(*which))
    db.execute(
        insert(_prices).values(
            tenant=DEFAULT_TENANT,
            secret=price.secret,
            model=price.model,
            input=price.input,
            output=price.output,
            cache_read=price.cache_read,
            cache_write=price.cache_write,
        )
    )


def prices(db: Connection) -> list[ModelPrice]:
    """All prices, in order of secret and model."""
    query = select(_prices).order_by(_prices.c.secret, _prices.c.model)
    return [
        ModelPrice(row.secret, row.model, row.input, row.output, row.cache_read, row.cache_write)
        for row in db.execute(query)
    ]

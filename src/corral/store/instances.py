"""Whose rows are whose, where several daemons share a database.

Sandboxes, templates (whose layers are files of one host), warm pools, volumes, questions and reservations belong to the
installation that made them: a random name that is kept in its data directory. Queries that take all rows, or find one by its
name, take those of their own installation. Tenants, secrets, prices, budgets, usage, keys and the audit log are shared.
"""

from sqlalchemy import Connection, update

from corral.store import schema

OPTION = "corral_instance"
_OWNED = (
    schema.sandboxes,
    schema.templates,
    schema.assignments,
    schema.reservations,
    schema.approvals,
    schema.pools,
)


def own(db: Connection) -> str:
    """The installation that this connection works for."""
    name: str = db.get_execution_options()[OPTION]
    return name


def adopt(db: Connection) -> None:
    """Take over rows from before there were names: they are those of the only daemon that the database had."""
    for table in _OWNED:
        db.execute(update(table).where(table.c.instance == "").values(instance=own(db)))

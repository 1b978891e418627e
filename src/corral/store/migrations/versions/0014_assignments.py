"""What names of templates stand for, and since when."""

import hashlib
import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_TEMPLATES = sa.table(
    "templates",
    *(sa.column(name) for name in ("id", "instance", "tenant", "name", "created_at")),
    sa.column("current", sa.Boolean),
    sa.column("layers", sa.JSON),
    sa.column("document", sa.JSON),
)


def upgrade() -> None:
    """Make the table, with what names stand for now."""
    assignments = op.create_table(
        "assignments",
        sa.Column("template", sa.String(16), nullable=False),
        sa.Column("instance", sa.String(16), nullable=False),
        sa.Column("tenant", sa.String(63), nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("build", sa.String(64), nullable=False),
        sa.Column("built_at", sa.BigInteger, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("template", name="pk_assignments"),
    )
    op.create_index("ix_assignments_instance_tenant_name", "assignments", ["instance", "tenant", "name"])
    op.create_index("ix_assignments_build", "assignments", ["build"])
    offered = op.get_bind().execute(
        sa.select(_TEMPLATES).where(_TEMPLATES.c.current).order_by(_TEMPLATES.c.created_at)
    )
    first: dict[tuple[str, str, str], int] = {}
    rows = []
    for row in offered:
        build = _fingerprint(row.layers, row.document["config"])
        built_at = first.setdefault((row.instance, row.tenant, build), row.created_at)
        rows.append(
            {
                "template": row.id,
                "instance": row.instance,
                "tenant": row.tenant,
                "name": row.name,
                "build": build,
                "built_at": built_at,
                "at": row.created_at,
            }
        )
    if rows:
        op.bulk_insert(assignments, rows)


def _fingerprint(layers: list[str], config: dict[str, Any]) -> str:
    """As `corral.engine.fingerprint` made it when this was written."""
    filled = {key: _one_form(value) for key, value in config.items() if value}
    return hashlib.sha256(json.dumps([layers, filled], sort_keys=True).encode()).hexdigest()


def _one_form(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _one_form(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_one_form(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value

"""Sandboxes as they are remembered once they are gone."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "past",
        sa.Column("sandbox", sa.String(16), nullable=False),
        sa.Column("tenant", sa.String(63), nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("ended_at", sa.BigInteger),
        sa.Column("document", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("sandbox", name="pk_past"),
    )
    op.create_index("ix_past_tenant_name", "past", ["tenant", "name"])

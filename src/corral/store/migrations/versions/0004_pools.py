"""Warm pools."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "pools",
        sa.Column("tenant", sa.String(63), nullable=False),
        sa.Column("template", sa.String(63), nullable=False),
        sa.Column("isolation", sa.String(16), nullable=False),
        sa.Column("document", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "template", "isolation", name="pk_pools"),
    )

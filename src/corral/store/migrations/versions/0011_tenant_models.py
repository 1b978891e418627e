"""Rules for the models of all of a tenant's sandboxes."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "tenant_models",
        sa.Column("tenant", sa.String(63), nullable=False),
        sa.Column("rules", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("tenant", name="pk_tenant_models"),
    )

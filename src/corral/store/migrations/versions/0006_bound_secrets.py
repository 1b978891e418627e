"""Secrets that are bound to hosts."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add what a secret is bound to; those that are there are bound to a model API."""
    op.add_column("secrets", sa.Column("binding", sa.JSON(none_as_null=True)))

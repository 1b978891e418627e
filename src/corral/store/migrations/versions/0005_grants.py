"""Grants: models, an end, revocation, and the token before the last renewal."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; grants that are there allow all models and have no end."""
    any_model = '{"allow": ["*"], "aliases": []}'
    op.add_column("grants", sa.Column("models", sa.JSON, nullable=False, server_default=any_model))
    op.add_column("grants", sa.Column("expires_at", sa.BigInteger))
    op.add_column("grants", sa.Column("revoked_at", sa.BigInteger))
    op.add_column("grants", sa.Column("former_hash", sa.String(64), nullable=False, server_default=""))
    op.add_column("grants", sa.Column("former_until", sa.BigInteger))

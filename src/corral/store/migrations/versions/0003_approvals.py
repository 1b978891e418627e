"""Approvals: questions put to a person, and what a yes still allows."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "approvals",
        sa.Column("id", sa.String(8), nullable=False),
        sa.Column("tenant", sa.String(63), nullable=False),
        sa.Column("sandbox", sa.String(16), nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("summary", sa.Text, nullable=False),
        sa.Column("detail", sa.JSON, nullable=False),
        sa.Column("seconds", sa.Integer, nullable=False),
        sa.Column("asked_at", sa.BigInteger, nullable=False),
        sa.Column("deadline", sa.BigInteger, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("scope", sa.String(16)),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("answered_by", sa.Text, nullable=False),
        sa.Column("answered_at", sa.BigInteger),
        sa.PrimaryKeyConstraint("id", name="pk_approvals"),
    )
    op.create_index("ix_approvals_status", "approvals", ["status"])
    op.create_index("ix_approvals_tenant_asked_at", "approvals", ["tenant", "asked_at"])
    op.create_index("ix_approvals_sandbox_asked_at", "approvals", ["sandbox", "asked_at"])
    op.create_table(
        "permissions",
        sa.Column("approval", sa.String(8), nullable=False),
        sa.Column("tenant", sa.String(63), nullable=False),
        sa.Column("sandbox", sa.String(16)),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("until", sa.BigInteger),
        sa.PrimaryKeyConstraint("approval", name="pk_permissions"),
    )
    op.create_index("ix_permissions_sandbox", "permissions", ["sandbox"])

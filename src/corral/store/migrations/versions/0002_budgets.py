"""Budgets: caps, what is spent of them, and what is set aside for calls under way."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

# The account of all calls ever; other days are counted from 1970.
_EVER = -1
_DAY = 86_400_000_000


def upgrade() -> None:
    """Make the tables, and the accounts of what was spent before there were any."""
    op.create_table(
        "budgets",
        sa.Column("tenant", sa.String(63), nullable=False),
        sa.Column("subject", sa.String(16), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("cap", sa.BigInteger),
        sa.PrimaryKeyConstraint("tenant", "subject", "kind", name="pk_budgets"),
    )
    op.create_table(
        "balances",
        sa.Column("tenant", sa.String(63), nullable=False),
        sa.Column("subject", sa.String(16), nullable=False),
        sa.Column("day", sa.BigInteger, nullable=False),
        sa.Column("spent", sa.BigInteger, nullable=False),
        sa.Column("reserved", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "subject", "day", name="pk_balances"),
    )
    op.create_table(
        "reservations",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("holder", sa.String(32), nullable=False),
        sa.Column("tenant", sa.String(63), nullable=False),
        sa.Column("sandbox", sa.String(16), nullable=False),
        sa.Column("amount", sa.BigInteger, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("secret", sa.String(63), nullable=False),
        sa.Column("provider", sa.String(64), nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("path", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_reservations"),
    )
    op.create_index("ix_reservations_holder", "reservations", ["holder"])
    for subject in ("sandbox", "''"):
        for day in (str(_EVER), f"at / {_DAY}"):
            op.execute(
                "INSERT INTO balances (tenant, subject, day, spent, reserved) "  # noqa: S608 - constants of this file
                f"SELECT tenant, {subject}, {day}, SUM(cost), 0 FROM usage GROUP BY 1, 2, 3"
            )

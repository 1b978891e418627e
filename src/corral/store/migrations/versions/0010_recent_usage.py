"""Find the last calls of a sandbox quickly, for limits at a time."""

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the index."""
    op.create_index("ix_usage_sandbox_at", "usage", ["sandbox", "at"])

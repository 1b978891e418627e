"""What the vault holds of a secret: its value, a command that prints it, or a login."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; what is there are values."""
    op.add_column("secrets", sa.Column("form", sa.String(16), nullable=False, server_default="value"))

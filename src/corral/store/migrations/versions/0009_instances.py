"""Daemons that share a database: what is of one host's sandboxes names the installation that has them."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_TABLES = ("templates", "sandboxes", "reservations", "approvals")


def upgrade() -> None:
    """Add the columns. What is there has no name yet: the daemon that opens the database next gives it its own."""
    for table in _TABLES:
        op.add_column(table, sa.Column("instance", sa.String(16), nullable=False, server_default=""))
    op.rename_table("pools", "former_pools")
    op.create_table(
        "pools",
        sa.Column("instance", sa.String(16), nullable=False),
        sa.Column("tenant", sa.String(63), nullable=False),
        sa.Column("template", sa.String(63), nullable=False),
        sa.Column("isolation", sa.String(16), nullable=False),
        sa.Column("document", sa.JSON, nullable=False),
        # The former table has the name of its key as long as it is there, in some databases.
        sa.PrimaryKeyConstraint("instance", "tenant", "template", "isolation", name="pk_pools_of_instance"),
    )
    op.execute(
        "INSERT INTO pools (instance, tenant, template, isolation, document) "
        "SELECT '', tenant, template, isolation, document FROM former_pools"
    )
    op.drop_table("former_pools")

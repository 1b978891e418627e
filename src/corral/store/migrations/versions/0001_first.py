"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_SEQUENCE = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Make all tables."""
    _installation_and_tenants()
    _templates_and_sandboxes()
    _secrets_and_keys()
    _ledger()
    _audit()


def _installation_and_tenants() -> None:
    op.create_table(
        "installation",
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("value", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_installation"),
    )
    op.create_table(
        "tenants",
        sa.Column("tenant", sa.String(63), nullable=False),
        sa.Column("uid_base", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("tenant", name="pk_tenants"),
        sa.UniqueConstraint("uid_base", name="uq_tenants_uid_base"),
    )


def _templates_and_sandboxes() -> None:
    op.create_table(
        "templates",
        sa.Column("id", sa.String(16), nullable=False),
        sa.Column("tenant", sa.String(63), nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("current", sa.Boolean, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("layers", sa.JSON, nullable=False),
        sa.Column("document", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_templates"),
    )
    op.create_index("ix_templates_tenant_name", "templates", ["tenant", "name"])
    op.create_table(
        "sandboxes",
        sa.Column("id", sa.String(16), nullable=False),
        sa.Column("tenant", sa.String(63), nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("template", sa.String(16), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("exit_code", sa.Integer),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("changed_at", sa.BigInteger, nullable=False),
        sa.Column("spec", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_sandboxes"),
        sa.ForeignKeyConstraint(["template"], ["templates.id"], name="fk_sandboxes_template"),
        sa.UniqueConstraint("tenant", "name", name="uq_sandboxes_tenant_name"),
    )
    op.create_index("ix_sandboxes_template", "sandboxes", ["template"])
    op.create_table(
        "grants",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("tenant", sa.String(63), nullable=False),
        sa.Column("sandbox", sa.String(16), nullable=False),
        sa.Column("token_hash", sa.String(64), nullable=False),
        sa.Column("secrets", sa.JSON, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_grants"),
        sa.ForeignKeyConstraint(["sandbox"], ["sandboxes.id"], name="fk_grants_sandbox", ondelete="CASCADE"),
        sa.UniqueConstraint("sandbox", name="uq_grants_sandbox"),
        sa.UniqueConstraint("token_hash", name="uq_grants_token_hash"),
    )


def _secrets_and_keys() -> None:
    op.create_table(
        "secrets",
        sa.Column("tenant", sa.String(63), nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("provider", sa.String(32), nullable=False),
        sa.Column("base_url", sa.Text, nullable=False),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("updated_at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "name", name="pk_secrets"),
    )
    op.create_table(
        "api_keys",
        sa.Column("key_hash", sa.String(64), nullable=False),
        sa.Column("tenant", sa.String(63), nullable=False),
        sa.Column("label", sa.String(255), nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("key_hash", name="pk_api_keys"),
    )
    op.create_index("ix_api_keys_tenant", "api_keys", ["tenant"])


def _ledger() -> None:
    op.create_table(
        "usage",
        sa.Column("id", _SEQUENCE, nullable=False, autoincrement=True),
        sa.Column("tenant", sa.String(63), nullable=False),
        sa.Column("sandbox", sa.String(16), nullable=False),
        sa.Column("secret", sa.String(63), nullable=False),
        sa.Column("provider", sa.String(64), nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("input", sa.BigInteger, nullable=False),
        sa.Column("output", sa.BigInteger, nullable=False),
        sa.Column("cache_read", sa.BigInteger, nullable=False),
        sa.Column("cache_write", sa.BigInteger, nullable=False),
        sa.Column("cost", sa.BigInteger, nullable=False),
        sa.Column("assumed", sa.Boolean, nullable=False),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("duration_ms", sa.BigInteger, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("request_id", sa.Text, nullable=False),
        sa.Column("path", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_usage"),
    )
    op.create_index("ix_usage_sandbox_model", "usage", ["sandbox", "model"])
    op.create_index("ix_usage_tenant_at", "usage", ["tenant", "at"])
    op.create_table(
        "prices",
        sa.Column("tenant", sa.String(63), nullable=False),
        sa.Column("secret", sa.String(63), nullable=False),
        sa.Column("model", sa.String(255), nullable=False),
        sa.Column("input", sa.BigInteger, nullable=False),
        sa.Column("output", sa.BigInteger, nullable=False),
        sa.Column("cache_read", sa.BigInteger, nullable=False),
        sa.Column("cache_write", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "secret", "model", name="pk_prices"),
    )


def _audit() -> None:
    op.create_table(
        "audit",
        sa.Column("sequence", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("tenant", sa.String(63), nullable=False),
        sa.Column("sandbox", sa.String(16)),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("kind", sa.String(64), nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("sequence", name="pk_audit"),
    )
    op.create_index("ix_audit_sandbox", "audit", ["sandbox"])
    op.create_index("ix_audit_tenant_sequence", "audit", ["tenant", "sequence"])

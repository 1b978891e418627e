"""The tables, for any database that SQLAlchemy speaks: no type or default of one engine.

Every row names its tenant. Times are whole microseconds since 1970 in UTC, money is whole micro-US-dollars. A
specification is stored whole as JSON (see `codec`), beside the columns that queries need.
"""

from datetime import UTC, datetime, timedelta

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Dialect,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
)

from corral.errors import InternalError

HEAD = "0014"
"""The newest migration; a test holds it equal to the newest file in `migrations/versions`."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class UtcTime(TypeDecorator[datetime]):
    """An aware time as microseconds since 1970, exact on every database."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise InternalError("a time without a time zone was given to the store")
        return (value - _EPOCH) // _MICROSECOND

    def process_result_value(self, value: int | None, dialect: Dialect) -> datetime | None:
        return None if value is None else _EPOCH + value * _MICROSECOND


Sequence = BigInteger().with_variant(Integer, "sqlite")
"""A key that grows with each row; SQLite counts only in a column declared INTEGER."""

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

installation = Table(
    "installation",
    metadata,
    Column("key", String(64), primary_key=True),
    Column("value", Text, nullable=False),
)
"""Facts of the whole installation, of no tenant: `key_check`, `audit_head`."""

tenants = Table(
    "tenants",
    metadata,
    Column("tenant", String(63), primary_key=True),
    Column("uid_base", BigInteger, nullable=False, unique=True),
)

templates = Table(
    "templates",
    metadata,
    Column("id", String(16), primary_key=True),
    Column("instance", String(16), nullable=False, server_default=""),
    Column("tenant", String(63), nullable=False),
    Column("name", String(63), nullable=False),
    Column("current", Boolean, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("layers", JSON, nullable=False),
    Column("document", JSON, nullable=False),
    Index(None, "tenant", "name"),
)
"""`current` is false for one that was replaced or removed while a sandbox used it."""

assignments = Table(
    "assignments",
    metadata,
    Column("template", String(16), primary_key=True),
    Column("instance", String(16), nullable=False),
    Column("tenant", String(63), nullable=False),
    Column("name", String(63), nullable=False),
    Column("build", String(64), nullable=False),
    Column("built_at", UtcTime, nullable=False),
    Column("at", UtcTime, nullable=False),
    Index(None, "instance", "tenant", "name"),
    Index(None, "build"),
)
"""What names of templates stood for, from when on: those of templates that are offered, and of those that they replaced."""

sandboxes = Table(
    "sandboxes",
    metadata,
    Column("id", String(16), primary_key=True),
    Column("instance", String(16), nullable=False, server_default=""),
    Column("tenant", String(63), nullable=False),
    Column("name", String(63), nullable=False),
    Column("template", String(16), ForeignKey("templates.id"), nullable=False, index=True),
    Column("state", String(16), nullable=False),
    Column("reason", Text, nullable=False),
    Column("exit_code", Integer),
    Column("created_at", UtcTime, nullable=False),
    Column("changed_at", UtcTime, nullable=False),
    Column("spec", JSON, nullable=False),
    UniqueConstraint("tenant", "name"),
)

grants = Table(
    "grants",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("tenant", String(63), nullable=False),
    Column(
        "sandbox", String(16), ForeignKey("sandboxes.id", ondelete="CASCADE"), nullable=False, unique=True
    ),
    Column("token_hash", String(64), nullable=False, unique=True),
    Column("secrets", JSON, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("models", JSON, nullable=False),
    Column("expires_at", UtcTime),
    Column("revoked_at", UtcTime),
    Column("former_hash", String(64), nullable=False),
    Column("former_until", UtcTime),
)

secrets = Table(
    "secrets",
    metadata,
    Column("tenant", String(63), primary_key=True),
    Column("name", String(63), primary_key=True),
    Column("provider", String(32), nullable=False),
    Column("base_url", Text, nullable=False),
    Column("sealed", LargeBinary, nullable=False),
    Column("binding", JSON(none_as_null=True)),
    Column("form", String(16), nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("updated_at", UtcTime, nullable=False),
)

usage = Table(
    "usage",
    metadata,
    Column("id", Sequence, primary_key=True, autoincrement=True),
    Column("tenant", String(63), nullable=False),
    Column("sandbox", String(16), nullable=False),
    Column("secret", String(63), nullable=False),
    Column("provider", String(64), nullable=False),
    Column("model", Text, nullable=False),
    Column("input", BigInteger, nullable=False),
    Column("output", BigInteger, nullable=False),
    Column("cache_read", BigInteger, nullable=False),
    Column("cache_write", BigInteger, nullable=False),
    Column("cost", BigInteger, nullable=False),
    Column("assumed", Boolean, nullable=False),
    Column("status", Integer, nullable=False),
    Column("duration_ms", BigInteger, nullable=False),
    Column("at", UtcTime, nullable=False),
    Column("request_id", Text, nullable=False),
    Column("path", Text, nullable=False),
    Index(None, "sandbox", "model"),
    Index(None, "sandbox", "at"),
    Index(None, "tenant", "at"),
)

prices = Table(
    "prices",
    metadata,
    Column("tenant", String(63), primary_key=True),
    Column("secret", String(63), primary_key=True),
    Column("model", String(255), primary_key=True),
    Column("input", BigInteger, nullable=False),
    Column("output", BigInteger, nullable=False),
    Column("cache_read", BigInteger, nullable=False),
    Column("cache_write", BigInteger, nullable=False),
)

budgets = Table(
    "budgets",
    metadata,
    Column("tenant", String(63), primary_key=True),
    Column("subject", String(16), primary_key=True),
    Column("kind", String(16), primary_key=True),
    Column("cap", BigInteger),
)
"""`subject` is a sandbox's id, or empty for the tenant as a whole; `kind` is a `Window`. A cap of NULL is none, no row
means the host's default.
"""

tenant_models = Table(
    "tenant_models",
    metadata,
    Column("tenant", String(63), primary_key=True),
    Column("rules", JSON, nullable=False),
)
"""Which models a tenant's sandboxes may use; a tenant without a row: all."""

balances = Table(
    "balances",
    metadata,
    Column("tenant", String(63), primary_key=True),
    Column("subject", String(16), primary_key=True),
    Column("day", BigInteger, primary_key=True, autoincrement=False),
    Column("spent", BigInteger, nullable=False),
    Column("reserved", BigInteger, nullable=False),
)
"""Accounts. `day` counts from 1970 in UTC; -1 is the account of all calls ever."""

reservations = Table(
    "reservations",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("instance", String(16), nullable=False, server_default=""),
    Column("holder", String(32), nullable=False, index=True),
    Column("tenant", String(63), nullable=False),
    Column("sandbox", String(16), nullable=False),
    Column("amount", BigInteger, nullable=False),
    Column("at", UtcTime, nullable=False),
    Column("secret", String(63), nullable=False),
    Column("provider", String(64), nullable=False),
    Column("model", Text, nullable=False),
    Column("path", Text, nullable=False),
)

leases = Table(
    "leases",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("instance", String(16), nullable=False),
    Column("holder", String(32), nullable=False, index=True),
    Column("tenant", String(63), nullable=False, index=True),
    Column("sandbox", String(16), nullable=False),
    Column("amount", BigInteger, nullable=False),
    Column("drawn", BigInteger, nullable=False),
    Column("at", UtcTime, nullable=False),
)
"""What is set aside for calls that are not known yet. It counts as reserved in the accounts of its day."""

approvals = Table(
    "approvals",
    metadata,
    Column("id", String(8), primary_key=True),
    Column("instance", String(16), nullable=False, server_default=""),
    Column("tenant", String(63), nullable=False),
    Column("sandbox", String(16), nullable=False),
    Column("name", String(63), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("summary", Text, nullable=False),
    Column("detail", JSON, nullable=False),
    Column("seconds", Integer, nullable=False),
    Column("asked_at", UtcTime, nullable=False),
    Column("deadline", UtcTime, nullable=False),
    Column("status", String(16), nullable=False, index=True),
    Column("scope", String(16)),
    Column("reason", Text, nullable=False),
    Column("answered_by", Text, nullable=False),
    Column("answered_at", UtcTime),
    Index(None, "tenant", "asked_at"),
    Index(None, "sandbox", "asked_at"),
)

permissions = Table(
    "permissions",
    metadata,
    Column("approval", String(8), primary_key=True),
    Column("tenant", String(63), nullable=False),
    Column("sandbox", String(16), index=True),
    Column("kind", String(16), nullable=False),
    Column("subject", Text, nullable=False),
    Column("until", UtcTime),
)
"""What approvals still allow: in one sandbox, or where that is NULL in all of the tenant's."""

pools = Table(
    "pools",
    metadata,
    Column("instance", String(16), primary_key=True),
    Column("tenant", String(63), primary_key=True),
    Column("template", String(63), primary_key=True),
    Column("isolation", String(16), primary_key=True),
    Column("document", JSON, nullable=False),
)
"""Warm pools. Their spares are sandboxes."""

volumes = Table(
    "volumes",
    metadata,
    Column("id", String(16), primary_key=True),
    Column("instance", String(16), nullable=False),
    Column("tenant", String(63), nullable=False),
    Column("name", String(63), nullable=False),
    Column("document", JSON, nullable=False),
    UniqueConstraint("instance", "tenant", "name"),
)
"""Volumes, those too that are being made or removed."""

past = Table(
    "past",
    metadata,
    Column("sandbox", String(16), primary_key=True),
    Column("tenant", String(63), nullable=False),
    Column("name", String(63), nullable=False),
    Column("ended_at", UtcTime),
    Column("document", JSON, nullable=False),
    Index(None, "tenant", "name"),
)
"""Sandboxes as they are remembered (`model.receipt.Past`): those that are gone, and those whose work was looked at."""

api_keys = Table(
    "api_keys",
    metadata,
    Column("key_hash", String(64), primary_key=True),
    Column("tenant", String(63), nullable=False, index=True),
    Column("label", String(255), nullable=False),
    Column("created_at", UtcTime, nullable=False),
)

audit = Table(
    "audit",
    metadata,
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("tenant", String(63), nullable=False),
    Column("sandbox", String(16), index=True),
    Column("at", UtcTime, nullable=False),
    Column("kind", String(64), nullable=False),
    Column("detail", Text, nullable=False),
    Column("hash", String(64), nullable=False),
    Index(None, "tenant", "sequence"),
)

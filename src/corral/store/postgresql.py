"""What is particular to PostgreSQL."""

import hashlib

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy import exc as sql_errors

from corral.errors import Conflict

_ORDER = 0x636F7272616C
"""The lock that puts all daemons' transactions one after another: "corral" as a number."""
_CONNECT_SECONDS = 10
_LOCK_NOT_AVAILABLE = "55P03"
_CLAIM_SECONDS = 3
"""The server needs a moment to notice that a daemon has ended."""
_IDLE_SECONDS = 60
"""A transaction that does nothing for so long belongs to a daemon that hangs: it is given up, so that others go on."""


def engine(url: URL, busy_seconds: int) -> Engine:
    """Connections that were cut are made anew. The password may be in the URL, in PGPASSWORD, or in a passfile."""
    made = create_engine(
        url,
        hide_parameters=True,
        pool_pre_ping=True,
        pool_size=1,
        max_overflow=1,
        connect_args={
            "connect_timeout": _CONNECT_SECONDS,
            "application_name": "corral",
            "options": f"-c lock_timeout={busy_seconds}s -c idle_in_transaction_session_timeout={_IDLE_SECONDS}s",
        },
    )
    event.listen(made, "begin", _in_order)
    return made


def claim(of: Engine, instance: str) -> Connection:
    """Take an installation for this process, until the connection is closed or the process ends.

    Raises Conflict if another daemon has it: a copy of its data directory, say.
    """
    connection = of.connect().execution_options(isolation_level="AUTOCOMMIT", corral_claim=True)
    key = int.from_bytes(hashlib.sha256(instance.encode()).digest()[:8], "big", signed=True)
    try:
        connection.exec_driver_sql(f"SET lock_timeout = '{_CLAIM_SECONDS}s'")
        connection.exec_driver_sql("SELECT pg_advisory_lock(%s)", (key,))
    except sql_errors.OperationalError as error:
        connection.close()
        if getattr(error.orig, "sqlstate", "") != _LOCK_NOT_AVAILABLE:
            raise
        raise Conflict(
            "another daemon uses this database as the same installation",
            "stop it; if the data directory was copied, remove DATA/instance in the copy, which makes it another one",
        ) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _in_order(connection: Connection) -> None:
    if not connection.get_execution_options().get("corral_claim"):
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(%s)", (_ORDER,))


def plain(error: sql_errors.DBAPIError) -> str:
    """What the database says, without the values that PostgreSQL adds to it."""
    primary = getattr(getattr(error.orig, "diag", None), "message_primary", None)
    return (
        str(primary or error.orig).splitlines()[0][:500] if str(primary or error.orig) else "no reason given"
    )

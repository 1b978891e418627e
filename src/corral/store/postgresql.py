"""What is particular to PostgreSQL.

All work goes over one connection, which holds a lock for as long as it lasts: the installation's, which no other process may
have meanwhile. A connection that is made anew, because the server was restarted or the network failed, takes that lock again
before anything else. The server may not have noticed yet that the former one is gone, and would keep the lock for it: what
this process left there is ended first, and what another one left, on a host that lost its power, is waited for.
"""

import hashlib
import secrets as randomness
from functools import partial
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy import exc as sql_errors

from corral.errors import Conflict, CorralError, DiskFull, HostError, NoCapacity, UpstreamFailed

_ORDER = 0x636F7272616C
"""The lock that puts all daemons' transactions one after another: "corral" as a number."""
_CONNECT_SECONDS = 10
_CLAIM_SECONDS = 15
"""Longer than the server takes to notice that a host is gone, by the probes below."""
_PROBES = {"idle": 5, "interval": 2, "count": 3}
"""Seconds after which each side asks a silent other one whether it is there, between such questions, and how many it asks."""
_UNSENT_SECONDS = 10
"""What the other side has not acknowledged for so long, it will not get."""
_IDLE_SECONDS = 60
"""A transaction that does nothing for so long belongs to a daemon that hangs: it is given up, so that others go on."""

_LOCK_NOT_AVAILABLE = "55P03"
_LEFT = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s AND pid <> pg_backend_pid()"


def engine(url: URL, busy_seconds: int, instance: str) -> Engine:
    """The connection, made at its first use and again after it was cut. The password may be in the URL, in PGPASSWORD, or in a
    passfile. Its use raises Conflict if another process works for the same installation: on a copy of its data directory, say.
    """
    settings = {
        "lock_timeout": f"{busy_seconds}s",
        "idle_in_transaction_session_timeout": f"{_IDLE_SECONDS}s",
        "tcp_user_timeout": f"{_UNSENT_SECONDS}s",
        **{f"tcp_keepalives_{name}": str(value) for name, value in _PROBES.items()},
    }
    name = f"corral {instance} {randomness.token_hex(4)}"
    made = create_engine(
        url,
        hide_parameters=True,
        pool_pre_ping=True,
        pool_size=1,
        max_overflow=0,
        connect_args={
            "connect_timeout": _CONNECT_SECONDS,
            "tcp_user_timeout": _UNSENT_SECONDS * 1000,
            **{f"keepalives_{name}": value for name, value in _PROBES.items()},
            "application_name": name,
            "options": " ".join(f"-c {key}={value}" for key, value in settings.items()),
        },
    )
    event.listen(made, "connect", partial(_claim, name, instance))
    event.listen(made, "begin", _in_order)
    return made


def _claim(name: str, instance: str, connection: Any, _record: object) -> None:
    from psycopg.errors import LockNotAvailable

    key = int.from_bytes(hashlib.sha256(instance.encode()).digest()[:8], "big", signed=True)
    try:
        connection.execute(_LEFT, (name,))
        connection.execute(f"SET LOCAL lock_timeout = '{_CLAIM_SECONDS}s'")
        connection.execute("SELECT pg_advisory_lock(%s)", (key,))
        connection.commit()
    except LockNotAvailable as error:
        connection.close()
        raise Conflict(
            "another daemon uses this database as the same installation",
            "stop it; if the data directory was copied, remove DATA/instance in the copy, which makes it another one",
        ) from error
    except BaseException:
        connection.close()
        raise


def _in_order(connection: Connection) -> None:
    connection.exec_driver_sql("SELECT pg_advisory_xact_lock(%s)", (_ORDER,))


def public(error: sql_errors.DBAPIError) -> CorralError:
    """What failed, by the class of its SQLSTATE, for whoever can mend it."""
    reason, code = plain(error), getattr(error.orig, "sqlstate", None) or "08"
    if code == _LOCK_NOT_AVAILABLE:
        return NoCapacity("another daemon holds the database", "try again; see pg_stat_activity for who does")
    if code == "53100":
        return DiskFull("the disk of the database server is full", "free space there, then try again")
    if code == "25006":
        return HostError(
            f"the database cannot be written: {reason}",
            "CORRAL_DATABASE_URL leads to a standby: name the server that takes writes, or promote it",
        )
    # Those without a code never reached it, or were cut: 08, 57P (the server ends or starts), 25P03 (it hung).
    if code[:2] in ("08", "28", "3D", "53") or code.startswith("57P") or code == "25P03":
        return UpstreamFailed(
            f"PostgreSQL does not serve Corral: {reason}",
            "see that it runs, and that CORRAL_DATABASE_URL leads there; a daemon that runs goes on once it does",
        )
    return HostError(f"the database failed: {reason}", "see the log of the PostgreSQL server")


def plain(error: sql_errors.DBAPIError) -> str:
    """What the database says, without the values that PostgreSQL adds to it."""
    primary = getattr(getattr(error.orig, "diag", None), "message_primary", None)
    return (
        str(primary or error.orig).splitlines()[0][:500] if str(primary or error.orig) else "no reason given"
    )

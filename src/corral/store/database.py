"""The connection to the database: one worker thread, one transaction per call.

SQLite runs in WAL mode with `synchronous=NORMAL`: a commit survives `kill -9` of the daemon, and costs no
disk flush (0.01 ms instead of 0.4 ms where this was measured). What must survive a power cut too, because
something outside of the database follows from it, is committed by `run_durable`, which then flushes the WAL,
and with it that commit and all before it. The flush has a thread of its own: whoever does not need it, such as a model
call that waits for its reservation, does not wait for it, and one flush serves all who wait for one.

Every transaction starts with BEGIN IMMEDIATE, so it waits for other writers at its start, where waiting is
safe, and never fails in the middle because its snapshot is stale.

PostgreSQL serves several daemons, each with its own data directory. What SQLite gives, transactions of all daemons
one after another, is got by a lock that each transaction takes at its start; so all that was shown on one
database, budgets above all, holds on the other. An installation's rows are its own (`instances`), and a second
daemon of the same installation is refused by a lock that lasts as long as the first one's connection.
"""

import asyncio
import errno
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, event, inspect, make_url, text
from sqlalchemy import exc as sql_errors

from corral.errors import (
    Conflict,
    CorralError,
    DiskFull,
    HostError,
    InternalError,
    InvalidInput,
    NoCapacity,
    Unsupported,
)
from corral.store import instances, postgresql
from corral.store.schema import HEAD

P = ParamSpec("P")
T = TypeVar("T")

_URLS = "use sqlite:////path/to/corral.db, or postgresql://USER@HOST/DATABASE"
BUSY_TIMEOUT = 10
"""Seconds to wait for another process's transaction."""
_BUSY_POLL = 0.01


class Database:
    """A database whose calls run one after another on a thread of its own."""

    def __init__(self, url: str, instance: str) -> None:
        """`instance` names the installation whose rows are meant, 16 characters at most."""
        self._url = _parse(url)
        self._instance = instance
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="corral-store")
        self._engine: Engine | None = None
        # PostgreSQL flushes each commit itself.
        wal = Path(f"{self._url.database}-wal") if self._url.get_backend_name() == "sqlite" else None
        self._flusher = Flusher(wal)

    async def open(self) -> None:
        """Create or upgrade the schema. Raises HostError for a schema newer than this code, DiskFull."""
        await self._submit(self._open)

    async def close(self) -> None:
        """Wait for calls under way, then let go of the database. Idempotent."""
        try:
            await self._submit(self._dispose)
        except RuntimeError:  # the worker was shut down before
            return
        self._worker.shutdown(wait=False)
        self._flusher.close()

    async def run(
        self, query: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """`query(connection, …)` in a transaction that its return commits and its exception rolls back.

        A cancelled caller does not stop a query that has begun.
        """
        return await self._submit(self._transaction, query, args, kwargs)

    async def run_durable(
        self, query: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """As `run`; on return the transaction survives a power cut."""
        done: T = await self._submit(self._transaction, query, args, kwargs)
        await asyncio.shield(asyncio.wrap_future(self._flusher.flush()))
        return done

    async def _submit(self, function: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, _mapped, function, *args)

    def _open(self) -> None:
        if self._engine is None:
            if self._url.get_backend_name() == "sqlite":
                _create_private(self._url)
                self._engine = _sqlite(self._url)
            else:
                self._engine = postgresql.engine(self._url, BUSY_TIMEOUT, self._instance)
        with self._engine.connect() as connection:
            connection.execution_options(**{instances.OPTION: self._instance})
            with connection.begin():
                _upgrade(connection)
                instances.adopt(connection)
        self._flusher.flush().result()

    def _dispose(self) -> None:
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None

    def _transaction(self, query: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
        if self._engine is None:
            raise InternalError("the store is not open")
        with self._engine.connect() as connection:
            connection.execution_options(**{instances.OPTION: self._instance})
            with connection.begin():
                return query(connection, *args, **kwargs)


class Flusher:
    """Brings what was committed to the disk. A flush that has not begun serves all who ask before it does."""

    def __init__(self, wal: Path | None) -> None:
        self._wal = wal
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="corral-flush")
        self._lock = threading.Lock()
        self._next: Future[None] | None = None

    def flush(self) -> Future[None]:
        """Done once all that was committed before the call is on the disk. Fails as `_mapped` says."""
        with self._lock:
            if self._next is None:
                self._next = self._worker.submit(_mapped, self._flush)
            return self._next

    def close(self) -> None:
        """Let go of the thread, once a flush under way is done."""
        self._worker.shutdown(wait=False)

    def _flush(self) -> None:
        with self._lock:
            self._next = None
        if self._wal is None:
            return
        try:
            fd = os.open(self._wal, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return  # all of it was moved into the database, which SQLite flushes when it does that
        try:
            os.fdatasync(fd)
        finally:
            os.close(fd)


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except sql_errors.ArgumentError:
        raise InvalidInput("the database URL is malformed", _URLS) from None
    if parsed.get_backend_name() == "postgresql" and parsed.drivername in (
        "postgresql",
        "postgresql+psycopg",
    ):
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.get_backend_name() != "sqlite" or not parsed.database or parsed.database == ":memory:":
        raise Unsupported("this database is not supported", _URLS)
    return parsed


def _create_private(url: URL) -> None:
    """Make the file before SQLite does, so that no one else may ever read it. Its WAL takes over the mode."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    path = Path(url.database or "")
    try:
        os.close(os.open(path, flags, 0o600))
    except FileExistsError:
        # It is not opened: to close it would drop the locks that this process holds on it (POSIX).
        if path.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from None


def _sqlite(url: URL) -> Engine:
    # Parameters can hold sealed secrets and hashes: they stay out of the text of exceptions.
    engine = create_engine(url, hide_parameters=True, connect_args={"timeout": BUSY_TIMEOUT})
    event.listen(engine, "connect", _configure)
    event.listen(engine, "begin", _begin)
    return engine


def _configure(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # transactions begin where `_begin` says, not where sqlite3 guesses
    mode = _write_ahead(connection)
    # Without a WAL, which some file systems cannot have, SQLite itself flushes each commit.
    synchronous = "NORMAL" if mode == "wal" else "FULL"
    for pragma in ("foreign_keys=ON", f"synchronous={synchronous}", "trusted_schema=OFF"):
        connection.execute(f"PRAGMA {pragma}").close()


def _write_ahead(connection: Any) -> str:
    """Ask for a WAL; the journal that the database has now. SQLite waits for no lock here, so that we do."""
    deadline = time.monotonic() + BUSY_TIMEOUT
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(_BUSY_POLL)
        else:
            return str(mode)


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _upgrade(connection: Connection) -> None:
    """Bring the schema to HEAD inside the caller's transaction."""
    revision = None
    if inspect(connection).has_table("alembic_version"):
        revision = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()
    if revision == HEAD:
        return  # the common case is spared the import of alembic, 0.2 s
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.attributes["connection"] = connection
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if revision is not None and revision not in known:
        raise HostError(
            f"the database has schema {revision!r}, unknown to this version of Corral ({HEAD})",
            "start the version of Corral that wrote it, or a newer one; nothing was changed",
        )
    command.upgrade(config, "head")


def _mapped(function: Callable[..., T], *args: Any) -> T:
    """`function(*args)` with the library's exceptions as Corral's. Their texts name no values."""
    try:
        return function(*args)
    except CorralError:
        raise
    except sql_errors.IntegrityError as error:
        raise Conflict(
            f"the store refuses the change: {postgresql.plain(error)}", "look at what exists, then try again"
        ) from error
    except sql_errors.DBAPIError as error:
        on_sqlite = isinstance(error.orig, sqlite3.Error)
        raise (_host_error(postgresql.plain(error)) if on_sqlite else postgresql.public(error)) from error
    except sql_errors.SQLAlchemyError as error:
        raise InternalError(f"the store failed: {error}") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull("the data directory is full") from error
        raise HostError(
            f"the store cannot use its files: {error}", "look at the data directory's owner"
        ) from error


def _host_error(reason: str) -> CorralError:
    if "full" in reason:
        return DiskFull("the data directory is full")
    if "readonly" in reason or "disk I/O" in reason:
        return HostError(
            f"the database cannot be written: {reason}",
            "see `dmesg`: the disk of the data directory fails or is read-only; mend that, then restart the daemon",
        )
    if "locked" in reason:
        return NoCapacity("the database is locked by another process", "see who has it open: fuser corral.db")
    return HostError(
        f"the database failed: {reason}", "check the disk, or restore the database from a backup"
    )

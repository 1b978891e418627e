"""Databases as older versions of Corral have written them."""

import sqlite3
from contextlib import closing
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine

from corral.store import database


def revisions() -> list[str]:
    """All versions of the schema, oldest first."""
    walked = ScriptDirectory.from_config(_config()).walk_revisions()
    return [script.revision for script in walked][::-1]


def go_back(path: Path, revision: str) -> None:
    """Make a database that nobody has open one with this schema, with the rows of its tables that there were."""
    former = path.with_suffix(".former")
    engine = create_engine(f"sqlite:///{former}")
    with engine.begin() as connection:
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
    engine.dispose()
    with closing(sqlite3.connect(former, isolation_level=None)) as db:
        db.execute("ATTACH ? AS newer", (str(path),))
        tables = [row[0] for row in db.execute("SELECT name FROM main.sqlite_master WHERE type = 'table'")]
        for table in set(tables) - {"alembic_version"}:
            newer = _columns(db, "newer", table)
            columns = ", ".join(name for name in _columns(db, "main", table) if name in newer)
            db.execute(f"INSERT INTO main.{table} ({columns}) SELECT {columns} FROM newer.{table}")
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    former.replace(path)


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(database.__file__).parent / "migrations"))
    return config


def _columns(db: sqlite3.Connection, schema: str, table: str) -> list[str]:
    return [row[1] for row in db.execute(f"PRAGMA {schema}.table_info({table})")]

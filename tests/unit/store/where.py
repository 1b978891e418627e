"""Where the store's tests keep their data: SQLite, unless a run on another database says otherwise."""

from collections.abc import Callable
from pathlib import Path

from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool


def _sqlite(directory: Path) -> str:
    return f"sqlite:///{directory}/corral.db"


url_of: Callable[[Path], str] = _sqlite
"""The URL of a directory's database."""


def change(directory: Path, *statements: str) -> None:
    """What somebody who has the database can do to it."""
    engine = create_engine(
        url_of(directory).replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool
    )
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


def ask(directory: Path, query: str) -> list[tuple[object, ...]]:
    """The rows of a query."""
    engine = create_engine(
        url_of(directory).replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool
    )
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(text(query))]

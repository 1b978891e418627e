"""Tests of the store run on every database that it can be on."""

from pathlib import Path

STORE = Path(__file__).parent
POSTGRESQL = STORE.parents[1] / "system" / "postgresql"


def test_all_that_opens_a_database_runs_on_postgresql_too() -> None:
    elsewhere = "".join(path.read_text() for path in POSTGRESQL.glob("test_*.py"))
    for path in STORE.glob("test_*.py"):
        text = path.read_text()
        if path.name != Path(__file__).name and ("SqlStore.open(" in text or "Database(" in text):
            assert "where.url_of(" in text, f"{path.name} names a database of its own"
            imported = f"from tests.unit.store.{path.stem} import *" in elsewhere
            assert imported, f"{path.name} runs on SQLite alone"

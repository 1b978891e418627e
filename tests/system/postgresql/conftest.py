"""The store's own tests on PostgreSQL."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.system import postgres
from tests.system.postgres import Server
from tests.unit.store import where


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with postgres.running() as found:
        yield found


@pytest.fixture(autouse=True)
def on_postgresql(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def url_of(directory: Path) -> str:
        return server.database(str(directory))

    monkeypatch.setattr(where, "url_of", url_of)

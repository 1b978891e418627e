"""A client of a real daemon and a sandbox in it, for tests that need nothing more."""

from collections.abc import Iterator

import pytest
from tests.conftest import Daemon

from corral import Client, Sandbox


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    """A client of the shared daemon."""
    with daemon.client() as client:
        yield client


@pytest.fixture
def box(client: Client) -> Sandbox:
    """A running sandbox; removed at the end of the test."""
    return Sandbox.create(client=client, name="box")

"""A daemon that serves E2B's API on a free port of loopback, and the environment that points E2B's SDKs at it."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from tests.conftest import Daemon

CACHE = Path(os.environ.get("CORRAL_CACHE_DIR") or Path.home() / ".cache" / "corral") / "conformance"


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def e2b_env(shared_daemon: Daemon) -> Iterator[dict[str, str]]:
    """Environment variables of a program that uses an SDK. Of one module: those of others may listen elsewhere."""
    url = f"127.0.0.1:{free_port()}"
    with shared_daemon.client() as client:
        client.set_config("api.listen", url)
    shared_daemon.stop()
    shared_daemon.start()
    exports = shared_daemon.cli("e2b", "env").stdout
    told = dict(line.removeprefix("export ").split("=", 1) for line in exports.splitlines())
    yield {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/root"), **told}
    with shared_daemon.client() as client:
        client.set_config("api.listen", "")


@pytest.fixture
def http(e2b_env: dict[str, str]) -> Iterator[httpx2.Client]:
    """A client of the control plane without an SDK."""
    headers = {"x-api-key": e2b_env["E2B_API_KEY"]}
    with httpx2.Client(
        base_url=e2b_env["E2B_API_URL"], headers=headers, trust_env=False, timeout=120
    ) as client:
        yield client

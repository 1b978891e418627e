"""What each process loads at its start. A library that it does not need costs every host megabytes, the gateway's once for each
of its processes.
"""

import subprocess
import sys

import pytest


def loaded(module: str) -> set[str]:
    """What is loaded with a module, in a process of its own."""
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("module", "unneeded"),
    [
        ("corral.gateway.main", {"corral.engine", "ctypes", "fastapi", "re2", "sqlalchemy", "starlette", "uvicorn"}),
        ("corral.daemon.main", {"aiohttp", "alembic", "dns", "genai_prices", "httpx2", "psycopg", "re2"}),
        ("corral.cli.sandboxes", {"asyncio", "httpx2", "pydantic", "urllib3"}),
        ("corral.sdk.client", {"aiohttp", "asyncio", "corral.protocol.sandboxes", "httpx2"}),
    ],
)  # fmt: skip
def test_a_process_starts_without_what_it_does_not_need(module: str, unneeded: set[str]) -> None:
    found = loaded(module)
    assert module in found
    assert found & unneeded == set()

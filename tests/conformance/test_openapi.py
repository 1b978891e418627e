"""The published OpenAPI document, and that of E2B's control plane, tried by schemathesis on real daemons: nothing that a program
which follows them sends makes the daemon fail, and each answer is one that the document describes.
"""

import json
import subprocess
from pathlib import Path
from urllib.parse import quote

import httpx2
import pytest
from tests.conformance import e2b_openapi
from tests.conformance.conftest import CACHE, free_port
from tests.conftest import Daemon

from corral import Sandbox

HOME = CACHE / "schemathesis-4.32.5"
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(not HOME.exists(), reason="tests/conformance/setup installs it"),
    pytest.mark.timeout(900),
]
CHECKS = "not_a_server_error,response_schema_conformance,content_type_conformance,status_code_conformance"
# What has no end, and what ends the sandbox or the API that is tried.
LEFT_OUT = r"events|/config/|/log$|/output|/watch|/learn|/stop$|/ttl$|/agents?$"
SECONDS = 60


def tried(url: str, key: str, *options: str, document: Path | None = None) -> None:
    """Fail with what schemathesis finds wrong, its lines cut to size. `document`: another one than the daemon's own."""
    where = [str(document), "--url", url] if document else [f"{url}/openapi.json"]
    done = subprocess.run(
        [
            HOME / "bin" / "schemathesis", "--config-file", Path(__file__).parent / "openapi.toml",
            "run", *where, "--header", f"Authorization: Bearer {key}",
            "--checks", CHECKS, "--phases", "coverage,fuzzing", "--max-examples", "5", "--continue-on-failure",
            "--exclude-path-regex", LEFT_OUT, "--generation-deterministic",
            "--max-time", str(SECONDS), "--request-timeout", "60", *options,
        ],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        said = "\n".join(line[:300] for line in done.stdout.splitlines())
        pytest.fail(f"{said[:20_000]}\n{done.stderr[-2000:]}", pytrace=False)


def test_what_is_done_with_a_sandbox(e2b_env: dict[str, str], shared_daemon: Daemon) -> None:
    with shared_daemon.client() as client:
        Sandbox.create(client=client, name="tried")
    try:
        tried(
            e2b_env["E2B_API_URL"], e2b_env["E2B_API_KEY"],
            "--include-path-regex", "^/v1/sandboxes", "--exclude-method", "DELETE",
        )  # fmt: skip
    finally:
        shared_daemon.remove_all()


def test_what_is_done_with_a_tenant(tmp_path: Path) -> None:
    """On a daemon of its own, whose secrets, prices, budgets and keys are changed."""
    daemon = Daemon(tmp_path / "data")
    daemon.data.mkdir()
    daemon.start()
    try:
        url = f"127.0.0.1:{free_port()}"
        with daemon.client() as client:
            client.set_config("api.listen", url)
            key = daemon.cli("key", "create", "tried").stdout.strip()
        daemon.stop()
        daemon.start()
        # A create would build the base template first.
        tried(
            f"http://{url}", key, "--exclude-path", "/v1/sandboxes", "--exclude-path", "/v1/templates/build"
        )
    finally:
        daemon.discard()


def test_every_route_of_e2bs_is_described_or_left_out_for_a_reason() -> None:
    left_out = [route for routes in e2b_openapi.LEFT_OUT.values() for route in routes]
    told = [(method, e2b_openapi.plain(path)) for method, path in (*e2b_openapi.DESCRIBED, *left_out)]
    assert len(told) == len(set(told))
    assert set(told) == e2b_openapi.routes()


def test_what_clients_of_e2b_send(e2b_env: dict[str, str], shared_daemon: Daemon, tmp_path: Path) -> None:
    url, key = e2b_env["E2B_API_URL"], e2b_env["E2B_API_KEY"]
    with httpx2.Client(base_url=url, headers={"x-api-key": key}, trust_env=False, timeout=120) as http:
        made = http.post("/v2/sandboxes", json={"templateID": "base", "timeout": 3600}).json()
        build = http.post("/v3/templates", json={"name": "tried"}).json()
        known = {name: value for name, value in (made | build).items() if name in ("sandboxID", "buildID")}
        known |= {"templateID": "base", "built": "tried", "alias": "base", "hash": "a" * 64}
        (tmp_path / "e2b.json").write_text(json.dumps(e2b_openapi.document(known)))
        try:
            tried(url, key, document=tmp_path / "e2b.json")
            assert http.get(f"/sandboxes/{made['sandboxID']}").status_code == 200
        finally:
            shared_daemon.remove_all()
            for volume in http.get("/volumes").json():
                http.delete(f"/volumes/{volume['volumeID']}")
            for snapshot in http.get("/snapshots").json():
                http.delete(f"/templates/{quote(snapshot['snapshotID'], safe='')}")

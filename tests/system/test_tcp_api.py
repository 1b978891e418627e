"""The API over TCP: nobody without a key, nobody to another tenant's things, nobody to this host's files."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import httpx2
import pytest
from tests.conftest import Daemon
from tests.tenants import Remote
from tests.traces import traces

from corral import Sandbox
from corral.errors import Forbidden, NotFound, Unauthenticated

pytestmark = pytest.mark.root


@pytest.mark.parametrize(
    "headers",
    [
        {}, {"authorization": ""}, {"authorization": "Bearer"}, {"authorization": "Bearer wrong"},
        {"authorization": "Basic eDp5"},
        {"authorization": "Bearer " + "x" * 5000}, {"x-api-key": "wrong"}, {"x-forwarded-for": "127.0.0.1",
        "x-real-ip": "127.0.0.1"},
    ],
    ids=str,
)  # fmt: skip
def test_without_a_key_nothing_is_served(remote: Remote, headers: dict[str, str]) -> None:
    with httpx2.Client(base_url=remote.url, trust_env=False) as http:
        for method, path in (
            ("GET", "/v1/sandboxes"), ("POST", "/v1/sandboxes"), ("GET", "/v1/health"), ("GET", "/v1/events"),
            ("POST", "/v1/keys"), ("GET", "/v1/config"), ("PUT", "/v1/secrets"), ("POST", "/v1/sandboxes/x/exec"),
        ):  # fmt: skip
            response = http.request(method, path, headers=headers, json={} if method != "GET" else None)
            assert response.status_code == 401, (method, path)
            assert response.json()["code"] == "unauthenticated"
            assert response.json()["hint"]


def test_a_key_works_and_part_of_one_does_not(remote: Remote) -> None:
    with remote.client(remote.key) as client, Sandbox.create(client=client) as box:
        assert box.exec("echo far").stdout == "far\n"
        box.files.write("/home/user/x", "y")
        assert box.files.read("/home/user/x") == "y"
        box.spawn("sleep 1000").kill()
    for key in (remote.key[:-1], remote.key + "x", remote.key.upper(), ""):
        with remote.client(key) as client, pytest.raises(Unauthenticated):
            client.list_sandboxes()


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "", "127.0.0.1@evil.example", "0.0.0.0"]
)
def test_forged_names_are_refused_whatever_the_key(remote: Remote, host: str) -> None:
    with httpx2.Client(base_url=remote.url, trust_env=False) as http:
        bearer = {"authorization": f"Bearer {remote.key}"}
        assert http.get("/v1/sandboxes", headers=bearer).status_code == 200
        assert http.get("/v1/sandboxes", headers={**bearer, "host": host}).status_code in (400, 403)
        assert (
            http.get("/v1/sandboxes", headers={**bearer, "origin": f"http://{host or 'x'}"}).status_code
            == 403
        )


def test_a_tenant_sees_its_own_sandboxes_only(remote: Remote, daemon: Daemon) -> None:
    with remote.client(remote.key) as ours, remote.client(remote.other) as theirs:
        told = list(theirs.events(after=0, wait=False))
        mine = Sandbox.create(client=ours, name="mine")
        mine.files.write("/home/user/x", "secret")
        process = mine.spawn("sleep 1000")
        before = traces(daemon)
        assert theirs.list_sandboxes() == []
        assert list(theirs.events(after=0, wait=False)) == told
        for ref in (mine.id, "mine"):
            for attempt in (
                lambda ref=ref: theirs.get_sandbox(ref), lambda ref=ref: theirs.exec_command(ref, "true"),
                lambda ref=ref: theirs.read_file(ref, "/home/user/x"), lambda ref=ref: theirs.write_file(ref, "/home/user/x",
                b""),
                lambda ref=ref: theirs.list_processes(ref), lambda ref=ref: theirs.signal_process(ref, process.id, 9),
                lambda ref=ref: theirs.pause_sandbox(ref), lambda ref=ref: theirs.stop_sandbox(ref),
                lambda ref=ref: theirs.stats(ref),
                lambda ref=ref: theirs.checkpoint(ref, "x"), lambda ref=ref: theirs.remove_sandbox(ref),
                lambda ref=ref: theirs.set_ttl(ref, 1), lambda ref=ref: theirs.usage(ref), lambda ref=ref: theirs.denials(ref),
            ):  # fmt: skip
                with pytest.raises(NotFound):
                    attempt()
        assert traces(daemon) == before
        taken = Sandbox.create("base", client=theirs, name="mine")
        assert taken.id != mine.id
        assert [box.id for box in ours.list_sandboxes()] == [mine.id]
        assert taken.exec("cat /home/user/x").exit_code != 0
        _other_ids(daemon, mine, taken)
        taken.kill()
        mine.kill()


def _other_ids(daemon: Daemon, one: Sandbox, two: Sandbox) -> None:
    """Two tenants' sandboxes map to ranges of host ids that share none."""

    def base(box: Sandbox) -> int:
        record = json.loads((daemon.data / "sandboxes" / f"{box.id}.json").read_text())
        return int(record["uid_base"])

    assert abs(base(one) - base(two)) >= 65_536


def test_secrets_and_templates_are_a_tenants_own(remote: Remote) -> None:
    with remote.client(remote.key) as ours, remote.client(remote.other) as theirs:
        ours.put_secret("anthropic", "sk-ant-0123456789abcdef")
        try:
            assert theirs.list_secrets() == []
            with pytest.raises(NotFound):
                Sandbox.create(client=theirs, secrets=("anthropic",))
            with pytest.raises(NotFound):
                theirs.remove_secret("anthropic")
        finally:
            ours.remove_secret("anthropic")


def test_the_hosts_files_are_not_for_who_comes_over_tcp(
    remote: Remote, daemon: Daemon, tmp_path: Path
) -> None:
    before = traces(daemon)
    with remote.client(remote.key) as far:
        for repo in ("/etc", str(tmp_path), "/", "file:///etc"):
            with pytest.raises(Forbidden) as refused:
                Sandbox.create(client=far, repo=repo)
            assert "https" in refused.value.hint
        assert traces(daemon) == before
        with daemon.client() as near:
            Sandbox.create(client=near, name="near")
        for target in (None, str(tmp_path)):
            with pytest.raises(Forbidden) as refused:
                far.pull("near", target)
            assert "corral diff" in refused.value.hint


def test_what_binds_all_is_the_operators(remote: Remote) -> None:
    with remote.client(remote.other) as theirs:
        for attempt in (
            lambda: theirs.set_config("egress.networks", "10.0.0.0/8"),
            lambda: theirs.put_secret("openai", "sk-0123456789abcdef", base_url="http://127.0.0.1:1"),
            lambda: theirs.set_price("openai", "*", input=0, output=0, cache_read=0, cache_write=0),
        ):
            with pytest.raises(Forbidden):
                attempt()


def test_the_key_that_acted_is_on_record(remote: Remote, daemon: Daemon) -> None:
    """G-322."""
    begun = datetime.now(UTC).isoformat()
    with remote.client(remote.key) as far:
        far.set_tenant_budget(1000_000_000)
    told = daemon.cli("audit", "--json", "--since", begun).stdout
    entries = [json.loads(line) for line in told.splitlines()]
    daemon.cli("budget", "set", "--tenant", "none")
    acted = [entry["detail"]["actor"] for entry in entries if entry["kind"] == "budget.set"]
    assert [re.sub(r"\([0-9a-f]{12}\)", "(ID)", who) for who in acted] == ["tenant default, key test (ID)"]
    assert not any(remote.key in json.dumps(entry) for entry in entries)


def test_keys_are_kept_as_hashes_only(remote: Remote, daemon: Daemon) -> None:
    for file in (*daemon.data.glob("corral.db*"), *(daemon.data / "logs").iterdir()):
        assert remote.key.encode() not in file.read_bytes()

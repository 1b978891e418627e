"""The main job with the real agents: each fixes a failing test in a sandbox, and the key never gets there."""

import base64
import json
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import Daemon
from tests.models import Model, serving

from corral.testing.agent_script import FIX_TESTS_FILES

pytestmark = [pytest.mark.root, pytest.mark.network, pytest.mark.timeout(400)]

AGENTS = {"claude": "anthropic", "codex": "openai", "opencode": "anthropic", "pi": "anthropic"}


@pytest.fixture
def model() -> Iterator[Model]:
    with serving() as found:
        yield found


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    path = tmp_path / "calculator"
    for name, text in FIX_TESTS_FILES.items():
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    _git(path, "init", "-q", "-b", "main")
    _git(path, "add", "--all")
    _git(path, "-c", "user.name=T", "-c", "user.email=t@example.invalid", "commit", "-q", "-m", "start")
    return path


def _git(path: Path, *args: str) -> str:
    return subprocess.run(["git", "-C", str(path), *args], check=True, capture_output=True, text=True).stdout


def _tests_pass(path: Path) -> bool:
    done = subprocess.run([sys.executable, "-m", "unittest"], cwd=path, capture_output=True, check=False)
    return done.returncode == 0


def _add_key(daemon: Daemon, model: Model, provider: str) -> None:
    daemon.cli(
        *("secret", "add", provider, "--provider", provider, "--base-url", model.url), input=f"{model.key}\n"
    )


def _everything_inside(daemon: Daemon, name: str) -> bytes:
    """Environments, command lines and files of a sandbox, searched outside: the search must not carry the key in."""
    script = (
        "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null;"
        "tar -c --one-file-system -f - /etc /home /opt /root /run /srv /tmp /var /usr/local 2>/dev/null; true"
    )
    command = [
        sys.executable,
        "-m",
        "corral.cli.main",
        "exec",
        "--user",
        "root",
        name,
        "--",
        "sh",
        "-c",
        script,
    ]
    return subprocess.run(command, env=daemon.env, capture_output=True, check=True, timeout=300).stdout


@pytest.mark.parametrize("agent", AGENTS)
def test_an_agent_fixes_the_tests_and_its_commit_comes_out(
    daemon: Daemon, model: Model, repo: Path, agent: str
) -> None:
    _add_key(daemon, model, AGENTS[agent])
    name = f"job-{agent}"
    daemon.cli("run", agent, "make the tests pass", "--repo", str(repo), "--branch", "auto", "--name", name)

    assert "+    return a + b" in daemon.cli("diff", name).stdout
    before = _git(repo, "rev-parse", "HEAD")
    daemon.cli("pull", name)
    assert _git(repo, "rev-parse", "HEAD") == before, "pull moved the user's branch"
    assert not _tests_pass(repo)
    _git(repo, "checkout", "-q", f"refs/corral/{name}")
    assert _tests_pass(repo)

    stats = model.stats()
    assert stats["bad"] == 0
    assert stats["extra"] == 0, "the sandbox's own token went upstream"
    billed = {row["model"]: row for row in daemon.cli_json("usage", name)["models"]}  # type: ignore[index]
    seen = stats["tokens"]
    assert isinstance(seen, dict)
    assert {m: row["output"] for m, row in billed.items()} == {m: t["output"] for m, t in seen.items()}
    assert all(row["cost"] > 0 for row in billed.values())
    assert model.key.encode() not in _everything_inside(daemon, name)


def _jwt(**claims: object) -> str:
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    return f"e30.{body}.{secrets.token_hex(16)}"


def _add_login(daemon: Daemon, agent: str, tmp_path: Path, url: str, key: str) -> list[str]:
    """Add a subscription whose access token is `key`; all that must stay on the host."""
    if agent == "claude":
        daemon.cli("secret", "add", "anthropic", "--base-url", url, input=key)
        return [key]
    account = {"chatgpt_account_id": "account-canary"}
    tokens = {
        "access_token": key,
        "refresh_token": "refresh-canary",
        "id_token": _jwt(**{"https://api.openai.com/auth": account}),
    }
    file = tmp_path / "auth.json"
    file.touch(mode=0o600)
    file.write_text(json.dumps({"tokens": tokens}, indent=2))
    base = f"{url}/backend-api/codex"
    daemon.cli("secret", "add", "codex", "--login", "codex", "--from-file", str(file), "--base-url", base)
    return [key, "refresh-canary", "account-canary"]


@pytest.mark.parametrize("agent", ["claude", "codex"])
def test_an_agent_works_on_a_subscription_whose_login_stays_on_the_host(
    daemon: Daemon, repo: Path, tmp_path: Path, agent: str
) -> None:
    """G-161, G-166 to G-169, G-175: it finds a login file, all of it placeholders but for the sandbox's own token."""
    now = int(time.time())
    key = f"sk-ant-oat01-{secrets.token_hex(24)}" if agent == "claude" else _jwt(iat=now, exp=now + 86_400)
    for name in ("anthropic", "openai", "codex"):
        daemon.cli("secret", "rm", "-f", name)
    with serving(key) as model:
        canaries = _add_login(daemon, agent, tmp_path, model.url, key)
        name = f"login-{agent}"
        daemon.cli(
            "run", agent, "make the tests pass", "--repo", str(repo), "--branch", "auto", "--name", name
        )
        stats = model.stats()
    assert "+    return a + b" in daemon.cli("diff", name).stdout
    assert (stats["bad"], stats["extra"]) == (0, 0)
    status = ("claude", "auth", "status") if agent == "claude" else ("codex", "login", "status")
    shown = daemon.cli("exec", name, "--", "sh", "-c", f"{' '.join(status)} 2>&1").stdout
    assert '"authMethod": "claude.ai"' in shown if agent == "claude" else "Logged in using ChatGPT" in shown
    inside = _everything_inside(daemon, name)
    assert [canary for canary in canaries if canary.encode() in inside] == []
    if agent == "codex":
        daemon.cli("secret", "rm", "codex")


def test_an_agent_outlives_both_processes_of_the_daemon(daemon: Daemon, model: Model, repo: Path) -> None:
    """`kill -9` of engine and gateway while an agent works: it finishes, and its result arrives."""
    _add_key(daemon, model, "anthropic")
    with daemon.client() as client:
        box = client.create_sandbox(name="survivor", agent="claude", repo=str(repo), branch="auto")
        model.put("faults", {"delay": 0.05})
        process = client.start_agent(box.id, prompt="make the tests pass")
        deadline = time.monotonic() + 60
        while model.stats()["good"] < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    daemon.kill()
    daemon.start()
    with daemon.client() as client:
        for _ in client.follow_output(box.id, process.id):
            pass
        ended = client.get_process(box.id, process.id).exit
        assert ended is not None
        assert ended.code == 0
        client.pull(box.id)
    _git(repo, "checkout", "-q", "refs/corral/survivor")
    assert _tests_pass(repo)
    assert model.stats()["bad"] == 0

"""What a sandbox did is on record, and stays there when it is gone."""

import json
import sqlite3
import subprocess
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.conftest import Daemon
from tests.traces import wait_for

from corral import Client, Sandbox
from corral.errors import InvalidInput, NotFound

pytestmark = pytest.mark.root


def test_a_receipt_outlives_its_sandbox(daemon: Daemon, client: Client, tmp_path: Path) -> None:
    """G-322, G-328, G-332."""
    repo = tmp_path / "repo"
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", "init", "-q", repo], check=True)
    (repo / "a.txt").write_text("one\n")
    subprocess.run([*git, "-C", repo, "add", "."], check=True)
    subprocess.run([*git, "-C", repo, "commit", "-qm", "first"], check=True)
    box = Sandbox.create(client=client, name="recorded", repo=str(repo), branch="auto")
    done = box.exec("echo two >> a.txt && git commit -qam second && echo new > b.txt")
    assert done.exit_code == 0, done.stderr
    box.exec("curl -sS -m 30 http://refused.example.com/")
    wait_for(lambda: client.read_audit("recorded"), "nothing is on record")
    alive = client.receipt("recorded")
    daemon.cli("budget", "set", "recorded", "5")
    box.kill()
    gone = client.receipt("recorded")
    assert (alive.ended_at, gone.sandbox) == (None, box.id)
    assert gone.ended_at is not None
    for told in (alive.work, gone.work):
        assert told is not None
        assert {(item.path, item.added) for item in told.files} == {("a.txt", 1), ("b.txt", 1)}
        assert [item.subject for item in told.commits] == ["second"]
    assert ("dns", "refused.example.com") in {(item.kind, item.host) for item in gone.denials}
    lines = daemon.cli("audit", "recorded", "--json").stdout.splitlines()
    entries = [json.loads(line) for line in lines]
    assert {entry["sandbox"] for entry in entries} == {box.id}
    assert [entry["detail"]["actor"] for entry in entries if entry["kind"] == "budget.set"] == ["this host"]
    assert daemon.cli("audit", "--verify").stdout.startswith("sound:")
    Sandbox.create(client=client, name="recorded").kill()
    assert client.receipt("recorded").work is None
    assert client.receipt(box.id).work == gone.work
    with pytest.raises(NotFound):
        client.receipt("never-there")


def test_a_receipt_is_forgotten_after_its_days(daemon: Daemon, client: Client) -> None:
    old, new = (Sandbox.create(client=client, name=name) for name in ("long-gone", "just-gone"))
    for box in (old, new):
        box.kill()
    with closing(sqlite3.connect(daemon.data / "corral.db", timeout=30)) as database, database:
        three_days = 3 * 86_400 * 1_000_000
        database.execute("UPDATE past SET ended_at = ended_at - ? WHERE sandbox = ?", (three_days, old.id))
    with pytest.raises(InvalidInput):
        client.set_config("receipts.keep", "36501")
    assert client.receipt(old.id).sandbox == old.id
    daemon.cli("config", "set", "receipts.keep", "2")
    try:
        with pytest.raises(NotFound):
            client.receipt(old.id)
        assert client.receipt("just-gone").sandbox == new.id
        assert daemon.cli("audit", "--verify").stdout.startswith("sound:")
    finally:
        client.set_config("receipts.keep", "none")


def test_a_sandbox_that_does_not_answer_can_be_removed_all_the_same(
    client: Client, tmp_path: Path, daemon: Daemon
) -> None:
    subprocess.run(["git", "init", "-q", tmp_path / "repo"], check=True)
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(
        ["git", *identity, "-C", tmp_path / "repo", "commit", "-q", "--allow-empty", "-m", "x"], check=True
    )
    box = Sandbox.create(client=client, name="stuck", repo=str(tmp_path / "repo"))
    box.exec("rm -rf .git && sudo rm -f /usr/bin/git", timeout=60)
    box.kill()
    assert client.receipt("stuck").work is None


def test_what_a_sandbox_may_reach_and_spend_is_on_record(daemon: Daemon, client: Client) -> None:
    """G-322: from its making on, rule by rule, by whatever API."""
    box = Sandbox.create(client=client, name="ruled", allow=("one.example.com",), budget=2_000_000)
    daemon.cli("egress", "allow", "ruled", "two.example.com:8443")
    client.change_egress(box.id, deny=["three.example.com"], remove=["one.example.com"])
    told = [(entry.kind, entry.detail) for entry in client.read_audit("ruled")]
    for _, detail in told:
        assert detail.pop("actor") == "this host"
    assert [item for item in told if item[0] in ("egress.changed", "budget.set")] == [
        ("budget.set", {"window": "total", "cap": "2000000"}),
        ("egress.changed", {"allow": "two.example.com:8443"}),
        ("egress.changed", {"deny": "three.example.com", "remove": "one.example.com"}),
    ]
    box.kill()


def test_settings_of_the_host_are_on_record(daemon: Daemon, client: Client) -> None:
    """G-322; a webhook's path may be a credential."""
    begun = datetime.now(UTC)
    for key, value in (
        ("checkpoints.keep", "7"),
        ("checkpoints.keep", "none"),
        ("approvals.webhook", "https://hooks.example.com/a-credential"),
        ("approvals.webhook", ""),
    ):
        daemon.cli("config", "set", key, value)
    told = [entry.detail for entry in client.read_audit(since=begun) if entry.kind == "config.set"]
    assert {detail["actor"] for detail in told} == {"this host"}
    assert [(detail["key"], detail["value"]) for detail in told] == [
        ("checkpoints.keep", "7"),
        ("checkpoints.keep", "none"),
        ("approvals.webhook", "hooks.example.com"),
        ("approvals.webhook", "none"),
    ]

"""A sandbox asks, a person answers: from `corral-ask` inside to `corral approve` outside."""

import json
import queue

import pytest
from tests.conftest import Daemon
from tests.traces import wait_for

from corral import Client, Sandbox
from corral.cli.app import App
from corral.cli.approvals import announce
from corral.daemon.webhook import signature
from corral.errors import Conflict
from corral.model.secrets import Secret

pytestmark = pytest.mark.root


def _pending(client: Client) -> str:
    wait_for(lambda: client.list_approvals(status="pending"), "nothing was asked")
    return client.list_approvals(status="pending")[0].id


@pytest.mark.parametrize("isolation", ["container", pytest.param("gvisor", marks=pytest.mark.gvisor)])
def test_a_sandbox_asks_for_a_host_and_gets_it_at_once(
    daemon: Daemon, client: Client, isolation: str
) -> None:
    """G-258, G-315, G-327: allowed, told why not, and taken back, with all of it on record."""
    box = Sandbox.create(client=client, name="asking", isolation=isolation)
    resolves = "getent ahostsv4 asked.example.com"
    assert box.exec(resolves).exit_code != 0
    asking = box.spawn("corral-ask host asked.example.com:8443 to read its docs")
    id = _pending(client)
    assert "corral approve" in daemon.cli("approvals", id).stdout
    daemon.cli("approve", id, "--for", "sandbox")
    done = asking.wait()
    assert (done.exit_code, "allowed: asked.example.com:8443" in done.stdout) == (0, True)
    assert box.exec(resolves).exit_code == 0
    # The port is open now: something answers there, though nothing is behind it.
    connected = "timeout 20 bash -c 'exec 3<>/dev/tcp/asked.example.com/8443'"
    assert box.exec(connected).exit_code == 0
    box.stop()
    box.start()
    assert box.exec(resolves).exit_code == 0
    daemon.cli("deny", id)
    assert box.exec(resolves).exit_code != 0
    refused = box.spawn("corral-ask host other.example.com why not")
    daemon.cli("deny", _pending(client), "--reason", "it is not ours")
    done = refused.wait()
    assert (done.exit_code, "denied: it is not ours" in done.stdout) == (1, True)
    box.kill()
    kept = client.list_approvals(box.id)
    assert [item.status for item in kept] == ["denied", "denied"]
    assert "unix socket" in kept[0].by


def test_a_webhook_is_told_signed_and_tried_again(
    daemon: Daemon, client: Client, hook: tuple[str, "queue.Queue[tuple[str, bytes]]"], box: Sandbox
) -> None:
    client.set_config("approvals.webhook", hook[0])
    try:
        asking = box.spawn("corral-ask budget 5 more to do")
        given, body = hook[1].get(timeout=60)
        told = json.loads(body)["approval"]
        assert (told["kind"], told["status"], told["name"]) == ("budget", "pending", "box")
        at = int(given.removeprefix("t=").partition(",")[0])
        assert given == signature(Secret(client.webhook_key()), at, body)
        before = client.budget("box").accounts[0].cap
        client.approve(told["id"])
        assert asking.wait().exit_code == 0
        assert (client.budget("box").accounts[0].cap or 0) - (before or 0) == 5_000_000
        assert json.loads(hook[1].get(timeout=60)[1])["approval"]["status"] == "allowed"
    finally:
        client.set_config("approvals.webhook", "")


def test_a_crash_leaves_what_was_answered_and_nothing_that_waits(
    daemon: Daemon, client: Client, box: Sandbox
) -> None:
    """G-258, G-325: `kill -9` of both processes while one question waits and another was answered."""
    asking = box.spawn("corral-ask host asked.example.com to read its docs")
    client.approve(_pending(client), "sandbox")
    assert asking.wait().exit_code == 0
    waiting = box.spawn("corral-ask host other.example.com to read more")
    id = _pending(client)
    daemon.kill()
    daemon.start()
    with daemon.client() as later:
        found = later.get_approval(id)
        assert (found.status, found.reason) == ("withdrawn", "the daemon was restarted")
        with pytest.raises(Conflict):
            later.approve(id)
        again = Sandbox.connect(box.id, client=later)
        assert again.exec("getent ahostsv4 asked.example.com").exit_code == 0
        assert again.exec("getent ahostsv4 other.example.com").exit_code != 0
        assert again.process(waiting.id).wait().exit_code == 3
        assert later.check_audit().fault == ""


def test_a_run_shows_what_its_sandbox_asks_for(
    daemon: Daemon, box: Sandbox, capfd: pytest.CaptureFixture[str]
) -> None:
    with daemon.client() as other:
        announce(App(other), box.id)
        heard = ""
        for number in range(50):
            box.exec(f"timeout 1 corral-ask host h{number}.example.com why", timeout=20)
            heard += capfd.readouterr().err
            if "corral approve" in heard:
                break
    assert "box asks (host): connect to h" in heard

"""Budgets of a real daemon: what is under way when its processes are killed is neither lost nor counted twice."""

import json
import os
import queue
import signal
import time

import pytest
from tests.conftest import Daemon
from tests.models import Model

from corral import Client, Sandbox
from corral.daemon.webhook import signature
from corral.model.secrets import Secret
from corral.protocol.catalog import BudgetAccount

pytestmark = pytest.mark.root

REQUEST = {
    "model": "claude-sonnet-4-5",
    "max_tokens": 1000,
    "messages": [{"role": "user", "content": "hello"}],
}
WORST = (4096 + len(json.dumps(REQUEST))) * 3 + 1000 * 15
CALL = (
    "curl -s -m 60 -o /dev/null -w '%{http_code}' -H \"x-api-key: $ANTHROPIC_API_KEY\" -H 'Content-Type: application/json' "
    f"--data-binary '{json.dumps(REQUEST)}' http://gateway.corral/s/slow/v1/messages"
)


def account(client: Client, box: Sandbox) -> BudgetAccount:
    return client.budget(box.id).accounts[0]


def until_under_way(client: Client, box: Sandbox, model: Model, calls: int) -> None:
    deadline = time.monotonic() + 60
    while account(client, box).reserved < calls * WORST or model.calls < calls:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def until_settled(client: Client, box: Sandbox) -> BudgetAccount:
    deadline = time.monotonic() + 60
    while (found := account(client, box)).reserved:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def test_a_killed_daemon_settles_what_was_under_way(daemon: Daemon, model: Model) -> None:
    """G-215, G-335: engine and gateway are killed while calls are under way; the next start counts them as their worst case,
    keeps the cap, and goes on."""
    with daemon.client() as client:
        box = Sandbox.create(client=client, name="box", secrets=("slow",), budget=10 * WORST)
        model.wait(60)
        for _ in range(3):
            box.spawn(CALL)
        until_under_way(client, box, model, 3)
    daemon.kill()
    daemon.start()
    with daemon.client() as client:
        found = account(client, box)
        assert (found.spent, found.reserved, found.cap) == (3 * WORST, 0, 10 * WORST)
        report = client.usage(box.id)
        assert (report.cost, report.models[0].calls, report.models[0].assumed) == (3 * WORST, 3, True)
        model.wait(0)
        assert client.exec_command(box.id, CALL, timeout=60).stdout == "200"
        assert 3 * WORST < until_settled(client, box).spent < 4 * WORST


def test_a_killed_gateway_settles_what_was_under_way(daemon: Daemon, model: Model) -> None:
    """G-215, G-335."""
    with daemon.client() as client:
        box = Sandbox.create(client=client, name="box", secrets=("slow",), budget=10 * WORST)
        model.wait(60)
        box.spawn(CALL)
        until_under_way(client, box, model, 1)
        gateway = daemon.gateway_pid()
        assert gateway is not None
        os.kill(gateway, signal.SIGKILL)
        assert until_settled(client, box).spent == WORST
        model.wait(0)
        assert client.exec_command(box.id, CALL, timeout=60).stdout == "200"
        assert WORST < until_settled(client, box).spent < 2 * WORST


def test_budgets_over_the_command_line(daemon: Daemon, model: Model) -> None:
    """G-216, G-220, G-221, G-223."""
    with daemon.client() as client:
        box = Sandbox.create(client=client, name="box", secrets=("slow",))
        found = account(client, box)
        assert (found.cap, found.default) == (25_000_000, True)
        try:
            daemon.cli("config", "set", "budget.sandbox", "0")
            assert client.exec_command(box.id, CALL, timeout=60).stdout == "402"
            daemon.cli("budget", "set", "box", "1")
            assert client.exec_command(box.id, CALL, timeout=60).stdout == "200"
            spent = until_settled(client, box).spent
            box.stop()
            box.start()
            assert account(client, box).spent == spent > 0
            assert "of $1.00" in daemon.cli("show", "box").stdout
        finally:
            daemon.cli("config", "set", "budget.sandbox", "")


def test_a_budget_that_is_spent_is_told(
    daemon: Daemon, client: Client, model: Model, hook: tuple[str, "queue.Queue[tuple[str, bytes]]"]
) -> None:
    """G-222: as an event, to the webhook, signed, and on the command line."""
    box = Sandbox.create(client=client, name="box", secrets=("slow",))
    client.set_config("approvals.webhook", hook[0])
    try:
        model.wait(60)
        call = box.spawn(CALL)
        until_under_way(client, box, model, 1)
        client.set_budget(box.id, 1)
        call.kill()
        signed, body = hook[1].get(timeout=60)
    finally:
        client.set_config("approvals.webhook", "")
    told = json.loads(body)["budget"]
    assert (told["scope"], told["name"], told["percent"], told["cap"]) == ("sandbox", "box", 95, 1)
    assert told["spent"] == until_settled(client, box).spent
    assert signed == signature(
        Secret(client.webhook_key()), int(signed.removeprefix("t=").partition(",")[0]), body
    )
    events = [event for event in client.follow_budgets(0, wait=False) if event.sandbox == box.id]
    assert [(event.percent, event.spent) for event in events] == [(95, told["spent"])]
    assert "95 % of the budget of box in all: " in daemon.cli("budget", "warnings").stdout


def test_a_killed_daemon_charges_what_was_drawn_on_a_lease_before_it_heard_of_that(
    daemon: Daemon, model: Model
) -> None:
    """G-215: the engine stands still while the gateway lets calls through that it has a lease for; both are killed then."""
    with daemon.client() as client:
        box = Sandbox.create(client=client, name="box", secrets=("slow",), budget=40 * WORST)
        model.wait(60)
        box.spawn(f"{CALL} & until [ -e /tmp/go ]; do sleep 0.02; done; sleep 1; {CALL} & {CALL} & wait")
        until_under_way(client, box, model, 1)
        box.files.write("/tmp/go", b"")
        assert daemon.process is not None
        os.kill(daemon.process.pid, signal.SIGSTOP)
    deadline = time.monotonic() + 60
    while model.calls < 3:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    daemon.kill()
    daemon.start()
    with daemon.client() as client:
        found = account(client, box)
        assert (found.spent, found.reserved) == (3 * WORST, 0)
        report = client.usage(box.id)
        assert [(item.model, item.calls, item.assumed) for item in report.models] == [
            (REQUEST["model"], 1, True),
            ("unknown", 1, True),
        ]
        assert len(list((daemon.data / "leases").iterdir())) == 1  # that of the gateway that runs now

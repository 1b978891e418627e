"""Budgets of a real daemon: what is under way when its processes are killed is neither lost nor counted twice."""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

import pytest
from tests.conftest import Daemon

from corral import Client, Sandbox
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


class Model:
    """A scripted model server in a process of its own."""

    def __init__(self, url: str) -> None:
        self.url = url

    def wait(self, seconds: float) -> None:
        """Let calls take so long from now on."""
        data = json.dumps({"wait": seconds}).encode()
        urllib.request.urlopen(
            urllib.request.Request(f"{self.url}/__faults", data, method="PUT"), timeout=10
        ).close()

    @property
    def calls(self) -> int:
        """Calls that have arrived."""
        with urllib.request.urlopen(f"{self.url}/__stats", timeout=10) as reply:
            return int(json.load(reply)["good"])


@pytest.fixture
def model(daemon: Daemon) -> Iterator[Model]:
    key = f"sk-test-{secrets.token_hex(24)}"
    process = subprocess.Popen(
        [sys.executable, "-m", "corral.testing.model_server", "--key-env", "MODEL_KEY"],
        env={**os.environ, "MODEL_KEY": key}, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    url = f"http://127.0.0.1:{json.loads(process.stdout.readline())['port']}"
    daemon.cli("secret", "add", "slow", "--provider", "anthropic", "--base-url", url, input=key + "\n")
    try:
        yield Model(url)
    finally:
        if daemon.process is not None:
            daemon.cli("secret", "rm", "slow", check=False)
        process.kill()
        process.wait()
        process.stdout.close()


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

"""Daemons whose state is in PostgreSQL, with real sandboxes: one, two on one database, and a database that goes away."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from tests.conftest import Daemon
from tests.faults.machine import COUNTER, TINY, build_tiny, counts
from tests.models import Model, serving
from tests.system.postgres import Server
from tests.traces import wait_for

from corral import Client
from corral.errors import Conflict, UpstreamFailed
from corral.model.lifecycle import State

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]

REQUEST = json.dumps(
    {
        "model": "claude-sonnet-4-5",
        "max_tokens": 1000,
        "messages": [{"role": "user", "content": "hello"}],
    }
)
WORST = (4096 + len(REQUEST)) * 3 + 1000 * 15
CALL = (
    "curl -s -m 60 -o /dev/null -w '%{http_code}\\n' -H \"x-api-key: $ANTHROPIC_API_KEY\" "
    f"-H 'Content-Type: application/json' --data-binary '{REQUEST}' http://gateway.corral/s/anthropic/v1/messages"
)


@dataclass
class Fleet:
    """Two daemons of this host on one database."""

    server: Server
    one: Daemon
    two: Daemon


@pytest.fixture(scope="module")
def fleet(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Each with its own data directory and template; the second has the first one's key."""
    folder = tmp_path_factory.mktemp("fleet")
    url = server.database("fleet")
    daemons: list[Daemon] = []
    try:
        for name in ("one", "two"):
            data = folder / name
            data.mkdir()
            (data / "config.json").write_text('{"gateway.workers": 1}')
            if daemons:
                (data / "key").write_bytes((daemons[0].data / "key").read_bytes())
                (data / "key").chmod(0o600)
            daemons.append(Daemon(data, database=url))
            daemons[-1].start()
            (folder / f"tree-{name}").mkdir()
            with daemons[-1].client() as client:
                build_tiny(client, folder / f"tree-{name}", more=("curl", "seq"))
        yield Fleet(server, *daemons)
    finally:
        for daemon in daemons:
            if daemon.process is not None:
                daemon.remove_all()
            daemon.discard()


@pytest.fixture(autouse=True)
def emptied(fleet: Fleet) -> Iterator[None]:
    """Both run, with nothing in them, before each test and after it."""
    yield
    if fleet.server.process is None or fleet.server.process.poll() is not None:
        fleet.server.start()
    for daemon in (fleet.one, fleet.two):
        if daemon.process is None:
            daemon.start()
        daemon.remove_all()


@pytest.fixture
def model(fleet: Fleet) -> Iterator[Model]:
    """A model server whose key the first daemon is given."""
    with serving() as found:
        fleet.one.cli("secret", "add", "anthropic", "--base-url", found.url, input=f"{found.key}\n")
        try:
            yield found
        finally:
            if fleet.one.process is not None:
                fleet.one.cli("secret", "rm", "anthropic", check=False)


def first_processes(daemon: Daemon, but: str) -> list[int]:
    """Those of its sandboxes but one."""
    notes = (daemon.run / "sandboxes").glob("*/bundle/pid")
    return [int(note.read_text()) for note in notes if note.parts[-3] != but]


def _work(daemon: Daemon) -> None:
    """Make sandboxes, use and remove them."""
    with daemon.client() as client:
        for number in range(10):
            client.create_sandbox(TINY, name=f"work-{number}")
            assert client.exec_command(f"work-{number}", "echo done").stdout == "done\n"
            client.remove_sandbox(f"work-{number}")


def names(client: Client) -> list[str]:
    return sorted(sandbox.name for sandbox in client.list_sandboxes())


def spent(client: Client) -> int:
    """By all of the tenant's calls ever, once none is under way."""
    wait_for(lambda: not client.tenant_budget().accounts[0].reserved, "a call is not settled")
    return client.tenant_budget().accounts[0].spent


def audited(client: Client) -> str:
    return client.check_audit().fault


def test_one_does_there_what_it_does_on_sqlite(fleet: Fleet, model: Model) -> None:
    """A sandbox, a checkpoint of it, a start from that, forks, a secret and its grant, a pool; and all again after each end of
    the daemon."""
    daemon = fleet.one
    with daemon.client() as client:
        client.create_sandbox(TINY, name="box", secrets=("anthropic",))
        counter = client.start_process("box", ["sh", "-c", COUNTER]).id
        assert client.exec_command("box", "echo kept > /kept; cat /kept").stdout == "kept\n"
        client.checkpoint("box", "saved")
        client.create_sandbox("saved", name="copy")
        assert client.exec_command("copy", "cat /kept").stdout == "kept\n"
        forked = client.fork_sandbox("box", 2)
        assert [item.name for item in forked.sandboxes] == ["box-1", "box-2"]
        assert client.exec_command("box-2", "cat /kept").stdout == "kept\n"
        assert client.exec_command("box", CALL, timeout=60).stdout == "200\n"
        client.set_pool(TINY, 1)
        wait_for(lambda: [pool.ready for pool in client.list_pools()] == [1], "the pool does not fill")
    for end in (daemon.stop, daemon.kill):
        end()
        daemon.start()
        with daemon.client() as client:
            assert {item.name: item.state for item in client.list_sandboxes()} == dict.fromkeys(
                ("box", "box-1", "box-2", "copy"), State.RUNNING
            )
            wait_for(lambda: [pool.ready for pool in client.list_pools()] == [1], "the pool lost its spare")
            counts(client, "box", counter)
            assert client.exec_command("box", CALL, timeout=60).stdout == "200\n"
            assert audited(client) == ""
    with daemon.client() as client:
        assert client.usage("box").models[0].calls == 3
        client.remove_template("saved")


def test_two_leave_each_other_alone(fleet: Fleet) -> None:
    """Each shows and touches its own, whatever the other does; a name belongs to one sandbox of all."""
    with fleet.one.client() as one, fleet.two.client() as two:
        one.create_sandbox(TINY, name="box")
        two.create_sandbox(TINY, name="other")
        counter = two.start_process("other", ["sh", "-c", COUNTER]).id
        two.set_pool(TINY, 1)
        wait_for(lambda: [pool.ready for pool in two.list_pools()] == [1], "the pool does not fill")
        with pytest.raises(Conflict, match="another host") as refused:
            two.create_sandbox(TINY, name="box")
        assert "corral rm" not in refused.value.hint
        one.create_sandbox(TINY, name="other-1")
        assert [item.name for item in two.fork_sandbox("other", 2).sandboxes] == ["other-2", "other-3"]
    for end in (fleet.one.kill, fleet.one.stop):
        with ThreadPoolExecutor(1) as threads:
            goes_on = threads.submit(_work, fleet.two)
            end()
            fleet.one.start()
            goes_on.result()
        with fleet.one.client() as one, fleet.two.client() as two:
            assert names(one) == ["box", "other-1"]
            assert names(two) == ["other", "other-2", "other-3"]
            assert one.exec_command("box", "echo alive").stdout == "alive\n"
            counts(two, "other", counter)
            wait_for(lambda: [pool.ready for pool in two.list_pools()] == [1], "the pool does not fill")
            assert one.list_pools() == []
            assert audited(one) == ""


def test_a_tenants_budget_holds_over_the_calls_of_both_at_once(fleet: Fleet, model: Model) -> None:
    """G-212: fifty calls at once from each, of which the cap lets some through; and what one spent, the other knows. The key was
    given to one of them, and is served and, once it is removed, refused by both."""
    with fleet.one.client() as one, fleet.two.client() as two:
        one.create_sandbox(TINY, name="box", secrets=("anthropic",))
        two.create_sandbox(TINY, name="other", secrets=("anthropic",))
        wait_for(lambda: two.exec_command("other", CALL).stdout == "200\n", "it does not learn of the secret")
        cap = spent(one) + 20 * WORST
        one.set_tenant_budget(cap)
        model.wait(3)
        burst = f"for i in $(seq 50); do {CALL} & done; wait"
        try:
            with ThreadPoolExecutor(2) as threads:
                outcomes = threads.map(
                    lambda pair: pair[0].exec_command(pair[1], burst, timeout=120).stdout.split(),
                    ((one, "box"), (two, "other")),
                )
                answers = [answer for outcome in outcomes for answer in outcome]
            assert set(answers) == {"200", "402"}
            assert len(answers) == 100
            assert 1 <= answers.count("200") <= 20
            assert spent(one) == spent(two) <= cap
        finally:
            one.set_tenant_budget(None)
        assert audited(one) == audited(two) == ""
        one.remove_secret("anthropic")
        wait_for(lambda: two.exec_command("other", CALL).stdout == "403\n", "it goes on with the secret")


def test_a_database_that_is_away_comes_back_to_a_daemon_that_lost_nothing(fleet: Fleet, model: Model) -> None:
    """What needs it is refused by name meanwhile; what runs goes on, and what ended is known afterwards."""
    daemon = fleet.one
    with daemon.client() as client:
        client.create_sandbox(TINY, name="box", secrets=("anthropic",))
        client.create_sandbox(TINY, name="brief")
        counter = client.start_process("box", ["sh", "-c", COUNTER]).id
        client.set_pool(TINY, 1)
        wait_for(lambda: [pool.ready for pool in client.list_pools()] == [1], "the pool does not fill")
        for number in (signal.SIGINT, signal.SIGQUIT):
            fleet.server.stop(number)
            with pytest.raises(UpstreamFailed, match="PostgreSQL does not serve Corral") as refused:
                client.create_sandbox(TINY, name="refused")
            assert "CORRAL_DATABASE_URL" in refused.value.hint
            assert client.exec_command("box", "echo alive").stdout == "alive\n"
            if number is signal.SIGINT:  # later ones may be covered by what was set aside before
                assert client.exec_command("box", CALL, timeout=60).stdout == "503\n"
            for process in first_processes(daemon, but=client.get_sandbox("box").id):
                os.kill(process, signal.SIGKILL)  # of `brief`, and of the pool's spare
            fleet.server.start()
            wait_for(lambda: client.get_sandbox("brief").state is State.STOPPED, "its end is not known")
            wait_for(
                lambda: [pool.ready for pool in client.list_pools()] == [1], "the pool does not fill again"
            )
            assert client.exec_command("box", CALL, timeout=60).stdout == "200\n"
            counts(client, "box", counter)
            client.start_sandbox("brief")
            assert names(client) == ["box", "brief"]
            assert audited(client) == ""


def test_a_database_that_is_down_at_the_start_is_told(fleet: Fleet) -> None:
    fleet.one.stop()
    fleet.server.stop()
    ended = subprocess.run(
        [sys.executable, *Daemon.program, "--detach"],
        env=fleet.one.env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == UpstreamFailed.exit_code
    assert "error: PostgreSQL does not serve Corral: connection" in ended.stderr
    assert "hint: see that it runs, and that CORRAL_DATABASE_URL leads there" in ended.stderr

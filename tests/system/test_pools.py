"""Warm pools with real sandboxes: what a claimed one shows of itself, and what a restart leaves."""

from collections.abc import Iterator
from typing import Any, cast

import pytest
from tests.conftest import Daemon
from tests.traces import settled, traces, wait_for

import corral
from corral import Client, Sandbox

pytestmark = pytest.mark.root
ISOLATIONS = ["container", pytest.param("gvisor", marks=pytest.mark.gvisor)]
IDENTITY = (
    "hostname; cat /etc/hostname; cat /etc/machine-id; getent hosts $(hostname) | awk '{print $2}'; echo $X"
)


@pytest.fixture
def traced(daemon: Daemon) -> Iterator[Daemon]:
    """What the daemon holds afterwards is what it held before."""
    before = traces(daemon)
    yield daemon
    daemon.remove_all()
    settled(daemon, before)


def ready(client: Client, count: int) -> None:
    wait_for(lambda: [pool.ready for pool in client.list_pools()] == [count], "the pool does not fill")


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_claimed_sandbox_is_what_the_create_asked_for(
    traced: Daemon, client: Client, isolation: str
) -> None:
    cold = Sandbox.create(client=client, isolation=isolation, name="cold", env={"X": "cold"})
    client.set_pool("base", 1, isolation=isolation)
    ready(client, 1)
    warm = Sandbox.create(
        client=client, isolation=isolation, name="warm", env={"X": "hot"}, timezone="Asia/Tokyo",
        allow=("example.org",),
    )  # fmt: skip
    names: dict[str, tuple[str, ...]] = {}
    ids: dict[str, str] = {}
    for box in (cold, warm):
        host, file, ids[box.name], known, value = box.exec(
            ["sh", "-c", IDENTITY], check=True
        ).stdout.splitlines()
        names[box.name] = (host, file, known, value)
    assert names == {"cold": ("cold", "cold", "cold", "cold"), "warm": ("warm", "warm", "warm", "hot")}
    assert len({*ids.values()}) == 2
    assert [box.exec(["date", "+%Z"], check=True).stdout for box in (cold, warm)] == ["UTC\n", "JST\n"]
    asked = warm.exec(["curl", "-sS", "http://gateway.corral/policy"], check=True).stdout
    assert "example.org" in asked
    ready(client, 1)


def test_spares_survive_the_daemon(traced: Daemon, client: Client) -> None:
    client.set_pool("base", 2)
    ready(client, 2)
    traced.kill()
    traced.start()
    with traced.client() as after:
        (pool,) = after.list_pools()
        assert pool.size == 2
        box = Sandbox.create(client=after, name="warm")
        assert box.exec(["hostname"], check=True).stdout == "warm\n"
        ready(after, 2)
        assert [item.name for item in after.list_sandboxes()] == ["warm"]


def test_a_spare_waits_with_its_templates_service_running(traced: Daemon, client: Client) -> None:
    served = corral.Template().from_base()
    served.start("python3 -m http.server 8000", ready="curl -sf localhost:8000").build(
        "served", client=client
    )
    try:
        client.set_pool("served", 1)
        ready(client, 1)
        box = Sandbox.create("served", client=client, name="warm")
        assert box.exec("curl -sf localhost:8000 >/dev/null && hostname", check=True).stdout == "warm\n"
        assert [item.tag for item in box.processes()] == ["service:start"]
        traced.remove_all()
    finally:
        client.remove_template("served")


def test_the_commands(traced: Daemon) -> None:
    assert "of 2 ready" in traced.cli("pool", "set", "base", "2", "--memory", "1G", "--idle", "1h").stdout
    (pool,) = cast(list[dict[str, Any]], traced.cli_json("pool", "ls"))
    assert (pool["size"], pool["limits"]["memory"], pool["idle"]) == (2, 1 << 30, 3600)
    assert "base" in traced.cli("pool", "ls").stdout
    assert traced.cli("pool", "rm", "base").stdout == "base\n"
    refused = traced.cli("pool", "rm", "base", check=False)
    assert refused.returncode == 4
    assert "corral pool ls" in refused.stderr

"""A gateway of several processes: each serves sandboxes of its own, and budgets hold over all of them."""

import os
import signal
import time
from collections.abc import Iterator

import pytest
from tests.conftest import Daemon
from tests.models import Model
from tests.system.test_budget_crash import CALL, WORST, until_settled

from corral import Client, Sandbox
from corral.sdk.sandbox import Process

pytestmark = pytest.mark.root

WORKERS = 2


@pytest.fixture
def workers(daemon: Daemon) -> Iterator[Daemon]:
    daemon.cli("config", "set", "gateway.workers", str(WORKERS))
    daemon.stop()
    daemon.start()
    yield daemon
    daemon.remove_all()
    daemon.cli("config", "set", "gateway.workers", "1")
    daemon.stop()
    daemon.start()


@pytest.fixture
def boxes(workers: Daemon, model: Model) -> Iterator[tuple[Client, list[Sandbox]]]:
    with workers.client() as client:
        yield client, [Sandbox.create(client=client, secrets=("slow",)) for _ in range(WORKERS)]


def has_ended(call: Process) -> bool:
    return call.refresh().exit is not None


def test_one_that_ends_takes_its_own_sandboxes_connections_and_no_others(
    workers: Daemon, model: Model, boxes: tuple[Client, list[Sandbox]]
) -> None:
    """G-332: and those have their network again soon, by another one."""
    client, (first, second) = boxes
    model.wait(60)
    calls = [box.spawn(CALL) for box in (first, second)]
    deadline = time.monotonic() + 60
    while model.calls < 2:
        assert time.monotonic() < deadline
    former = workers.gateway_pids()
    assert len(former) == WORKERS
    os.kill(former[0], signal.SIGKILL)
    while not any(ended := [has_ended(call) for call in calls]):
        assert time.monotonic() < deadline
    assert sorted(ended) == [False, True]
    cut = (first, second)[ended.index(True)]
    assert until_settled(client, cut).spent == WORST
    model.wait(0)
    while cut.exec(CALL).stdout != "200":
        assert time.monotonic() < deadline
    assert not has_ended(calls[ended.index(False)])
    assert len(set(workers.gateway_pids()) & set(former)) == WORKERS - 1


def test_a_tenants_budget_holds_over_all_of_them(model: Model, boxes: tuple[Client, list[Sandbox]]) -> None:
    """G-210, G-211, G-228: calls of sandboxes that different processes serve, all at once, and a cap that covers a few."""
    client, (first, second) = boxes
    model.wait(5)  # so that more are under way than fit
    before = client.tenant_budget().accounts[0]
    client.set_tenant_budget(before.spent + 7 * WORST + WORST // 2)
    try:
        for box in (first, second):
            box.files.write("/tmp/call", CALL)
        ran = [box.spawn("seq 30 | xargs -P 30 -n 1 sh /tmp/call") for box in (first, second)]
        statuses = "".join(one.wait().stdout for one in ran)
        paid = sum(until_settled(client, box).spent for box in (first, second))
        found = client.tenant_budget().accounts[0]
    finally:
        client.set_tenant_budget(None)
    assert "402" in statuses
    assert "200" in statuses
    assert found.cap is not None
    assert before.spent < found.spent <= found.cap
    assert found.spent - before.spent == paid


def test_a_secret_that_goes_is_gone_in_all_of_them(
    workers: Daemon, boxes: tuple[Client, list[Sandbox]]
) -> None:
    _, both = boxes
    assert [box.exec(CALL).stdout for box in both] == ["200"] * WORKERS
    workers.cli("secret", "rm", "slow")
    assert [box.exec(CALL).stdout for box in both] == ["403"] * WORKERS

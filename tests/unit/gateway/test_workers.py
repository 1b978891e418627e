"""Several gateway processes as one: who serves whom, and what all are told."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import cast

import pytest

from corral.engine.ports import Attachment, Listener, OpenedSecret
from corral.errors import Conflict, InvalidInput, UpstreamFailed
from corral.gateway.client import GatewayClient
from corral.gateway.workers import GatewayWorkers
from corral.model.egress import EgressPolicy
from corral.model.grants import Grant
from corral.model.ids import GrantId, SandboxId, TenantId
from corral.model.secrets import Secret


class Client:
    """What is asked of a client, without a process behind it."""

    def __init__(self) -> None:
        self.is_up = True
        self.served: list[SandboxId] = []
        self.told: list[object] = []
        self.failure: Exception | None = None

    @property
    def load(self) -> int:
        return len(self.served)

    async def attach(self, attachment: Attachment, listeners: Sequence[Listener] | None) -> None:
        if self.failure is not None:
            raise self.failure
        if attachment.sandbox not in self.served:
            self.served.append(attachment.sandbox)

    async def detach(self, sandbox: SandboxId) -> None:
        self.served.remove(sandbox)

    async def recall(self, sandbox: SandboxId | None) -> None:
        self.told.append(sandbox)

    async def set_secrets(self, secrets: Sequence[OpenedSecret]) -> None:
        if self.failure is not None:
            raise self.failure
        self.told.append(secrets)


def box(number: int) -> Attachment:
    sandbox = SandboxId(f"{number:016x}")
    tenant = TenantId("default")
    grant = Grant(GrantId("g"), tenant, sandbox, "hash", (), datetime(2026, 1, 1, tzinfo=UTC))
    return Attachment(sandbox, tenant, f"box-{number}", grant, EgressPolicy(), Secret("seed"))


@pytest.fixture
def clients() -> list[Client]:
    return [Client(), Client()]


@pytest.fixture
def workers(clients: list[Client]) -> GatewayWorkers:
    return GatewayWorkers(cast("list[GatewayClient]", clients))


async def test_each_sandbox_is_served_by_the_one_with_the_fewest_and_stays_there(
    workers: GatewayWorkers, clients: list[Client]
) -> None:
    for number in range(4):
        await workers.attach(box(number), ())
    assert [client.load for client in clients] == [2, 2]
    first = clients[0].served[0]
    await workers.detach(clients[1].served[0])
    await workers.detach(clients[1].served[0])
    await workers.attach(next(one for n in range(4) if (one := box(n)).sandbox == first), None)
    assert [client.load for client in clients] == [2, 0]
    await workers.detach(SandboxId("f" * 16))


async def test_a_new_sandbox_goes_to_one_that_is_up(workers: GatewayWorkers, clients: list[Client]) -> None:
    clients[0].is_up = False
    for number in range(3):
        await workers.attach(box(number), ())
    assert [client.load for client in clients] == [0, 3]


async def test_what_cannot_be_attached_is_nobodys(workers: GatewayWorkers, clients: list[Client]) -> None:
    clients[0].failure = Conflict("no", "no")
    with pytest.raises(Conflict):
        await workers.attach(box(1), ())
    clients[0].is_up = False
    await workers.attach(box(1), ())
    assert clients[1].served == [box(1).sandbox]


@pytest.mark.parametrize("failing", [0, 1])
async def test_all_are_told_though_one_fails(
    workers: GatewayWorkers, clients: list[Client], failing: int
) -> None:
    """A secret that is revoked must be gone everywhere."""
    clients[failing].failure = UpstreamFailed("the gateway does not answer", "wait")
    with pytest.raises(UpstreamFailed):
        await workers.set_secrets([])
    assert clients[1 - failing].told == [[]]
    await workers.recall(None)
    assert [client.told[-1] for client in clients] == [None, None]
    clients[failing].failure = InvalidInput("no", "no")
    with pytest.raises(InvalidInput):
        await workers.set_secrets([])

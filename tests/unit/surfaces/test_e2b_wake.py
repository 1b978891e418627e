"""E2B's API over an engine with fakes below it: what wakes a sandbox, and how long it lives then."""

from datetime import timedelta
from types import SimpleNamespace
from typing import cast

import httpx2
import pytest
from tests.unit.engine.test_sandboxes import World, world

from corral.api.e2b import shapes
from corral.api.e2b.dataplane import DataPlane
from corral.api.e2b.wake import awake
from corral.engine.engine import Engine
from corral.engine.plan import CreateRequest
from corral.engine.sandboxes import Sandboxes
from corral.model.ids import DEFAULT_TENANT, SandboxId
from corral.model.lifecycle import State
from corral.model.sandbox import Sandbox
from corral.model.secrets import Secret
from corral.policy.idle import idle_reason

__all__ = ["world"]

TOKEN = "the-sandbox's-own"
WAKES = {shapes.AUTO_RESUME: "true", shapes.TIMEOUT: "60"}


def engine_of(sandboxes: Sandboxes) -> Engine:
    async def sandbox_token(_: SandboxId) -> Secret:
        return Secret(TOKEN)

    return cast("Engine", SimpleNamespace(sandboxes=sandboxes, sandbox_token=sandbox_token))


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize(("ttl", "then"), [(None, None), (1000, 1600)])
async def test_traffic_leaves_the_life_of_a_sandbox_that_was_idle(
    world: World, memory: bool, ttl: int | None, then: int | None
) -> None:
    sandboxes = world.engine()
    await sandboxes.create(DEFAULT_TENANT, CreateRequest(name="one", ttl=ttl, attributes=WAKES))
    paused = await sandboxes.pause(DEFAULT_TENANT, "one", memory=memory, reason=idle_reason(600))
    world.clock.time += timedelta(seconds=600)
    woken = await awake(engine_of(sandboxes), paused)
    assert woken.state is State.RUNNING
    assert woken.spec.ttl == then


async def test_traffic_gives_a_sandbox_that_is_made_so_its_time_anew(world: World) -> None:
    sandboxes = world.engine()
    await sandboxes.create(DEFAULT_TENANT, CreateRequest(name="one", ttl=10, attributes=WAKES))
    paused = await sandboxes.pause(DEFAULT_TENANT, "one")
    world.clock.time += timedelta(seconds=600)
    assert (await awake(engine_of(sandboxes), paused)).spec.ttl == 660


class TestHealth:
    async def ask(self, sandboxes: Sandboxes, sandbox: Sandbox, token: str | None) -> httpx2.Response:
        headers = {"E2b-Sandbox-Id": sandbox.id, "E2b-Sandbox-Port": "49983"}
        if token is not None:
            headers["X-Access-Token"] = token
        transport = httpx2.ASGITransport(app=DataPlane(engine_of(sandboxes)))
        async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.get("/health", headers=headers)

    @pytest.mark.parametrize("token", [None, "", "another"])
    async def test_who_has_no_token_wakes_nothing(self, world: World, token: str | None) -> None:
        sandboxes = world.engine()
        sandbox = await sandboxes.create(DEFAULT_TENANT, CreateRequest(name="one", attributes=WAKES))
        assert (await self.ask(sandboxes, sandbox, token)).status_code == 204
        await sandboxes.pause(DEFAULT_TENANT, "one")
        answer = await self.ask(sandboxes, sandbox, token)
        assert answer.status_code == 403
        assert "can't be resumed with the credentials" in answer.json()["message"]
        assert sandboxes.get(DEFAULT_TENANT, "one").state is State.PAUSED

    async def test_who_has_the_token_wakes_it(self, world: World) -> None:
        sandboxes = world.engine()
        sandbox = await sandboxes.create(DEFAULT_TENANT, CreateRequest(name="one", attributes=WAKES))
        await sandboxes.pause(DEFAULT_TENANT, "one")
        assert (await self.ask(sandboxes, sandbox, TOKEN)).status_code == 204
        assert sandboxes.get(DEFAULT_TENANT, "one").state is State.RUNNING

    async def test_one_that_traffic_does_not_wake_is_told_as_not_there(self, world: World) -> None:
        sandboxes = world.engine()
        sandbox = await sandboxes.create(DEFAULT_TENANT, CreateRequest(name="one"))
        await sandboxes.pause(DEFAULT_TENANT, "one")
        answer = await self.ask(sandboxes, sandbox, None)
        assert answer.status_code == 502
        assert "was not found" in answer.json()["message"]

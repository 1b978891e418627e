"""E2B's API over an engine with fakes below it: what wakes a sandbox, and how long it lives then."""

import asyncio
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import httpx2
import pytest
from starlette.requests import Request
from tests.unit.engine.test_sandboxes import World, world

from corral.api.e2b import shapes
from corral.api.e2b.app import E2bApi
from corral.api.e2b.dataplane import DataPlane
from corral.api.e2b.wake import awake
from corral.engine.engine import Engine
from corral.engine.plan import CreateRequest
from corral.engine.sandboxes import Sandboxes
from corral.model.ids import DEFAULT_TENANT, SandboxId
from corral.model.lifecycle import Event, State
from corral.model.sandbox import Expiry, Sandbox
from corral.model.secrets import Identity, Secret
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


async def ask(
    sandboxes: Sandboxes, sandbox: Sandbox, path: str, token: str | None = TOKEN, *, port: str = "49983"
) -> httpx2.Response:
    """A request for a sandbox's own service."""
    headers = {"E2b-Sandbox-Id": sandbox.id, "E2b-Sandbox-Port": port}
    if token is not None:
        headers["X-Access-Token"] = token
    transport = httpx2.ASGITransport(app=DataPlane(engine_of(sandboxes)))
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.get(path, headers=headers)


async def post(sandboxes: Sandboxes, path: str, body: dict[str, Any]) -> httpx2.Response:
    """A request of the control plane."""

    async def authenticate(_: Request) -> Identity:
        return Identity(DEFAULT_TENANT)

    app = E2bApi(cast(Any, None), engine_of(sandboxes), authenticate, cast(DataPlane, None), None)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://test") as client:
        return await client.post(path, json=body)


class TestHealth:
    @pytest.mark.parametrize("token", [None, "", "another"])
    async def test_who_has_no_token_wakes_nothing(self, world: World, token: str | None) -> None:
        sandboxes = world.engine()
        sandbox = await sandboxes.create(DEFAULT_TENANT, CreateRequest(name="one", attributes=WAKES))
        assert (await ask(sandboxes, sandbox, "/health", token)).status_code == 204
        await sandboxes.pause(DEFAULT_TENANT, "one")
        for path in ("/health", "/envs", "/files?path=x&signature=v1_no"):
            answer = await ask(sandboxes, sandbox, path, token)
            assert answer.status_code == 403
            assert "can't be resumed with the credentials" in answer.json()["message"]
        assert sandboxes.get(DEFAULT_TENANT, "one").state is State.PAUSED

    async def test_who_has_the_token_wakes_it(self, world: World) -> None:
        sandboxes = world.engine()
        sandbox = await sandboxes.create(DEFAULT_TENANT, CreateRequest(name="one", attributes=WAKES))
        await sandboxes.pause(DEFAULT_TENANT, "one")
        assert (await ask(sandboxes, sandbox, "/health")).status_code == 204
        assert sandboxes.get(DEFAULT_TENANT, "one").state is State.RUNNING

    @pytest.mark.parametrize("path", ["/health", "/envs"])
    async def test_one_that_traffic_does_not_wake_is_told_as_not_there(self, world: World, path: str) -> None:
        sandboxes = world.engine()
        sandbox = await sandboxes.create(DEFAULT_TENANT, CreateRequest(name="one"))
        await sandboxes.pause(DEFAULT_TENANT, "one")
        answer = await ask(sandboxes, sandbox, path, None)
        assert answer.status_code == 502
        assert "was not found" in answer.json()["message"]


@pytest.mark.parametrize("port", ["0", "99999", "8080", "49983.0", "049983", "x", ""])
async def test_a_port_that_is_not_the_services_is_refused(world: World, port: str) -> None:
    sandboxes = world.engine()
    sandbox = await sandboxes.create(DEFAULT_TENANT, CreateRequest(name="one"))
    answer = await ask(sandboxes, sandbox, "/health", port=port)
    assert (answer.status_code, answer.json()["message"]) == (400, "Invalid sandbox port")


@pytest.mark.parametrize("path", ["/init", "/freeze", "/upgrade"])
async def test_reserved_paths_are_refused_to_everybody(world: World, path: str) -> None:
    sandboxes = world.engine()
    sandbox = await sandboxes.create(DEFAULT_TENANT, CreateRequest(name="one", attributes=WAKES))
    await sandboxes.pause(DEFAULT_TENANT, "one")
    for token in (None, TOKEN):
        answer = await ask(sandboxes, sandbox, path, token)
        assert (answer.status_code, answer.json()["path"]) == (404, path)
    assert sandboxes.get(DEFAULT_TENANT, "one").state is State.PAUSED


class TestWhileAnotherRequestStartsIt:
    async def starting(self, world: World) -> tuple[Sandboxes, Sandbox]:
        sandboxes = world.engine()
        sandbox = await sandboxes.create(DEFAULT_TENANT, CreateRequest(name="one", ttl=60))
        await sandboxes.stop(DEFAULT_TENANT, "one", 0)
        return sandboxes, sandbox

    async def test_connect_joins_it(self, world: World) -> None:
        sandboxes, sandbox = await self.starting(world)
        async with sandboxes.locked(DEFAULT_TENANT, "one"):
            await world.registry.advance(sandbox.id, Event.START)
            other = asyncio.ensure_future(
                post(sandboxes, f"/v2/sandboxes/{sandbox.id}/connect", {"timeout": 900})
            )
            done, _ = await asyncio.wait({other}, timeout=0.1)
            assert not done
            await world.registry.advance(sandbox.id, Event.STARTED)
        answer = await other
        assert (answer.status_code, answer.json()["sandboxID"]) == (200, sandbox.id)
        assert sandboxes.get(DEFAULT_TENANT, "one").spec.ttl == 900

    async def test_its_memory_cannot_be_forgotten(self, world: World) -> None:
        sandboxes, sandbox = await self.starting(world)
        await world.registry.advance(sandbox.id, Event.START)
        answer = await post(sandboxes, f"/v2/sandboxes/{sandbox.id}/connect", {"memory": False})
        assert (answer.status_code, answer.json()["error_code"]) == (409, "sandbox_start_in_flight")

    async def test_traffic_comes_again_in_a_moment(self, world: World) -> None:
        sandboxes, sandbox = await self.starting(world)
        await world.registry.advance(sandbox.id, Event.START)
        answer = await ask(sandboxes, sandbox, "/health")
        assert (answer.status_code, answer.json()["sandboxId"]) == (409, sandbox.id)
        assert answer.json()["message"] == "The sandbox is still transitioning. Try again in a moment."


@pytest.mark.parametrize(
    ("given", "auto_pause", "then"),
    [
        (Expiry.REMOVE, None, Expiry.REMOVE),
        (Expiry.REMOVE, True, Expiry.PAUSE),
        (Expiry.PAUSE, False, Expiry.REMOVE),
        (Expiry.STOP, True, Expiry.STOP),
        (Expiry.STOP, None, Expiry.STOP),
    ],
)
async def test_the_resume_of_old_clients_changes_what_happens_at_the_end(
    world: World, given: Expiry, auto_pause: bool | None, then: Expiry
) -> None:
    sandboxes = world.engine()
    sandbox = await sandboxes.create(DEFAULT_TENANT, CreateRequest(name="one", ttl=60, expiry=given))
    await sandboxes.pause(DEFAULT_TENANT, "one")
    body = {} if auto_pause is None else {"autoPause": auto_pause}
    assert (await post(sandboxes, f"/sandboxes/{sandbox.id}/resume", body)).status_code == 201
    kept = {item.id: item.spec.expiry for item in await world.store.sandboxes()}
    assert kept[sandbox.id] is then
    assert sandboxes.get(DEFAULT_TENANT, "one").spec.ttl == 15

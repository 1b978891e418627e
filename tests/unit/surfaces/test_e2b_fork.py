"""E2B's fork over an engine with fakes below it: what children have of their parent where its processes cannot be saved."""

from types import SimpleNamespace
from typing import Any, cast

import httpx2
import pytest
from starlette.requests import Request
from tests.unit.engine.test_sandboxes import World, world

from corral.api.e2b import shapes
from corral.api.e2b.app import E2bApi
from corral.api.e2b.dataplane import DataPlane
from corral.api.e2b.idempotency import note
from corral.engine.engine import Engine
from corral.engine.plan import CreateRequest
from corral.engine.sandboxes import Sandboxes
from corral.model.capacity import Rules
from corral.model.ids import DEFAULT_TENANT, SandboxId, TenantId
from corral.model.secrets import Identity, Secret
from corral.model.template import Template
from corral.model.volume import VolumeWish
from corral.protocol.e2b.sandboxes import NewSandbox

__all__ = ["world"]


async def fork(
    world: World, sandboxes: Sandboxes, ref: str, body: dict[str, Any], *, memory: bool = False
) -> httpx2.Response:
    async def authenticate(_: Request) -> Identity:
        return Identity(DEFAULT_TENANT)

    async def sandbox_token(_: SandboxId) -> Secret:
        return Secret("the-sandbox's-own")

    async def checkpoint(tenant: TenantId, ref: str, name: str) -> Template:
        return await world.checkpoints.make(tenant, ref, name)

    engine = SimpleNamespace(
        sandboxes=sandboxes,
        sandbox_token=sandbox_token,
        saves_memory=lambda _: memory,
        checkpoints=world.checkpoints,
        processes=SimpleNamespace(list=lambda *_: []),
        checkpoint=checkpoint,
        templates=world.templates,
    )
    app = E2bApi(cast(Any, None), cast(Engine, engine), authenticate, cast(DataPlane, None), None)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://test") as client:
        return await client.post(f"/sandboxes/{ref}/fork", json=body)


async def test_children_mount_what_their_parent_mounts(world: World) -> None:
    sandboxes = world.engine()
    for name in ("data", "models"):
        await world.volumes.create(DEFAULT_TENANT, name)
    wishes = (VolumeWish("data", "/data"), VolumeWish("models", "/models", read_only=True))
    parent = await sandboxes.create(DEFAULT_TENANT, CreateRequest(name="one", volumes=wishes))
    answer = await fork(world, sandboxes, parent.id, {"count": 2, "timeout": 60})
    assert answer.status_code == 201, answer.text
    children = [sandboxes.get(DEFAULT_TENANT, item["sandbox"]["sandboxID"]) for item in answer.json()]
    assert len({parent.id, *(child.id for child in children)}) == 3
    assert [child.spec.volumes for child in children] == [parent.spec.volumes] * 2


@pytest.mark.parametrize(("bound", "count", "status"), [(3, 3, 400), (3, 2, 201), (None, 3, 201)])
async def test_as_many_children_as_may_run_at_all_are_refused(
    world: World, bound: int | None, count: int, status: int
) -> None:
    world.rules = Rules(tenant_sandboxes=bound)
    sandboxes = world.engine()
    parent = await sandboxes.create(DEFAULT_TENANT, CreateRequest(name="one"))
    answer = await fork(world, sandboxes, parent.id, {"count": count})
    assert answer.status_code == status, answer.text
    if status == 201:
        assert all("sandbox" in item for item in answer.json())


@pytest.mark.parametrize("memory", [False, True])
async def test_a_child_is_not_what_the_key_of_its_parents_create_made(world: World, memory: bool) -> None:
    sandboxes = world.engine()
    notes = {**note("key-1", NewSandbox(template_id="base")), shapes.ALIAS: "app", shapes.TIMEOUT: "300"}
    parent = await sandboxes.create(DEFAULT_TENANT, CreateRequest(name="one", attributes=notes))
    answer = await fork(world, sandboxes, parent.id, {"timeout": 60}, memory=memory)
    child = sandboxes.get(DEFAULT_TENANT, answer.json()[0]["sandbox"]["sandboxID"])
    assert child.spec.attributes == {shapes.ALIAS: "app", shapes.TIMEOUT: "60"}
    assert child.spec.ttl == 60
    assert sandboxes.get(DEFAULT_TENANT, "one").spec.attributes == notes

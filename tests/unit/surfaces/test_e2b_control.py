"""E2B's control plane over a small engine: names of templates, their sandboxes, what is refused."""

from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import httpx2
import pytest
from starlette.requests import Request

from corral.api.e2b import shapes
from corral.api.e2b.app import E2bApi
from corral.api.e2b.dataplane import DataPlane
from corral.api.e2b.names import template_id
from corral.engine.engine import Engine
from corral.engine.plan import CreateRequest
from corral.errors import NotFound
from corral.model.build import BuildRequest
from corral.model.ids import TemplateId, TenantId
from corral.model.lifecycle import State
from corral.model.sandbox import Sandbox

from .conftest import TENANT, FakeEngine, template


class _Builds:
    """Builds that begin and never end, unless they are given up."""

    def __init__(self) -> None:
        self.started: list[BuildRequest] = []
        self.cancelled: list[str] = []
        self.forgotten: set[str] = set()

    async def start(self, tenant: TenantId, request: BuildRequest) -> Any:
        self.started.append(request)
        return SimpleNamespace(id=str(len(self.started)))

    async def cancel(self, tenant: TenantId, id: str) -> None:
        if id in self.forgotten:
            raise NotFound("there is no such build")
        self.cancelled.append(id)


@pytest.fixture
def builds(engine: FakeEngine) -> _Builds:
    cast(Any, engine).builds = _Builds()
    return cast(_Builds, cast(Any, engine).builds)


@pytest.fixture
async def http(engine: FakeEngine, builds: _Builds) -> AsyncIterator[httpx2.AsyncClient]:
    async def authenticate(_: Request) -> TenantId:
        return TENANT

    app = E2bApi(cast(Any, None), cast(Engine, engine), authenticate, cast(DataPlane, None), "sandboxes.test")
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost:7070") as client:
        yield client


async def _sandbox(
    engine: FakeEngine, name: str, alias: str, build: str, state: State = State.RUNNING
) -> Sandbox:
    made = await engine.sandboxes.create(TENANT, CreateRequest(name=name))
    spec = replace(made.spec, template=TemplateId(build), attributes={shapes.ALIAS: alias})
    engine.sandboxes.by_id[made.id] = replace(made, spec=spec, state=state)
    return engine.sandboxes.by_id[made.id]


async def test_a_template_is_found_by_its_alias_whatever_its_tags(
    engine: FakeEngine, http: httpx2.AsyncClient
) -> None:
    engine.templates.by_name = {"app:v1": template("app:v1")}
    for name in ("app", "app:v1", template_id(TENANT, "app")):
        found = await http.get(f"/templates/aliases/{name}")
        assert (found.status_code, found.json()["templateID"]) == (200, template_id(TENANT, "app"))
    assert (await http.patch("/v2/templates/app", json={})).json() == {"names": ["app"]}
    for name in ("app:v2", "app:default", "other"):
        assert (await http.get(f"/templates/aliases/{name}")).status_code == 404


async def test_the_base_is_there_before_it_is_built(engine: FakeEngine, http: httpx2.AsyncClient) -> None:
    engine.templates.by_name = {}
    found = await http.get("/templates/aliases/base")
    assert (found.status_code, found.json()["templateID"]) == (200, template_id(TENANT, "base"))
    assert (await http.get("/templates/aliases/base:v1")).status_code == 404


@pytest.mark.parametrize("named", ["app", template_id(TENANT, "app")])
async def test_sandboxes_of_former_builds_are_a_templates_own(
    engine: FakeEngine, http: httpx2.AsyncClient, named: str
) -> None:
    engine.templates.by_name = {"app": template("app")}
    old = await _sandbox(engine, "old", "app", "00000000000000ff")
    await _sandbox(engine, "other", "other", "00000000000000bb")
    listed = (await http.get("/v2/sandboxes", params={"template": named})).json()
    assert [item["sandboxID"] for item in listed] == [old.id]
    assert (await http.delete(f"/templates/{named}")).status_code == 400
    del engine.sandboxes.by_id[old.id]
    assert (await http.get("/v2/sandboxes", params={"template": named})).json() == []


@pytest.mark.parametrize(
    ("query", "total"),
    [
        ("", "1"),
        ("?state=running&state=paused", "1"),
        ("?state=paused&state=running", "1"),
        ("?state=running,paused", "1"),
        ("?state=paused", None),
    ],
)
async def test_running_sandboxes_are_counted_where_they_are_asked_for(
    engine: FakeEngine, http: httpx2.AsyncClient, query: str, total: str | None
) -> None:
    await _sandbox(engine, "one", "base", "00000000000000aa")
    await _sandbox(engine, "two", "base", "00000000000000aa", State.PAUSED)
    assert (await http.get(f"/v2/sandboxes{query}")).headers.get("x-total-running") == total

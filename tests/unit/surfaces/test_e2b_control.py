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


@pytest.mark.parametrize(
    "body",
    [
        {"name": "x" * 64},
        {"name": "-app"},
        {"name": "_app"},
        {"name": "app-"},
        {"name": "app:-v1"},
        {"name": "app", "tags": [".v1"]},
        {"name": "app", "tags": ["v1", "-v2"]},
        {"name": "app:0b8e1f0c-4b1e-4a64-a9d4-6f1d3a0f6d3b"},
        {"name": "app", "cpuCount": 0},
        {"name": "app", "memoryMB": 0},
    ],
)
async def test_builds_that_could_not_be_kept_are_refused_at_once(
    http: httpx2.AsyncClient, body: dict[str, Any]
) -> None:
    for path in ("/v3/templates", "/v2/templates"):
        assert (await http.post(path, json=body)).status_code == 400


async def _build(http: httpx2.AsyncClient, tags: list[str]) -> httpx2.Response:
    made = (await http.post("/v3/templates", json={"name": "app", "tags": tags})).json()
    path = f"/v2/templates/{made['templateID']}/builds/{made['buildID']}"
    return await http.post(path, json={"fromImage": "e2bdev/base"})


async def test_a_former_build_that_is_forgotten_is_in_nobodys_way(
    http: httpx2.AsyncClient, builds: _Builds
) -> None:
    await _build(http, ["v1"])
    builds.forgotten.add("1")
    assert (await _build(http, ["v1"])).status_code == 202


@pytest.mark.parametrize(
    ("tags", "cancelled"), [(["v1"], ["1"]), (["v1", "v3"], ["1"]), (["v3"], []), (["v3", "v2"], ["1"])]
)
async def test_a_build_takes_the_place_of_one_of_the_same_tag(
    http: httpx2.AsyncClient, builds: _Builds, tags: list[str], cancelled: list[str]
) -> None:
    for chosen in (["v1", "v2"], tags):
        assert (await _build(http, chosen)).status_code == 202
    assert builds.cancelled == cancelled


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/templates/app/tags/groups"),
        ("GET", "/templates/app/tags/v1/assignments"),
        ("POST", "/templates"),
        ("POST", "/templates/app"),
        ("POST", "/templates/app/builds/0b8e1f0c-4b1e-4a64-a9d4-6f1d3a0f6d3b"),
    ],
)
async def test_what_is_not_there_says_so(http: httpx2.AsyncClient, method: str, path: str) -> None:
    answer = await http.request(method, path)
    assert answer.status_code == 501
    assert "not supported by Corral" in answer.json()["message"]

"""E2B's control plane over a small engine: names of templates, their sandboxes, what is refused."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import httpx2
import pytest
from starlette.requests import Request

from corral.api.e2b import idempotency, shapes
from corral.api.e2b.app import E2bApi
from corral.api.e2b.dataplane import DataPlane
from corral.api.e2b.names import template_id
from corral.engine.engine import Engine
from corral.engine.plan import CreateRequest
from corral.errors import NotFound
from corral.model.build import BuildLine, BuildRequest, BuildStatus
from corral.model.ids import TemplateId, TenantId
from corral.model.lifecycle import State
from corral.model.sandbox import MIB, Sandbox
from corral.model.secrets import Identity
from corral.model.template import TemplateConfig
from corral.protocol.e2b.sandboxes import NewSandbox

from .conftest import NOW, TENANT, FakeEngine, template


class _Builds:
    """Builds that begin and never end, unless they are given up."""

    def __init__(self) -> None:
        self.started: list[BuildRequest] = []
        self.cancelled: list[str] = []
        self.forgotten: set[str] = set()
        self.now = SimpleNamespace(status=BuildStatus.BUILDING, step=1, error={})
        self.log = [
            BuildLine(number, NOW + timedelta(seconds=number), 1, f"line {number}") for number in range(130)
        ]

    async def start(self, tenant: TenantId, request: BuildRequest) -> Any:
        self.started.append(request)
        return SimpleNamespace(id=str(len(self.started)))

    def get(self, tenant: TenantId, id: str) -> Any:
        return self.now

    def lines(self, tenant: TenantId, id: str) -> list[BuildLine]:
        return self.log

    async def uploaded(self, tenant: TenantId, context: str) -> bool:
        return False

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
    async def authenticate(_: Request) -> Identity:
        return Identity(TENANT)

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
    ("state", "same"),
    [
        (State.RUNNING, True),
        (State.PAUSED, True),
        (State.STOPPED, True),
        (State.REMOVING, False),
        (State.FAILED, False),
    ],
)
async def test_a_key_that_made_a_sandbox_names_it_until_that_ends(
    engine: FakeEngine, state: State, same: bool
) -> None:
    noted = idempotency.note("key-1", NewSandbox(template_id="base"))
    made = await _sandbox(engine, "one", "base", "00000000000000aa", state)
    spec = replace(made.spec, attributes=noted)
    engine.sandboxes.by_id[made.id] = replace(made, spec=spec)
    call = cast(Any, SimpleNamespace(engine=engine, tenant=TENANT))
    found = await idempotency.former(call, noted)
    assert (found.id if found else None) == (made.id if same else None)


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


async def test_a_build_with_room_for_more_than_usual_gets_it(
    http: httpx2.AsyncClient, builds: _Builds
) -> None:
    for asked, told in ((None, 10 * 1024), (0, 10 * 1024), (100, 10 * 1024), (20_480, 20_480)):
        body = {"name": "app", "minFreeDiskMb": asked}
        assert (await http.post("/v2/templates", json=body)).json()["diskSizeMB"] == told
        made = (await http.post("/v3/templates", json=body)).json()
        path = f"/v2/templates/{made['templateID']}/builds/{made['buildID']}"
        assert (await http.post(path, json={"fromImage": "e2bdev/base"})).status_code == 202
        limits = builds.started[-1].sandbox_limits
        assert limits is not None
        assert limits.disk == told * MIB
    for asked in (-1, 2**31 - 1):
        answer = await http.post("/v3/templates", json={"name": "app", "minFreeDiskMb": asked})
        assert answer.status_code == 400


@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        ("", range(100)),
        ("?limit=2", [0, 1]),
        ("?limit=2&direction=backward", [129, 128]),
        ("?cursor={2}&limit=2", [2, 3]),
        ("?cursor={2}&direction=backward&source=persistent", [2, 1, 0]),
        ("?level=info&limit=1", [0]),
        ("?level=warn", []),
    ],
)
async def test_a_builds_log_is_read_from_where_it_is_asked_for(
    http: httpx2.AsyncClient, builds: _Builds, query: str, numbers: Any
) -> None:
    made = await _registered(http)
    cursor = int(builds.log[2].at.timestamp() * 1000)
    answer = await http.get(f"{made}/logs{query.replace('{2}', str(cursor))}")
    assert [item["message"] for item in answer.json()["logs"]] == [f"line {number}" for number in numbers]


@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        ("", range(100)),
        ("?logsOffset=100", range(100, 130)),
        ("?logsOffset=3&limit=2&level=debug", [3, 4]),
        ("?level=error", []),
    ],
)
async def test_a_builds_status_tells_the_log_that_is_asked_for(
    http: httpx2.AsyncClient, query: str, numbers: Any
) -> None:
    answer = await http.get(f"{await _registered(http)}/status{query}")
    entries = answer.json()["logEntries"]
    assert [item["message"] for item in entries] == [f"line {number}" for number in numbers]


@pytest.mark.parametrize(
    ("status", "error", "step", "message", "where"),
    [
        (
            BuildStatus.FAILED,
            {"message": "line 2: `false` failed with exit code 3"},
            5,
            "failed to run command 'false': exit status 3",
            "2",
        ),
        (BuildStatus.FAILED, {"message": "there is no image"}, 0, "there is no image", "base"),
        (BuildStatus.FAILED, {"message": "not ready"}, 6, "not ready", "finalize"),
        (BuildStatus.CANCELLED, {}, 3, "the build was cancelled", "1"),
    ],
)
async def test_the_log_of_a_build_that_failed_tells_why(
    http: httpx2.AsyncClient,
    builds: _Builds,
    status: BuildStatus,
    error: dict[str, str],
    step: int,
    message: str,
    where: str,
) -> None:
    made = (await http.post("/v3/templates", json={"name": "app"})).json()
    steps = [{"type": "USER", "args": ["root"]}, {"type": "RUN", "args": ["false"]}]
    body = {"fromImage": "e2bdev/base", "steps": steps, "readyCmd": "true"}
    path = f"/templates/{made['templateID']}/builds/{made['buildID']}"
    assert (await http.post(f"/v2{path}", json=body)).status_code == 202
    builds.now = SimpleNamespace(status=status, step=step, error=error)
    builds.log = [
        BuildLine(0, NOW, 2, "[2/6] base"),
        BuildLine(1, NOW, 3, "[3/6] USER root"),
        BuildLine(2, NOW, step, "failed", failure=True),
    ]
    told = (await http.get(f"{path}/status")).json()
    assert [entry["level"] for entry in told["logEntries"]] == ["info", "info", "error"]
    assert [entry["step"] for entry in told["logEntries"]] == ["base", "1", where]
    last = told["logEntries"][2]
    assert last["message"] == message
    assert told["reason"] == {"message": message, "step": where, "logEntries": [last]}
    for query in ("logs?level=error", "logs?level=warn&direction=backward"):
        assert (await http.get(f"{path}/{query}")).json()["logs"] == [last]


@pytest.mark.parametrize(
    "query",
    [
        "status?limit=101",
        "status?level=all",
        "status?logsOffset=-1",
        "logs?limit=101",
        "logs?limit=0",
        "logs?level=all",
        "logs?direction=up",
        "logs?cursor=now",
        "logs?source=all",
    ],
)
async def test_questions_for_a_builds_log_that_are_refused(http: httpx2.AsyncClient, query: str) -> None:
    assert (await http.get(f"{await _registered(http)}/{query}")).status_code == 400


async def _registered(http: httpx2.AsyncClient) -> str:
    """The path of a build that has begun."""
    made = (await http.post("/v3/templates", json={"name": "app"})).json()
    path = f"/templates/{made['templateID']}/builds/{made['buildID']}"
    assert (await http.post(f"/v2{path}", json={"fromImage": "e2bdev/base"})).status_code == 202
    return path


async def test_files_are_sent_for_a_template_that_is_there(
    engine: FakeEngine, http: httpx2.AsyncClient
) -> None:
    made = (await http.post("/v3/templates", json={"name": "app"})).json()
    engine.templates.by_name = {"kept": template("kept")}
    for name, status in ((made["templateID"], 201), ("app", 201), ("kept", 201), ("none", 404), ("a b", 400)):
        assert (await http.get(f"/templates/{name}/files/{'a' * 64}")).status_code == status, name


async def test_names_of_what_is_to_be_made_are_in_ones_own_namespace(
    engine: FakeEngine, http: httpx2.AsyncClient
) -> None:
    box = await _sandbox(engine, "one", "base", "00000000000000aa")
    for path in ("/v3/templates", "/v2/templates", f"/sandboxes/{box.id}/snapshots"):
        for name, good in (("other/mine", False), (f"{TENANT}/mine", True), ("mine:v1", True)):
            answer = await http.post(path, json={"name": name})
            assert (answer.status_code == 400) is not good, (path, name, answer.text)
    assert (await http.get("/snapshots?name=other/mine")).json() == []


async def test_a_snapshot_cannot_have_the_tag_of_a_build(
    engine: FakeEngine, http: httpx2.AsyncClient
) -> None:
    box = await _sandbox(engine, "one", "base", "00000000000000aa")
    body = {"name": "mine:0b8e1f0c-4b1e-4a64-a9d4-6f1d3a0f6d3b"}
    assert (await http.post(f"/sandboxes/{box.id}/snapshots", json=body)).status_code == 400


async def test_default_templates_are_corrals_own(engine: FakeEngine, http: httpx2.AsyncClient) -> None:
    engine.templates.by_name = {name: template(name) for name in ("base", "app", "code-interpreter-v1")}
    told = (await http.get("/default-templates")).json()
    assert [item["aliases"] for item in told] == [["base"], ["code-interpreter-v1"]]
    assert all(item["isDefault"] and item["description"] for item in told)
    assert [item.get("isDefault") for item in (await http.get("/templates")).json()] == [True, None, True]


async def test_builds_of_a_template_come_in_pages(engine: FakeEngine, http: httpx2.AsyncClient) -> None:
    engine.templates.by_name = {
        name: replace(
            template(name),
            id=TemplateId(f"{number:016x}"),
            config=TemplateConfig(user=f"u{number}"),
            created_at=NOW + timedelta(seconds=number),
        )
        for number, name in enumerate(("app", "app:v1", "app:v2"))
    }
    pages, token = [], None
    for _ in range(2):
        query = {"limit": "2", **({"nextToken": token} if token else {})}
        page = await http.get("/templates/app", params=query)
        pages.append([item["createdAt"] for item in page.json()["builds"]])
        token = page.headers.get("x-next-token")
    assert token is None
    times = [(NOW + timedelta(seconds=number)).isoformat() for number in (2, 1, 0)]
    assert pages == [times[:2], times[2:]]
    assert (await http.get("/templates/app?limit=0")).status_code == 400


async def test_old_clients_are_told_nothing_of_an_update(
    engine: FakeEngine, http: httpx2.AsyncClient
) -> None:
    engine.templates.by_name = {"app": template("app")}
    assert (await http.patch("/templates/app", json={"public": False})).json() is None
    assert (await http.patch("/templates/none", json={})).status_code == 404


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/templates"),
        ("POST", "/templates/app"),
        ("POST", "/templates/app/builds/0b8e1f0c-4b1e-4a64-a9d4-6f1d3a0f6d3b"),
    ],
)
async def test_what_is_not_there_says_so(http: httpx2.AsyncClient, method: str, path: str) -> None:
    answer = await http.request(method, path)
    assert answer.status_code == 501
    assert "not supported by Corral" in answer.json()["message"]

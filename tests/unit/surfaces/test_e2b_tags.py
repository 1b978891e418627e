"""What tags of templates pointed to, over a small engine: groups, pages, what is refused."""

import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, cast

import httpx2
import pytest
from starlette.requests import Request

from corral.api.e2b.app import E2bApi
from corral.api.e2b.dataplane import DataPlane
from corral.api.e2b.names import computed_build_id
from corral.engine.engine import Engine
from corral.engine.fingerprint import fingerprint
from corral.model.ids import TemplateId
from corral.model.secrets import Identity
from corral.model.template import Assignment

from .conftest import NOW, TENANT, FakeEngine, template

BUILD = str(uuid.UUID(int=1, version=4))


@pytest.fixture
async def http(engine: FakeEngine) -> AsyncIterator[httpx2.AsyncClient]:
    async def authenticate(_: Request) -> Identity:
        return Identity(TENANT)

    app = E2bApi(cast(Any, None), cast(Engine, engine), authenticate, cast(DataPlane, None), None)
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app=app), base_url="http://localhost:7070"
    ) as client:
        yield client


@pytest.fixture(autouse=True)
def history(engine: FakeEngine) -> None:
    """`app:v1` had three builds and `app` two, `app:v2` the very last; one of them has an id of its own."""
    names = ("app:v1", "app", f"app:{BUILD}", "app:v1", "app", "app:v1", "app:v2")
    builds = ("one", "one", "two", "two", "two", "three", "three")
    engine.templates.by_name = {name: template(name) for name in names}
    engine.templates.given = [
        Assignment(TemplateId(f"{number:016x}"), name, build, NOW, NOW + timedelta(seconds=number))
        for number, (name, build) in enumerate(zip(names, builds, strict=True))
    ]


async def _get(http: httpx2.AsyncClient, path: str, **query: str) -> Any:
    found = await http.get(f"/templates/app/tags/{path}", params=query)
    assert found.status_code == 200, found.text
    return found.json()


@pytest.mark.parametrize(
    ("sort", "tags"),
    [
        ("latest_desc", ["v2", "v1", "default"]),
        ("latest_asc", ["default", "v1", "v2"]),
        ("name_asc", ["default", "v1", "v2"]),
        ("name_desc", ["v2", "v1", "default"]),
    ],
)
async def test_tags_are_told_in_any_order_whole_or_in_pages(
    http: httpx2.AsyncClient, sort: str, tags: list[str]
) -> None:
    whole = await _get(http, "groups", sort=sort)
    assert [item["tag"] for item in whole["tags"]] == tags
    assert whole["nextCursor"] is None
    seen, query = [], {"sort": sort, "tagsLimit": "1"}
    while True:
        page = await _get(http, "groups", **query)
        seen += page["tags"]
        if page["nextCursor"] is None:
            break
        query["tagsCursor"] = page["nextCursor"]
    assert seen == whole["tags"]


async def test_each_tag_tells_its_builds_the_last_first(http: httpx2.AsyncClient) -> None:
    (group,) = (await _get(http, "groups", search=" V1 "))["tags"]
    assert group["hasMore"] is False
    last, middle, first = group["assignments"]
    assert middle["buildId"] == BUILD
    assert last["buildId"] == computed_build_id(TENANT, "app", "three") != first["buildId"]
    assert middle["assignedAt"] == (NOW + timedelta(seconds=3)).isoformat()
    assert middle["buildCreatedAt"] == middle["buildFinishedAt"] == NOW.isoformat()
    assert len({str(uuid.UUID(item["assignmentId"])) for item in group["assignments"]}) == 3
    (short,) = (await _get(http, "groups", search="v1", assignmentLimit="2"))["tags"]
    assert (short["assignments"], short["hasMore"]) == ([last, middle], True)
    one = await _get(http, "v1/assignments", limit="2")
    rest = await _get(http, "v1/assignments", limit="2", cursor=one["nextCursor"])
    assert [*one["data"], *rest["data"]] == [last, middle, first]
    assert rest["nextCursor"] is None
    assert (await _get(http, "V1/assignments"))["data"] == [last, middle, first]


async def test_a_build_without_an_id_of_its_own_has_one_id(
    engine: FakeEngine, http: httpx2.AsyncClient
) -> None:
    now = template("app:v3")
    engine.templates.by_name = {"app:v3": now}
    engine.templates.given = [Assignment(now.id, now.name, fingerprint(now), NOW, NOW)]
    (told,) = (await http.get("/templates/app/tags")).json()
    (given,) = (await _get(http, "v3/assignments"))["data"]
    assert told["buildID"] == given["buildId"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("app/tags/groups?sort=oldest", 400),
        ("app/tags/groups?tagsLimit=0", 400),
        ("app/tags/groups?assignmentLimit=101", 400),
        ("app/tags/groups?tagsCursor=%25", 400),
        ("app/tags/groups?tagsCursor=W10=", 400),
        ("app/tags/groups?tagsCursor=WyJuYW1lX2FzYyIsICJ2MSJd", 400),  # of another order
        ("app/tags/groups?tagsCursor=WyJsYXRlc3RfZGVzYyIsIDFd", 400),
        ("app/tags/v1/assignments?cursor=x", 400),
        ("app/tags/v1/assignments?limit=x", 400),
        ("app/tags/v9/assignments", 404),
        (f"app/tags/{BUILD}/assignments", 400),
        ("none/tags/groups", 404),
        ("none/tags/v1/assignments", 404),
    ],
)
async def test_what_is_not_there_or_wrong_is_refused(
    http: httpx2.AsyncClient, path: str, status: int
) -> None:
    found = await http.get(f"/templates/{path}")
    assert (found.status_code, found.json()["code"]) == (status, status)

"""What a template's tags pointed to, as a client of E2B's asks for it: builds, assignments, and what removals leave."""

import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from tests.conftest import Daemon

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]


@pytest.fixture(autouse=True)
def left_as_found(http: httpx2.Client) -> Iterator[None]:
    yield
    http.delete("/templates/tagged")


def build(http: httpx2.Client, value: str, *tags: str) -> str:
    """The id of a new build, once it is ready."""
    made = http.post("/v3/templates", json={"name": "tagged", "tags": tags}).json()
    path = f"/templates/{made['templateID']}/builds/{made['buildID']}"
    steps = [{"type": "ENV", "args": ["VALUE", value]}]
    assert http.post(f"/v2{path}", json={"fromTemplate": "base", "steps": steps}).status_code == 202
    while (told := http.get(f"{path}/status").json())["status"] in ("waiting", "building"):
        time.sleep(0.05)
    assert told["status"] == "ready", told
    return str(made["buildID"])


def builds_of(found: dict[str, Any]) -> list[str]:
    return [item["buildId"] for item in found["data"]]


def test_a_tag_remembers_its_builds(http: httpx2.Client, shared_daemon: Daemon) -> None:
    one = build(http, "1", "v1")
    two = build(http, "2", "v1", "v2")
    assert (
        http.post("/templates/tags", json={"target": "tagged:v1", "tags": ["stable"]}).json()["buildID"]
        == two
    )
    groups = http.get("/templates/tagged/tags/groups", params={"sort": "name_asc"}).json()
    assert groups["nextCursor"] is None
    told = {item["tag"]: [given["buildId"] for given in item["assignments"]] for item in groups["tags"]}
    assert told == {"stable": [two], "v1": [two, one], "v2": [two]}
    history = http.get("/templates/tagged/tags/v1/assignments").json()
    assert builds_of(history) == [two, one]
    stable = http.get("/templates/tagged/tags/stable/assignments").json()["data"][0]
    assert stable["buildCreatedAt"] <= history["data"][0]["assignedAt"] < stable["assignedAt"]
    shared_daemon.stop()
    shared_daemon.start()
    assert http.get("/templates/tagged/tags/v1/assignments").json() == history
    assert (
        http.request("DELETE", "/templates/tags", json={"name": "tagged", "tags": ["v1"]}).status_code == 204
    )
    assert http.get("/templates/tagged/tags/v1/assignments").status_code == 404
    assert http.delete("/templates/tagged").status_code == 204
    assert build(http, "3", "v1") not in (one, two)
    assert len(builds_of(http.get("/templates/tagged/tags/v1/assignments").json())) == 1

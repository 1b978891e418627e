"""What holds for every route: errors, documentation, limits, names."""

from typing import Any

import httpx2
import pytest

from corral.api.guard import check_origin, host_of
from corral.errors import CorralError, Forbidden, all_errors
from corral.sdk.operations import failure

CLASSES = sorted(all_errors().values(), key=lambda cls: cls.code)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
async def test_every_error_class_travels_with_its_status_and_comes_back_as_itself(
    http: httpx2.AsyncClient, engine: Any, monkeypatch: pytest.MonkeyPatch, cls: type[CorralError]
) -> None:
    def refuse(*_: object) -> None:
        raise cls("what happened", "what to do")

    monkeypatch.setattr(engine.sandboxes, "get", refuse)
    response = await http.get("/v1/sandboxes/box")
    assert response.status_code == cls.status
    assert response.json() == {"code": cls.code, "message": "what happened", "hint": "what to do"}
    error = failure(response.status_code, response.content)
    assert type(error) is cls
    assert error.hint == "what to do"


async def test_a_defect_tells_nothing_of_itself_but_is_logged(
    http: httpx2.AsyncClient, engine: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("/secret/path")

    monkeypatch.setattr(engine.sandboxes, "get", fail)
    response = await http.get("/v1/sandboxes/box")
    assert response.status_code == 500
    assert response.json()["code"] == "internal"
    assert "secret" not in response.text
    assert "/secret/path" in caplog.text


def test_every_route_is_documented(app: Any) -> None:
    schema = app.openapi()
    tags = {tag["name"] for tag in schema["tags"]}
    operations = [op for path in schema["paths"].values() for op in path.values()]
    assert len(operations) > 40
    assert len({op["operationId"] for op in operations}) == len(operations)
    for op in operations:
        assert op["description"], op["operationId"]
        assert set(op["tags"]) <= tags
        assert len(op["tags"]) == 1
        for status in ("400", "401", "404", "500"):
            body = op["responses"][status]["content"]["application/json"]["schema"]
            assert body == {"$ref": "#/components/schemas/Error"}, op["operationId"]
        for parameter in op.get("parameters", []):
            assert parameter["name"] in _PLAIN or parameter.get("description"), (op["operationId"], parameter)


_PLAIN = {"accept", "mode", "user", "offset", "size", "key", "name"}


def test_streams_and_raw_bodies_are_documented_as_such(app: Any) -> None:
    paths = app.openapi()["paths"]
    ref = "/v1/sandboxes/{ref}"
    assert "text/event-stream" in paths["/v1/events"]["get"]["responses"]["200"]["content"]
    assert (
        "text/event-stream"
        in paths[f"{ref}/processes/{{process}}/output"]["get"]["responses"]["200"]["content"]
    )
    for path, method in (
        (f"{ref}/files", "put"),
        (f"{ref}/archive", "put"),
        (f"{ref}/processes/{{process}}/stdin", "post"),
    ):
        assert "application/octet-stream" in paths[path][method]["requestBody"]["content"]


@pytest.mark.parametrize(
    ("method", "path", "body", "says"),
    [
        ("POST", "/v1/sandboxes", {"nmae": "x"}, "nmae: is not a field"),
        ("POST", "/v1/sandboxes", {"name": "No Good"}, "name 'No Good' is not valid"),
        ("POST", "/v1/sandboxes", {"ttl": 0}, "ttl: "),
        ("POST", "/v1/sandboxes", {"isolation": "none"}, "isolation: "),
        ("POST", "/v1/sandboxes", {"env": {"A=B": "x"}}, "environment variable name"),
        ("POST", "/v1/sandboxes", {"labels": {"": "x"}}, "label key"),
        ("POST", "/v1/sandboxes", {"limits": {"memory": 1}}, "limits.memory: "),
        ("POST", "/v1/sandboxes", {"workdir": "relative"}, "not absolute"),
        ("POST", "/v1/sandboxes/box/exec", {"argv": []}, "argv: "),
        ("POST", "/v1/sandboxes/box/exec", {"argv": ["a\0b"]}, "command is not valid"),
        ("POST", "/v1/sandboxes/box/exec", {"argv": ["cat"], "input": "%%%"}, "base64"),
        (
            "POST",
            "/v1/sandboxes/box/processes",
            {"argv": ["a"], "terminal": {"rows": 0, "cols": 1}},
            "terminal.rows: ",
        ),
        ("POST", "/v1/sandboxes/box/processes/0/signal", {"signal": 1}, "process: "),
        ("POST", "/v1/sandboxes/box/processes/1/signal", {"signal": 99}, "signal: "),
        ("GET", "/v1/sandboxes/box/files?path=relative", None, "not absolute"),
        ("GET", "/v1/sandboxes/box/files?path=/a&path=/b", None, "give `path` once"),
        ("GET", "/v1/sandboxes/box/files", None, "path: "),
        ("PUT", "/v1/sandboxes/box/files?path=/a&mode=999", None, "mode: "),
        ("GET", "/v1/sandboxes?label=novalue", None, "has no value"),
        ("POST", "/v1/templates/build", {"kind": "image"}, "not complete"),
        ("PUT", "/v1/sandboxes/box/budget", {"cap": -1}, "cap"),
        ("PUT", "/v1/sandboxes/box/budget", {"cap": 1, "window": "month"}, "window"),
        ("PUT", "/v1/sandboxes/box/budget", {}, "cap"),
        ("POST", "/v1/sandboxes", {"budget": -1}, "budget"),
        (
            "PUT",
            "/v1/prices",
            {"secret": "a", "model": "m", "input": -1, "output": 1, "cache_read": 1, "cache_write": 1},
            "input: ",
        ),
    ],
)
async def test_bad_input_is_refused_with_the_field_and_changes_nothing(
    http: httpx2.AsyncClient, engine: Any, method: str, path: str, body: object, says: str
) -> None:
    response = await http.request(method, path, json=body)
    assert response.status_code == 400, response.text
    assert response.json()["code"] == "invalid_input"
    assert says in response.json()["message"]
    assert response.json()["hint"]
    assert not engine.sandboxes.requests
    assert not engine.processes.all


async def test_a_rejected_secret_is_not_repeated(http: httpx2.AsyncClient) -> None:
    canary = "sk-canary-" + "x" * 70_000
    response = await http.put("/v1/secrets", json={"name": "a", "value": canary})
    assert response.status_code == 400
    assert "canary" not in response.text


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/nothing", 404, "not_found"),
        ("PATCH", "/v1/sandboxes", 400, "invalid_input"),
        ("GET", "/v1/sandboxes/absent", 404, "not_found"),
    ],
)
async def test_paths_that_are_none(
    http: httpx2.AsyncClient, method: str, path: str, status: int, code: str
) -> None:
    response = await http.request(method, path)
    assert (response.status_code, response.json()["code"]) == (status, code)


@pytest.mark.parametrize("path", ["/v1/sandboxes", "/v1/sandboxes/box/processes"])
async def test_bodies_over_the_limit_are_refused(http: httpx2.AsyncClient, path: str) -> None:
    response = await http.post(path, content=b'{"name": "' + b"x" * 2_000_000 + b'"}')
    assert (response.status_code, response.json()["code"]) == (413, "too_large")


async def test_a_wrong_key_is_refused_everywhere(http: httpx2.AsyncClient, app: Any) -> None:
    for path, operations in app.openapi()["paths"].items():
        for method in operations:
            where = path.format(
                ref="box", process=1, key="k", name="n", approval="1", port=80, context="c", id="i"
            )
            response = await http.request(method.upper(), where, headers={"authorization": "Bearer wrong"})
            assert response.status_code == 401, where
            assert response.headers["www-authenticate"] == "Bearer"


# -- G-11: who may call at all --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1:7070", "[::1]:7070", "corral.example", "CORRAL.example:80"]
)
async def test_own_names_are_served_g11(http: httpx2.AsyncClient, host: str) -> None:
    assert (await http.get("/v1/sandboxes", headers={"host": host})).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "localhost@evil", "", "a/b", "x:y", "[::1"]
)
async def test_other_names_are_refused_g11(http: httpx2.AsyncClient, host: str) -> None:
    response = await http.get("/v1/sandboxes", headers={"host": host})
    assert (response.status_code, response.json()["code"]) == (403, "forbidden")


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "https://localhost.evil.example", "file://"]
)
async def test_pages_of_other_sites_are_refused_g11(http: httpx2.AsyncClient, origin: str) -> None:
    response = await http.get("/v1/sandboxes", headers={"origin": origin})
    assert response.status_code == 403


async def test_pages_of_ours_are_served_g11(http: httpx2.AsyncClient) -> None:
    response = await http.get("/v1/sandboxes", headers={"origin": "http://localhost:7070"})
    assert response.status_code == 200


def test_a_unix_socket_needs_no_name_but_its_pages_are_checked_g11() -> None:
    names = {"localhost"}
    check_origin({b"host": [b"anything"]}, tcp=False, names=names)
    with pytest.raises(Forbidden):
        check_origin({b"origin": [b"http://evil.example"]}, tcp=False, names=names)
    with pytest.raises(Forbidden):
        check_origin({b"host": [b"localhost", b"localhost"]}, tcp=True, names=names)


@pytest.mark.parametrize(
    ("authority", "host"),
    [("a.b:1", "a.b"), ("A.B.", "a.b"), ("[::1]:1", "::1"), ("a:x", ""), ("u@a", ""), ("a/b", "")],
)
def test_host_of(authority: str, host: str) -> None:
    assert host_of(authority) == host


# -- what a request over TCP may not name ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "repo", ["/etc", "/home/someone/project", "file:///etc", "HTTPS://example.org/x", "."]
)
async def test_a_path_of_the_host_is_no_repository_over_tcp(
    http: httpx2.AsyncClient, engine: Any, repo: str
) -> None:
    response = await http.post("/v1/sandboxes", json={"repo": repo})
    assert (response.status_code, response.json()["code"]) == (403, "forbidden")
    assert "https URL" in response.json()["hint"]
    assert not engine.sandboxes.requests


async def test_an_https_url_is_a_repository_over_tcp(http: httpx2.AsyncClient, engine: Any) -> None:
    assert (await http.post("/v1/sandboxes", json={"repo": "https://example.org/a/b"})).status_code == 201
    assert engine.sandboxes.requests[0].repo == "https://example.org/a/b"


@pytest.mark.parametrize("body", [None, {}, {"target": "/srv/clone"}])
async def test_nothing_is_pulled_into_the_host_over_tcp(http: httpx2.AsyncClient, body: object) -> None:
    box = (await http.post("/v1/sandboxes", json={})).json()["id"]
    response = await http.post(f"/v1/sandboxes/{box}/pull", json=body)
    assert (response.status_code, response.json()["code"]) == (403, "forbidden")
    assert "corral diff" in response.json()["hint"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/config/egress.networks", {"value": "10.0.0.0/8"}),
        ("/v1/budget", {"cap": 1, "window": "day"}),
        (
            "/v1/prices",
            {"secret": "a", "model": "m", "input": 0, "output": 0, "cache_read": 0, "cache_write": 0},
        ),
        (
            "/v1/secrets",
            {"name": "anthropic", "value": "sk-0123456789abcdef", "base_url": "http://127.0.0.1:1"},
        ),
    ],
)
async def test_what_binds_all_tenants_is_the_operators(
    http: httpx2.AsyncClient, path: str, body: object
) -> None:
    assert (await http.put(path, json=body)).status_code == 200
    response = await http.put(path, json=body, headers={"authorization": "Bearer of-acme"})
    assert (response.status_code, response.json()["code"]) == (403, "forbidden")


async def test_nobody_has_a_process_that_counts_as_corrals_own(http: httpx2.AsyncClient) -> None:
    """Those end with the daemon that started them."""
    box = (await http.post("/v1/sandboxes", json={})).json()["id"]
    for place in ("exec", "processes"):
        response = await http.post(f"/v1/sandboxes/{box}/{place}", json={"argv": ["hang"], "tag": "corral"})
        assert (response.status_code, response.json()["code"]) == (400, "invalid_input"), place

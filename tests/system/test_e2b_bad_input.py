"""E2B's API under wrong, hostile and numerous requests: each gets an answer in the form that clients know, and the daemon
serves on."""

import base64
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any

import httpx2
import pytest
from tests.conftest import Daemon
from tests.tenants import Remote
from tests.traces import wait_for

from corral import Sandbox

pytestmark = pytest.mark.root
UNKNOWN = "0" * 16


@dataclass(frozen=True)
class Served:
    """A daemon on TCP, with keys of two tenants and a sandbox of the first."""

    url: str
    key: str
    other: str
    sandbox: str
    token: str

    def call(self, method: str, path: str, *, key: str | None = None, **options: Any) -> httpx2.Response:
        """A request of the control plane."""
        headers = {"x-api-key": self.key if key is None else key, **options.pop("headers", {})}
        return httpx2.request(
            method, self.url + path, headers=headers, timeout=60, trust_env=False, **options
        )

    @property
    def routing(self) -> dict[str, str]:
        """Headers of the sandbox's own service."""
        return {
            "e2b-sandbox-id": self.sandbox,
            "e2b-sandbox-port": "49983",
            "x-access-token": self.token,
        }

    def box(self, method: str, path: str, **options: Any) -> httpx2.Response:
        """A request for the sandbox's own service."""
        headers = {**self.routing, **options.pop("headers", {})}
        return httpx2.request(
            method, self.url + path, headers=headers, timeout=60, trust_env=False, **options
        )

    def stream(self, command: str, cwd: str = "") -> socket.socket:
        """A connection on which a command was started and is followed."""
        message = {"process": {"cmd": "/bin/sh", "args": ["-c", command], "cwd": cwd}, "stdin": False}
        body = json.dumps(message).encode()
        frame = struct.pack(">BI", 0, len(body)) + body
        host, port = self.url.removeprefix("http://").split(":")
        head = "".join(f"{name}: {value}\r\n" for name, value in self.routing.items())
        sock = socket.create_connection((host, int(port)), timeout=60)
        sock.sendall(
            f"POST /process.Process/Start HTTP/1.1\r\nhost: {host}\r\n{head}content-type: application/connect+json\r\n"
            f"connect-protocol-version: 1\r\ncontent-length: {len(frame)}\r\n\r\n".encode()
            + frame
        )
        return sock

    def alive(self) -> None:
        """The daemon serves, and the sandbox answers."""
        assert self.box("GET", "/health").status_code == 204


@pytest.fixture(scope="module")
def served(remote: Remote) -> Iterator[Served]:
    headers = {"x-api-key": remote.key}
    made: dict[str, Any] = httpx2.post(
        f"{remote.url}/v2/sandboxes",
        json={"templateID": "base", "timeout": 600},
        headers=headers,
        timeout=120,
        trust_env=False,
    ).json()
    yield Served(remote.url, remote.key, remote.other, made["sandboxID"], made["envdAccessToken"])
    with suppress(httpx2.HTTPError):
        httpx2.delete(f"{remote.url}/sandboxes/{made['sandboxID']}", headers=headers, trust_env=False)


@pytest.mark.parametrize("key", ["", "wrong", "e2b_" + "0" * 40, "x" * 5000])
def test_wrong_keys(served: Served, key: str) -> None:
    answer = served.call("GET", "/v2/sandboxes", key=key)
    assert answer.status_code == 401
    assert answer.json()["code"] == 401


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/sandboxes/{id}"),
        ("DELETE", "/sandboxes/{id}"),
        ("POST", "/sandboxes/{id}/timeout"),
        ("POST", "/sandboxes/{id}/pause"),
        ("POST", "/v2/sandboxes/{id}/connect"),
        ("POST", "/sandboxes/{id}/fork"),
        ("POST", "/sandboxes/{id}/snapshots"),
        ("PUT", "/sandboxes/{id}/network"),
        ("GET", "/sandboxes/{id}/metrics"),
        ("GET", "/v2/sandboxes/{id}/logs"),
    ],
)
def test_another_tenants_sandbox_is_not_there(served: Served, method: str, path: str) -> None:
    body = {"timeout": 60} if method in ("POST", "PUT") else None
    for name in (served.sandbox, UNKNOWN):
        answer = served.call(method, path.format(id=name), key=served.other, json=body)
        assert answer.status_code == 404, name
        assert "doesn't exist or you don't have access to it" in answer.json()["message"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"templateID": "base", "timeout": -1}, 400),
        ({"templateID": "base", "timeout": 0}, 400),
        ({"templateID": "base", "timeout": 2**31 - 1}, 400),
        ({"templateID": "base", "timeout": 2**70}, 400),
        ({"templateID": "base", "timeout": "soon"}, 400),
        ({"timeout": 5}, 400),
        ({"templateID": "../../etc"}, 400),
        ({"templateID": "no-such-template"}, 404),
        ({"templateID": "mcp-gateway", "mcp": {}}, 501),
        ({"templateID": "base", "volumeMounts": [{"name": "a", "path": "/b"}]}, 404),
        ({"templateID": "base", "volumeMounts": [{"name": "a", "path": "/proc"}]}, 400),
        ({"templateID": "base", "volumeMounts": [{"name": "a"}]}, 400),
        ({"templateID": "base", "envVars": {"A=B": "1"}}, 400),
        ({"templateID": "base", "envVars": {"A": "\0"}}, 400),
        ({"templateID": "base", "metadata": {"a\n": "b"}}, 400),
        ({"templateID": "base", "network": {"denyOut": ["x"]}}, 400),
        (
            {
                "templateID": "base",
                "allow_internet_access": False,
                "network": {"allowOut": ["private:host.corral:22"]},
            },
            400,
        ),
        ({"templateID": "base", "network": {"httpsPorts": [49983]}}, 400),
        ({"templateID": "base", "network": {"maskRequestHost": "a\r\nb"}}, 400),
        ([], 400),
        ("text", 400),
    ],
)
def test_creates_that_are_refused(served: Served, body: Any, status: int) -> None:
    answer = served.call("POST", "/v2/sandboxes", json=body)
    assert answer.status_code == status, answer.text
    assert answer.json()["code"] == status


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/sandboxes/%2e%2e%2fv1", 400),
        ("/sandboxes/a%00b", 400),
        ("/sandboxes/" + "a" * 300, 400),
        ("/sandboxes/a-b-c", 400),
        ("/templates/default%2Fnone%3Av1", 404),
        ("/templates/other%2Fbase", 404),
        ("/v2/sandboxes?metadata=a%253Db%25252520c", 200),
        ("/v2/sandboxes?metadata=a%25252525253Db", 400),  # encoded once more than any client does
        ("/v2/sandboxes?metadata=%FF%FE=%00", 200),
        ("/v2/sandboxes?metadata=nothing", 400),
        ("/sandboxes/%61bc", 404),
        ("/sandboxes/%2561bc", 400),
        ("/v2/sandboxes?limit=0", 400),
        ("/v2/sandboxes?limit=" + "9" * 5000, 400),
        ("/v2/sandboxes?nextToken=%FF%FE", 400),
        ("/v2/sandboxes?state=dead", 400),
        ("/v2/sandboxes?order=sideways", 400),
        ("/v2/sandboxes?startedAfter=yesterday", 400),
        ("/instances", 400),
        ("/nodes", 501),
    ],
)
def test_paths_and_queries(served: Served, path: str, status: int) -> None:
    answer = served.call("GET", path)
    assert answer.status_code == status, answer.text


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("timeout", {"timeout": 2**31 - 1}, 400),
        ("timeout", {"timeout": 2**31}, 400),
        ("timeout", {"timeout": "1"}, 400),
        ("timeout", {"timeout": True}, 400),
        ("timeout", {}, 400),
        ("connect", {"timeout": -1}, 400),
        ("connect", {"timeout": 0}, 400),
        ("connect", {"timeout": 2**31 - 1}, 400),
        ("refreshes", {"duration": -1}, 400),
        ("refreshes", {"duration": 3601}, 400),
        ("fork", {"count": 0}, 400),
        ("fork", {"count": 101}, 400),
        ("fork", {"timeout": -1}, 400),
        ("pause", {"memory": "perhaps"}, 400),
        ("snapshots", {"name": "../x"}, 400),
    ],
)
def test_changes_that_are_refused_change_nothing(
    served: Served, path: str, body: dict[str, Any], status: int
) -> None:
    before = served.call("GET", f"/sandboxes/{served.sandbox}").json()
    answer = served.call("POST", f"/sandboxes/{served.sandbox}/{path}", json=body)
    assert answer.status_code == status, answer.text
    assert served.call("GET", f"/sandboxes/{served.sandbox}").json() == before


def test_a_timeout_below_zero_ends_a_sandbox_as_zero_does(served: Served) -> None:
    made = served.call("POST", "/v2/sandboxes", json={"templateID": "base", "timeout": 120}).json()
    other = served.call("POST", f"/sandboxes/{made['sandboxID']}/timeout", json={"timeout": -(2**31)})
    assert other.status_code == 204
    wait_for(
        lambda: served.call("GET", f"/sandboxes/{made['sandboxID']}").status_code == 404, "it has not ended"
    )


def test_a_templates_rules_for_models_hold_in_its_sandboxes(served: Served, shared_daemon: Daemon) -> None:
    """G-180: in E2B's, whose creates say nothing of models, and by no grant that a person widens later."""
    with shared_daemon.client() as client:
        client.put_secret("far", "sk-ant-0123456789", "anthropic", "http://127.0.0.1:9")
        client.build_template_from("frugal", dockerfile="FROM base\nRUN true\n", models=["claude-haiku-*"])
        try:
            made = served.call("POST", "/v2/sandboxes", json={"templateID": "frugal", "timeout": 300}).json()
            shared_daemon.cli("grant", "set", made["sandboxID"], "--secret", "far", "--models", "*")
            box = Sandbox.connect(made["sandboxID"], client=client)
            told = {}
            for model in ("claude-haiku-4-5", "claude-sonnet-4-5"):
                body = json.dumps({"model": model, "max_tokens": 1, "messages": []})
                call = f"-H 'x-api-key: '$ANTHROPIC_API_KEY -H 'content-type: application/json' -d '{body}'"
                done = box.exec(f"curl -s -w '%{{http_code}}' {call} http://gateway.corral/s/far/v1/messages")
                told[model] = done.stdout
            assert told["claude-haiku-4-5"].endswith("502"), told
            assert told["claude-sonnet-4-5"].endswith("403"), told
            assert "is not allowed in this sandbox" in told["claude-sonnet-4-5"]
            served.call("DELETE", f"/sandboxes/{made['sandboxID']}")
        finally:
            client.remove_secret("far")
            client.remove_template("frugal")


def _envelope(flags: int, size: int, data: bytes) -> bytes:
    return struct.pack(">BI", flags, size) + data


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0",
        _envelope(0, 100, b"{}"),
        _envelope(1, 2, b"{}"),
        _envelope(0x80, 2, b"{}"),
        _envelope(0, 2**31, b"{}"),
        _envelope(0, 2, b"{}") * 3,
        _envelope(0, 3, b"nul"),
        _envelope(0, 4, b"\xff\xfe\x00\x00"),
        _envelope(0, 20_000, b"[" * 20_000),
    ],
)
@pytest.mark.parametrize("form", ["json", "proto"])
def test_malformed_frames_end_the_stream_with_an_error(served: Served, body: bytes, form: str) -> None:
    for call in ("process.Process/Start", "process.Process/StreamInput", "filesystem.Filesystem/WatchDir"):
        headers = {"content-type": f"application/connect+{form}"}
        answer = served.box("POST", f"/{call}", content=body, headers=headers)
        assert answer.status_code == 200
        assert answer.content[0] == 0x02 or call.endswith("StreamInput")
        if body and not body.startswith(_envelope(0, 2, b"{}")):
            assert b'"error"' in answer.content
    served.alive()


@pytest.mark.parametrize(
    "path",
    ["/../../../etc/hosts", "/a/../../etc/hosts", "~other/x", "/x\0y", "/" + "n" * 300, "/" + "d/" * 3000],
)
def test_paths_stay_inside(served: Served, path: str) -> None:
    call = served.box("POST", "/filesystem.Filesystem/Stat", json={"path": path})
    assert call.status_code in (200, 400, 404), call.text
    assert isinstance(call.json().get("code", ""), str)
    read = served.box("GET", "/files", params={"path": path})
    assert read.status_code in (200, 400, 404)
    if read.status_code == 200:
        assert socket.gethostname() not in read.text.split()  # the sandbox's file, not the host's


def test_names_that_are_not_text(served: Served) -> None:
    made = served.box("POST", "/files?path=%2Ftmp%2F%FF%FE", content=b"x", headers=_RAW)
    assert made.status_code in (200, 400)
    listed = served.box("POST", "/filesystem.Filesystem/ListDir", json={"path": "/tmp"})
    assert listed.status_code == 200
    listed.json()


_RAW = {"content-type": "application/octet-stream"}


@pytest.fixture(scope="module", params=["container", pytest.param("gvisor", marks=pytest.mark.gvisor)])
def guest(served: Served, shared_daemon: Daemon, request: pytest.FixtureRequest) -> Iterator[Served]:
    """A sandbox of each isolation."""
    with shared_daemon.client() as client:
        client.set_config("e2b.isolation", request.param)
        try:
            made = served.call("POST", "/v2/sandboxes", json={"templateID": "base", "timeout": 600}).json()
        finally:
            client.set_config("e2b.isolation", "")
    yield replace(served, sandbox=made["sandboxID"], token=made["envdAccessToken"])
    served.call("DELETE", f"/sandboxes/{made['sandboxID']}")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "text/plain"}, 400),
        ({**_RAW, "content-encoding": "br"}, 400),
        ({**_RAW, "content-encoding": "gzip"}, 400),
        ({**_RAW, "x-metadata-a": "b" * 5000}, 400),
        ({"content-type": "multipart/form-data"}, 400),
        ({"content-type": "multipart/form-data; boundary=x"}, 400),
    ],
)
def test_uploads_that_are_refused_change_nothing(guest: Served, headers: dict[str, str], status: int) -> None:
    answer = guest.box("POST", "/files?path=never", content=b"not gzip, no form", headers=headers)
    assert answer.status_code == status
    assert guest.box("GET", "/files?path=never").status_code == 404


def test_signatures(served: Served) -> None:
    def get(query: str) -> httpx2.Response:
        return httpx2.get(f"{served.url}/files?{query}", trust_env=False)

    assert get("path=x").status_code == 401
    assert get("path=x&signature=v1_wrong").status_code == 401
    assert get("path=x&signature=").status_code == 401
    assert get("path=x&signature=%FF").status_code == 401
    assert get("path=x&signature=v1_a&signature_expiration=never").status_code == 401


@pytest.mark.parametrize(
    "headers", [{}, {"x-access-token": "wrong"}, {"x-access-token": b"\xe9"}, {"authorization": "Basic !!!"}]
)
def test_without_the_token_nothing_is_served(served: Served, headers: dict[str, Any]) -> None:
    routing = {"e2b-sandbox-id": served.sandbox, "e2b-sandbox-port": "49983", **headers}
    for path in ("/process.Process/List", "/filesystem.Filesystem/Stat"):
        answer = httpx2.post(served.url + path, json={}, headers=routing, trust_env=False)
        assert answer.status_code == 401
    assert httpx2.get(served.url + "/envs", headers=routing, trust_env=False).status_code == 401


def test_reserved_paths_are_refused(served: Served) -> None:
    assert served.box("POST", "/init", json={}).status_code == 404


def test_a_user_that_is_not_there(served: Served) -> None:
    basic = base64.b64encode(b"nobody-here:").decode()
    answer = served.box(
        "POST",
        "/filesystem.Filesystem/Stat",
        json={"path": "x"},
        headers={"authorization": f"Basic {basic}"},
    )
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")


@pytest.mark.parametrize(
    "path",
    [
        "/sandboxes/{}/metrics?start=soon",
        "/sandboxes/{}/metrics?end=-1",
        "/sandboxes/{}/logs?start=x",
        "/sandboxes/{}/logs?limit=0",
        "/v2/sandboxes/{}/logs?limit=1001",
        "/v2/sandboxes/{}/logs?cursor=" + "9" * 15,
        "/v2/sandboxes/{}/logs?direction=up",
        "/v2/sandboxes/{}/logs?level=all",
        "/v2/sandboxes/{}/logs?search=" + "x" * 257,
    ],
)
def test_questions_for_logs_and_metrics_that_are_refused(served: Served, path: str) -> None:
    answer = served.call("GET", path.format(served.sandbox))
    assert (answer.status_code, answer.json()["code"]) == (400, 400)


def test_the_log_tells_what_was_started_and_what_was_refused(served: Served) -> None:
    def entries(query: str = "") -> list[dict[str, Any]]:
        answer = served.call("GET", f"/v2/sandboxes/{served.sandbox}/logs{query}")
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["logs"]
        return found

    with served.stream("echo marked-$$; curl -s -m 20 http://10.9.9.9/") as stream:
        heard = b""
        while b"exitCode" not in heard:
            heard += stream.recv(65536)
    started = entries("?search=echo+marked")
    assert [entry["level"] for entry in started] == ["info"]
    assert started[0]["fields"]["user"] == "user"
    wait_for(lambda: entries("?level=warn") != [], "the refusal is on record")
    refused = entries("?level=warn&direction=backward")
    assert refused[0]["fields"]["decision"] == "denied"
    assert [entry["timestamp"] for entry in entries()] == sorted(entry["timestamp"] for entry in entries())
    cursor = int(datetime.fromisoformat(started[0]["timestamp"]).timestamp() * 1000)
    assert started[0] in entries(f"?cursor={cursor}")
    assert started[0] not in entries(f"?cursor={cursor + 1}")
    assert entries("?limit=1") == entries()[:1]
    old = served.call("GET", f"/sandboxes/{served.sandbox}/logs").json()
    lines = [json.loads(line["line"]) for line in old["logs"]]
    assert len(lines) == len(old["logEntries"])
    assert any("echo marked" in line["message"] and line["level"] == "info" for line in lines)
    assert served.call("GET", f"/sandboxes/{served.sandbox}/logs", key=served.other).status_code == 404


def test_metrics_tell_what_was_used_before(served: Served) -> None:
    def samples(query: str = "") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = served.call("GET", f"/sandboxes/{served.sandbox}/metrics{query}").json()
        return found

    wait_for(lambda: len(samples()) > 1, "there is a former sample beside that of now")
    found = samples()
    times = [sample["timestampUnix"] for sample in found]
    assert times == sorted(times)
    assert all(0 <= sample["cpuUsedPct"] <= 100 and sample["memUsed"] > 0 for sample in found)
    # What it was a moment ago is told again; a range that it was not there in is empty.
    assert found[0] in samples(f"?start={times[0]}&end={times[0]}")
    assert samples("?start=1&end=2") == []
    own = served.box("GET", "/metrics").json()
    assert own["mem_used"] > 0


def test_two_hundred_streams_at_once_and_clients_that_vanish(served: Served) -> None:
    with ExitStack() as stack:
        streams = [stack.enter_context(served.stream("sleep 60; echo end")) for _ in range(200)]
        for stream in streams:
            assert stream.recv(300).startswith(b"HTTP/1.1 200")
        for stream in streams[:150]:  # gone without a word
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            stream.close()
        served.alive()
        listed = partial(served.box, "POST", "/process.Process/List", json={})
        wait_for(lambda: len(listed().json()["processes"]) >= 200, "processes do not outlive their clients")


def test_a_sandbox_that_is_killed_under_load_cuts_all_its_streams(served: Served) -> None:
    made = served.call("POST", "/v2/sandboxes", json={"templateID": "base", "timeout": 120}).json()
    other = Served(served.url, served.key, served.other, made["sandboxID"], made["envdAccessToken"])
    with ExitStack() as stack:
        streams = [
            stack.enter_context(other.stream("while true; do echo flood; sleep 0.01; done"))
            for _ in range(30)
        ]
        for stream in streams:
            assert stream.recv(300).startswith(b"HTTP/1.1 200")
        killer = threading.Thread(target=lambda: other.call("DELETE", f"/sandboxes/{other.sandbox}"))
        killer.start()
        for stream in streams:
            with pytest.raises(ConnectionResetError):
                _drain(stream)
        killer.join()
    gone = other.box("GET", "/health")
    assert (gone.status_code, gone.json()["message"]) == (502, "The sandbox was not found")
    served.alive()


def _drain(sock: socket.socket) -> None:
    end = time.monotonic() + 60
    while sock.recv(65536) and time.monotonic() < end:
        pass


def test_a_client_that_goes_before_its_process_fails_is_no_fault_of_the_daemons(
    served: Served, shared_daemon: Daemon
) -> None:
    log = shared_daemon.data / "logs" / "engine.log"
    before = log.stat().st_size
    for _ in range(50):
        served.stream("true", "/never-there").close()
    served.alive()
    time.sleep(1)
    with log.open("rb") as told:
        told.seek(before)
        assert b"never retrieved" not in told.read()

"""What is in volumes, by E2B's API for it: with a volume's token, and with nothing else."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.conftest import Daemon
from tests.system.test_e2b_bad_input import UNKNOWN, Served, served

__all__ = ["served"]
pytestmark = pytest.mark.root


@dataclass(frozen=True)
class Content:
    """A volume and what opens it."""

    served: Served
    id: str
    token: str

    def call(
        self, method: str, what: str, path: str | None, *, token: str | None = None, **options: Any
    ) -> httpx2.Response:
        query = {**({} if path is None else {"path": path}), **options.pop("query", {})}
        headers = {"authorization": f"Bearer {self.token if token is None else token}"}
        return httpx2.request(
            method,
            f"{self.served.url}/volumecontent/{self.id}/{what}",
            params=query,
            headers=headers,
            timeout=60,
            trust_env=False,
            **options,
        )


def _made(served: Served, name: str, key: str | None = None) -> Content:
    answer = served.call("POST", "/volumes", key=key, json={"name": name})
    assert answer.status_code == 201
    return Content(served, answer.json()["volumeID"], answer.json()["token"])


@pytest.fixture
def content(served: Served) -> Iterator[Content]:
    made = _made(served, "content")
    yield made
    assert served.call("DELETE", f"/volumes/{made.id}").status_code == 204


def test_files_and_directories(content: Content) -> None:
    assert content.call("PUT", "file", "/a", content=b"\0one").status_code == 201
    shown = content.call("GET", "path", "a").json()
    assert (shown["path"], shown["type"], shown["size"], shown["uid"], shown["mode"]) == (
        "/a",
        "file",
        4,
        1000,
        0o644,
    )
    assert content.call("GET", "file", "/a").content == b"\0one"
    assert content.call("POST", "dir", "/x/y").status_code == 404
    assert content.call("PUT", "file", "/x/y", content=b"").status_code == 404
    made = content.call("POST", "dir", "/x/y", query={"force": "true", "uid": "5", "gid": "6", "mode": "448"})
    assert (made.status_code, made.json()["uid"], made.json()["gid"], made.json()["mode"]) == (
        201,
        5,
        6,
        0o700,
    )
    assert content.call("POST", "dir", "/x/y").status_code == 409
    assert [entry["path"] for entry in content.call("GET", "dir", "/", query={"depth": "2"}).json()] == [
        "/a",
        "/x",
        "/x/y",
    ]
    changed = content.call("PATCH", "path", "/a", json={"uid": 0, "mode": 0o600}).json()
    assert (changed["uid"], changed["gid"], changed["mode"]) == (0, 1000, 0o600)
    assert content.call("DELETE", "path", "/x").status_code == 204
    assert content.call("GET", "path", "/x").status_code == 404


@pytest.mark.parametrize(
    ("method", "what", "path", "options", "status"),
    [
        ("GET", "path", None, {}, 400),
        ("GET", "dir", "/", {"query": {"depth": "-1"}}, 400),
        ("PUT", "file", "/a", {"query": {"uid": "-1"}}, 400),
        ("PUT", "file", "/a", {"query": {"uid": "65536"}}, 400),
        ("PUT", "file", "/a", {"query": {"mode": "99999"}}, 400),
        ("PATCH", "path", "/", {"content": b"{"}, 400),
        ("PATCH", "path", "/", {"json": {"uid": "0"}}, 400),
        ("PATCH", "path", "/", {"json": {"uid": 65536}}, 400),
        ("PATCH", "path", "/", {"content": b"[" * 70_000}, 400),
        ("GET", "file", "/", {}, 409),
        ("GET", "file", "/none", {}, 404),
        ("DELETE", "path", "/", {}, 400),
    ],
)  # fmt: skip
def test_what_is_refused(
    content: Content, method: str, what: str, path: str | None, options: dict[str, Any], status: int
) -> None:
    answer = content.call(method, what, path, **options)
    assert answer.status_code == status, answer.text
    assert isinstance(answer.json()["code"], str)
    assert content.call("GET", "dir", "/").json() == []


def test_a_token_opens_its_volume_and_no_other(served: Served, content: Content) -> None:
    other = _made(served, "other")
    strange = _made(served, "content", key=served.other)
    try:
        for token in ("x", other.token, strange.token, served.key, served.token, content.token + "0"):
            for method, what in (("GET", "path"), ("GET", "dir"), ("PUT", "file"), ("DELETE", "path")):
                answer = content.call(method, what, "/", token=token)
                assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated"), token
        unknown = Content(served, UNKNOWN, content.token)
        assert unknown.call("GET", "path", "/").status_code == 401
        listed = served.call("GET", "/volumes", key=served.other).json()
        assert [volume["volumeID"] for volume in listed] == [strange.id]
        assert served.call("GET", "/volumes/content", key=served.other).json()["volumeID"] == strange.id
        assert served.call("GET", f"/volumes/{content.id}", key=served.other).status_code == 404
        assert served.call("DELETE", f"/volumes/{content.id}", key=served.other).status_code == 404
        assert content.call("GET", "path", "/").status_code == 200
    finally:
        assert served.call("DELETE", f"/volumes/{other.id}").status_code == 204
        assert served.call("DELETE", f"/volumes/{strange.id}", key=served.other).status_code == 204
    assert other.call("GET", "path", "/").status_code == 404


def test_paths_and_links_lead_nowhere_outside(
    shared_daemon: Daemon, content: Content, tmp_path: Path
) -> None:
    """FILE-9, as a sandbox that mounts it could try with what it puts there."""
    secret = tmp_path / "secret"
    secret.write_text("the host's")
    secret.chmod(0o600)
    place = shared_daemon.data / "store" / "volumes" / content.id
    (place / "absolute").symlink_to(secret)
    (place / "climbing").symlink_to(f"../../../../../../../../../..{secret}")
    os.mkfifo(place / "fifo")
    for path in ("/absolute", "/climbing", f"/../../../../../../../../..{secret}", "/fifo"):
        answer = content.call("GET", "file", path)
        assert answer.status_code in (403, 404), (path, answer.text)
    assert content.call("GET", "path", "/absolute").json()["target"] == str(secret)
    before = secret.stat()
    content.call("PATCH", "path", "/absolute", json={"uid": 1, "mode": 0o666})
    content.call("PUT", "file", "/climbing", query={"force": "1"}, content=b"theirs")
    after = secret.stat()
    assert (after.st_uid, after.st_mode) == (before.st_uid, before.st_mode)
    assert secret.read_text() == "the host's"


def test_a_sandbox_mounts_it(served: Served, content: Content) -> None:
    content.call("PUT", "file", "/a", content=b"one")
    body = {"templateID": "base", "timeout": 600, "volumeMounts": [{"name": "content", "path": "/data"}]}
    made = served.call("POST", "/v2/sandboxes", json=body)
    assert made.status_code == 201
    id = made.json()["sandboxID"]
    try:
        told = served.call("GET", f"/sandboxes/{id}").json()
        assert told["volumeMounts"] == [{"name": "content", "path": "/data"}]
        assert served.call("DELETE", f"/volumes/{content.id}").status_code == 409
    finally:
        assert served.call("DELETE", f"/sandboxes/{id}").status_code == 204
    # The fixture removes the volume at once: that waits for the sandbox, which is on its way out.

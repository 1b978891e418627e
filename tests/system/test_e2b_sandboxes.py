"""E2B's API on real sandboxes: what its specification says of them that no SDK shows."""

import gzip
import json
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from tests.system.test_e2b_bad_input import Served, served

from corral import Client, Sandbox
from corral.sdk.settings import Settings, settings

__all__ = ["served"]
pytestmark = pytest.mark.root

_RAW = {"content-type": "application/octet-stream"}
_NAMES = ("E2B_SANDBOX", "E2B_SANDBOX_ID", "E2B_TEMPLATE_ID")


@contextmanager
def made(served: Served, **options: Any) -> Iterator[Served]:
    """A sandbox of one test."""
    body = {"templateID": "base", "timeout": 600, **options}
    answer = served.call("POST", "/v2/sandboxes", json=body)
    assert answer.status_code == 201, answer.text
    told = answer.json()
    yield replace(served, sandbox=told["sandboxID"], token=told["envdAccessToken"])
    served.call("DELETE", f"/sandboxes/{told['sandboxID']}")


def files(box: Served) -> list[str]:
    """What the files of E2B's say, by the names of the variables."""
    found = [box.box("GET", "/files", params={"path": f"/run/e2b/.{name}"}) for name in _NAMES]
    assert [answer.status_code for answer in found] == [200] * 3
    return [answer.text for answer in found]


def variables(box: Served) -> list[str]:
    told = box.box("GET", "/envs").json()
    return [told[name] for name in _NAMES]


def connect(box: Served, **body: Any) -> int:
    status: int = box.call("POST", f"/v2/sandboxes/{box.sandbox}/connect", json=body).status_code
    return status


def start(box: Served, **message: Any) -> list[dict[str, Any]]:
    """The messages of a command's stream."""
    body = json.dumps(message).encode()
    frame = struct.pack(">BI", 0, len(body)) + body
    headers = {"content-type": "application/connect+json"}
    left = box.box("POST", "/process.Process/Start", content=frame, headers=headers).content
    messages: list[dict[str, Any]] = []
    while left:
        size = struct.unpack(">I", left[1:5])[0]
        messages.append(json.loads(left[5 : 5 + size]))
        left = left[5 + size :]
    return messages


def test_files_tell_which_sandbox_it_is_through_stops_and_in_copies(served: Served) -> None:
    with made(served) as box:
        assert files(box) == variables(box) == ["true", box.sandbox, variables(box)[2]]
        with Client(where=_where(served)) as client:
            shown = Sandbox.connect(box.sandbox, client=client).exec("stat -c %U:%a /run/e2b/.E2B_SANDBOX_ID")
            assert shown.stdout.strip() == "root:644"
        assert box.call("POST", f"/sandboxes/{box.sandbox}/pause", json={"memory": False}).status_code == 204
        assert connect(box) == 201
        assert files(box) == variables(box)
        child = box.call("POST", f"/sandboxes/{box.sandbox}/fork").json()[0]["sandbox"]
        other = replace(box, sandbox=child["sandboxID"], token=child["envdAccessToken"])
        assert files(other) == variables(other)
        assert files(other)[1] == other.sandbox != box.sandbox
        box.call("DELETE", f"/sandboxes/{other.sandbox}")


def test_requests_that_connect_at_once_start_a_sandbox_once(served: Served) -> None:
    with made(served) as box:
        assert box.call("POST", f"/sandboxes/{box.sandbox}/pause", json={"memory": False}).status_code == 204
        with ThreadPoolExecutor(6) as threads:
            told = sorted(threads.map(lambda _: connect(box, timeout=600), range(6)))
        assert told == [200] * 5 + [201]
        box.alive()


def test_a_file_is_packed_for_who_prefers_that(served: Served) -> None:
    data = b"one line of many\n" * 100_000
    served.box("POST", "/files?path=/tmp/lines", content=data, headers=_RAW)

    def get(accepted: str, **headers: str) -> Any:
        sent = {"accept-encoding": accepted, **headers}
        return served.box("GET", "/files?path=/tmp/lines", headers=sent)

    packed = get("gzip")
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.content == data
    assert int(packed.num_bytes_downloaded) < len(data) // 10
    for plain in (get("gzip, deflate"), get("identity")):
        assert "content-encoding" not in plain.headers
        assert plain.content == data
    part = get("gzip", range="bytes=4-7")
    assert (part.status_code, part.content) == (206, b"line")
    assert get("br, identity;q=0").status_code == 406
    again = served.box(
        "POST",
        "/files?path=/tmp/packed",
        content=gzip.compress(data),
        headers={**_RAW, "content-encoding": "gzip"},
    )
    assert again.status_code == 200
    assert served.box("GET", "/files?path=/tmp/packed").content == data


def test_links_in_a_circle_are_no_directory_to_list_or_watch(served: Served) -> None:
    with Client(where=_where(served)) as client:
        box = Sandbox.connect(served.sandbox, client=client)
        box.exec("ln -s /tmp/circle-b /tmp/circle-a; ln -s /tmp/circle-a /tmp/circle-b")
    for call, body, status, code in (
        ("ListDir", {"path": "/tmp/circle-a", "depth": 1}, 400, "failed_precondition"),
        ("CreateWatcher", {"path": "/tmp/circle-a"}, 400, "invalid_argument"),
        ("ListDir", {"path": "/proc"}, 403, "permission_denied"),
        ("ListDir", {"path": "/tmp/none"}, 404, "not_found"),
        ("ListDir", {"path": "/etc/passwd"}, 400, "invalid_argument"),
    ):
        answer = served.box("POST", f"/filesystem.Filesystem/{call}", json=body)
        assert (answer.status_code, answer.json()["code"]) == (status, code), (call, body, answer.text)


@pytest.mark.parametrize(
    ("pty", "told"),
    [
        (None, "error starting process '':"),
        ({"size": {"cols": 80, "rows": 24}}, "error starting pty with command '':"),
    ],
)
def test_a_program_that_cannot_be_started_is_told_by_how_it_was_to_run(
    served: Served, pty: dict[str, Any] | None, told: str
) -> None:
    messages = start(served, process={"cmd": ""}, **({"pty": pty} if pty else {}))
    assert [set(message) for message in messages] == [{"error"}]
    assert messages[0]["error"]["code"] == "invalid_argument"
    assert messages[0]["error"]["message"].startswith(told)


def test_a_signal_that_is_none_is_named(served: Served) -> None:
    with served.stream("sleep 60") as stream:
        assert stream.recv(300).startswith(b"HTTP/1.1 200")
        pid = served.box("POST", "/process.Process/List", json={}).json()["processes"][-1]["pid"]
        for signal in (0, "SIGNAL_UNSPECIFIED"):
            body = {"process": {"pid": pid}, "signal": signal}
            answer = served.box("POST", "/process.Process/SendSignal", json=body)
            assert (answer.status_code, answer.json()) == (
                501,
                {"code": "unimplemented", "message": "invalid signal: SIGNAL_UNSPECIFIED"},
            )


def test_names_of_snapshots(served: Served) -> None:
    with Client(where=_where(served)) as client:
        client.build_template_from("taken", dockerfile="FROM base\nRUN true\n")
        try:
            for name, status in (("taken", 409), ("base", 409), ("acme/one", 400), ("one two", 400)):
                answer = served.call("POST", f"/sandboxes/{served.sandbox}/snapshots", json={"name": name})
                assert answer.status_code == status, (name, answer.text)
            answer = served.call("POST", f"/sandboxes/{served.sandbox}/snapshots", json={"name": "taken:v1"})
            assert (answer.status_code, answer.json()["names"]) == (201, ["default/taken"])
            gone = [served.call("DELETE", "/templates/default%2Ftaken%3Av1").status_code for _ in range(2)]
            assert gone == [204, 404]
        finally:
            client.remove_template("taken")


def test_children_of_a_fork_mount_the_volumes_of_their_parent(served: Served) -> None:
    volume = served.call("POST", "/volumes", json={"name": "shared"}).json()["volumeID"]
    with made(served, volumeMounts=[{"name": "shared", "path": "/shared"}]) as box:
        assert box.box("POST", "/files?path=/shared/a", content=b"one", headers=_RAW).status_code == 200
        child = box.call("POST", f"/sandboxes/{box.sandbox}/fork", json={"timeout": 600}).json()[0]["sandbox"]
        other = replace(box, sandbox=child["sandboxID"], token=child["envdAccessToken"])
        assert other.box("GET", "/files?path=/shared/a").text == "one"
        assert other.box("POST", "/files?path=/shared/b", content=b"two", headers=_RAW).status_code == 200
        assert box.box("GET", "/files?path=/shared/b").text == "two"
        shown = box.call("GET", f"/sandboxes/{other.sandbox}").json()
        assert shown["volumeMounts"] == [{"name": "shared", "path": "/shared"}]
        box.call("DELETE", f"/sandboxes/{other.sandbox}")
    assert served.call("DELETE", f"/volumes/{volume}").status_code == 204


@pytest.mark.parametrize("port", ["0", "99999", "000080", "4998300000", "x"])
def test_ports_that_are_none(served: Served, port: str) -> None:
    answer = served.box("GET", "/health", headers={"e2b-sandbox-port": port})
    assert (answer.status_code, answer.json()["message"]) == (400, "Invalid sandbox port")


def test_what_a_sandbox_may_reach_is_on_record(served: Served) -> None:
    """G-322: with the key that had it changed."""
    with made(served) as box, Client(where=_where(served)) as client:
        asked = {"allowOut": ["one.example.com"], "denyOut": ["0.0.0.0/0"]}
        assert box.call("PUT", f"/sandboxes/{box.sandbox}/network", json=asked).status_code == 204
        (told,) = [entry.detail for entry in client.read_audit(box.sandbox) if entry.kind == "egress.changed"]
        assert told["allow"] == "one.example.com"
        assert told["actor"].startswith("tenant default, key test ")


def _where(served: Served) -> Settings:
    return settings(environ={"CORRAL_URL": served.url, "CORRAL_API_KEY": served.key})

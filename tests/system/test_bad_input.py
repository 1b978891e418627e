"""Bad input through the real API: a clear error with a code and a hint, and nothing changed."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from tests.conftest import Daemon
from tests.traces import settled, traces

from corral import Client, Sandbox
from corral.errors import CorralError, InvalidInput, NotFound, UpstreamFailed
from corral.sdk.operations import Request
from corral.sdk.requests import url

pytestmark = pytest.mark.root

MIB = 1024 * 1024
GIB = 1024 * MIB
SANDBOXES = "/v1/sandboxes"
BOX = f"{SANDBOXES}/box"


@pytest.fixture
def http(daemon: Daemon) -> Iterator[httpx2.Client]:
    """Requests as no SDK of ours would send them."""
    transport = httpx2.HTTPTransport(uds=str(daemon.run / "api.sock"))
    with httpx2.Client(transport=transport, base_url="http://corral", timeout=60) as client:
        yield client


def _create(**body: Any) -> tuple[str, str, Any]:
    return "POST", SANDBOXES, body


def _exec(**body: Any) -> tuple[str, str, Any]:
    return "POST", f"{BOX}/exec", {"argv": ["true"], **body}


def _path(path: str, method: str = "GET", route: str = "files") -> tuple[str, str, Any]:
    return method, f"{BOX}/{route}?path={path}", None


NAMES = ["", "-a", "a-", "A", "a b", "a/b", "..", "a" * 64, "é", "a\0b", "a\nb", "\ud800"]
REFERENCES = [
    "",
    "a b",
    "UPPER/case:x",
    "host:99999/x",
    "-x",
    "a" * 5000,
    "x@sha256:12",
    "http://h/x",
    "a\0",
    "a\n",
]
PORTS = ["example.org:0", "example.org:65536", "example.org:x", "example.org:-1", ":443", "*", "*.", "a..b", "http://a", "a/b",
         "*.com:443:1", "[::1]:443", "a" * 254, "exa mple.org", "example.org\n", "\0", ""]  # fmt: skip
ENVIRONMENTS: list[Any] = [
    {"": "x"}, {"A B": "x"}, {"A=": "x"}, {"1A": "x"}, {"A\0": "x"}, {"A": "x\0"}, {"A": "x" * 65_537}, {"A": 1}, {"A": None},
    {"A" * 256: "x"}, {f"A{n}": "x" for n in range(513)}, [], "A=x",
]  # fmt: skip
PATHS = ["relative", "", "%00", "/a%00b", "/" + "a" * 4096, "/" + "a" * 300]

BAD: list[tuple[str, str, Any]] = [
    *(_create(name=name) for name in NAMES),
    *(_create(allow=[port]) for port in PORTS),
    _create(allow=["example.org"] * 257),
    *(_create(env=env) for env in ENVIRONMENTS),
    *(_create(labels=labels) for labels in (
        {"": "x"}, {"a b": "x"}, {"a" * 129: "x"}, {"a": "x" * 1025}, {"a": "\0"}, {f"a{n}": "x" for n in range(65)}, {"a": True},
    )),
    *(_create(limits=limits) for limits in (
        {"memory": 0}, {"memory": -1}, {"memory": 2**70}, {"memory": "4G"}, {"memory": 1.5 * GIB + 0.5}, {"cpus": 0},
        {"cpus": 1e9},
        {"pids": 0}, {"pids": 10**9}, {"disk": 1}, {"disk": 2**80}, {"io_weight": 9}, {"io_weight": 1001}, {"memory": True},
        {"swap": 1}, 5,
    )),
    *(_create(user=user) for user in ("", "Root", "a b", "0:", "123456", "-1", "a" * 33, "\0")),
    *(_create(workdir=path) for path in ("", "relative", "/a\0b", "/" + "a" * 4096)),
    *(_create(ttl=ttl) for ttl in (0, -1, 366 * 86400, 1.5, "1h", True)),
    *(_create(isolation=level) for level in ("", "none", "microvm", 1)),
    *(_create(secrets=names) for names in ("anthropic", ["No Name"], ["a"] * 65, [None])),
    *(_create(repo=repo) for repo in (
        "", "relative", "/", "/nonexistent", "/etc/passwd", "/proc", "/root/\0", "file:///etc", "ssh://h/x",
        "http://example.org/x",
        "https://", "https://user:pass@example.org/x", "https://example.org", "ext::sh -c id", "https://example.org/x?y",
        "--upload-pack=x",
        "https://exa mple.org/x", "git@example.org:x/y", "/a" * 2100,
    )),
    *(_create(repo="/x", branch=branch) for branch in ("", "-x", "a..b", "a b", "a~1", "x.lock", "/x", "a" * 201, "refs/../x",
    "a\0")),
    _create(branch="main"), _create(template=""), _create(template="a" * 64), _create(runtime="a\0b"), _create(nmae="x"),
    _create(template="absent"), _create(agent="absent"), _create(agent="No"), _create(runtime="absent"),
    _create(secrets=["absent"]),
    *(_exec(argv=argv) for argv in ([], [""], ["a\0b"], "true", [1], ["x" * (128 * 1024 + 1)], ["x"] * 70_000, None, ["true",
    "\ud800"])),
    *(_exec(timeout=limit) for limit in (0, -1, 1e10, "1s", "NaN")),
    *(_exec(output_limit=limit) for limit in (-1, 2**40, "x")),
    *(_exec(user=user) for user in ("No", "nobody-at-all", "99999999")),
    *(_exec(cwd=path) for path in ("relative", "/nonexistent", "/etc/passwd", "/a\0")),
    _exec(env={"A-B": "x"}), _exec(env={"A": "x" * 65_537}), _exec(input="%%%"), _exec(tag="x" * 129),
    _exec(terminal={"rows": 1, "cols": 1}),
    *(("POST", f"{BOX}/processes", {"argv": ["true"], "terminal": size}) for size in (
        {"rows": 0, "cols": 1}, {"rows": 1, "cols": 5000}, {"rows": 1}, [24, 80])),
    *(("POST", f"{BOX}/processes/{id}/signal", {"signal": 15}) for id in ("0", "-1", "x", "99", str(2**31), "1e3", "%00")),
    *(("POST", f"{BOX}/processes/1/signal", {"signal": number}) for number in (0, -1, 65, "TERM", None)),
    *(_path(path, method, route) for path in PATHS for method, route in (
        ("GET", "files"), ("PUT", "files"), ("GET", "files/stat"), ("GET", "files/list"), ("POST", "files/mkdir"), ("DELETE",
        "files"),
        ("GET", "archive"), ("GET", "files/watch"))),
    _path("/etc"), _path("/dev/null"), _path("/nonexistent"), _path("/etc/passwd", route="files/list"), _path("/proc/1/mem"),
    _path("/", "DELETE"), _path("/..", "DELETE"), _path("/home/user/..", "DELETE"), _path("/x&mode=9999", "PUT"),
    _path("/x&user=No", "PUT"),
    _path("/x&user=absent", "PUT"), _path("/etc/passwd/x", "PUT"), _path("/etc&depth=0", route="files/list"),
    _path("/etc&depth=65", route="files/list"),
    _path("/etc/passwd&offset=-1"), _path("/etc/passwd&size=-1"), _path("/a&path=/b"),
    ("POST", f"{BOX}/files/move?source=/nonexistent&target=/x", None), ("POST", f"{BOX}/files/move?source=/etc/passwd", None),
    ("POST", f"{BOX}/files/move?source=/&target=/x", None), ("POST", f"{BOX}/files/move?source=/home&target=/home/user/x", None),
    *(("POST", "/v1/templates/build", {"kind": "image", "name": "x", "image": ref}) for ref in REFERENCES),
    *(("POST", "/v1/templates/build", {"kind": "image", "name": name, "image": "localhost:1/x"}) for name in NAMES),
    ("POST", "/v1/templates/build", {"kind": "image", "name": "base", "image": "localhost:1/x"}),
    ("POST", "/v1/templates/build", {"kind": "agent", "agent": "absent"}), ("POST", "/v1/templates/build", {"kind": "other"}),
    *(("POST", "/v1/templates/checkpoint", {"sandbox": "box", "name": name}) for name in [*NAMES, "base"]),
    ("POST", "/v1/templates/checkpoint", {"sandbox": "absent", "name": "x"}),
    *(("PUT", "/v1/secrets", body) for body in (
        {"name": "No", "value": "x" * 20}, {"name": "a", "value": ""}, {"name": "a", "value": "x" * 70_000}, {"name": "a",
        "value": "sk\n1"},
        {"name": "unknown", "value": "sk-0123456789abcdef"}, {"name": "a", "value": "sk-0123456789abcdef", "provider": "other"},
        *({"name": "a", "provider": "openai", "value": "sk-0123456789abcdef", "base_url": base} for base in (
            "ftp://h", "http://", "https://u:p@h", "https://h?x", "https://h#x", "https://h:0", "https://h:99999", "x" * 5000,
            "https://h\0", "")),
    )),
    ("DELETE", "/v1/secrets/absent", None), ("DELETE", "/v1/secrets/No%20Name", None), ("DELETE", "/v1/templates/absent", None),
    ("PUT", "/v1/config/absent", {"value": "x"}), ("PUT", "/v1/config/egress.networks", {"value": "1.2.3.4/99"}),
    ("PUT", "/v1/config/api.listen", {"value": "nowhere"}), ("PUT", "/v1/config/egress.networks", {"value": 5}),
    ("POST", "/v1/keys", {"label": "No Name"}), ("POST", "/v1/keys", {}),
    ("PUT", f"{BOX}/ttl", {"ttl": 0}), ("PUT", f"{BOX}/ttl", {}), ("POST", f"{BOX}/stop", {"grace": -1}), ("POST",
    f"{BOX}/stop", {"grace": "x"}),
    ("POST", f"{BOX}/agent", {"prompt": ""}), ("POST", f"{BOX}/agent", {"prompt": "x" * 200_000}), ("POST", f"{BOX}/agent",
    {"prompt": "x"}),
    ("GET", f"{BOX}/agent", None), ("GET", f"{BOX}/diff", None), ("POST", f"{BOX}/pull", {"target": "/x"}), ("POST",
    f"{BOX}/pull", None),
    *((method, f"{SANDBOXES}/{ref}{what}", None) for ref in ("absent", "a" * 64, "%00", "..%2f..", "%ff", "A") for method,
    what in (
        ("GET", ""), ("DELETE", ""), ("POST", "/start"), ("POST", "/stop"), ("POST", "/pause"), ("GET", "/stats"), ("GET",
        "/processes"))),
    ("GET", f"{SANDBOXES}?label=novalue", None), ("GET", f"{SANDBOXES}?label=%00=x", None), ("GET", "/v1/events?after=-1", None),
    ("GET", "/v1/absent", None), ("PATCH", SANDBOXES, {}), ("GET", "/", None),
]  # fmt: skip


def _is_error(response: httpx2.Response) -> str:
    """The code of an error that is one of ours and told as such; of a stream, that of its event `error`."""
    text = response.text
    if response.headers["content-type"].startswith("text/event-stream"):
        assert "event: error\n" in text
        text = text.partition("event: error\ndata: ")[2].partition("\n")[0]
    else:
        assert 400 <= response.status_code < 500 or response.status_code in (501, 502), response.status_code
    body = json.loads(text)
    assert set(body) == {"code", "message", "hint"}
    assert body["message"]
    assert body["hint"]
    assert len(text) < 4000
    assert body["code"] != "internal"
    return str(body["code"])


def test_every_bad_value_is_refused_and_nothing_changes(
    daemon: Daemon, box: Sandbox, http: httpx2.Client
) -> None:
    before, files = traces(daemon), _files(box)
    wrong = []
    for method, path, body in BAD:
        content = None if body is None else json.dumps(body).encode()
        response = http.request(method, path, content=content)
        try:
            _is_error(response)
        except AssertionError as error:
            wrong.append(
                f"{method} {path[:100]} {str(body)[:100]}: {response.status_code} {response.text[:200]} ({str(error)[:100]})"
            )
    assert not wrong, "\n".join(wrong)
    settled(daemon, before)
    assert _files(box) == files
    assert box.exec("echo alive").stdout == "alive\n"


def _files(box: Sandbox) -> list[tuple[str, int]]:
    return [(entry.path, entry.mode) for top in ("/", "/home/user", "/etc") for entry in box.files.list(top)]


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b"null", b"5", b'"x"', b"\xff\xfe", b'{"name": "\xff"}', b'{"name": "\\ud800"}',
        b'{"name": "a", "name": 5}',
        b'{"ttl": 1e999}', b'{"ttl": NaN}', b"[" * 100_000, b'{"env":' * 50_000, b'{"limits": {"memory": ' + b"9" * 5000 + b"}}",
        b'{"name": "' + b"x" * (2 * MIB) + b'"}', b"\0" * 1000,
    ],
    ids=lambda content: repr(content[:20]),
)  # fmt: skip
def test_bodies_that_are_none(daemon: Daemon, http: httpx2.Client, content: bytes) -> None:
    before = traces(daemon)
    for path in (SANDBOXES, "/v1/templates/checkpoint", "/v1/keys"):
        response = http.post(path, content=content, headers={"content-type": "application/json"})
        assert _is_error(response) in ("invalid_input", "too_large")
    settled(daemon, before)


def test_a_body_without_end_is_not_kept(daemon: Daemon, http: httpx2.Client) -> None:
    assert daemon.process is not None
    memory = psutil.Process(daemon.process.pid).memory_info
    before = memory().rss
    with suppress(httpx2.TransportError):  # it may hang up on who goes on sending
        assert http.post(SANDBOXES, content=(b" " * MIB for _ in range(512))).status_code == 413
    assert memory().rss - before < 64 * MIB
    assert http.get("/v1/health").status_code == 200


def test_names_of_files_may_be_any_bytes(box: Sandbox) -> None:
    for name in (b"new\nline", b"\xff\xfe", "é".encode(), b" ", b"-rf", b"%00", b"a\x1b[2J", b"x" * 255):
        path = os.fsdecode(b"/home/user/odd/" + name)
        box.files.write(path, "content")
        assert box.files.read(path) == "content"
        assert box.files.stat(path).os_path == path
        assert path in [entry.os_path for entry in box.files.list("/home/user/odd")]
        assert box.exec(["sh", "-c", "ls /home/user/odd | wc -l"]).exit_code == 0
        box.files.move(path, path + "2" if len(name) < 255 else "/home/user/odd/y")
        box.files.remove(path + "2" if len(name) < 255 else "/home/user/odd/y")
    assert box.files.list("/home/user/odd") == []


def test_lone_surrogates_are_no_file_names(http: httpx2.Client, box: Sandbox) -> None:
    with pytest.raises((InvalidInput, UnicodeEncodeError)):
        box.files.write("/home/user/\ud800", "x")
    raw = "/home/user/%ED%A0%80"  # what a lenient encoder makes of one: bytes like any others
    assert http.put(f"{BOX}/files?path={raw}", content=b"x").status_code == 200
    assert os.fsencode(box.files.list("/home/user")[-1].os_path) == b"/home/user/\xed\xa0\x80"


def test_a_five_gigabyte_file_is_seen_and_read_in_parts(box: Sandbox) -> None:
    box.exec("truncate -s 5G sparse; printf end >> sparse").check()
    assert box.files.stat("/home/user/sparse").size == 5 * GIB + 3
    route = url("sandboxes", box.id, "files", path="/home/user/sparse", offset=5 * GIB - 5, size=100)
    assert box.transport.fetch(Request("GET", route)) == bytes(5) + b"end"
    assert box.stats().disk < 64 * MIB


def test_a_hundred_thousand_files_are_listed_and_no_more(box: Sandbox) -> None:
    box.exec(
        [
            "python3",
            "-c",
            "import os; os.mkdir('many'); [open(f'many/{n}', 'w').close() for n in range(100_000)]",
        ],
        timeout=100,
    ).check()
    assert len(box.files.list("/home/user/many")) == 100_000
    box.files.write("/home/user/many/more", b"")
    with pytest.raises(CorralError) as refused:
        box.files.list("/home/user/many")
    assert refused.value.hint
    box.files.remove("/home/user/many")


# -- repositories ---------------------------------------------------------------------------------------------------


def _git(path: Path, *args: str) -> str:
    identity = ("-c", "user.name=T", "-c", "user.email=t@example.invalid", "-c", "protocol.file.allow=always")
    return subprocess.run(
        ["git", "-C", path, *identity, *args], check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    path = tmp_path / "project"
    path.mkdir()
    _git(path, "init", "-q", "-b", "main")
    (path / "file").write_text("one\n")
    _git(path, "add", "-A")
    _git(path, "commit", "-q", "-m", "one")
    return path


def test_what_is_no_repository(daemon: Daemon, client: Client, repo: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    unborn = tmp_path / "unborn"
    unborn.mkdir()
    _git(unborn, "init", "-q")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / ".git").write_text("gitdir: /nonexistent/worktrees/x\n")
    before = traces(daemon)
    for place, error in (
        ("/", InvalidInput), (tmp_path / "absent", NotFound), (empty, InvalidInput), (unborn, InvalidInput),
        (repo / "file", InvalidInput), (repo / ".git" / "objects", InvalidInput), (broken, CorralError),
    ):  # fmt: skip
        with pytest.raises(error) as refused:
            Sandbox.create(client=client, repo=str(place))
        assert refused.value.hint
        assert refused.value.code != "internal"
        settled(daemon, before)


def test_a_detached_head_is_taken_as_it_is(client: Client, repo: Path) -> None:
    (repo / "file").write_text("two\n")
    _git(repo, "commit", "-qam", "two")
    _git(repo, "checkout", "-q", "HEAD~1")
    box = Sandbox.create(client=client, repo=str(repo), branch="auto", name="box")
    assert box.exec("cat file; git branch --show-current", cwd=box.info.workdir).stdout == "one\ncorral/box\n"


def test_submodules_and_uncommitted_files_are_told_git15(client: Client, repo: Path, tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    subprocess.run(["git", "clone", "-q", repo, inner], check=True)
    _git(repo, "submodule", "add", "-q", str(inner), "sub")
    _git(repo, "commit", "-qm", "sub")
    (repo / "file").write_text("changed\n")
    (repo / "untracked").write_text("x")
    told: list[str] = []
    box = Sandbox.create(client=client, repo=str(repo), progress=told.append)
    text = "\n".join(told)
    assert "submodules are empty" in text
    assert "1 changed and 1 untracked files" in text
    assert box.exec("git status --porcelain; cat file", cwd=box.info.workdir).stdout == "one\n"


def test_a_worktree_and_a_subdirectory_are_their_repository_git1(
    client: Client, repo: Path, tmp_path: Path
) -> None:
    _git(repo, "worktree", "add", "-q", "-b", "side", str(tmp_path / "tree"))
    (tmp_path / "tree" / "deep").mkdir()
    (tmp_path / "tree" / "deep" / "x").write_text("x")
    _git(tmp_path / "tree", "add", "-A")
    _git(tmp_path / "tree", "commit", "-qm", "deep")
    box = Sandbox.create(client=client, repo=str(tmp_path / "tree" / "deep"), branch="side")
    assert (
        box.exec("git log --format=%s; git status --porcelain", cwd=box.info.workdir).stdout == "deep\none\n"
    )


def test_odd_names_links_and_modes_arrive_git7(client: Client, repo: Path) -> None:
    odd = [b"new\nline", b"\xff\xfe", b"-rf", b" ", b'"quoted"', "é".encode()]
    for name in odd:
        (repo / os.fsdecode(name)).write_text("x")
    (repo / "dir").mkdir()
    (repo / "dir" / "x").write_text("x")
    (repo / "link").symlink_to("dir")
    (repo / "run").write_text("#!/bin/sh\n")
    (repo / "run").chmod(0o755)
    _git(repo, "add", "-A")
    _git(repo, "commit", "-qm", "odd")
    box = Sandbox.create(client=client, repo=str(repo), name="box")
    assert (
        box.exec("git status --porcelain; readlink link; test -x run && echo x", cwd=box.info.workdir).stdout
        == "dir\nx\n"
    )
    names = {os.fsencode(entry.name) for entry in box.files.list(box.info.workdir)}
    assert names >= set(odd)


def test_a_pull_goes_where_it_came_from_and_nowhere_else(client: Client, repo: Path, tmp_path: Path) -> None:
    box = Sandbox.create(client=client, repo=str(repo), branch="auto", name="box")
    box.exec("echo new > new && git add new && git commit -qm new", cwd=box.info.workdir).check()
    for target, error in (
        (tmp_path, CorralError),
        ("/", InvalidInput),
        ("/etc", CorralError),
        (tmp_path / "no", NotFound),
    ):
        with pytest.raises(error) as refused:
            client.pull("box", str(target))
        assert refused.value.hint
    assert _git(repo, "for-each-ref", "refs/corral") == ""
    client.pull("box")
    assert "new" in _git(repo, "ls-tree", "--name-only", "refs/corral/box")
    assert _git(repo, "status", "--porcelain") == ""


def test_a_branch_that_exists_is_taken_a_bad_one_refused(daemon: Daemon, client: Client, repo: Path) -> None:
    _git(repo, "branch", "side")
    box = Sandbox.create(client=client, repo=str(repo), branch="side")
    assert box.exec("git branch --show-current", cwd=box.info.workdir).stdout == "side\n"
    before = traces(daemon)
    for branch in ("-x", "a..b", "HEAD", "x" * 201):
        with pytest.raises(InvalidInput):
            Sandbox.create(client=client, repo=str(repo), branch=branch)
    settled(daemon, before)


def test_a_repository_url_that_leads_nowhere(daemon: Daemon, client: Client) -> None:
    before = traces(daemon)
    with pytest.raises(UpstreamFailed, match=r"nowhere\.invalid cannot be resolved") as failed:
        Sandbox.create(client=client, repo="https://nowhere.invalid/a/b")
    assert "corral secret add" in failed.value.hint
    settled(daemon, before)


def test_half_a_key_beside_the_secret_of_the_rest_makes_no_sandbox(daemon: Daemon, client: Client) -> None:
    """G-158: real and masked parts of one key in a sandbox."""
    value = "AKIAIOSFODNN7EXAMPLE:wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
    daemon.cli("secret", "add", "cloud", "--host", "*.amazonaws.com", "--mode", "aws", input=value)
    try:
        made = daemon.cli(
            "create",
            "--name",
            "half",
            "--secret",
            "cloud",
            "--env",
            "AWS_ACCESS_KEY_ID=AKIAREAL",
            check=False,
        )
        assert made.returncode != 0
        assert "AWS_ACCESS_KEY_ID is set beside the secret 'cloud'" in made.stderr
        assert client.list_sandboxes() == []
    finally:
        client.remove_secret("cloud")

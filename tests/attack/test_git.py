"""Attacks on git's way through the gateway, from inside a sandbox, with raw requests and with real packs that lie.

Each names the rules that it attacks. The server is real (`git http-backend`), and so is the reading of packs.
"""

import base64
import hashlib
import json
import os
import subprocess
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.attack.conftest import Range

from corral import Sandbox
from corral.wire.pktline import FLUSH, encode

TOKEN = "git-canary-attack-0123456789"
LEAKED = "Canary-Value-That-StaysOnTheHost0123"
ZERO = "0" * 40


@dataclass
class Target:
    """The server's repository `team/app`, and another one that nobody was given."""

    host: str
    root: Path

    def git(self, *args: str, repo: str = "team/app.git") -> str:
        return subprocess.run(
            ["git", "-C", str(self.root / repo), *args], check=True, capture_output=True, text=True
        ).stdout

    def refs(self, repo: str = "team/app.git") -> str:
        return self.git("for-each-ref", "--format=%(refname) %(objectname)", repo=repo)

    def path(self, rest: str, repo: str = "team/app") -> str:
        return f"/git/{self.host}/{repo}/{rest}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    root = tmp_path_factory.mktemp("target")

    def git(*args: str) -> None:
        subprocess.run(
            ["git", "-c", "user.name=n", "-c", "user.email=e@x", *args], check=True, capture_output=True
        )

    git("init", "-q", "-b", "main", str(root / "seed"))
    (root / "seed/README").write_text("one\n")
    git("-C", str(root / "seed"), "add", "-A")
    git("-C", str(root / "seed"), "commit", "-qm", "one")
    for name in ("team/app.git", "team/other.git"):
        git("clone", "-q", "--bare", str(root / "seed"), str(root / name))
        git("-C", str(root / name), "config", "http.receivepack", "true")
    process = subprocess.Popen(
        [sys.executable, "-m", "corral.testing.git_server", "--root", str(root), "--token-env", "GIT_TOKEN"],
        env={**os.environ, "GIT_TOKEN": TOKEN}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    yield Target(f"localhost:{json.loads(process.stdout.readline())['port']}", root)
    process.terminate()
    process.communicate(timeout=20)


@pytest.fixture
def target(server: Target, arena: Range) -> Iterator[Target]:
    daemon = arena.daemon
    daemon.cli(
        "secret", "add", "target", "--provider", "git", "--base-url", f"http://{server.host}", input=TOKEN
    )
    before = server.refs(), server.refs("team/other.git")
    yield server
    assert (server.refs(), server.refs("team/other.git")) == before, "something was pushed"
    daemon.cli("secret", "rm", "target", check=False)


def attacker(arena: Range, target: Target, *, write: bool = True, rules: tuple[str, ...] = ()) -> Sandbox:
    repo = f"{target.host}/team/app" + (":write" if write else "")
    return arena.box(git_repos=(repo,), push_rules=rules)


def calls(arena: Range, box: Sandbox, *items: dict[str, Any]) -> list[Any]:
    for item in items:
        if isinstance(item.get("body"), bytes):
            item["body"] = base64.b64encode(item["body"]).decode()
    return list(arena.run(box, "gitpush", data=list(items), user="user", timeout=300))


def get(path: str, **headers: str) -> dict[str, Any]:
    return {"method": "GET", "path": path, "headers": headers}


def post(path: str, body: bytes, **headers: str) -> dict[str, Any]:
    kind = {"Content-Type": "application/x-git-receive-pack-request"}
    return {"method": "POST", "path": path, "body": body, "headers": {**kind, **headers}}


def command(old: str, new: str, ref: str, capabilities: str = "report-status side-band-64k") -> bytes:
    return encode(f"{old} {new} {ref}\0{capabilities}".encode()) + FLUSH


def obj(kind: str, data: bytes) -> tuple[str, int, bytes]:
    number = {"commit": 1, "tree": 2, "blob": 3, "tag": 4}[kind]
    return hashlib.sha1(f"{kind} {len(data)}\0".encode() + data).hexdigest(), number, data


def pack(*objects: tuple[str, int, bytes], count: int | None = None) -> bytes:
    out = b"PACK" + (2).to_bytes(4, "big") + (len(objects) if count is None else count).to_bytes(4, "big")
    for _, number, data in objects:
        size, first = len(data) >> 4, (number << 4) | (len(data) & 15)
        while size:
            out += bytes([first | 0x80])
            first, size = size & 0x7F, size >> 7
        out += bytes([first]) + zlib.compress(data)
    return out + hashlib.sha1(out).digest()


def tree(*entries: tuple[str, str, str]) -> tuple[str, int, bytes]:
    return obj(
        "tree", b"".join(f"{mode} {name}\0".encode() + bytes.fromhex(id) for mode, name, id in entries)
    )


def commit(tree_id: str, *parents: str, extra: str = "") -> tuple[str, int, bytes]:
    lines = [f"tree {tree_id}", *(f"parent {one}" for one in parents)]
    lines += ["author E <e@x> 1 +0000", "committer E <e@x> 1 +0000"]
    return obj("commit", ("\n".join(lines) + f"\n{extra}\nmessage\n").encode())


@pytest.mark.root
def test_other_repositories_by_every_spelling(arena: Range, target: Target) -> None:
    """G-231 to G-235, G-264."""
    box = attacker(arena, target)
    query = "info/refs?service=git-upload-pack"
    paths = [
        target.path(query, "team/other"), target.path(query, "team/app/../other"), target.path(query, "team%2Fother"),
        target.path(query, "team/app%2F..%2Fother"), target.path(query, "team/./other"), target.path(query, "/team/other"),
        target.path(query, "team/other.git"), target.path(query, "team/app.git/../other.git"), target.path("HEAD"),
        target.path("objects/info/packs"), target.path("info/refs"), target.path("info/refs?service=git-upload-archive"),
        target.path("info/refs?service=git-upload-pack&service=git-receive-pack"), target.path("../other/" + query),
        f"/git/127.0.0.1:{target.host.partition(':')[2]}/team/app/{query}", f"/git/x@{target.host}/team/app/{query}",
        f"/git//{target.host}/team/app/{query}", f"/git/{target.host}:80/team/app/{query}",
        target.path(query + "#", "team/other"), target.path("config"), target.path("git-upload-archive"),
    ]  # fmt: skip
    found = calls(arena, box, *map(get, paths))
    assert [(path, status) for path, (status, _) in zip(paths, found, strict=True) if status == 200] == []


@pytest.mark.root
def test_a_reader_cannot_push_and_nobody_uses_anothers_token(arena: Range, target: Target) -> None:
    """G-19, G-233, G-235, G-267."""
    reader, writer = attacker(arena, target, write=False), attacker(arena, target)
    stolen = writer.exec(["sh", "-c", "env | sed -n 's/.*password=\\([^\"]*\\)\".*/\\1/p'"]).stdout.strip()
    assert stolen.startswith("sk-crl-")
    body = command(ZERO, "1" * 40, f"refs/heads/corral/{reader.name}") + pack()
    found = calls(
        arena, reader,
        get(target.path("info/refs?service=git-receive-pack")),
        post(target.path("git-receive-pack"), body),
        post(target.path("git-receive-pack"), body, Authorization=f"Bearer {stolen}"),
        get(target.path("info/refs?service=git-upload-pack"), Authorization=f"Bearer {stolen}"),
        get(target.path("info/refs?service=git-upload-pack"), Authorization=f"Bearer {TOKEN}"),
    )  # fmt: skip
    assert [status for status, _ in found] == [403, 403, 401, 401, 401]


@pytest.mark.root
def test_refs_are_those_of_the_protocol(arena: Range, target: Target) -> None:
    """G-249, G-250, G-253: smuggled, doubled, certified, hidden and malformed commands."""
    box = attacker(arena, target)
    own = f"refs/heads/corral/{box.name}"
    one = command(ZERO, "1" * 40, own)[:-4]
    path = target.path("git-receive-pack")
    bodies = [
        command(ZERO, "1" * 40, "refs/heads/main"),  # what is claimed elsewhere does not count
        one + encode(f"{ZERO} {'1' * 40} {own}".encode()) + FLUSH,
        one + encode(f"{ZERO} {'1' * 40} {own}\0report-status".encode()) + FLUSH,
        one + encode(f"{ZERO} {'1' * 64} refs/heads/x".encode()) + FLUSH,
        encode(b"push-cert\0report-status") + encode(b"certificate version 0.1\n") + FLUSH,
        command(ZERO, "1" * 40, own + "/../../main"),
        command(ZERO, "1" * 40, own + "\nrefs/heads/main"),
        command(ZERO, "1" * 40, own + "\0refs/heads/main"),
        command(ZERO, "1" * 40, "refs/heads/main", "side-band-64k"),
        command(ZERO, "1" * 40, "refs/heads/main", "report-status"),
        command(ZERO, "1" * 40, "refs/tags/v1", "x"),
        b"0001" + one + FLUSH,
        b"ffff" + b"x" * 70000,
        b"0003",
        one + b"0000" + one + FLUSH + pack(),
    ]
    found = calls(arena, box, *[post(path, body, **{"X-Ref": own}) for body in bodies])
    for status, answer in found:
        refused = any(
            word in answer for word in ("ng refs/", "is not allowed", "not accepted", "does not bring")
        )
        assert status in (400, 403, 429) or refused, (status, answer[:200])


@pytest.mark.root
def test_packs_that_lie(arena: Range, target: Target) -> None:
    """G-248, G-251, G-260: counts, checksums, missing objects, objects that git refuses, bombs."""
    box = attacker(arena, target, rules=("allow:*:any",))
    main = target.git("rev-parse", "main").strip()
    blob = obj("blob", b"x\n")
    good_tree = tree(("100644", "f", blob[0]))
    evil_trees = [
        tree(("40000", ".git", good_tree[0])), tree(("40000", "..", good_tree[0])), tree(("100644", ".GIT", blob[0])),
        tree(("100644", "a/b", blob[0])),
    ]  # fmt: skip
    evil = [(commit(bad[0], main), bad) for bad in evil_trees]
    head = commit(good_tree[0], main)
    path, ref = target.path("git-receive-pack"), "refs/heads/x"
    whole = pack(head, good_tree, blob)
    attempts = [
        command(ZERO, head[0], ref) + whole[:-25],
        command(ZERO, head[0], ref) + whole[:-1] + b"\0",
        command(ZERO, head[0], ref) + pack(head, good_tree, blob, count=2),
        command(ZERO, head[0], ref) + pack(head, good_tree, blob, count=2**31),
        command(ZERO, head[0], ref) + pack(head),
        command(ZERO, "1" * 40, ref) + whole,
        command(ZERO, head[0], ref) + b"",
        *[command(ZERO, one[0], ref) + pack(one, bad, good_tree, blob) for one, bad in evil],
    ]
    found = []
    for start in range(0, len(attempts), 6):
        found += calls(arena, box, *[post(path, body) for body in attempts[start : start + 6]])
    for status, answer in found:
        assert f"ng {ref}" in answer or status in (400, 429), (status, answer[:300])
    assert not [item for item in arena.client.list_sandboxes() if item.name.startswith("push-")]


@pytest.mark.root
def test_history_cannot_be_faked(arena: Range, target: Target) -> None:
    """G-251: a commit that only names the old one in its message, or in a header that git does not read, overwrites."""
    box = attacker(arena, target, rules=("allow:main",))
    main = target.git("rev-parse", "main").strip()
    blob = obj("blob", b"y\n")
    made = tree(("100644", "f", blob[0]))
    attempts = [
        commit(made[0], extra=f"\nparent {main}\n"),
        commit(made[0], extra=f"x-parent {main}\n"),
        commit(made[0], extra=f"gpgsig -----BEGIN\n parent {main}\n"),
    ]
    path = target.path("git-receive-pack")
    bodies = [command(main, one[0], "refs/heads/main") + pack(one, made, blob) for one in attempts]
    found = calls(arena, box, *[post(path, body) for body in bodies])
    for status, answer in found:
        assert "ng refs/heads/main" in answer, (status, answer[:300])


@pytest.mark.root
def test_a_sandbox_cannot_answer_its_own_question(arena: Range, target: Target) -> None:
    """G-257, G-258, G-267: by no path of the gateway's own name, with no token of its own; unanswered, it is a no; and what a
    person allows later, it cannot use for another push, nor another sandbox for this one.
    """
    arena.client.set_config("approvals.unattended", "1")
    try:
        box = attacker(arena, target)
        main = target.git("rev-parse", "main").strip()
        blob = obj("blob", b"z\n")
        made = tree(("100644", "f", blob[0]))
        head = commit(made[0], main)
        body = command(main, head[0], "refs/heads/main") + pack(head, made, blob)
        found = calls(
            arena, box,
            post("/v1/approvals/00000000/approve", b"{}"), post("/approve", b"{}"), post("/git/approve", b"{}"),
            post(target.path("git-receive-pack"), body),
        )  # fmt: skip
        assert [status for status, _ in found[:3]] != [200, 200, 200]
        assert "ng refs/heads/main" in found[3][1]
        assert "nobody" in found[3][1]
        # A person who comes later says yes to that push, and another one that looks like it is not that push.
        id = found[3][1].partition("corral approve ")[2][:8]
        assert arena.client.approve(id).status == "kept"
        made = tree(("100644", "f", obj("blob", b"evil\n")[0]))
        evil = commit(made[0], main)
        other = command(main, evil[0], "refs/heads/main") + pack(evil, made, obj("blob", b"evil\n"))
        thief = attacker(arena, target)
        assert "nobody" in calls(arena, box, post(target.path("git-receive-pack"), other))[0][1]
        assert "nobody" in calls(arena, thief, post(target.path("git-receive-pack"), body))[0][1]
        assert arena.client.get_approval(id).status == "kept"
    finally:
        arena.client.set_config("approvals.unattended", "")


@pytest.mark.root
def test_configuration_of_the_sandbox_means_nothing_outside(
    arena: Range, target: Target, tmp_path: Path
) -> None:
    """G-269 to G-273: hooks, filters, aliases and remotes of the clone run inside, if anywhere; the pack is read without them."""
    box = attacker(arena, target)
    script = f"""
    set -e
    git clone -q https://{target.host}/team/app ~/app && cd ~/app
    git config user.name n; git config user.email e@x
    printf '#!/bin/sh\\ntouch /tmp/ran-inside\\n' > .git/hooks/pre-push; chmod +x .git/hooks/pre-push
    git config core.fsmonitor 'touch /tmp/pwned'; git config core.sshCommand 'touch /tmp/pwned'
    git config remote.origin.receivepack 'touch /tmp/pwned'; git config remote.origin.uploadpack 'touch /tmp/pwned'
    printf '* filter=evil diff=evil\\n' > .gitattributes
    git config filter.evil.clean 'touch /tmp/pwned; cat'; git config diff.evil.textconv 'touch /tmp/pwned; cat'
    echo x > f; git add -A; git commit -qm evil
    git push origin HEAD:refs/tags/x 2>&1 || true
    """
    done = box.exec(["sh", "-c", script], timeout=120)
    assert "creating refs/tags/x is not allowed" in done.stdout
    assert not Path("/tmp/pwned").exists()


@pytest.mark.root
def test_the_credential_is_nowhere(arena: Range, target: Target) -> None:
    """G-25, G-137: not in the environment, files, answers of any kind, nor in what a server says back."""
    box = attacker(arena, target)
    script = (
        f"git clone -q https://{target.host}/team/app ~/app; env; cat ~/app/.git/config; "
        f"GIT_CURL_VERBOSE=1 GIT_TRACE=1 git ls-remote https://{target.host}/team/app 2>&1"
    )
    done = box.exec(["sh", "-c", script], timeout=120)
    found = calls(
        arena,
        box,
        get(target.path("info/refs?service=git-upload-pack")),
        get("/policy"),
        get("/denials"),
        get("/s/target/v1/models"),
    )
    text = done.stdout + done.stderr + json.dumps(found)
    assert TOKEN not in text
    assert base64.b64encode(f"git:{TOKEN}".encode()).decode() not in text
    assert found[3][0] == 403


@pytest.mark.root
def test_a_secret_that_leaked_is_in_no_push(arena: Range, target: Target) -> None:
    """G-44: in a file, a binary one, a name, a message, an object behind no commit, a branch's name; as it is and coded."""
    binding = {"hosts": ["api.example"]}
    arena.client.put_secret("lab", LEAKED, binding=binding)
    try:
        box = attacker(arena, target)
        blob = obj("blob", f"x{LEAKED}".encode())
        plain = obj("blob", b"x\n")
        clean = tree(("100644", "f", plain[0]))
        made = [
            (commit(tree(("100644", "f", blob[0]))[0]), tree(("100644", "f", blob[0])), blob),
            (commit(clean[0]), clean, plain, obj("blob", b"\0\1" + base64.b64encode(f"a{LEAKED}".encode()))),
            (commit(tree(("100644", LEAKED, plain[0]))[0]), tree(("100644", LEAKED, plain[0])), plain),
            (commit(clean[0], extra=f"\n{LEAKED.encode().hex()}\n"), clean, plain),
        ]
        own, path = f"refs/heads/corral/{box.name}", target.path("git-receive-pack")
        bodies = [command(ZERO, one[0][0], own) + pack(*one) for one in made]
        good = pack(commit(clean[0]), clean, plain)
        bodies.append(command(ZERO, commit(clean[0])[0], f"{own}/{LEAKED}") + good)
        found = calls(arena, box, *[post(path, body) for body in bodies])
        for status, answer in found:
            assert status == 200
            assert f"ng {own}" in answer
            assert "a secret of this host" in answer
        shown = arena.daemon.cli("audit", box.name, "--json").stdout
        leaks = [one for one in map(json.loads, shown.splitlines()) if one["kind"] == "gateway.leak"]
        assert [one["detail"]["secret"] for one in leaks] == ["lab"] * len(bodies), shown
        assert LEAKED not in shown
    finally:
        arena.client.remove_secret("lab")

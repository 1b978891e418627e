"""Real git through a real gateway to a real git server behind TLS."""

import asyncio
import json
import os
import subprocess
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
from aiohttp import web
from tests.system.gateway.conftest import TENANT, a_grant
from tests.system.gateway.gitbed import MIB, TOKEN, YES, GitBed, git_bed

from corral.engine.ports import OpenedSecret
from corral.model.approval import refused
from corral.model.git import Access, RepoGrant
from corral.model.push import CommitLine, FileLine, Flag, FlagKind, PushReport
from corral.model.secrets import Provider, Secret
from corral.wire.pktline import FLUSH, encode


@pytest.fixture
async def forge(tmp_path: Path, make_gateway: Callable[..., Any]) -> AsyncIterator[GitBed]:
    """Everything."""
    async with git_bed(tmp_path, make_gateway) as found:
        yield found


OTHERS = [
    "team/other", "team/app/../other", "team/app.wiki.git", "team%2fapp", "team/app/x", "x/team/app", "team",
]  # fmt: skip
ANSWERS = [
    (301, {"Location": "https://localhost/team/new.git/info/refs"}, "moved to localhost/team/new"),
    (302, {"Location": "http://169.254.169.254/"}, "has moved"),
    (401, {"WWW-Authenticate": "Basic"}, "does not accept the host's credential"),
    (404, {}, "no repository"),
    (500, {}, "answered 500"),
    (200, {"Content-Type": "text/html"}, "smart protocol"),
]
DENIED = [
    (("HEAD:refs/tags/v1",), "creating refs/tags/v1 is not allowed"),
    (("HEAD:refs/for/main",), "creating refs/for/main is not allowed"),
    ((":main",), "deleting main is not allowed"),
    (("--tags",), "creating refs/tags/old is not allowed"),
    (("--mirror",), "is not allowed"),
    (("HEAD:corral/box-1", "HEAD:refs/notes/x"), "refused with the rest"),
    (("--atomic", "HEAD:corral/box-1", "HEAD:refs/tags/v1"), "creating refs/tags/v1"),
]

# -- reading --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["0", "1", "2"])
async def test_clones_of_every_kind(forge: GitBed, version: str) -> None:
    """G-231, G-238, G-241: with the host's credential in the forge's form."""
    await forge.attach(access=Access.READ)
    for number, option in enumerate(("--no-tags", "--depth=1", "--filter=blob:none", "--single-branch")):
        target = forge.home / f"app{number}"
        await forge.git("-c", f"protocol.version={version}", "clone", "-q", option, forge.url(), str(target))
        assert (target / "README").read_text() == "two"
        assert TOKEN not in (target / ".git/config").read_text()
    users = {user for _, path, user in forge.server.seen}
    assert users == {"x-access-token"}


async def test_unshallow_and_a_large_fetch(forge: GitBed) -> None:
    """G-241, G-243: gzipped requests pass."""
    await forge.attach(access=Access.READ)
    for number in range(300):
        await forge.on_server("branch", f"b{number}", "main")
    target = forge.home / "app"
    await forge.git("clone", "-q", "--depth=1", forge.url(), str(target))
    await forge.git("fetch", "-q", "--unshallow", cwd=target)
    assert (await forge.git("rev-list", "--count", "HEAD", cwd=target)).stdout == "2\n"


async def test_without_a_token_git_is_asked_for_one(forge: GitBed) -> None:
    """G-237, G-19: another sandbox's token opens nothing, and nothing went upstream."""
    end = await forge.attach(access=Access.READ)
    headers = {"Host": "gateway.corral"}
    path = f"{end.url}/git/{forge.host}/team/app/info/refs?service=git-upload-pack"
    async with forge.bed.http.get(path, headers=headers) as answer:
        assert answer.status == 401
        assert answer.headers["WWW-Authenticate"] == 'Basic realm="corral"'
    async with forge.bed.http.get(
        path, headers={**headers, "Authorization": f"Bearer {end.token}"}
    ) as answer:
        assert answer.status == 200
        assert TOKEN not in str(answer.headers) + await answer.text()
    forge.server.seen.clear()
    done = await forge.git("ls-remote", forge.url(), token="corral-token-2", check=False)
    assert done.returncode != 0
    assert forge.server.seen == []


async def test_other_repositories_are_refused(forge: GitBed) -> None:
    """G-234, G-235, G-264: whatever the spelling, and without a word to the server."""
    await forge.attach()
    for path in OTHERS:
        forge.server.seen.clear()
        done = await forge.git("ls-remote", forge.url(path), check=False)
        assert done.returncode != 0, path
        assert forge.server.seen == []


async def test_another_host_gets_no_credential(forge: GitBed) -> None:
    """G-245: only the host that the secret is for."""
    end = await forge.attach()
    url = f"{end.url}/git/localhost:1/team/app/info/refs?service=git-upload-pack"
    async with forge.bed.http.get(
        url, headers={"Host": "gateway.corral", "Authorization": f"Bearer {end.token}"}
    ) as answer:
        assert answer.status == 403
        assert "may not use" in await answer.text()


async def test_reading_is_not_pushing(forge: GitBed) -> None:
    """G-233: to be told of refs for pushing is refused already."""
    await forge.attach(access=Access.READ)
    clone = await forge.clone()
    forge.server.seen.clear()
    done = await forge.git("push", "origin", "HEAD:corral/box-1", cwd=clone, check=False)
    assert "may read" in done.stderr
    assert "not push" in done.stderr
    assert forge.server.seen == []


async def test_a_name_that_a_url_must_encode(forge: GitBed) -> None:
    """G-234: read and pushed to under its one spelling, which is what goes upstream."""
    (forge.root / "team/app.git").rename(forge.root / "team/my app.git")
    path = "team/my%20app.git"
    repo = RepoGrant(forge.host, "team/my%20app", Access.WRITE, "work")
    forge.end = await forge.bed.attach(secrets=("work",), repos=(repo,))
    clone = forge.home / "clone"
    await forge.git("clone", "-q", forge.url(path), str(clone))
    await forge.commit(clone, "change")
    await forge.git("push", "-q", "origin", "HEAD:corral/box-1", cwd=clone)
    assert {seen.partition(".git")[0] for _, seen, _ in forge.server.seen} == {"/team/my%20app"}
    for other in ("team/my%2520app.git", "team/my%2fapp.git", "team%2Fmy%20app.git"):
        assert (await forge.git("ls-remote", forge.url(other), check=False)).returncode != 0


async def test_what_a_server_says_otherwise(forge: GitBed) -> None:
    """G-236, G-137: no redirect is followed, no credential echoed, no body passed on."""
    await forge.attach(access=Access.READ)
    for status, headers, told in ANSWERS:

        async def answer(
            request: web.Request, status: int = status, headers: dict[str, str] = headers
        ) -> web.StreamResponse:
            text = request.headers.get("Authorization", "none")
            return web.Response(status=status, headers=headers, text=text)

        forge.server.override = answer
        done = await forge.git("ls-remote", forge.url(), check=False)
        assert done.returncode != 0
        assert told in done.stderr
        assert "Basic " not in done.stderr


@pytest.mark.parametrize("spelled", [TOKEN, TOKEN.replace("c", "%63"), b64encode(TOKEN.encode()).decode()])
async def test_where_a_repository_has_moved_to_is_told_without_the_credential(
    forge: GitBed, spelled: str
) -> None:
    """G-144, G-236: a server that writes it into the address is told of without the address."""
    await forge.attach(access=Access.READ)
    for location in (
        f"https://localhost/team/{spelled}.git/info/refs",
        f"https://localhost/{spelled}/new?{spelled}",
    ):

        async def answer(_: web.Request, location: str = location) -> web.StreamResponse:
            return web.Response(status=301, headers={"Location": location})

        forge.server.override = answer
        done = await forge.git("ls-remote", forge.url(), check=False)
        assert "has moved" in done.stderr
        assert TOKEN not in done.stderr
        assert spelled[:12] not in done.stderr


# -- pushing --------------------------------------------------------------------------------------------------------


async def test_its_own_branch(forge: GitBed) -> None:
    """G-252, G-265: allowed, and in the audit log with its ids."""
    await forge.attach()
    clone = await forge.clone()
    await forge.git("push", "-q", "origin", "HEAD:corral/box-1", cwd=clone)
    head = (await forge.git("rev-parse", "HEAD", cwd=clone)).stdout.strip()
    assert forge.refs()["refs/heads/corral/box-1"] == head
    record = await forge.bed.audit("git", "done")
    assert record.refs == f"refs/heads/corral/box-1:{'0' * 40}:{head}"
    assert forge.reader.seen[0].path == "team/app.git"


async def test_a_push_is_on_record_before_it_is_done(forge: GitBed) -> None:
    """G-325: whoever kills the daemon after a push finds it in the log."""
    await forge.attach()
    clone = await forge.clone()
    forge.bed.recording.clear()
    asked = len(forge.server.seen)
    pushing = asyncio.ensure_future(forge.git("push", "-q", "origin", "HEAD:corral/box-1", cwd=clone))
    async with asyncio.timeout(30):
        # The refs are listed for the client, and once more to compare them; then the push could be sent.
        while len([path for _, path, _ in forge.server.seen[asked:] if "info/refs" in path]) < 2:
            await forge.bed.client.ping()
    for _ in range(5):
        await forge.bed.client.ping()
    assert not [path for method, path, _ in forge.server.seen if method == "POST" and "receive" in path]
    forge.bed.recording.set()
    await pushing
    assert "refs/heads/corral/box-1" in forge.refs()
    assert (await forge.bed.audit("git", "allowed")).kind == "git"


async def test_a_yes_sends_the_same_bytes(forge: GitBed) -> None:
    """G-257 to G-259, G-261: held while a person is asked, who is shown what it brings."""
    forge.reader.report = PushReport(
        commits=(CommitLine("c" * 40, "Eve", "e@x", "title"),), commits_total=1,
        files=(FileLine("A", ".github/workflows/x.yml", 3, 0),), files_total=1, added=3,
        flags=(Flag(FlagKind.CI, ".github/workflows/x.yml"),), flags_total=1,
    )  # fmt: skip
    await forge.attach()
    clone = await forge.clone()
    pushing = asyncio.ensure_future(forge.git("push", "origin", "HEAD:main", cwd=clone))
    await forge.person.asked.wait()
    before = forge.refs()
    forge.person.will(YES)
    done = await pushing
    assert forge.refs() != before
    shown = {item.name: item.text for item in forge.person.questions[0].detail}
    assert shown["repository"] == f"{forge.host}/team/app"
    assert "update refs/heads/main" in shown["refs"]
    assert "Eve <e@x>  title" in shown["commits"]
    assert "a file that runs in CI" in shown["findings"]
    assert len(shown["pack"]) == 64
    assert "corral approve abcd1234" in done.stderr
    assert "approved by Ann" in done.stderr


async def test_a_no_is_what_git_prints(forge: GitBed) -> None:
    """G-255, G-257: the reason on every ref, and nothing sent."""
    await forge.attach()
    clone = await forge.clone()
    before = forge.refs()
    forge.person.will(refused("not today", "Ann"))
    done = await forge.git("push", "origin", "HEAD:main", "HEAD:other", cwd=clone, check=False)
    assert done.returncode == 1
    assert done.stderr.count("(refused by Ann: not today)") == 2
    assert forge.refs() == before
    assert not [path for method, path, _ in forge.server.seen if method == "POST" and "receive" in path]


async def test_a_client_that_goes_away_withdraws_its_question(forge: GitBed) -> None:
    """G-258: nobody is asked for what nobody waits for."""
    await forge.attach()
    clone = await forge.clone()
    assert forge.end is not None
    command = ["git", "-c", "http.extraHeader=Host: gateway.corral", "-c",
               f"credential.helper=!f() {{ echo username=x; echo password={forge.end.token}; }}; f",
               "push", "origin", "HEAD:main"]  # fmt: skip
    process = await asyncio.to_thread(
        lambda: subprocess.Popen(
            command, cwd=clone, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, start_new_session=True
        )
    )
    await forge.person.asked.wait()
    os.killpg(process.pid, 9)
    process.wait()
    async with asyncio.timeout(30):
        while not forge.person.withdrawn:
            await forge.bed.client.ping()
    assert "refs/heads/main" in forge.refs()


async def test_a_ref_that_moved_meanwhile_cancels_the_yes(forge: GitBed) -> None:
    """G-262."""
    await forge.attach()
    clone = await forge.clone()
    pushing = asyncio.ensure_future(forge.git("push", "origin", "HEAD:main", cwd=clone, check=False))
    await forge.person.asked.wait()
    await forge.on_server("update-ref", "refs/heads/main", "main~1")
    moved = forge.refs()
    forge.person.will(YES)
    assert "has moved on the server" in (await pushing).stderr
    assert forge.refs() == moved


async def test_what_the_defaults_deny(forge: GitBed) -> None:
    """G-252 to G-255, G-266: a report, not a bare 403; and nothing was done."""
    await forge.attach()
    clone = await forge.clone()
    await forge.git("tag", "old", cwd=clone)
    before = forge.refs()
    for args, told in DENIED:
        done = await forge.git("push", "origin", *args, cwd=clone, check=False)
        assert done.returncode == 1
        assert "[remote rejected]" in done.stderr
        assert told in done.stderr
        assert forge.refs() == before


@pytest.mark.parametrize("args", [("-f", "HEAD:main"), ("--force-with-lease", "HEAD:main"), ("+HEAD:main",)])
async def test_history_is_not_overwritten(forge: GitBed, args: tuple[str, ...]) -> None:
    """G-251, G-266: what is not proven to follow counts as force; a rule can allow it."""
    forge.reader.forward = False
    await forge.attach()
    clone = await forge.clone()
    await forge.git("commit", "-q", "--amend", "-m", "other", cwd=clone)
    before = forge.refs()
    done = await forge.git("push", *args[:-1], "origin", args[-1], cwd=clone, check=False)
    assert "overwriting the history of main is not allowed" in done.stderr
    assert forge.refs() == before
    await forge.attach("allow:main:update+force")
    await forge.git("remote", "set-url", "origin", forge.url(), cwd=clone)
    await forge.git("push", "-q", *args[:-1], "origin", args[-1], cwd=clone)
    assert forge.refs() != before


async def test_rules_open_what_the_defaults_deny(forge: GitBed) -> None:
    """G-266: the other outcome of tags, deletion, mirror and atomic pushes."""
    await forge.attach("allow:*:any")
    clone = await forge.clone()
    await forge.git("tag", "v1", cwd=clone)
    await forge.git("push", "-q", "--atomic", "origin", "HEAD:main", "HEAD:new", "v1", cwd=clone)
    assert {"refs/heads/new", "refs/tags/v1"} <= set(forge.refs())
    await forge.git("push", "-q", "origin", ":new", cwd=clone)
    assert "refs/heads/new" not in forge.refs()
    await forge.git("push", "-q", "--mirror", "origin", cwd=clone)


async def test_push_options_by_name(forge: GitBed) -> None:
    """G-256."""
    await forge.attach("allow:*", options=("ci.skip",))
    clone = await forge.clone()
    await forge.git("push", "-q", "-o", "ci.skip", "origin", "HEAD:one", cwd=clone)
    done = await forge.git("push", "-o", "merge_request.create", "origin", "HEAD:two", cwd=clone, check=False)
    assert "'merge_request.create' is not allowed" in done.stderr
    assert set(forge.refs()) == {"refs/heads/main", "refs/heads/one"}


async def test_a_secret_in_it_needs_a_person(forge: GitBed) -> None:
    """G-259: whatever the rule of the ref."""
    forge.reader.report = PushReport(flags=(Flag(FlagKind.SECRET, "s.py", "a GitHub token"),), flags_total=1)
    await forge.attach()
    clone = await forge.clone()
    forge.person.will(refused("take it out", "Ann"))
    done = await forge.git("push", "origin", "HEAD:corral/box-1", cwd=clone, check=False)
    assert "what looks like a secret: s.py (a GitHub token)" in done.stderr
    assert "take it out" in done.stderr


async def test_a_hook_of_the_server_is_heard(forge: GitBed) -> None:
    """Its words come through, the credential does not (G-137)."""
    hook = forge.root / "team/app.git/hooks/pre-receive"
    hook.write_text(f"#!/bin/sh\necho 'policy says no {TOKEN}'\nexit 1\n")
    hook.chmod(0o755)
    await forge.attach()
    clone = await forge.clone()
    done = await forge.git("push", "origin", "HEAD:corral/box-1", cwd=clone, check=False)
    assert "remote: policy says no" in done.stderr
    assert "pre-receive hook declined" in done.stderr
    assert TOKEN not in done.stderr


async def test_a_large_push_takes_little_memory(forge: GitBed) -> None:
    """G-243: chunked, with the probe before it; the pack is on disk, not in the gateway."""
    await forge.attach(max_pack=1024 * MIB)
    clone = await forge.clone()
    for number in range(3):
        (clone / f"big{number}").write_bytes(os.urandom(32 * MIB))
    await forge.git("-c", "core.compression=0", "add", "-A", cwd=clone)
    await forge.git("commit", "-qm", "big", cwd=clone)
    assert forge.bed.process is not None
    gateway = psutil.Process(forge.bed.process.pid)
    before = gateway.memory_info().rss
    await forge.git("-c", "pack.compression=0", "push", "-q", "origin", "HEAD:corral/box-1", cwd=clone)
    assert forge.reader.packs[0] > 95 * MIB
    assert gateway.memory_info().rss - before < 48 * MIB
    assert "refs/heads/corral/box-1" in forge.refs()


async def test_a_push_over_the_limit(forge: GitBed) -> None:
    """G-263."""
    await forge.attach(max_pack=MIB)
    clone = await forge.clone()
    (clone / "big").write_bytes(os.urandom(2 * MIB))
    await forge.git("add", "-A", cwd=clone)
    await forge.git("commit", "-qm", "big", cwd=clone)
    done = await forge.git("push", "origin", "HEAD:corral/box-1", cwd=clone, check=False)
    assert "larger than 1 MiB" in done.stderr
    assert "refs/heads/corral/box-1" not in forge.refs()


async def test_a_killed_gateway_pushes_wholly_or_not_at_all(forge: GitBed) -> None:
    """A `kill -9` while the pack goes upstream: the server has half of it and does nothing; the next push does it once."""
    await forge.attach()
    clone = await forge.clone()
    (clone / "big").write_bytes(os.urandom(24 * MIB))
    await forge.git("add", "-A", cwd=clone)
    await forge.git("commit", "-qm", "big", cwd=clone)
    halfway = asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        if request.method == "POST" and request.path.endswith("git-receive-pack"):
            await request.content.readany()
            halfway.set()
            await asyncio.Event().wait()
        return await forge.server.serve(request)

    forge.server.override = slow
    pushing = asyncio.ensure_future(forge.git("push", "origin", "HEAD:corral/box-1", cwd=clone, check=False))
    await halfway.wait()
    await forge.bed.kill()
    assert (await pushing).returncode != 0
    assert "refs/heads/corral/box-1" not in forge.refs()
    forge.server.override = None
    await forge.bed.client.lost()
    await forge.bed.client.reattach(forge.bed.spawn())
    await forge.git("push", "-q", "origin", "HEAD:corral/box-1", cwd=clone)
    assert await forge.on_server("rev-list", "--count", "main..corral/box-1") == "2\n"


async def test_a_push_that_was_done_unseen_is_not_done_twice(forge: GitBed) -> None:
    """A `kill -9` after the server did it, before anybody was told: the next push finds it done and sends nothing."""
    await forge.attach()
    clone = await forge.clone()
    done, posts = asyncio.Event(), 0

    async def mute(request: web.Request) -> web.StreamResponse:
        nonlocal posts
        if request.method != "POST" or not request.path.endswith("git-receive-pack"):
            return await forge.server.serve(request)
        posts += 1
        command = ["git", "receive-pack", "--stateless-rpc", str(forge.root / "team/app.git")]
        pack = await request.read()
        await asyncio.to_thread(subprocess.run, command, input=pack, check=True, capture_output=True)
        done.set()
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    forge.server.override = mute
    pushing = asyncio.ensure_future(forge.git("push", "origin", "HEAD:corral/box-1", cwd=clone, check=False))
    await done.wait()
    await forge.bed.kill()
    assert (await pushing).returncode != 0
    assert "refs/heads/corral/box-1" in forge.refs()
    await forge.bed.client.lost()
    await forge.bed.client.reattach(forge.bed.spawn())
    again = await forge.git("push", "origin", "HEAD:corral/box-1", cwd=clone)
    assert ("up-to-date" in again.stderr, posts) == (True, 1)


# -- hostile clients ------------------------------------------------------------------------------------------------


async def raw_push(forge: GitBed, body: bytes, **headers: str) -> tuple[int, bytes]:
    assert forge.end is not None
    fields = {
        "Host": "gateway.corral", "Authorization": f"Bearer {forge.end.token}",
        "Content-Type": "application/x-git-receive-pack-request", **headers,
    }  # fmt: skip
    async with forge.bed.http.post(forge.url() + "/git-receive-pack", data=body, headers=fields) as answer:
        return answer.status, await answer.read()


CAPABILITIES = "report-status side-band-64k"


def line(old: str, new: str, ref: str, capabilities: str = CAPABILITIES) -> bytes:
    return encode(f"{old} {new} {ref}\0{capabilities}".encode())


NONE = [
    b"",
    b"garbage",
    b"00",
    encode(b"push-cert\0" + CAPABILITIES.encode()) + FLUSH,
    line("0" * 40, "1" * 40, "refs/heads/../../x") + FLUSH,
    line("0" * 40, "1" * 40, "refs/heads/x") + line("0" * 40, "1" * 40, "refs/heads/y") + FLUSH,
    b"0032want " + b"1" * 40 + b"\n" + FLUSH,
]


async def test_the_refs_in_the_protocol_decide(forge: GitBed) -> None:
    """G-253: what a client says of itself elsewhere counts for nothing."""
    await forge.attach()
    zero, one = "0" * 40, "1" * 40
    status, answer = await raw_push(
        forge,
        line(zero, one, "refs/tags/v1") + FLUSH + b"PACK",
        **{"X-Git-Ref": "refs/heads/corral/box-1", "User-Agent": "git/corral-box-1"},
    )
    assert status == 200
    assert b"ng refs/tags/v1" in answer
    assert not forge.reader.seen


async def test_what_is_no_push(forge: GitBed) -> None:
    """G-249, G-250."""
    await forge.attach("allow:*:any")
    forge.server.seen.clear()
    for body in NONE:
        status, _ = await raw_push(forge, body)
        assert status == 400
    assert forge.server.seen == []


async def test_the_probe_is_answered_here(forge: GitBed) -> None:
    """G-243."""
    await forge.attach()
    forge.server.seen.clear()
    assert await raw_push(forge, FLUSH) == (200, b"")
    assert forge.server.seen == []


async def test_codings_that_are_not_read_are_refused(forge: GitBed) -> None:
    """G-243."""
    await forge.attach()
    for coding in ("br", "zstd", "gzip, gzip", "deflate"):
        status, _ = await raw_push(forge, FLUSH, **{"Content-Encoding": coding})
        assert status == 415


async def test_a_gzip_bomb_is_not_unpacked(forge: GitBed) -> None:
    """G-340."""
    import gzip

    await forge.attach("allow:*")
    head = line("0" * 40, "1" * 40, "refs/heads/x") + FLUSH
    bomb = gzip.compress(head + b"\0" * (200 * MIB), 9)
    status, answer = await raw_push(forge, bomb, **{"Content-Encoding": "gzip"})
    assert status == 400 or b"compressed too much" in answer
    assert not forge.reader.seen


async def test_many_pushes_do_not_flood_anybody(forge: GitBed) -> None:
    """G-268."""
    await forge.attach()
    body = line("0" * 40, "1" * 40, "refs/tags/v1") + FLUSH
    found = [(await raw_push(forge, body))[0] for _ in range(40)]
    assert found.count(429) >= 4


# -- LFS ------------------------------------------------------------------------------------------------------------


class FakeLfs:
    """An LFS server that answers with addresses of a store with an authorization of its own, as forges do."""

    def __init__(self, forge: GitBed) -> None:
        self.forge = forge
        self.store: dict[str, bytes] = {}
        self.seen: list[tuple[str, str, str]] = []

    async def serve(self, request: web.Request) -> web.StreamResponse:
        self.seen.append((request.method, request.path, request.headers.get("Authorization", "")))
        base = f"https://{self.forge.host}"
        if request.path.endswith("/info/lfs/objects/batch"):
            body = await request.json()
            name = body["operation"]
            action = {
                "href": f"{base}/store/%s",
                "header": {"Authorization": "Store secret"},
                "expires_in": 60,
            }
            objects = [
                {
                    **one,
                    "authenticated": True,
                    "actions": {name: {**action, "href": action["href"] % one["oid"]}},
                }
                for one in body["objects"]
            ]
            return web.json_response({"transfer": "basic", "objects": objects})
        if request.path.startswith("/store/"):
            if request.headers.get("Authorization") != "Store secret":
                return web.Response(status=403)
            if request.method == "PUT":
                self.store[request.path] = await request.read()
                return web.Response()
            return web.Response(body=self.store[request.path])
        if request.path.endswith("/locks/verify"):
            return web.json_response({"ours": [], "theirs": []})
        return await self.forge.server.serve(request)


async def lfs(
    forge: GitBed, method: str, url: str, value: Any = None, data: bytes | None = None
) -> tuple[int, bytes]:
    assert forge.end is not None
    headers = {"Host": "gateway.corral", "Authorization": f"Bearer {forge.end.token}"}
    url = url.replace("http://gateway.corral", forge.end.url)
    async with forge.bed.http.request(method, url, json=value, data=data, headers=headers) as answer:
        return answer.status, await answer.read()


async def test_lfs_objects_go_by_addresses_of_the_gateways(forge: GitBed) -> None:
    """G-244: the store's address and authorization stay on the host, the repository's credential never goes there."""
    await forge.attach()
    fake = FakeLfs(forge)
    forge.server.override = fake.serve
    batch = forge.url() + "/info/lfs/objects/batch"
    one = {"oid": "a" * 64, "size": 5}
    status, raw = await lfs(forge, "POST", batch, {"operation": "upload", "objects": [one]})
    assert status == 200
    assert b"Store secret" not in raw
    assert b"/store/" not in raw
    action = json.loads(raw)["objects"][0]["actions"]["upload"]
    assert (await lfs(forge, "GET", action["href"]))[0] == 404
    assert (await lfs(forge, "PUT", action["href"], data=b"hello"))[0] == 200
    status, raw = await lfs(forge, "POST", batch, {"operation": "download", "objects": [one]})
    action = json.loads(raw)["objects"][0]["actions"]["download"]
    assert await lfs(forge, "GET", action["href"]) == (200, b"hello")
    assert {auth for _, path, auth in fake.seen if path.startswith("/store/")} == {"Store secret"}
    other = action["href"][:-1] + ("1" if action["href"].endswith("0") else "0")
    assert (await lfs(forge, "GET", other))[0] == 404
    record = await forge.bed.audit("git", "allowed")
    assert any("a" * 64 in item.refs for item in forge.bed.audits), record


async def test_lfs_takes_no_secret_away(forge: GitBed) -> None:
    """G-44: in an object that is uploaded, and in what is said about one."""
    await forge.attach()
    fake = FakeLfs(forge)
    forge.server.override = fake.serve
    base = forge.url() + "/info/lfs"
    one = {"oid": "a" * 64, "size": 5}
    _, raw = await lfs(forge, "POST", base + "/objects/batch", {"operation": "upload", "objects": [one]})
    action = json.loads(raw)["objects"][0]["actions"]["upload"]
    fake.seen.clear()
    status, raw = await lfs(forge, "PUT", action["href"], data=b"\0" * 100_000 + TOKEN.encode() + b"x")
    assert status == 403
    assert b"a secret of this host" in raw
    assert (await lfs(forge, "POST", base + "/locks", {"path": TOKEN}))[0] == 403
    assert not fake.store
    assert not [path for _, path, _ in fake.seen if path.endswith("/locks")]
    assert (await forge.bed.audit("leak", "denied")).secret == "work"


async def test_lfs_for_readers(forge: GitBed) -> None:
    """G-244: uploads and locks are for those who may push."""
    await forge.attach(access=Access.READ)
    fake = FakeLfs(forge)
    forge.server.override = fake.serve
    base = forge.url() + "/info/lfs"
    one = {"oid": "a" * 64, "size": 5}
    assert (await lfs(forge, "POST", base + "/objects/batch", {"operation": "upload", "objects": [one]}))[
        0
    ] == 403
    assert (await lfs(forge, "POST", base + "/objects/batch", {"operation": "x", "objects": [one]}))[0] == 422
    assert (await lfs(forge, "POST", base + "/locks", {"path": "x"}))[0] == 403
    assert (await lfs(forge, "POST", base + "/locks/verify", {}))[0] == 403
    assert (await lfs(forge, "POST", base + "/objects/batch", {"operation": "download", "objects": [one]}))[
        0
    ] == 200
    assert fake.seen[0][1].endswith("/objects/batch")
    assert len(fake.seen) == 1


@pytest.mark.parametrize(
    "answer",
    [
        [],
        {"objects": {}},
        {"objects": [7]},
        {"objects": [{"actions": {"download": {"href": 7}}}]},
        {"objects": [{"actions": {"download": {"href": "http://127.0.0.1:1/x"}}}]},
        {"objects": [{"actions": {"download": {"href": "https://x/", "header": {"a\r\nb": "c"}}}}]},
        {"transfer": "ssh", "objects": []},
    ],
)
async def test_an_lfs_server_that_lies(forge: GitBed, answer: Any) -> None:
    """G-244."""
    await forge.attach()

    async def serve(request: web.Request) -> web.StreamResponse:
        return web.json_response(answer)

    forge.server.override = serve
    batch = forge.url() + "/info/lfs/objects/batch"
    status, _ = await lfs(forge, "POST", batch, {"operation": "download", "objects": []})
    assert status == 502


# -- revoked --------------------------------------------------------------------------------------------------------


@dataclass
class Halfway:
    """A server that stops in the middle of each transfer until the test goes on, and tells which one broke off; what
    begins with `endless` has no end.
    """

    forge: GitBed
    endless: str
    begun: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    broken: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    whole: list[str] = field(default_factory=list)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        if request.method == "POST" and request.path.endswith("/git-receive-pack"):
            return await self._take(request)
        if request.path.startswith("/store/") or request.path.endswith("/git-upload-pack"):
            return await self._give(request)
        return await self.forge.server.serve(request)

    async def _take(self, request: web.Request) -> web.StreamResponse:
        await request.content.readany()
        await self._pause(request)
        try:
            await request.read()
        except (OSError, web.RequestPayloadError):
            await self.broken.put(request.path)
            raise
        self.whole.append(request.path)
        return web.Response()

    async def _give(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_type = "application/x-git-upload-pack-result"
        await response.prepare(request)
        await response.write(b"begin ")
        await self._pause(request)
        try:
            await response.write(b"end")
            while request.path.startswith(self.endless):
                await response.write(b"." * 64 * 1024)
            await response.write_eof()
        except OSError:
            await self.broken.put(request.path)
            raise
        self.whole.append(request.path)
        return response

    async def _pause(self, request: web.Request) -> None:
        await self.begun.put(request.path)
        await self.go_on.wait()


async def revoke(forge: GitBed, how: str, *kept: str) -> None:
    """Take the secret `work` from the sandbox: from its grant, or from the vault."""
    assert forge.end is not None
    if how == "grant":
        await forge.bed.client.regrant(a_grant(forge.end.id, forge.end.token, kept))
    else:
        base = f"https://{forge.host}"
        await forge.bed.client.set_secrets(
            [OpenedSecret(TENANT, name, Provider.GITHUB, base, Secret(TOKEN)) for name in kept]
        )


@pytest.mark.parametrize("how", ["grant", "vault"])
async def test_a_clone_by_a_secret_that_is_gone_is_cut_and_no_other(forge: GitBed, how: str) -> None:
    """G-333."""
    base = f"https://{forge.host}"
    names = ("work", "other")
    await forge.bed.client.set_secrets(
        [OpenedSecret(TENANT, name, Provider.GITHUB, base, Secret(TOKEN)) for name in names]
    )
    repos = (
        RepoGrant(forge.host, "team/app", Access.READ, "work"),
        RepoGrant(forge.host, "team/lib", Access.READ, "other"),
    )
    forge.end = await forge.bed.attach(secrets=names, repos=repos)
    halfway = Halfway(forge, "/team/app")
    forge.server.override = halfway.serve
    headers = {"Host": "gateway.corral", "Authorization": f"Bearer {forge.end.token}"}
    app, lib = (forge.url(f"team/{name}/git-upload-pack") for name in ("app", "lib"))
    async with (
        asyncio.timeout(100),
        forge.bed.http.post(app, data=b"0000", headers=headers) as cut,
        forge.bed.http.post(lib, data=b"0000", headers=headers) as other,
    ):
        assert [await cut.content.readany(), await other.content.readany()] == [b"begin ", b"begin "]
        await revoke(forge, how, "other")
        halfway.go_on.set()
        with pytest.raises(aiohttp.ClientError):
            await cut.read()
        assert await other.read() == b"end"
        assert await halfway.broken.get() == "/team/app/git-upload-pack"
    assert halfway.whole == ["/team/lib/git-upload-pack"]
    assert (await forge.bed.audit("git", "cut")).secret == "work"


async def test_a_push_by_a_secret_that_is_gone_is_cut_on_its_way(forge: GitBed) -> None:
    """G-333: the server has half a pack, and does nothing."""
    await forge.attach()
    clone = await forge.clone()
    (clone / "big").write_bytes(os.urandom(24 * MIB))
    await forge.git("-c", "core.compression=0", "add", "-A", cwd=clone)
    await forge.git("commit", "-qm", "big", cwd=clone)
    halfway = Halfway(forge, "/team/app")
    forge.server.override = halfway.serve
    pushing = asyncio.ensure_future(forge.git("push", "origin", "HEAD:corral/box-1", cwd=clone, check=False))
    async with asyncio.timeout(100):
        await halfway.begun.get()
        await revoke(forge, "grant")
        halfway.go_on.set()
        assert (await pushing).returncode != 0
        await halfway.broken.get()
    assert (halfway.whole, "refs/heads/corral/box-1" in forge.refs()) == ([], False)


async def test_a_push_that_waits_for_a_person_ends_with_its_secret(forge: GitBed) -> None:
    """G-333: the question is withdrawn, and a yes that comes too late sends nothing."""
    await forge.attach()
    clone = await forge.clone()
    before = forge.refs()
    pushing = asyncio.ensure_future(forge.git("push", "origin", "HEAD:main", cwd=clone, check=False))
    async with asyncio.timeout(100):
        await forge.person.asked.wait()
        await revoke(forge, "vault")
        assert (await pushing).returncode != 0
        while not forge.person.withdrawn:
            await forge.bed.client.ping()
    forge.person.will(YES)
    assert forge.refs() == before


async def test_an_lfs_object_by_a_secret_that_is_gone_is_cut(forge: GitBed) -> None:
    """G-244, G-333."""
    await forge.attach()
    assert forge.end is not None
    forge.server.override = FakeLfs(forge).serve
    batch = forge.url() + "/info/lfs/objects/batch"
    _, raw = await lfs(
        forge, "POST", batch, {"operation": "download", "objects": [{"oid": "a" * 64, "size": 5}]}
    )
    href = json.loads(raw)["objects"][0]["actions"]["download"]["href"]
    halfway = Halfway(forge, "/store/")
    forge.server.override = halfway.serve
    headers = {"Host": "gateway.corral", "Authorization": f"Bearer {forge.end.token}"}
    url = href.replace("http://gateway.corral", forge.end.url)
    async with asyncio.timeout(100), forge.bed.http.get(url, headers=headers) as cut:
        assert await cut.content.readany() == b"begin "
        await revoke(forge, "grant")
        halfway.go_on.set()
        with pytest.raises(aiohttp.ClientError):
            await cut.read()
        await halfway.broken.get()

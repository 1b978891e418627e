"""Git in real sandboxes of both isolations, through a real gateway, with pushes read in a sandbox of their own."""

import asyncio
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from tests.conftest import Daemon
from tests.system.gateway.gitbed import make_repository
from tests.system.gateway.githubapp import APP, FakeGitHub
from tests.traces import wait_for

from corral import Client, Sandbox
from corral.testing.git_server import GitServer, serving

TOKEN = "git-canary-fedcba9876543210"


@dataclass
class Forge:
    """A git server with `team/app`, and the secret that opens it."""

    host: str
    root: Path

    def git(self, *args: str) -> str:
        """Git in the server's repository."""
        return subprocess.run(
            ["git", "-C", str(self.root / "team/app.git"), *args], check=True, capture_output=True, text=True
        ).stdout

    def refs(self) -> dict[str, str]:
        """Its refs."""
        listed = self.git("for-each-ref", "--format=%(refname) %(objectname)")
        return dict(line.split() for line in listed.splitlines())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forge]:
    """The server."""
    root = tmp_path_factory.mktemp("forge")
    bare, seed = root / "team/app.git", root / "seed"

    def git(*args: str) -> None:
        command = ["git", "-c", "user.name=n", "-c", "user.email=e@x", *args]
        subprocess.run(command, check=True, capture_output=True)

    git("init", "-q", "--bare", "-b", "main", str(bare))
    git("-C", str(bare), "config", "http.receivepack", "true")
    git("-C", str(bare), "config", "uploadpack.allowFilter", "true")
    git("init", "-q", "-b", "main", str(seed))
    for text in ("one", "two"):
        (seed / "README").write_text(f"{text}\n")
        git("-C", str(seed), "add", "-A")
        git("-C", str(seed), "commit", "-qm", text)
    git("-C", str(seed), "push", "-q", str(bare), "main")
    process = subprocess.Popen(
        [sys.executable, "-m", "corral.testing.git_server", "--root", str(root), "--token-env", "GIT_TOKEN"],
        env={**os.environ, "GIT_TOKEN": TOKEN}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    yield Forge(f"localhost:{json.loads(process.stdout.readline())['port']}", root)
    process.terminate()
    process.communicate(timeout=20)


@pytest.fixture
def forge(server: Forge, daemon: Daemon) -> Iterator[Forge]:
    """The server, its secret in the vault, and its repository as it was at first."""
    daemon.cli(
        "secret", "add", "forge", "--provider", "git", "--base-url", f"http://{server.host}", input=TOKEN
    )
    main = server.refs()["refs/heads/main"]
    yield server
    daemon.cli("secret", "rm", "forge", check=False)
    for ref in server.refs():
        server.git("update-ref", "-d", ref)
    server.git("update-ref", "refs/heads/main", main)


def inside(box: Sandbox, script: str) -> tuple[int, str]:
    done = box.exec(["sh", "-c", script], timeout=120)
    return done.exit_code, done.stdout + done.stderr


def answered(daemon: Daemon, *, allow: bool) -> threading.Thread:
    """Answers the next question."""

    def answer() -> None:
        with daemon.client() as client:
            while not (pending := client.list_approvals(status="pending")):
                continue
            if allow:
                client.approve(pending[0].id, "once")
            else:
                client.deny(pending[0].id, "not today")

    thread = threading.Thread(target=answer)
    thread.start()
    return thread


@pytest.mark.root
@pytest.mark.parametrize("isolation", ["container", pytest.param("gvisor", marks=pytest.mark.gvisor)])
def test_a_private_repository_from_clone_to_push(client: Client, forge: Forge, isolation: str) -> None:
    """Cloned at creation without a key (G-240), and found by addresses of SSH, which is closed (G-239); its own branch goes
    through, main and tags do not; a secret is seen.
    """
    box = Sandbox.create(
        client=client, name="gitbox", isolation=isolation, repo=f"https://{forge.host}/team/app.git", branch="auto",
        git_repos=(f"{forge.host}/team/app:write",), push_rules=("deny:main",),
    )  # fmt: skip
    assert inside(box, "git log --oneline | wc -l; git status --short") == (0, "2\n")
    name = forge.host.partition(":")[0]
    for url in (
        f"git@{name}:team/app.git",
        f"ssh://git@{name}/team/app.git",
        f"https://{forge.host}/team/app",
    ):
        assert "refs/heads/main" in inside(box, f"git ls-remote {url}")[1], url
    assert inside(box, "echo $GIT_TERMINAL_PROMPT") == (0, "0\n")
    assert inside(box, f"ssh -o StrictHostKeyChecking=no -o BatchMode=yes git@{name}")[0] != 0
    code, text = inside(
        box, "cd ~/app && echo x > new && git add -A && git commit -qm new && git push origin HEAD 2>&1"
    )
    assert code == 0, text
    head = inside(box, "cd ~/app && git rev-parse HEAD")[1].strip()
    assert forge.refs()["refs/heads/corral/gitbox"] == head
    code, text = inside(box, "cd ~/app && git push origin HEAD:main HEAD:refs/tags/v1 2>&1")
    assert code != 0
    assert "pushing to main is not allowed" in text
    assert set(forge.refs()) == {"refs/heads/main", "refs/heads/corral/gitbox"}
    # Overwriting is proven by the commits, not by what is said.
    code, text = inside(box, "cd ~/app && git commit -q --amend -m other && git push -f origin HEAD 2>&1")
    assert "overwriting the history of corral/gitbox is not allowed" in text
    assert forge.refs()["refs/heads/corral/gitbox"] == head
    assert [item.name for item in client.list_sandboxes()] == ["gitbox"]
    assert TOKEN not in inside(box, "env; cat ~/app/.git/config /etc/gitconfig ~/.gitconfig 2>&1")[1]


@pytest.fixture
def github(tmp_path: Path, daemon: Daemon) -> Iterator[tuple[FakeGitHub, str]]:
    """A server of GitHub's kind on loopback, and its host; the App's key is the secret `ours`."""
    make_repository(tmp_path)
    server = GitServer(tmp_path)
    fake = FakeGitHub(server, rsa.generate_private_key(65537, 2048))
    server.override = fake.serve
    ready: queue.SimpleQueue[tuple[int, asyncio.AbstractEventLoop]] = queue.SimpleQueue()
    ended = asyncio.Event()

    async def serve() -> None:
        async with serving(server) as port:
            ready.put((port, asyncio.get_running_loop()))
            await ended.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    port, loop = ready.get(timeout=60)
    key = tmp_path / "app.pem"
    key.touch(0o600)
    key.write_text(json.loads(fake.document())["key"])
    base = f"http://localhost:{port}"
    try:
        daemon.cli("secret", "add", "ours", "--app", APP, "--base-url", base, "--from-file", str(key))
        yield fake, f"localhost:{port}"
    finally:
        daemon.cli("secret", "rm", "ours", check=False)
        loop.call_soon_threadsafe(ended.set)
        thread.join()


@pytest.mark.root
def test_a_github_app_from_clone_to_pull_request(
    client: Client, daemon: Daemon, github: tuple[FakeGitHub, str]
) -> None:
    """The clone, the reading of the push, the push and the pull request go by tokens for one repository (G-235)."""
    fake, host = github
    box = Sandbox.create(
        client=client, name="appbox", repo=f"https://{host}/team/app.git", branch="auto", git_repos=(f"{host}/team/app:write",)
    )  # fmt: skip
    code, text = inside(
        box, "cd ~/app && echo x > new && git add -A && git commit -qm new && git push origin HEAD 2>&1"
    )
    assert code == 0, text
    shown = daemon.cli("pr", "appbox", "--title", "Title").stdout
    kinds = [body["permissions"] for body in fake.tokens.values()]
    assert [kind["contents"] for kind in kinds] == ["read", "write", "read"]
    assert [kind.get("pull_requests") for kind in kinds] == [None, None, "write"]
    for secret in (*fake.tokens, *fake.statements):
        assert secret not in text + shown


@pytest.mark.root
def test_a_leaked_secret_is_kept_back_and_may_be_taken_out(client: Client, forge: Forge) -> None:
    """G-44: a push with the tenant's own secret is refused; one that removes it from what the server has is not."""
    secret = "Canary-Value-That-StaysOnTheHost4567"
    box = Sandbox.create(client=client, name="leaker", git_repos=(f"{forge.host}/team/app:write",))
    setup = (
        f"git clone -q https://{forge.host}/team/app ~/app && cd ~/app && git config user.name n && git config user.email e@x && "
        f"seq 2000 > conf.py && echo {secret} >> conf.py && git add -A && git commit -qm conf && "
        "git push -q origin HEAD:corral/leaker"
    )
    assert inside(box, setup)[0] == 0
    client.put_secret("lab", secret, binding={"hosts": ["api.example"]})
    try:
        code, text = inside(
            box,
            "cd ~/app && sed -i 1d conf.py && git commit -qam less && git push origin HEAD:corral/leaker 2>&1",
        )
        assert code != 0
        assert "a secret of this host, which no sandbox is given: conf.py (lab)" in text
        code, text = inside(
            box, "cd ~/app && git reset -q --hard HEAD^ && sed -i '$d' conf.py && git commit -qam without && "
            "git push origin HEAD:corral/leaker 2>&1"
        )  # fmt: skip
        assert code == 0, text
    finally:
        client.remove_secret("lab")


@pytest.mark.root
def test_a_person_says_yes_and_no(client: Client, daemon: Daemon, forge: Forge) -> None:
    """What looks like a secret, and CI files, are shown; the answer decides (G-257, G-259)."""
    box = Sandbox.create(
        client=client,
        name="asker",
        git_repos=(f"{forge.host}/team/app:write",),
        push_rules=("allow:feature",),
    )
    setup = (
        f"git clone -q https://{forge.host}/team/app ~/app && cd ~/app && git config user.name n && git config user.email e@x && "
        "mkdir -p .github/workflows && echo on: push > .github/workflows/x.yml && "
        "echo 'token = \"ghp_0123456789abcdefghijklmnopqrstuvwxyz\"' > s.py && git add -A && git commit -qm both"
    )
    assert inside(box, setup)[0] == 0
    before = forge.refs()
    answering = answered(daemon, allow=False)
    code, text = inside(box, "cd ~/app && git push origin HEAD:feature 2>&1")
    answering.join()
    assert code != 0
    assert "not today" in text
    assert "what looks like a secret: s.py (a GitHub token)" in text
    assert forge.refs() == before
    # The same question again has its answer; another push is another question.
    assert "not today" in inside(box, "cd ~/app && git push origin HEAD:feature 2>&1")[1]
    assert inside(box, "cd ~/app && git commit -q --amend -m again")[0] == 0
    answering = answered(daemon, allow=True)
    code, text = inside(box, "cd ~/app && git push origin HEAD:feature 2>&1")
    answering.join()
    assert code == 0, text
    assert "refs/heads/feature" in forge.refs()
    # A yes that comes when nobody waits any more is for this push, made again, and for no other.
    change = "cd ~/app && echo 1 >> README && git commit -qam 1 && (timeout -s KILL 6 git push origin HEAD:main 2>&1; true)"
    asked = inside(box, change)[1]
    id = asked.partition("corral approve ")[2].split()[0]
    wait_for(lambda: client.get_approval(id).status == "withdrawn", "the question is not withdrawn")
    assert "kept for a day" in daemon.cli("approve", id).stderr
    other = "git checkout -q -b other HEAD^ && echo 2 >> README && git commit -qam 2"
    push = "timeout -s KILL 6 git push origin HEAD:main 2>&1"
    assert "corral approve" in inside(box, f"cd ~/app && {other} && {push}; true")[1]
    code, text = inside(box, "cd ~/app && git checkout -q - && git push origin HEAD:main 2>&1")
    assert code == 0, text
    assert "approved by" in text
    assert client.get_approval(id).status == "allowed"
    # What is there already asks for nothing, and follows although the push brings no commit of it.
    code, text = inside(box, "cd ~/app && git push origin HEAD:refs/heads/corral/asker 2>&1")
    assert code == 0, text
    records = daemon.cli("audit", "asker", "--json").stdout
    assert "refs/heads/feature" in records
    assert "ghp_0123456789" not in records + (daemon.data / "logs/engine.log").read_text()

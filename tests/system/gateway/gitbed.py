"""A real git server behind TLS, with a certificate authority of the test's own, and a real gateway before it.

The engine's part (files for pushes, reports of what they bring, a person's answers) is scripted here; the system tests of
whole daemons have the real one.
"""

import asyncio
import os
import ssl
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.system.gateway.conftest import TENANT, Bed, BoxEnd

from corral.engine.ports import OpenedSecret
from corral.gateway.questions import Told
from corral.model.approval import Answer, Question, Scope, refused
from corral.model.git import Access, PushPolicy, RepoGrant
from corral.model.ids import SandboxId, TenantId
from corral.model.push import PushReport, PushToInspect, RefLine
from corral.model.secrets import Provider, Secret
from corral.policy.push import parse_push_rule
from corral.testing.git_server import GitServer, serving

TOKEN = "git-canary-0123456789abcdef"
MIB = 1024 * 1024


@dataclass
class Reader:
    """Says of every push what a test wants said; all updates follow from what was there."""

    report: PushReport = field(default_factory=PushReport)
    forward: bool = True
    seen: list[PushToInspect] = field(default_factory=list)
    packs: list[int] = field(default_factory=list)

    def spool(self) -> int:
        return os.open(tempfile.gettempdir(), os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)

    async def inspect(self, tenant: TenantId, sandbox: SandboxId, push: PushToInspect, fd: int) -> PushReport:
        self.seen.append(push)
        self.packs.append(os.fstat(fd).st_size)
        refs = tuple(RefLine(one.ref, self.forward) for one in push.commands)
        found = self.report
        return PushReport(
            refs, found.commits, found.commits_total, found.files, found.files_total, found.added, found.removed,
            found.flags, found.flags_total,
        )  # fmt: skip


@dataclass
class Person:
    """Answers questions once a test lets it."""

    answer: Answer = field(default_factory=lambda: refused("not today", "Ann"))
    questions: list[Question] = field(default_factory=list)
    withdrawn: int = 0
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    ready: asyncio.Event = field(default_factory=asyncio.Event)

    async def ask(self, tenant: TenantId, sandbox: SandboxId, question: Question, told: Told) -> Answer:
        self.questions.append(question)
        told("abcd1234", question.seconds, 1)
        self.asked.set()
        try:
            await self.ready.wait()
        except asyncio.CancelledError:
            self.withdrawn += 1
            raise
        return self.answer

    def will(self, answer: Answer) -> None:
        """Answer everything so."""
        self.answer = answer
        self.ready.set()


YES = Answer(allowed=True, scope=Scope.ONCE, reason="", by="Ann")


@dataclass
class GitBed:
    """A gateway, a git server behind it, and a client."""

    bed: Bed
    server: GitServer
    host: str
    root: Path
    home: Path
    reader: Reader
    person: Person
    end: BoxEnd | None = None

    async def attach(self, *rules: str, access: Access = Access.WRITE, **policy: Any) -> BoxEnd:
        """A sandbox that may use team/app."""
        repo = RepoGrant(self.host, "team/app", access, "work")
        push = PushPolicy(rules=tuple(map(parse_push_rule, rules)), **policy)
        self.end = await self.bed.attach(secrets=("work",), repos=(repo,), push=push)
        return self.end

    def url(self, path: str = "team/app.git", end: BoxEnd | None = None) -> str:
        box = end or self.end
        assert box is not None
        return f"{box.url}/git/{self.host}/{path}"

    async def git(
        self, *args: str, check: bool = True, token: str | None = None, cwd: Path | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """The client's git."""
        assert self.end is not None
        helper = f"!f() {{ echo username=x; echo password={token or self.end.token}; }}; f"
        command = [
            "git", "-c", "http.extraHeader=Host: gateway.corral", "-c", f"credential.helper={helper}",
            "-c", "user.name=n", "-c", "user.email=e@x", *args,
        ]  # fmt: skip
        env = {"PATH": os.environ["PATH"], "HOME": str(self.home), "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
        done = await asyncio.to_thread(
            subprocess.run,
            command,
            env=env,
            cwd=cwd or self.home,
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert not check or done.returncode == 0, done.stderr
        return done

    async def clone(self, *options: str) -> Path:
        """A clone with one more commit."""
        target = self.home / "app"
        await self.git("clone", "-q", *options, self.url(), str(target))
        await self.commit(target, "change")
        return target

    async def commit(self, clone: Path, name: str) -> None:
        (clone / name).write_text(name)
        await self.git("add", "-A", cwd=clone)
        await self.git("commit", "-qm", name, cwd=clone)

    async def on_server(self, *args: str) -> str:
        """Git in the server's repository."""
        command = ["git", "-C", str(self.root / "team/app.git"), *args]
        done = await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True, text=True)
        return done.stdout

    def refs(self) -> dict[str, str]:
        """The server's."""
        listed = subprocess.run(
            ["git", "-C", str(self.root / "team/app.git"), "for-each-ref", "--format=%(refname) %(objectname)"],
            check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip
        return dict(line.split() for line in listed.splitlines())


def certificate(directory: Path) -> tuple[Path, ssl.SSLContext]:
    """An authority's certificate, and a server's context of it for `localhost`."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True).sign(key, hashes.SHA256())
    )  # fmt: skip
    pem, private = directory / "ca.pem", directory / "key.pem"
    pem.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, private)
    return pem, context


def make_repository(root: Path) -> None:
    """team/app with two commits on main."""
    bare, seed = root / "team/app.git", root / "seed"
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}

    def git(*args: str) -> None:
        command = ["git", "-c", "user.name=n", "-c", "user.email=e@x", *args]
        subprocess.run(command, check=True, capture_output=True, env=env)

    git("init", "-q", "--bare", "-b", "main", str(bare))
    for key, value in (
        ("http.receivepack", "true"),
        ("uploadpack.allowFilter", "true"),
        ("uploadpack.allowAnySHA1InWant", "true"),
        ("receive.advertisePushOptions", "true"),
    ):
        git("-C", str(bare), "config", key, value)
    git("init", "-q", "-b", "main", str(seed))
    for text in ("one", "two"):
        (seed / "README").write_text(text)
        git("-C", str(seed), "add", "-A")
        git("-C", str(seed), "commit", "-qm", text)
    git("-C", str(seed), "push", "-q", str(bare), "main")


@asynccontextmanager
async def git_bed(
    directory: Path, make_gateway: Callable[..., Any], token: str = TOKEN
) -> AsyncIterator[GitBed]:
    """Everything; the server wants `token`, or none, and the gateway has it as the secret `work`."""
    root, home = directory / "root", directory / "home"
    home.mkdir()
    make_repository(root)
    pem, context = certificate(directory)
    server, reader, person = GitServer(root, token), Reader(), Person()
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(serving(server, context))
        environment = {"SSL_CERT_FILE": str(pem)}
        bed = await stack.enter_async_context(
            make_gateway(environment=environment, on_ask=person.ask, inspector=reader)
        )
        host = f"localhost:{port}"
        await bed.client.set_secrets(
            [OpenedSecret(TENANT, "work", Provider.GITHUB, f"https://{host}", Secret(token or TOKEN))]
        )
        yield GitBed(bed, server, host, root, home, reader, person)

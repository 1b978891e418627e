"""A GitHub App in the place of a token: real git, by a real gateway, to a server that answers and checks as GitHub's
documentation describes.
"""

import base64
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from tests.system.gateway.conftest import TENANT
from tests.system.gateway.gitbed import GitBed, git_bed

from corral.engine.ports import OpenedSecret
from corral.errors import Forbidden, NotFound
from corral.model.git import Access, RepoGrant
from corral.model.secrets import Provider, Secret, SecretForm
from corral.wire.forges import Forge, Proposal

APP = "12345"
NO_JWT = {"message": "A JSON web token could not be decoded"}
NOT_HERE = (
    "There is at least one repository that does not exist or is not accessible to the parent installation."
)
NOT_GRANTED = "The permissions requested are not granted to this installation."
LEVELS = ("read", "write", "admin")


def _decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


@dataclass
class FakeGitHub:
    """An App that is installed on team/app, and a git server that takes its tokens for what they are good for."""

    bed: GitBed
    key: rsa.RSAPrivateKey
    permissions: dict[str, str] = field(
        default_factory=lambda: {"contents": "write", "metadata": "read", "pull_requests": "write"}
    )
    lasts: timedelta = timedelta(hours=1)
    tokens: dict[str, dict[str, Any]] = field(default_factory=dict)
    statements: set[str] = field(default_factory=set)
    calls: list[tuple[str, str]] = field(default_factory=list)
    used: list[tuple[str, str]] = field(default_factory=list)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        if not request.path.startswith("/api/v3/"):
            return await self._git(request)
        self.calls.append((request.method, request.path.removeprefix("/api/v3")))
        match request.method, request.path.removeprefix("/api/v3").strip("/").split("/"):
            case "GET", ["repos", owner, name, "installation"]:
                if not self._stated(request):
                    return web.json_response(NO_JWT, status=401)
                if (owner, name) != ("team", "app"):
                    return web.json_response({"message": "Not Found"}, status=404)
                return web.json_response({"id": 77, "app_id": int(APP), "permissions": self.permissions})
            case "POST", ["app", "installations", "77", "access_tokens"]:
                if not self._stated(request):
                    return web.json_response(NO_JWT, status=401)
                return self._mint(await request.json())
            case "POST", ["repos", "team", "app", "pulls"]:
                bearer = request.headers["Authorization"].removeprefix("Bearer ")
                if self.tokens.get(bearer, {}).get("permissions", {}).get("pull_requests") != "write":
                    return web.json_response({"message": "Bad credentials"}, status=401)
                return web.json_response({"html_url": f"https://x/{bearer}", "number": 7}, status=201)
        return web.json_response({"message": "Not Found"}, status=404)

    def _stated(self, request: web.Request) -> bool:
        """Whether the App's signed statement is good now."""
        statement = request.headers.get("Authorization", "").removeprefix("Bearer ")
        signed, _, signature = statement.rpartition(".")
        try:
            self.key.public_key().verify(
                _decoded(signature), signed.encode(), padding.PKCS1v15(), hashes.SHA256()
            )
        except (InvalidSignature, ValueError):
            return False
        self.statements.add(statement)
        claims, now = json.loads(_decoded(signed.partition(".")[2])), time.time()
        return bool(claims["iss"] == APP and claims["iat"] <= now < claims["exp"] <= now + 600)

    def _mint(self, body: dict[str, Any]) -> web.Response:
        if set(body["repositories"]) - {"app"}:
            return web.json_response({"message": NOT_HERE}, status=422)
        for name, level in body["permissions"].items():
            has = self.permissions.get(name)
            if has is None or LEVELS.index(level) > LEVELS.index(has):
                return web.json_response({"message": NOT_GRANTED}, status=422)
        token = f"ghs_{len(self.tokens):036d}"
        ends = (datetime.now(UTC) + self.lasts).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.tokens[token] = body
        answer = {"token": token, "expires_at": ends, "repository_selection": "selected", **body}
        return web.json_response(answer, status=201)

    async def _git(self, request: web.Request) -> web.StreamResponse:
        kind, _, value = request.headers.get("Authorization", "").partition(" ")
        user, _, token = base64.b64decode(value).decode().partition(":")
        may = self.tokens.get(token)
        if kind != "Basic" or user != "x-access-token" or may is None:
            return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="GitHub"'})
        wants = "write" if "git-receive-pack" in request.path_qs else "read"
        if LEVELS.index(may["permissions"]["contents"]) < LEVELS.index(wants):
            return web.Response(status=403)
        self.used.append((token, request.path_qs.rpartition("/")[2]))
        return await self.bed.server.serve(request)

    def document(self) -> str:
        """What the vault holds of the App."""
        pem = self.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
        return json.dumps({"app": APP, "key": pem.decode()})

    async def publish(self, document: str = "") -> None:
        """Give the gateway the App."""
        url, value = f"https://{self.bed.host}", Secret(document or self.document())
        secret = OpenedSecret(TENANT, "work", Provider.GITHUB, url, value, form=SecretForm.GITHUB_APP)
        await self.bed.bed.client.set_secrets([secret])

    def minted(self) -> int:
        """Tokens that were asked for."""
        return sum(path.endswith("/access_tokens") for _, path in self.calls)


@pytest.fixture
async def github(tmp_path: Path, make_gateway: Callable[..., Any]) -> AsyncIterator[FakeGitHub]:
    """Everything."""
    async with git_bed(tmp_path, make_gateway, token="") as bed:
        fake = FakeGitHub(bed, rsa.generate_private_key(65537, 2048))
        bed.server.override = fake.serve
        await fake.publish()
        yield fake


async def test_each_purpose_has_a_token_of_its_own_for_one_repository(github: FakeGitHub) -> None:
    """G-238, G-235: reading by one that reads, pushing by one that writes, both asked for once."""
    bed = github.bed
    await bed.attach()
    clone = await bed.clone()
    await bed.git("fetch", "-q", cwd=clone)
    assert [body["permissions"]["contents"] for body in github.tokens.values()] == ["read"]
    done = await bed.git("push", "origin", "HEAD:corral/box-1", cwd=clone)
    assert "refs/heads/corral/box-1" in bed.refs()
    kinds = [body["permissions"]["contents"] for body in github.tokens.values()]
    assert (kinds, github.minted()) == (["read", "write"], 2)
    assert {tuple(body["repositories"]) for body in github.tokens.values()} == {("app",)}
    by = {name: token for token, name in github.used}
    assert github.tokens[by["git-upload-pack"]]["permissions"]["contents"] == "read"
    assert github.tokens[by["git-receive-pack"]]["permissions"]["contents"] == "write"
    for secret in (*github.tokens, *github.statements):
        assert secret not in done.stderr + (clone / ".git/config").read_text()


async def test_where_the_app_is_not_installed_one_question_is_enough(github: FakeGitHub) -> None:
    """G-340: a sandbox that tries again and again does not use up what the App may ask in an hour."""
    bed = github.bed
    repo = RepoGrant(bed.host, "team/other", Access.READ, "work")
    bed.end = await bed.bed.attach(secrets=("work",), repos=(repo,))
    for _ in range(3):
        done = await bed.git("ls-remote", bed.url("team/other"), check=False)
        assert "the GitHub App is not installed on team/other" in done.stderr
    assert len(github.calls) == 1
    assert github.used == []


async def test_a_token_near_its_end_is_not_used(github: FakeGitHub) -> None:
    """Nor one that was had by a key that is gone."""
    bed = github.bed
    await bed.attach()
    github.lasts = timedelta(minutes=4)
    await bed.git("ls-remote", bed.url())
    first = github.minted()
    github.lasts = timedelta(hours=1)
    await bed.git("ls-remote", bed.url())
    await bed.git("ls-remote", bed.url())
    assert github.minted() == first + 1
    github.key = rsa.generate_private_key(65537, 2048)
    await github.publish()
    await bed.git("ls-remote", bed.url())
    assert github.minted() == first + 2


async def test_a_key_that_is_refused_is_told_without_itself(github: FakeGitHub) -> None:
    """G-137."""
    await github.bed.attach()
    github.key = rsa.generate_private_key(65537, 2048)
    done = await github.bed.git("ls-remote", github.bed.url(), check=False)
    assert "GitHub refuses the App: A JSON web token could not be decoded" in done.stderr
    assert "check its id and key" in done.stderr.lower()


async def test_a_pull_request_is_opened_by_a_token_for_that(github: FakeGitHub) -> None:
    """The token comes back from nowhere, and an App without the permission says which it needs."""
    forge = Forge(Provider.GITHUB, f"https://{github.bed.host}")
    client = github.bed.bed.client
    call = forge.open(Proposal("team/app", "corral/box", "main", "Title", "", draft=False))
    opened = forge.opened(await client.call_forge(TENANT, "work", call))
    assert opened is not None
    assert opened.number == 7
    (token,) = github.tokens
    assert token not in opened.url
    assert github.tokens[token]["permissions"]["pull_requests"] == "write"
    with pytest.raises(NotFound):
        await client.call_forge(TENANT, "work", forge.repository("team/other"))
    del github.permissions["pull_requests"]
    github.key = rsa.generate_private_key(65537, 2048)
    await github.publish()
    with pytest.raises(Forbidden, match="not granted"):
        await client.call_forge(TENANT, "work", call)

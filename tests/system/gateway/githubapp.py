"""A server that answers and checks as GitHub's documentation of Apps describes, before a real git server."""

import base64
import json
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from aiohttp import web
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from corral.testing.git_server import GitServer

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

    server: GitServer
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
            case "GET", ["repos", "team", "app"]:
                return web.json_response({"default_branch": "main"})
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
        return await self.server.serve(request)

    def document(self) -> str:
        """What the vault holds of the App."""
        pem = self.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
        return json.dumps({"app": APP, "key": pem.decode()})

    def minted(self) -> int:
        """Tokens that were asked for."""
        return sum(path.endswith("/access_tokens") for _, path in self.calls)

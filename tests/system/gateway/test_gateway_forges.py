"""Pull requests opened from the host: the calls that GitHub's and GitLab's documentation describes, answered as they do."""

import json
from typing import Any

import pytest
from aiohttp import web
from tests.system.gateway.conftest import TENANT, Bed

from corral.engine.ports import OpenedSecret
from corral.errors import Forbidden, InvalidInput, NotFound, Unsupported, UpstreamFailed
from corral.model.secrets import Provider, Secret
from corral.wire.forges import Forge, Opened, Proposal

TOKEN = "forge-canary-0123456789"
ONE = Proposal("team/sub/app", "corral/box", "main", "Title", "Body", draft=True)


class FakeForge:
    """Knows one repository, opens one pull request per branch."""

    def __init__(self, kind: Provider) -> None:
        self.gitlab = kind is Provider.GITLAB
        self.open: dict[str, dict[str, Any]] = {}
        self.auth: set[str] = set()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        self.auth.add(request.headers.get("Authorization", ""))
        repo = "/api/v4/projects/team%2Fsub%2Fapp" if self.gitlab else "/api/v3/repos/team/sub/app"
        path = request.raw_path.partition("?")[0]
        if path == repo:
            return web.json_response({"default_branch": "main"})
        if path != repo + ("/merge_requests" if self.gitlab else "/pulls"):
            return web.json_response({"message": "Not Found"}, status=404)
        if request.method == "GET":
            wanted = (
                request.query["source_branch"] if self.gitlab else request.query["head"].partition(":")[2]
            )
            return web.json_response([self.open[wanted]] if wanted in self.open else [])
        body = await request.json()
        branch = body["source_branch" if self.gitlab else "head"]
        if branch in self.open:
            if self.gitlab:
                return web.json_response(
                    {"message": ["Another open merge request already exists"]}, status=409
                )
            errors = [{"message": "A pull request already exists for team:corral/box."}]
            return web.json_response({"message": "Validation Failed", "errors": errors}, status=422)
        url, number = ("web_url", "iid") if self.gitlab else ("html_url", "number")
        self.open[branch] = {url: f"https://forge/{TOKEN}/7", number: 7, "asked": body}
        return web.json_response(self.open[branch], status=201)


@pytest.mark.parametrize("kind", [Provider.GITHUB, Provider.GITLAB])
async def test_a_pull_request(bed: Bed, kind: Provider) -> None:
    """Opened once, found again; the token goes in a header, and comes back from nowhere."""
    fake = FakeForge(kind)
    bed.upstream.handler = fake.serve
    base = f"http://127.0.0.1:{bed.upstream.port}"
    await bed.client.set_secrets([OpenedSecret(TENANT, "forge", kind, base, Secret(TOKEN))])
    forge = Forge(kind, base)

    async def ask(call: Any) -> Any:
        return await bed.client.call_forge(TENANT, "forge", call)

    assert forge.default_branch(await ask(forge.repository(ONE.path))) == "main"
    opened = forge.opened(await ask(forge.open(ONE)))
    assert opened is not None
    assert opened.number == 7
    assert TOKEN not in opened.url
    asked = fake.open["corral/box"]["asked"]
    assert asked.get("draft") or asked["title"] == "Draft: Title"
    refusal = await ask(forge.open(ONE))
    assert forge.opened(refusal) is None
    assert forge.found(await ask(forge.existing(ONE)), refusal) == Opened(opened.url, 7, existed=True)
    assert fake.auth == {f"Bearer {TOKEN}"}
    with pytest.raises(NotFound):
        forge.default_branch(await ask(forge.repository("team/other")))
    with pytest.raises(NotFound):
        await bed.client.call_forge(TENANT, "none", forge.repository("a/b"))


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (401, '{"message": "Bad credentials"}', Forbidden),
        (500, "oops", UpstreamFailed),
        (200, "not JSON", UpstreamFailed),
        (200, "[]", UpstreamFailed),
        (302, "", UpstreamFailed),
        (200, json.dumps({"default_branch": "main", "x": "y" * 300_000}), UpstreamFailed),
    ],
)
async def test_a_forge_that_answers_otherwise(
    bed: Bed, status: int, body: str, error: type[Exception]
) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text=body, headers={"Location": "http://169.254.169.254/"})

    bed.upstream.handler = answer
    base = f"http://127.0.0.1:{bed.upstream.port}"
    await bed.client.set_secrets([OpenedSecret(TENANT, "forge", Provider.GITHUB, base, Secret(TOKEN))])
    forge = Forge(Provider.GITHUB, base)
    with pytest.raises(error):
        forge.default_branch(await bed.client.call_forge(TENANT, "forge", forge.repository("a/b")))
    assert len(bed.upstream.seen) == 1


async def test_a_credential_goes_to_its_own_host_only(bed: Bed) -> None:
    """G-27, G-245."""
    await bed.client.set_secrets(
        [OpenedSecret(TENANT, "forge", Provider.GITHUB, "https://localhost:1", Secret(TOKEN))]
    )
    elsewhere = Forge(Provider.GITHUB, f"http://127.0.0.1:{bed.upstream.port}")
    with pytest.raises(InvalidInput):
        await bed.client.call_forge(TENANT, "forge", elsewhere.repository("a/b"))
    assert bed.upstream.seen == []


def test_addresses() -> None:
    assert (
        Forge(Provider.GITHUB, "https://github.com").repository("a/b").url
        == "https://api.github.com/repos/a/b"
    )
    assert Forge(Provider.GITHUB, "https://ghe.x").repository("a/b").url == "https://ghe.x/api/v3/repos/a/b"
    assert (
        Forge(Provider.GITLAB, "https://gl.x").repository("a/b").url == "https://gl.x/api/v4/projects/a%2Fb"
    )
    with pytest.raises(Unsupported):
        Forge(Provider.GIT, "https://git.x")

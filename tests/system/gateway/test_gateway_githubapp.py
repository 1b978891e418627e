"""A GitHub App in the place of a token: real git, by a real gateway, to a server that answers and checks as GitHub's
documentation describes.
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from tests.system.gateway.conftest import TENANT
from tests.system.gateway.gitbed import GitBed, git_bed
from tests.system.gateway.githubapp import FakeGitHub

from corral.engine.ports import OpenedSecret
from corral.errors import Forbidden, NotFound
from corral.model.git import Access, RepoGrant
from corral.model.secrets import Provider, Secret, SecretForm
from corral.wire.forges import Forge, Proposal


@dataclass
class Scene:
    """A git server of GitHub's kind behind a gateway."""

    bed: GitBed
    github: FakeGitHub

    async def publish(self) -> None:
        """Give the gateway the App's key as it is now."""
        url, value = f"https://{self.bed.host}", Secret(self.github.document())
        secret = OpenedSecret(TENANT, "work", Provider.GITHUB, url, value, form=SecretForm.GITHUB_APP)
        await self.bed.bed.client.set_secrets([secret])


@pytest.fixture
async def scene(tmp_path: Path, make_gateway: Callable[..., Any]) -> AsyncIterator["Scene"]:
    """Everything."""
    async with git_bed(tmp_path, make_gateway, token="") as bed:
        fake = FakeGitHub(bed.server, rsa.generate_private_key(65537, 2048))
        bed.server.override = fake.serve
        found = Scene(bed, fake)
        await found.publish()
        yield found


async def test_each_purpose_has_a_token_of_its_own_for_one_repository(scene: Scene) -> None:
    """G-238, G-235: reading by one that reads, pushing by one that writes, both asked for once."""
    bed, github = scene.bed, scene.github
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


async def test_where_the_app_is_not_installed_one_question_is_enough(scene: Scene) -> None:
    """G-340: a sandbox that tries again and again does not use up what the App may ask in an hour."""
    bed, github = scene.bed, scene.github
    repo = RepoGrant(bed.host, "team/other", Access.READ, "work")
    bed.end = await bed.bed.attach(secrets=("work",), repos=(repo,))
    for _ in range(3):
        done = await bed.git("ls-remote", bed.url("team/other"), check=False)
        assert "the GitHub App is not installed on team/other" in done.stderr
    assert len(github.calls) == 1
    assert github.used == []


async def test_a_token_near_its_end_is_not_used(scene: Scene) -> None:
    """Nor one that was had by a key that is gone."""
    bed, github = scene.bed, scene.github
    await bed.attach()
    github.lasts = timedelta(minutes=4)
    await bed.git("ls-remote", bed.url())
    first = github.minted()
    github.lasts = timedelta(hours=1)
    await bed.git("ls-remote", bed.url())
    await bed.git("ls-remote", bed.url())
    assert github.minted() == first + 1
    github.key = rsa.generate_private_key(65537, 2048)
    await scene.publish()
    await bed.git("ls-remote", bed.url())
    assert github.minted() == first + 2


async def test_a_key_that_is_refused_is_told_without_itself(scene: Scene) -> None:
    """G-137."""
    await scene.bed.attach()
    scene.github.key = rsa.generate_private_key(65537, 2048)
    done = await scene.bed.git("ls-remote", scene.bed.url(), check=False)
    assert "GitHub refuses the App: A JSON web token could not be decoded" in done.stderr
    assert "check its id and key" in done.stderr.lower()


async def test_a_pull_request_is_opened_by_a_token_for_that(scene: Scene) -> None:
    """The token comes back from nowhere, and an App without the permission says which it needs."""
    github = scene.github
    forge = Forge(Provider.GITHUB, f"https://{scene.bed.host}")
    client = scene.bed.bed.client
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
    await scene.publish()
    with pytest.raises(Forbidden, match="not granted"):
        await client.call_forge(TENANT, "work", call)

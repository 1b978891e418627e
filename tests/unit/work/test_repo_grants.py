"""Which credential opens which repository, and what git inside is told of it."""

import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from corral.engine.environment import git_environment
from corral.engine.plan import CreateRequest, egress_policy
from corral.errors import Conflict, InvalidInput
from corral.model.git import Access, RepoGrant
from corral.model.ids import TenantId
from corral.model.secrets import Provider, Secret, SecretInfo
from corral.policy.repos import parse_repo
from corral.work.repogrants import with_grants

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def secret(name: str, provider: Provider, url: str) -> SecretInfo:
    return SecretInfo(TenantId("t"), name, provider, url, NOW, NOW)


HUB = secret("hub", Provider.GITHUB, "https://github.com")
OWN = secret("own", Provider.GIT, "https://git.test:8443")
MODEL = secret("model", Provider.ANTHROPIC, "https://api.anthropic.com")


def granted(
    *repos: str, secrets: tuple[str, ...] = (), url: str | None = None, allow: tuple[str, ...] = ()
) -> CreateRequest:
    request = CreateRequest(repos=tuple(map(parse_repo, repos)), secrets=secrets, allow=allow)
    return with_grants(request, [HUB, OWN, MODEL], url)


def test_the_hosts_secret_opens_it_and_the_grant_covers_it() -> None:
    found = granted("github.com/O/R:write", "git.test:8443/a/B", secrets=("model",))
    assert found.repos == (
        RepoGrant("github.com", "o/r", Access.WRITE, "hub", True),
        RepoGrant("git.test:8443", "a/B", Access.READ, "own"),
    )
    assert found.secrets == ("hub", "model", "own")


def test_what_everybody_may_read_needs_none_but_a_push_does() -> None:
    assert granted("gitlab.com/a/b").repos[0].secret is None
    with pytest.raises(Conflict, match="needs a credential"):
        granted("gitlab.com/a/b:write")
    with pytest.raises(Conflict):
        granted("git.test/a/b:write")  # the secret is for another port


def test_several_secrets_of_a_host() -> None:
    other = secret("other", Provider.GITHUB, "https://github.com")
    request = CreateRequest(repos=(parse_repo("github.com/o/r"),), secrets=())
    with pytest.raises(InvalidInput, match="several secrets"):
        with_grants(request, [HUB, other], None)
    request = CreateRequest(repos=(parse_repo("github.com/o/r"),), secrets=("other",))
    assert with_grants(request, [HUB, other], None).repos[0].secret == "other"


def test_what_is_cloned_is_open_for_reading() -> None:
    url = "https://github.com/o/r.git"
    assert granted(url=url).repos == (RepoGrant("github.com", "o/r", Access.READ, "hub", True),)
    assert granted("github.com/o/r:write", url=url).repos[0].access is Access.WRITE
    assert len(granted("github.com/o/r:write", url=url).repos) == 1
    # A host that is open by itself, and for which there is no credential, is reached directly.
    assert granted(url="https://gitlab.com/o/r", allow=("gitlab.com",)).repos == ()
    assert granted(url="https://gitlab.com/o/r").repos[0].secret is None


def test_git_inside_is_led_to_the_gateway(tmp_path: Path) -> None:
    repos = (RepoGrant("git.test:8443", "a/b"), RepoGrant("github.com", "o/r"))
    env = git_environment(repos, egress_policy(("github.com",)), Secret("token-0123"))

    def git(*args: str, given: str = "") -> str:
        full = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **env}
        return subprocess.run(
            ["git", *args], env=full, input=given, capture_output=True, text=True, check=True, cwd=tmp_path
        ).stdout

    def led(url: str) -> str:
        return git("ls-remote", "--get-url", url).strip()

    assert led("https://git.test:8443/a/b.git") == "http://gateway.corral/git/git.test:8443/a/b.git"
    assert led("https://git.test:8443/x/y") == "http://gateway.corral/git/git.test:8443/x/y"
    assert led("git@git.test:a/b") == "http://gateway.corral/git/git.test:8443/a/b"
    assert led("ssh://git@github.com/o/r") == "http://gateway.corral/git/github.com/o/r"
    assert led("https://github.com/other/public") == "https://github.com/other/public"
    told = git("credential", "fill", given="protocol=http\nhost=gateway.corral\n\n")
    assert "password=token-0123" in told
    assert git_environment((), egress_policy(()), Secret("x")) == {"GIT_TERMINAL_PROMPT": "0"}

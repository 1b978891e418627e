"""E2B's build steps as recipes of Corral's: what they become, and what is refused."""

from datetime import UTC, datetime
from typing import Any

import pytest

from corral.api.e2b.builds import limits_of
from corral.api.e2b.failures import Refusal
from corral.api.e2b.names import build_id, checked_tag, is_build, template_id
from corral.api.e2b.recipes import SHELL, base_of_image, base_of_template, login_of, recipe_of
from corral.model.build import Copy, Env, Ready, Run, Start, User, Workdir
from corral.model.ids import DEFAULT_TENANT, LayerDigest, TemplateId
from corral.model.sandbox import MIB
from corral.model.template import Template, TemplateConfig
from corral.protocol.e2b.templates import NewTemplate, StartBuild

HASH = "a" * 64


def _steps(*steps: dict[str, Any], **more: Any) -> list[Any]:
    body = StartBuild.model_validate({"steps": list(steps), **more})
    recipe = recipe_of(body, {HASH: "archive"}, base_of_template("base", "user"))
    return [line.step for line in recipe.stages[0].lines][1:]


def test_steps_become_those_of_corral() -> None:
    assert _steps(
        {"type": "RUN", "args": ["ls -l"]},
        {"type": "RUN", "args": ["id", "root"]},
        {"type": "ENV", "args": ["A", "1", "B", "2"]},
        {"type": "WORKDIR", "args": ["/app"]},
        {"type": "COPY", "args": ["src/*.py", "lib", "", "755"], "filesHash": HASH},
        startCmd="serve",
        readyCmd="curl localhost",
    ) == [
        Run((*SHELL, "ls -l")),
        Run((*SHELL, "id"), user="root"),
        Env((("A", "1"), ("B", "2")), literal=True),
        Workdir("/app", "user", literal=True),
        Copy(("src/*.py",), "lib/", context="archive", owner="user", mode=0o755, links=True, literal=True),
        Start((), fixed=True),
        Start((*SHELL, "serve")),
        Ready((*SHELL, "curl localhost"), seconds=600),
    ]


def test_a_user_is_made_and_owns_what_follows() -> None:
    add, user, workdir = _steps(
        {"type": "USER", "args": ["web", "true"]}, {"type": "WORKDIR", "args": ["/srv"]}
    )
    assert isinstance(add, Run)
    assert add.user == "root"
    assert add.command[-2:] == ("web", "true")
    assert user == User("web", sudo=True, literal=True)
    assert workdir == Workdir("/srv", "web", literal=True)


@pytest.mark.parametrize(
    "step",
    [
        {"type": "RUN", "args": []},
        {"type": "ENV", "args": ["A"]},
        {"type": "WORKDIR", "args": []},
        {"type": "VOLUME", "args": ["/x"]},
        {"type": "COPY", "args": ["a", "b"]},
        {"type": "COPY", "args": ["a", "b"], "filesHash": "b" * 64},
        {"type": "COPY", "args": ["a", "b", "", "9"], "filesHash": HASH},
    ],
)
def test_steps_that_make_no_sense_are_refused(step: dict[str, Any]) -> None:
    with pytest.raises(Refusal) as caught:
        _steps(step)
    assert caught.value.status == 400


def test_bases() -> None:
    assert base_of_image("e2bdev/base:latest").name == "base"
    assert base_of_image("debian:12").name == "debian:12"
    assert isinstance(base_of_image("debian:12").before[0], Run)
    for body in ({}, {"fromImage": "a", "fromTemplate": "b"}):
        with pytest.raises(Refusal):
            login_of(StartBuild.model_validate(body))


@pytest.mark.parametrize(
    ("given", "username", "password"),
    [
        ({"type": "registry", "username": "u", "password": "canary-1"}, "u", "canary-1"),
        ({"type": "gcp", "serviceAccountJson": '{"key": "canary-1"}'}, "_json_key", '{"key": "canary-1"}'),
    ],
)
def test_logins_of_registries(given: dict[str, str], username: str, password: str) -> None:
    body = StartBuild.model_validate({"fromImage": "a", "fromImageRegistry": given})
    login = login_of(body)
    assert login is not None
    assert (login.username, login.password.reveal()) == (username, password)
    assert "canary" not in f"{body!r} {login!r}"


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ({"type": "registry", "username": "a:b", "password": "x"}, 400),
        ({"type": "aws", "awsAccessKeyId": "a", "awsSecretAccessKey": "b", "awsRegion": "c"}, 501),
    ],
)
def test_logins_that_are_refused(given: dict[str, str], status: int) -> None:
    with pytest.raises(Refusal) as caught:
        login_of(StartBuild.model_validate({"fromImage": "a", "fromImageRegistry": given}))
    assert caught.value.status == status


@pytest.mark.parametrize(
    ("cpus", "memory", "message"),
    [
        (-1, 512, "CPU count must be at least 1"),
        (64, 512, "CPU count must be at most 32"),
        (3, 512, "CPU count must be 1 or even"),
        (2, 64, "Memory must be at least 128 MiB"),
        (2, 513, "Memory must be divisible by 2"),
    ],
)
def test_limits_that_are_refused(cpus: int, memory: int, message: str) -> None:
    with pytest.raises(Refusal, match=message):
        limits_of(NewTemplate.model_validate({"cpuCount": cpus, "memoryMB": memory}))


def test_limits_that_are_kept() -> None:
    assert limits_of(NewTemplate.model_validate({"cpuCount": 1, "memoryMB": 512})).memory == 512 * MIB


@pytest.mark.parametrize("tag", ["", "a b", "a/b", "x" * 64, "0b8e1f0c-4b1e-4a64-a9d4-6f1d3a0f6d3b"])
def test_tags_that_are_refused(tag: str) -> None:
    with pytest.raises(Refusal):
        checked_tag(tag)


def _template(name: str, layer: str) -> Template:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    layers = (LayerDigest(layer),)
    return Template(TemplateId(name), DEFAULT_TENANT, name, layers, TemplateConfig(), 0, now)


def test_tags_that_point_to_one_build_have_its_id() -> None:
    own = "0b8e1f0c-4b1e-4a64-a9d4-6f1d3a0f6d3b"
    built, tagged, other = _template(f"a:{own}", "1"), _template("a:v1", "1"), _template("a", "2")
    every = [built, tagged, other]
    assert build_id(tagged, every) == build_id(built, every) == own
    assert build_id(other, every) != own
    assert is_build(own)
    assert not is_build("v1")


def test_ids_stay_with_their_alias() -> None:
    assert template_id(DEFAULT_TENANT, "a") == template_id(DEFAULT_TENANT, "a")
    assert template_id(DEFAULT_TENANT, "a") != template_id(DEFAULT_TENANT, "b")

"""What `corral init` writes for what it sees; whatever it sees, what it writes can be read."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from corral.model.project import Project, listening, parse_project
from corral.policy.composed import PACKAGED
from corral.policy.suggestion import SEEN, suggest

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def read(**files: str) -> tuple[Project, str]:
    text = suggest({name.replace("__", "/").replace("_", "."): content for name, content in files.items()})
    return parse_project(text, "demo"), text


@pytest.mark.parametrize(
    ("files", "run", "allow"),
    [
        (("package.json", "package-lock.json"), "npm ci", "@npm"),
        (("package.json", "pnpm-lock.yaml"), "corepack pnpm install --frozen-lockfile", "@npm"),
        (("package.json",), "npm install", "@npm"),
        (
            ("requirements.txt",),
            "python3 -m venv .venv && .venv/bin/pip install -r requirements.txt",
            "@pypi",
        ),
        (("Cargo.toml", "Cargo.lock"), "cargo fetch --locked", "@crates"),
        (("go.mod", "go.sum"), "go mod download", "@go"),
        (("pom.xml", "mvnw"), "./mvnw --batch-mode dependency:go-offline", "@maven"),
        (("build.gradle.kts",), "gradle --no-daemon dependencies", "@gradle"),
        (("build.gradle", "gradlew", "gradle.lockfile"), "./gradlew --no-daemon dependencies", "@gradle"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_language(files: tuple[str, ...], run: str, allow: str) -> None:
    setup = parse_project(suggest(dict.fromkeys(files, "{}")), "demo").setup
    assert setup is not None
    assert [step.run for step in setup.steps] == [run]
    assert setup.allow == (allow,)
    assert set(setup.steps[0].files) <= set(files)


def test_python_projects() -> None:
    text = suggest({"pyproject.toml": '[project]\nname = "x"'})
    assert parse_project(text, "demo").setup is not None
    assert parse_project(suggest({"pyproject.toml": "[tool.ruff]"}), "demo").setup is None
    for lock in ("uv.lock", "poetry.lock"):
        setup = parse_project(suggest({"pyproject.toml": "", lock: ""}), "demo").setup
        assert setup is not None
        assert lock in setup.steps[0].files


def test_a_devcontainer() -> None:
    document = """{
        // comment, with "quotes"
        "image": "example.org/dev:1", /* another */
        "postCreateCommand": "make deps",
        "onCreateCommand": ["echo", "two words"],
        "containerEnv": {"MODE": "dev // no comment", "BAD": "${localEnv:HOME}",},
        "forwardPorts": [8080],
    }"""
    text = suggest({".devcontainer/devcontainer.json": document})
    project = parse_project(text, "demo")
    assert project.env == {"MODE": "dev // no comment"}
    assert project.setup is not None
    assert [step.run for step in project.setup.steps] == ["echo 'two words'", "make deps"]
    assert "--image example.org/dev:1" in text
    assert "port 8080" in text


def test_how_a_devcontainer_is_built() -> None:
    document = {
        "build": {"dockerfile": "../Dockerfile"},
        "features": {"ghcr.io/devcontainers/features/go:1": {}},
    }
    text = suggest({".devcontainer/devcontainer.json": json.dumps(document)})
    assert "template build NAME -f .devcontainer/../Dockerfile --context ." in text
    assert "the feature ghcr.io/devcontainers/features/go:1" in text


def test_a_compose_file_is_told_of() -> None:
    text = suggest(
        {
            "compose.yaml": "services:\n    db: {image: 'neo4j:5'}\n    web:\n        build: .\nvolumes:\n  x:\n"
        }
    )
    assert "the service db from neo4j:5" in text
    assert "the service web:" in text
    assert "service x" not in text


def test_what_debian_has_of_a_compose_file_is_one_template_and_services() -> None:
    compose = "services:\n  db: {image: 'docker.io/library/postgres:16@sha256:0a'}\n  cache: {image: redis}\n"
    text = suggest({"compose.yaml": compose, "go.mod": ""})
    assert "apt-get install -y golang postgresql redis-server\\n" in text
    agreed = (
        text.replace("# [service.", "[service.").replace("# run = ", "run = ").replace("# port = ", "port = ")
    )
    services = {service.name: service for service in parse_project(agreed, "demo").services}
    assert set(services) == {"db", "cache"}
    assert services["db"].command[2] == PACKAGED["postgres"].run
    assert services["db"].ready == listening(5432)


@given(st.text(max_size=200) | _JSON.map(json.dumps))
@example("services: {a: &a {image: *a}}")
@example("&a services: [*a]")
@example("services:\n  'x\ny': {image: \"a\\nb\"}")
@example("[" * 5000)
@example("services: {1: 2, null: {image: 3}, a: 2024-99-99}")
def test_whatever_a_compose_file_holds(text: str) -> None:
    parse_project(suggest({"compose.yml": text}), "demo")


def test_nothing_that_is_known() -> None:
    assert parse_project(suggest({}), "demo") == Project()


def test_no_text_of_the_repository_breaks_out() -> None:
    evil = json.dumps(
        {"image": 'x"\n[policy]\nallow = ["*"]', "postCreateCommand": 'x"\n[policy]\nallow=["e"]'}
    )
    project = parse_project(
        suggest({".devcontainer.json": evil, "package.json": '{"scripts": {"dev": "a\\nb = 1"}}'}), "d"
    )
    assert project.allow == ()


@given(st.dictionaries(st.sampled_from(SEEN), st.text(max_size=100), max_size=6))
def test_what_is_written_can_be_read(files: dict[str, str]) -> None:
    parse_project(suggest(files), "demo")


_KEYS = (
    "image",
    "postCreateCommand",
    "onCreateCommand",
    "containerEnv",
    "remoteEnv",
    "forwardPorts",
    "scripts",
)


@given(st.dictionaries(st.sampled_from(_KEYS), _JSON, max_size=5))
@example({"postCreateCommand": "\0"})
@example({"postCreateCommand": ["x" * 20_000]})
@example({"containerEnv": {"A²": ""}})
def test_whatever_a_devcontainer_holds(document: dict[str, object]) -> None:
    parse_project(
        suggest({".devcontainer.json": json.dumps(document), "package.json": json.dumps(document)}), "demo"
    )

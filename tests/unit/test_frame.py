"""The project's frame: what is locked, installed and documented agrees."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTED = set(re.findall(r"`([^`]+)`", (ROOT / "docs" / "dependencies.md").read_text()))


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=!~;\[ ]", requirement)[0].lower() for requirement in requirements}


@pytest.fixture(scope="module")
def project() -> dict[str, object]:
    found = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert isinstance(found, dict)
    return found


def setup_packages() -> set[str]:
    text = (ROOT / "scripts" / "setup").read_text()
    blocks = re.findall(r"PACKAGES=\(([^)]*)\)", text)
    lines = [line.partition("#")[0] for block in blocks for line in block.splitlines()]
    return {word for line in lines for word in line.split() if not word.startswith("$")}


def test_every_dependency_has_its_reason(project: dict[str, object]) -> None:
    optional = project["optional-dependencies"]
    dependencies = project["dependencies"]
    assert isinstance(optional, dict)
    assert isinstance(dependencies, list)
    wanted = names(dependencies) | names(optional["dev"]) | setup_packages()
    assert wanted - DOCUMENTED == set()


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-dev.lock"])
def test_locks_pin_by_hash_and_name_no_host(lock: str) -> None:
    text = (ROOT / lock).read_text()
    assert "://" not in text
    assert not re.search(r"^(-|--)", text, re.MULTILINE)
    entries = re.split(r"\n(?=\S)", text.strip())
    assert entries
    for entry in entries:
        assert re.match(r"[a-z0-9-]+==\S+ \\\n", entry), entry.splitlines()[0]
        assert "--hash=sha256:" in entry


def test_locks_hold_what_the_project_asks_for(project: dict[str, object]) -> None:
    optional, dependencies = project["optional-dependencies"], project["dependencies"]
    assert isinstance(optional, dict)
    assert isinstance(dependencies, list)
    pinned = {
        lock: set(re.findall(r"^([a-z0-9-]+)==", (ROOT / lock).read_text(), re.MULTILINE))
        for lock in ("requirements.lock", "requirements-dev.lock")
    }
    assert names(dependencies) <= pinned["requirements.lock"] <= pinned["requirements-dev.lock"]
    assert names(optional["dev"]) <= pinned["requirements-dev.lock"]


def test_runsc_is_pinned() -> None:
    module = (ROOT / "scripts" / "runsc" / "go.mod").read_text()
    version = re.search(r"gvisor\.dev/gvisor (v\S+)", module)
    assert version is not None
    assert f"gvisor.dev/gvisor {version[1]} h1:" in (ROOT / "scripts" / "runsc" / "go.sum").read_text()


@pytest.mark.parametrize("script", ["scripts/setup", "scripts/build-runsc", ".ci/run"])
def test_scripts_stop_at_the_first_error(script: str) -> None:
    path = ROOT / script
    assert path.stat().st_mode & 0o111
    assert "set -euo pipefail" in path.read_text()


def test_the_service_lets_sandboxes_outlive_the_daemon() -> None:
    unit = (ROOT / "deploy" / "corral.service").read_text()
    settings = dict(line.split("=", 1) for line in unit.splitlines() if re.match(r"[A-Z]\w+=", line))
    assert settings["KillMode"] == "process"
    assert settings["Delegate"] == "yes"
    # Each of these would give the unit a mount namespace, or its sandboxes an inherited restriction.
    forbidden = (
        "ProtectSystem",
        "PrivateTmp",
        "ReadWritePaths",
        "PrivateDevices",
        "NoNewPrivileges",
        "SystemCallFilter",
    )
    assert not set(forbidden) & set(settings)

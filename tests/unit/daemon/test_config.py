"""The operator's settings: what is stored, what is refused, and who may read it."""

import json
import stat
from pathlib import Path

import pytest

from corral.daemon.config import ConfigFile
from corral.errors import InvalidInput


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config.json"


def test_a_setting_is_kept_for_root_alone(path: Path) -> None:
    ConfigFile(path).set("egress.networks", "10.0.0.0/8, 192.168.1.0/24")
    assert ConfigFile(path).value.networks == ("10.0.0.0/8", "192.168.1.0/24")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("no.such", "x"),
        ("egress.networks", "10.0.0.1/8"),
        ("egress.networks", 7),
        ("egress.bypass", "*"),
        ("egress.bypass", "10.0.0.0/8"),
        ("egress.bypass", "a b"),
        ("api.listen", "localhost"),
        ("api.listen", "localhost:0"),
        ("registries.npm", "https://x/y"),
        ("store.unlimited", "maybe"),
    ],
)
def test_a_bad_setting_changes_nothing(path: Path, key: str, value: object) -> None:
    config = ConfigFile(path)
    config.set("store.unlimited", "true")
    before = path.read_text()
    with pytest.raises(InvalidInput) as caught:
        config.set(key, value)
    assert caught.value.hint
    assert path.read_text() == before
    assert config.value.unlimited_disk is True


@pytest.mark.parametrize("text", ["", "[]", "{", '{"unknown": 1}', '{"store.unlimited": "perhaps"}'])
def test_a_file_that_is_not_understood_is_refused(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(InvalidInput):
        ConfigFile(path)


def test_get_shows_all_settings(path: Path) -> None:
    assert set(json.loads(json.dumps(ConfigFile(path).get()))) >= {"egress.networks", "store.unlimited"}


def test_what_was_not_set_follows_its_default(path: Path) -> None:
    config = ConfigFile(path)
    config.set("budget.sandbox", "3")
    config.set("store.unlimited", "true")
    assert json.loads(path.read_text()) == {"budget.sandbox": "3", "store.unlimited": True}
    ConfigFile(path).set("budget.sandbox", "4")
    assert json.loads(path.read_text()) == {"budget.sandbox": "4", "store.unlimited": True}

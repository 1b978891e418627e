"""Where programs are found."""

from pathlib import Path

import pytest

from corral.errors import Unsupported
from corral.host import programs


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CORRAL_CACHE_DIR", str(tmp_path))
    (tmp_path / "bin").mkdir()
    return tmp_path


def test_the_cache_comes_before_the_path(cache: Path) -> None:
    assert programs.cache_dir() == cache
    built = cache / "bin" / "sh"
    built.write_text("#!/bin/true\n")
    built.chmod(0o755)
    assert programs.find_program("sh") == built


def test_the_current_directory_is_never_searched(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = tmp_path / "planted-program"
    planted.write_text("#!/bin/true\n")
    planted.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", ".::" + "bin")
    with pytest.raises(Unsupported):
        programs.find_program("planted-program")
    assert programs.find_program("sh").is_absolute()


@pytest.mark.parametrize(
    ("name", "hint"), [("runsc", "make setup"), ("mkfs.btrfs", "btrfs-progs"), ("skopeo", "install skopeo")]
)
def test_a_hint_names_what_to_do(cache: Path, name: str, hint: str) -> None:
    assert hint in programs.install_hint(name)

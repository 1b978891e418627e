"""Each attack of `corral self-test` succeeds once its defence is taken away: `make removals`.

A copy of `src` is made, and the defence taken out of it; a daemon of the copy is attacked by the self-test of the copy.
All of them use the tests' data directory, one after another. All this happens in a mount namespace in which nothing of the
host can be written but that directory: an attack that succeeds, or a defect of what was altered, spoils no file of the machine.
"""

import json
import os
import shutil
import subprocess
import sysconfig
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import Daemon, data_directory
from tests.removals.defences import REMOVALS
from tests.removals.removal import SOURCE, Removal, remove

from corral.host import mounts, syscalls
from corral.model.places import RUN_ROOT

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]


@pytest.fixture(scope="session")
def shielded() -> None:
    """File systems of the host are read-only for this process and all that it starts, /tmp and the run directory its own."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    data = data_directory()
    data.mkdir(parents=True, exist_ok=True)
    RUN_ROOT.mkdir(exist_ok=True)
    syscalls.unshare(syscalls.CLONE_NEWNS)
    _mount("--make-rprivate", "/")
    _mount("--bind", str(data), str(data))
    own = {RUN_ROOT, Path(tempfile.gettempdir())}
    for place in own:
        _mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", str(place))
    for entry in mounts.mounts():
        of_disk = entry.source.startswith("/") or entry.fstype == "overlay"
        if of_disk and not {*own, data} & {entry.target, *entry.target.parents}:
            _mount("-o", "remount,bind,ro", str(entry.target))
    with pytest.raises(OSError, match="Read-only"):
        Path("/etc/written").touch()


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


@pytest.fixture(scope="session")
def ready(shielded: None, shared_daemon: Daemon) -> Iterator[Path]:
    """The data directory, with its templates; nobody uses it."""
    shared_daemon.stop()
    yield shared_daemon.data
    shared_daemon.start()


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of `src`."""
    return Path(shutil.copytree(SOURCE, tmp_path / "src", copy_function=shutil.copy2))


@pytest.fixture
def altered(ready: Path, copied: Path, tmp_path: Path) -> Iterator[Daemon]:
    """A daemon of the copy, not yet started. Its Python finds the copy first: what the daemon starts runs it too."""
    home = tmp_path / "python"
    venv.create(home, symlinks=True)
    [packages] = home.glob("lib/python*/site-packages")
    (packages / "copy.pth").write_text(f"{copied}\n{sysconfig.get_path('purelib')}\n")
    daemon = Daemon(ready, python=str(home / "bin" / "python"))
    yield daemon
    daemon.stop()


@pytest.mark.parametrize("removal", REMOVALS, ids=lambda removal: removal.defence)
def test_attacks_succeed_without_the_defence(removal: Removal, altered: Daemon, copied: Path) -> None:
    remove(removal, copied)
    altered.start()
    done = altered.cli("self-test", "--json", *removal.attacks, check=False)
    found = {item["name"]: item for item in map(json.loads, done.stdout.splitlines())}
    told = {name: f"{item['verdict']}: {item['said']}" for name, item in found.items()}
    assert found.keys() == removal.attacks.keys(), done.stderr
    for name, words in removal.attacks.items():
        assert told[name].startswith("escaped:"), told
        assert words in told[name], told

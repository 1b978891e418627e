"""The `base` image as it is built from the package registries, once; then looked at by running it."""

import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from corral.errors import Unsupported, UpstreamFailed
from corral.host import mounts, process
from corral.rootfs import base, recipe
from corral.rootfs.layers import LayerStore
from corral.rootfs.overlay import mount_root
from corral.rootfs.store import RootStore

pytestmark = [pytest.mark.root, pytest.mark.network]

SCRIPT = """\
set -e
id -un; echo "$HOME"; sudo -n id -un
node --version; npm --version >/dev/null; npm config get nodedir
python --version; git --version; rg --version | head -n 1; jq --version; tmux -V; curl --version | head -n 1
git lfs version; gcc --version | head -n 1; vim --version | head -n 1
cd "$(mktemp -d)" && python -m venv v && ./v/bin/python -c 'print("venv")'
git init -q . && git branch --show-current
locale | grep LANG=
ldconfig -p >/dev/null; update-alternatives --list vi; apt-config dump APT::Install-Recommends
"""


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[RootStore]:
    store = RootStore(tmp_path / "data")
    (tmp_path / "data").mkdir()
    await store.open()
    yield store
    mounts.unmount_below(tmp_path / "root")
    await store.close()


@pytest.mark.timeout(900)
async def test_the_base_image(store: RootStore, tmp_path: Path) -> None:
    shared_memory = Path("/dev/shm") / f"corral-test-{os.getpid()}"
    shared_memory.touch()
    layers = LayerStore(store, tmp_path / "data")
    told: list[str] = []
    umask = os.umask(0o077)
    try:
        made = await layers.base(told.append)
    finally:
        os.umask(umask)
    assert shared_memory.exists(), "the build removed files of the host"
    shared_memory.unlink()
    assert any("90 %" in line for line in told)
    assert len(made) == 2

    again: list[str] = []
    assert await LayerStore(store, tmp_path / "data").base(again.append) == made
    assert again == []

    _check_tree(store.layer_path(made[0]))
    for layer in made:
        _check_modes(store.layer_path(layer) / "usr")
    await _look_inside([store.layer_path(layer) for layer in made], tmp_path)


def _check_tree(tree: Path) -> None:
    assert list((tree / "dev").iterdir()) == []
    assert (tree / "etc/hostname").read_text() == (tree / "etc/resolv.conf").read_text() == ""
    assert (tree / "home/user").stat().st_uid == 1000
    # Manuals are left out; Java's packages, among others, want to link into their folders.
    assert [path for path in (tree / "usr/share/man").rglob("*") if not path.is_dir()] == []
    assert (tree / "usr/share/man/man1").is_dir()


def _check_modes(tree: Path) -> None:
    for folder, names, _ in os.walk(tree):
        for name in names:
            mode = Path(folder, name).lstat().st_mode
            assert stat.S_ISLNK(mode) or mode & 0o055 == 0o055, f"{folder}/{name} is closed to users"


async def _look_inside(layers: list[Path], tmp_path: Path) -> None:
    sandbox, root = tmp_path / "sandbox", tmp_path / "root"
    for path in (sandbox / "upper", sandbox / "work", root):
        path.mkdir(parents=True)
    await mount_root(layers, sandbox, root, uid_base=0)
    try:
        for name in ("null", "urandom"):
            (root / "dev" / name).touch()
            mounts.Bind(Path("/dev", name), root / "dev" / name).make()
        command = ["chroot", str(root), "su", "-", "user", "-c", SCRIPT]
        done = await process.run(command, timeout=120, env={"PATH": "/usr/sbin:/usr/bin"})
    finally:
        mounts.unmount_below(root)
    text = done.stdout.decode()
    assert done.ok, done.stderr.decode()
    assert text.splitlines()[:3] == ["user", "/home/user", "root"]
    expected = ("v24.", "/usr/local", "Python 3.11", "git version", "git-lfs", "venv", "main", "LANG=C.UTF-8")
    assert [word for word in expected if word not in text] == []


async def test_without_mmdebstrap_it_says_what_to_do(
    store: RootStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> Path:
        raise Unsupported(f"{name} is missing")

    monkeypatch.setattr(base, "find_program", missing)
    with pytest.raises(Unsupported) as raised:
        await LayerStore(store, tmp_path / "data").base(lambda _: None)
    assert "apt-get install mmdebstrap" in raised.value.hint
    assert "--image" in raised.value.hint


async def test_a_wrong_hash_of_node_is_refused_and_leaves_nothing(
    store: RootStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = recipe.NODE_RELEASES[os.uname().machine]
    forged = recipe.NodeRelease(release.version, release.platform, "0" * 64)
    monkeypatch.setattr(recipe, "NODE_RELEASES", {os.uname().machine: forged})
    with pytest.raises(UpstreamFailed, match="pip"):
        await LayerStore(store, tmp_path / "data").base(lambda _: None)
    assert store.layers() == set()
    assert _names(store.root / "tmp") == []
    assert _names(tmp_path / "data" / "index") == []


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []

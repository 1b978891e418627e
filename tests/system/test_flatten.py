"""Many layers made one: the same tree, whatever was done in between."""

import os
import shutil
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from corral.host import mounts
from corral.model.ids import LayerDigest, SandboxId
from corral.rootfs.digest import tree_digest
from corral.rootfs.layers import LayerStore
from corral.rootfs.overlay import mount_root, unmount_root
from corral.rootfs.store import RootStore

pytestmark = pytest.mark.root

BASE = 100_000
BOX = SandboxId("1" * 16)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[RootStore]:
    store = RootStore(tmp_path / "data")
    await store.open()
    yield store
    mounts.unmount_below(tmp_path / "root")
    await store.close()


def _first(root: Path) -> None:
    for name in ("kept", "gone", "changed", "touched", "mode", "owner"):
        (root / name).write_text(name)
    for folder in ("stays", "goes", "moves", "opaque", "replaced"):
        (root / folder / "deep").mkdir(parents=True)
        (root / folder / "file").write_text(folder)
        (root / folder / "deep" / "file").write_text(folder)
    os.link(root / "kept", root / "stays" / "link")
    (root / "suid").write_text("program")
    (root / "suid").chmod(0o4755)


def _second(root: Path) -> None:
    (root / "gone").unlink()
    (root / "changed").write_text("changed.")
    shutil.rmtree(root / "goes")
    (root / "moves").rename(root / "moved")
    shutil.rmtree(root / "opaque")
    (root / "opaque").mkdir()
    (root / "opaque" / "new").write_text("new")
    shutil.rmtree(root / "replaced")
    (root / "replaced").write_text("a file now")
    (root / "mode").chmod(0o600)
    os.chown(root / "owner", BASE + 1000, BASE + 7)


def _third(root: Path) -> None:
    before = (root / "touched").stat()
    (root / "touched").write_text("TOUCHED")  # as long as before, with the same time
    os.utime(root / "touched", ns=(before.st_atime_ns, before.st_mtime_ns))
    (root / "gone").write_text("back")
    (root / "moved" / "deep" / "file").write_text("changed where it moved to")
    (root / "moved").rename(root / "stays" / "moved")
    os.setxattr(root / "kept", "user.note", b"\0\xff")
    with open(root / "sparse", "wb") as file:
        file.truncate(1 << 25)
        file.seek(1 << 24)
        file.write(b"middle")
    os.mkfifo(root / "fifo")
    os.link(root / "sparse", root / "stays" / "sparse")
    (root / "link").symlink_to(os.fsdecode(b"\xff/nowhere"))
    os.lchown(root / "link", BASE + 5, BASE + 6)
    Path(root / ("x" * 255)).touch()


def _fourth(root: Path) -> None:
    (root / "replaced").unlink()
    (root / "replaced" / "again").mkdir(parents=True)
    shutil.rmtree(root / "stays" / "deep")
    (root / "suid").unlink()


async def _commit(
    store: RootStore, layers: list[LayerDigest], change: Callable[[Path], None], root: Path
) -> None:
    place = store.create_sandbox(BOX, 1 << 30, BASE, layers)
    await mount_root([store.layer_path(layer) for layer in layers], place, root, BASE)
    change(root)
    await unmount_root(root)
    layers.append(store.commit(BOX, BASE))
    store.remove_sandbox(BOX)


def _times(root: Path) -> dict[str, int]:
    return {str(path.relative_to(root)): path.lstat().st_mtime_ns for path in root.rglob("*")}


async def _seen(store: RootStore, layers: list[LayerDigest], root: Path) -> tuple[str, dict[str, int]]:
    """What a sandbox over the layers sees: its content, and the times of all files."""
    place = store.create_sandbox(BOX, 1 << 30, BASE, layers)
    await mount_root([store.layer_path(layer) for layer in layers], place, root, BASE)
    times = _times(root)
    digest = tree_digest(root).digest
    sparse = root / "sparse"
    assert not sparse.exists() or sparse.stat().st_blocks * 512 < 1 << 20
    await unmount_root(root)
    store.remove_sandbox(BOX)
    return digest, times


async def test_the_tree_stays_as_it_is(store: RootStore, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with store.staging() as staged:
        _first(staged)
        layers = [store.add_layer(staged)]
    for change in (_second, _third, _fourth):
        await _commit(store, layers, change, root)
    shorter = list(await LayerStore(store, tmp_path / "data").flatten(layers))
    assert shorter[:1] == layers[:1]
    assert len(shorter) == 2
    assert await _seen(store, shorter, root) == await _seen(store, layers, root)
    merged = store.layer_path(shorter[-1])
    assert not (merged / "stays" / "file").exists(), "what nobody changed is not copied"
    assert list((store.root / "tmp").iterdir()) == []
    # It can be built on, and made shorter again.
    await _commit(store, shorter, lambda top: (top / "later").touch(), root)
    again = list(await LayerStore(store, tmp_path / "data").flatten(shorter))
    assert await _seen(store, again, root) == await _seen(store, shorter, root)
    assert stat.S_ISDIR(merged.stat().st_mode)

"""The store and the overlay on a real kernel: ids, quotas, checkpoints, removal, hostile trees."""

import errno
import json
import os
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.faults.machine import disk

from corral.errors import DiskFull, HostError, InternalError, InvalidInput, NotFound
from corral.host import btrfs, loop, mounts
from corral.model.ids import LayerDigest, SandboxId
from corral.rootfs import backing, overlay
from corral.rootfs.overlay import mount_root, unmount_root
from corral.rootfs.store import RootStore
from corral.rootfs.subvolumes import PlainSubvolumes, free_bytes

pytestmark = pytest.mark.root

ONE = SandboxId("1" * 16)
TWO = SandboxId("2" * 16)
BASE, OTHER_BASE = 100_000, 200_000
MIB = 1 << 20


def _recorded(data: Path, kind: str) -> Path:
    data.mkdir()
    (data / "store.json").write_text(json.dumps({"kind": kind, "reason": "for the test"}))
    return data


async def _opened(data: Path, kind: str) -> RootStore:
    store = RootStore(_recorded(data, "plain") if kind == "plain" else data)
    await store.open()
    return store


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[RootStore]:
    store = await _opened(tmp_path / "data", "loop")
    yield store
    mounts.unmount_below(tmp_path / "root")
    await store.close()


@pytest.fixture(params=["loop", "plain"])
async def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[RootStore]:
    store = await _opened(tmp_path / "data", request.param)
    yield store
    mounts.unmount_below(tmp_path / "root")
    await store.close()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    return root


def _layer(store: RootStore, fill: Callable[[Path], object]) -> LayerDigest:
    with store.staging() as root:
        fill(root)
        return store.add_layer(root)


def _base(root: Path) -> None:
    for folder in ("bin", "etc", "lib", "home"):
        (root / folder).mkdir()
    (root / "bin" / "sudo").write_text("program")
    (root / "bin" / "sudo").chmod(0o4755)
    (root / "etc" / "conf").write_text("original")
    (root / "lib" / "a").write_text("a")
    (root / "lib" / "b").write_text("b")
    os.chown(root / "home", 1000, 1000)


def _paths(store: RootStore, *layers: LayerDigest) -> list[Path]:
    return [store.layer_path(layer) for layer in layers]


def _write(path: Path, size: int) -> None:
    with open(path, "wb") as file:
        for _ in range(size // MIB):
            file.write(os.urandom(MIB))
        file.flush()
        os.fsync(file.fileno())


async def test_a_layer_shows_its_ids_in_the_tenants_range(store: RootStore, target: Path) -> None:
    layer = _layer(store, _base)
    place = store.create_sandbox(ONE, 100 * MIB, BASE)
    await mount_root(_paths(store, layer), place, target, BASE)
    assert (target / ".").stat().st_uid == BASE
    assert (target / "bin" / "sudo").stat().st_uid == BASE
    assert (target / "home").stat().st_gid == BASE + 1000
    assert stat.S_IMODE((target / "bin" / "sudo").stat().st_mode) == 0o4755
    (target / "etc" / "conf").write_text("changed")
    assert (place / "upper" / "etc" / "conf").read_text() == "changed"
    assert (store.layer_path(layer) / "etc" / "conf").read_text() == "original"
    await unmount_root(target)
    await unmount_root(target)
    assert not mounts.is_mounted(target)


def _change(target: Path) -> None:
    """What a sandbox may do to its files, done with its ids."""
    (target / "etc" / "conf").unlink()
    for name in ("a", "b"):
        (target / "lib" / name).unlink()
    (target / "lib").rmdir()
    (target / "lib").mkdir()
    os.chown(target / "lib", BASE, BASE)
    (target / "home" / "tool").write_text("mine")
    os.chown(target / "home" / "tool", BASE + 1000, BASE + 1000)
    (target / "home" / "tool").chmod(0o6755)
    os.setxattr(target / "home" / "tool", "user.note", b"kept")
    (target / "bin").rename(target / "tools")
    os.mkfifo(target / "home" / "pipe")
    (target / "home" / "gone-link").symlink_to("/proc/1/root/../../etc/shadow")


def _check_changed(target: Path, base: int) -> None:
    assert not (target / "etc" / "conf").exists()
    assert list((target / "lib").iterdir()) == []
    assert (target / "lib").stat().st_uid == base
    tool = target / "home" / "tool"
    assert (tool.stat().st_uid, tool.stat().st_gid) == (base + 1000, base + 1000)
    assert stat.S_IMODE(tool.stat().st_mode) == 0o6755
    assert os.getxattr(tool, "user.note") == b"kept"
    assert (target / "tools" / "sudo").read_text() == "program"
    assert (target / "tools" / "sudo").stat().st_uid == base
    assert stat.S_ISFIFO((target / "home" / "pipe").stat().st_mode)
    assert (target / "home" / "gone-link").is_symlink()


@pytest.mark.parametrize("base", [BASE, OTHER_BASE])
async def test_a_commit_keeps_everything_for_any_tenant(
    any_store: RootStore, target: Path, base: int
) -> None:
    store = any_store
    layer = _layer(store, _base)
    place = store.create_sandbox(ONE, 100 * MIB, BASE)
    await mount_root(_paths(store, layer), place, target, BASE)
    _change(target)
    (store.spool_dir(ONE) / "1.out").write_text("output")
    committed = store.commit(ONE, BASE)
    (target / "after").write_text("not in the commit")
    await unmount_root(target)
    store.remove_sandbox(ONE)

    second = store.create_sandbox(TWO, 100 * MIB, base)
    await mount_root(_paths(store, layer, committed), second, target, base)
    _check_changed(target, base)
    assert not (target / "after").exists()
    assert [entry.name for entry in (store.layer_path(committed).parent).iterdir() if entry.is_dir()] == [
        "upper"
    ]
    await unmount_root(target)


async def test_a_sandbox_cannot_pass_its_quota(store: RootStore, target: Path) -> None:
    assert store.quota
    layer = _layer(store, _base)
    place = store.create_sandbox(ONE, 16 * MIB, BASE)
    neighbour = store.create_sandbox(TWO, 64 * MIB, BASE)
    await mount_root(_paths(store, layer), place, target, BASE)
    with pytest.raises(OSError, match="quota") as caught:
        _write(target / "home" / "big", 32 * MIB)
    assert caught.value.errno == errno.EDQUOT
    assert store.usage(ONE) <= 16 * MIB
    _write(neighbour / "upper" / "fine", 32 * MIB)
    (target / "home" / "big").unlink()
    btrfs.sync(store.root)
    _write(target / "home" / "small", 4 * MIB)
    store.create_sandbox(ONE, 64 * MIB, BASE)  # a raised limit holds at once
    _write(target / "home" / "big", 32 * MIB)
    await unmount_root(target)


async def test_quotas_hold_on_kernels_without_simple_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(btrfs, "_QUOTA_ENABLE_SIMPLE", 999)
    store = await _opened(tmp_path / "data", "loop")
    try:
        assert btrfs.quotas(store.root) is btrfs.Quotas.FULL
        place = store.create_sandbox(ONE, 16 * MIB, BASE)
        with pytest.raises(OSError, match="quota"):
            _write(place / "upper" / "big", 32 * MIB)
        assert 0 < store.usage(ONE) <= 16 * MIB
        store.commit(ONE, BASE)
        store.remove_sandbox(ONE)
        assert store.sandboxes() == set()
    finally:
        await store.close()


def _as_user(uid: int, folder: Path, work: Callable[[], object]) -> int:
    """0, or the error number that `work` meets in a child at `folder` with another user's ids and no capabilities."""
    pid = os.fork()
    if pid == 0:
        status = 255
        try:
            os.chdir(folder)
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            work()
            status = 0
        except OSError as error:
            status = error.errno or 255
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


async def test_a_subvolume_made_by_the_guest_escapes_neither_quota_nor_removal(
    store: RootStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corral.rootfs.store.SPOOL_BYTES", 16 * MIB)
    store.create_sandbox(ONE, 16 * MIB, BASE)

    def nest() -> None:
        btrfs.create_subvolume(Path("escape"))
        btrfs.create_subvolume(Path("escape/deeper"))
        btrfs.set_read_only(Path("escape"))
        _write(Path("escape/deeper/big"), 32 * MIB)

    # A sandbox sees its spool by a bind mount, with its own root's ids.
    assert _as_user(BASE, store.spool_dir(ONE), nest) == errno.EDQUOT
    assert btrfs.usage(store.spool_dir(ONE)) <= 16 * MIB
    committed = store.commit(ONE, BASE)
    assert {entry.name for entry in store.layer_path(committed).parent.iterdir()} == {"upper", "layer.json"}
    store.remove_sandbox(ONE)
    assert store.sandboxes() == set()


async def test_sandboxes_leave_the_hosts_disk_room_however_fast_they_write(tmp_path: Path) -> None:
    """The store is a sparse file: without that the kernel makes it read-only once the disk below it is full."""
    with disk(tmp_path, 3072 * MIB) as data:
        store = await _opened(data, "loop")
        try:
            uppers = [store.create_sandbox(one, 2048 * MIB, BASE) / "upper" for one in (ONE, TWO)]
            btrfs.create_subvolume(uppers[0] / "nested")
            with (data / "ballast").open("wb") as ballast:
                os.posix_fallocate(ballast.fileno(), 0, free_bytes(data) - 400 * MIB)
            store.leave_free(128 * MIB)
            for upper in uppers:
                with pytest.raises(OSError, match="quota"):
                    _write(upper / "big", 1024 * MIB)
                assert store.usage(ONE) + store.usage(TWO) < 300 * MIB
            btrfs.sync(store.root)
            assert free_bytes(data) > 96 * MIB
            (uppers[0] / "big").unlink()
            btrfs.sync(store.root)
            with pytest.raises(OSError, match="quota"):
                _write(uppers[0] / "nested" / "big", 1024 * MIB)
            store.remove_sandbox(ONE)
            (data / "ballast").unlink()
            store.leave_free(128 * MIB)
            _write(uppers[1] / "big", 1024 * MIB)
            btrfs.sync(store.root)
        finally:
            await store.close()


async def test_a_sandbox_that_has_filled_the_store_can_be_removed(tmp_path: Path) -> None:
    """Its quota group cannot be: that goes with the next start."""
    with disk(tmp_path, 2048 * MIB) as data:
        store = await _opened(data, "loop")
        try:
            place = store.create_sandbox(ONE, 4096 * MIB, BASE)
            with pytest.raises(OSError, match="No space left"):
                _write(place / "upper" / "big", 4096 * MIB)
            store.remove_sandbox(ONE)
            assert not place.exists()
        finally:
            await store.close()


async def test_a_layer_is_kept_once_and_only_when_added(store: RootStore) -> None:
    first = _layer(store, _base)
    second = _layer(store, _base)
    assert first == second
    with store.staging() as root:
        (root / "left").touch()
    assert store.layers() == {first}
    assert list((store.root / "tmp").iterdir()) == []
    assert store.layer_size(first) == len("programoriginalab")
    store.remove_layer(first)
    store.remove_layer(first)
    assert not store.has_layer(first)
    with pytest.raises(NotFound):
        store.layer_size(first)


def _deep(folder: Path) -> None:
    """Deeper than any path can name, or a recursion can go."""
    fd = os.open(folder, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("deep", dir_fd=fd)
        inner = os.open("deep", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)


async def test_removal_takes_trees_of_any_shape(any_store: RootStore) -> None:
    place = any_store.create_sandbox(ONE, 64 * MIB, BASE)
    for name in ("new\nline", "\udcff\udcfe", "-rf", "\x1b[2J"):
        (place / "upper" / name).mkdir()
    _deep(place / "upper")
    _deep(any_store.spool_dir(ONE))
    if any_store.quota:
        any_store.commit(ONE, BASE)
    else:  # a copy goes by path, and refuses what has none
        with pytest.raises(HostError, match="File name too long"):
            any_store.commit(ONE, BASE)
    any_store.remove_sandbox(ONE)
    any_store.remove_sandbox(ONE)
    assert any_store.sandboxes() == set()
    for layer in any_store.layers():
        any_store.remove_layer(layer)
    assert list((any_store.root / "tmp").iterdir()) == []


async def test_what_a_crash_left_is_swept_and_the_rest_stays(store: RootStore, tmp_path: Path) -> None:
    layer = _layer(store, _base)
    store.create_sandbox(ONE, MIB, BASE)
    with store.staging() as root:
        (root / "file").touch()
        btrfs.create_subvolume(root / "nested")
        again = RootStore(tmp_path / "data")
        await again.open()
        assert list((again.root / "tmp").iterdir()) == []
    assert again.layers() == {layer}
    assert again.sandboxes() == {ONE}


async def test_a_store_is_mounted_once_and_found_again(store: RootStore, tmp_path: Path) -> None:
    layer = _layer(store, _base)
    again = RootStore(tmp_path / "data")
    await again.open()
    assert len(mounts.mounts_below(tmp_path)) == 1
    await store.close()
    assert not mounts.is_mounted(tmp_path / "data" / "store")
    third = RootStore(tmp_path / "data")
    await third.open()
    assert third.has_layer(layer)
    await third.close()


async def test_two_stores_do_not_meet(store: RootStore, tmp_path: Path) -> None:
    other = RootStore(tmp_path / "other")
    await other.open()
    try:
        store.create_sandbox(ONE, MIB, BASE)
        other.create_sandbox(ONE, MIB, BASE)
        store.remove_sandbox(ONE)
        assert other.sandboxes() == {ONE}
        assert btrfs.filesystem_id(store.root) != btrfs.filesystem_id(other.root)
    finally:
        await other.close()


async def test_a_data_directory_on_a_btrfs_is_used_as_it_is(store: RootStore) -> None:
    native = RootStore(store.root / "data")
    await native.open()
    assert native.kind is backing.StoreKind.BTRFS
    assert native.quota
    layer = _layer(native, _base)
    native.create_sandbox(ONE, MIB, BASE)
    native.remove_sandbox(ONE)
    native.remove_layer(layer)
    assert not (store.root / "data" / "store.img").exists()


async def test_a_store_never_changes_its_kind(tmp_path: Path) -> None:
    plain = await _opened(tmp_path / "data", "plain")
    assert (plain.kind, plain.quota, plain.reason) == ("plain", False, "for the test")
    assert plain.root == tmp_path / "data" / "store"
    assert not (tmp_path / "data" / "store.img").exists()


async def test_a_store_that_cannot_be_mounted_is_an_error_not_another_store(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "store.json").write_text('{"kind": "loop", "reason": ""}')
    (data / "store.img").write_bytes(bytes(64 * MIB))
    with pytest.raises(HostError, match="cannot be mounted"):
        await RootStore(data).open()
    (data / "store.json").write_text("{")
    with pytest.raises(HostError, match="damaged"):
        await RootStore(data).open()


async def test_a_full_store_says_so(store: RootStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(btrfs, "create_subvolume", full)
    with pytest.raises(DiskFull):
        store.create_sandbox(ONE, MIB, BASE)
    assert store.sandboxes() == set()


async def test_a_disk_too_small_for_a_store_is_refused(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    operation = mounts.FileSystem("tmpfs", "none", small, options="size=64m")
    mounts.apply([operation])
    try:
        with pytest.raises(DiskFull, match="too little space"):
            await RootStore(small / "data").open()
    finally:
        mounts.undo([operation])


async def test_nobody_but_root_enters_the_store(store: RootStore) -> None:
    layer = _layer(store, _base)
    place = store.create_sandbox(ONE, MIB, BASE)
    for path in (store.layer_path(layer) / "bin" / "sudo", place / "upper", store.root / "tmp" / "x"):
        assert _as_user(BASE, store.root, path.relative_to(store.root).stat) == errno.EACCES


async def test_bad_arguments_change_nothing(store: RootStore, target: Path) -> None:
    with pytest.raises(InternalError):
        store.create_sandbox(SandboxId("../escape"), MIB, BASE)
    with pytest.raises(InternalError):
        store.create_sandbox(ONE, MIB, 0)
    with pytest.raises(InvalidInput):
        store.has_layer(LayerDigest("sha256:../../etc"))
    with pytest.raises(InternalError):
        store.add_layer(store.root / "layers")
    with pytest.raises(NotFound):
        store.usage(TWO)
    with pytest.raises(NotFound):
        store.commit(TWO, BASE)
    place = store.create_sandbox(ONE, MIB, BASE)
    with pytest.raises(InvalidInput):
        await mount_root([], place, target, BASE)
    with pytest.raises(HostError):
        await mount_root([store.root / "layers" / "missing" / "upper"], place, target, BASE)
    assert not mounts.is_mounted(target)


def _refused(*arguments: object) -> int:
    raise OSError(errno.EINVAL, "as kernels before 6.13 answer")


@pytest.mark.parametrize("by_descriptor", [True, False])
async def test_many_layers_stack_in_order(
    store: RootStore, target: Path, monkeypatch: pytest.MonkeyPatch, *, by_descriptor: bool
) -> None:
    if not by_descriptor:
        monkeypatch.setattr(overlay, "_overlay", _refused)

    def numbered(number: int) -> Callable[[Path], object]:
        return lambda root: [(root / name).write_text(str(number)) for name in ("top", f"file{number}")]

    layers = [_layer(store, numbered(number)) for number in range(100)]
    place = store.create_sandbox(ONE, MIB, BASE)
    await mount_root(_paths(store, *layers), place, target, BASE)
    assert (target / "top").read_text() == "99"
    assert len(list((target / ".").iterdir())) == 101
    await unmount_root(target)


def test_a_file_is_never_behind_two_devices(tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.write_bytes(bytes(MIB))
    with loop.attached(image) as first, loop.attached(image) as second:
        assert first == second


def test_a_plain_copy_keeps_devices_and_hard_links(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    os.mknod(source / "whiteout", stat.S_IFCHR, os.makedev(0, 0))
    (source / "one").write_text("x")
    os.link(source / "one", source / "two")
    os.setxattr(source, "trusted.overlay.opaque", b"y")
    PlainSubvolumes().copy(source, tmp_path / "copy")
    assert (tmp_path / "copy" / "whiteout").stat().st_rdev == 0
    assert (tmp_path / "copy" / "one").stat().st_nlink == 2
    assert os.getxattr(tmp_path / "copy", "trusted.overlay.opaque") == b"y"


def _inodes(root: Path) -> list[tuple[int, int]]:
    files = [path.lstat() for path in root.rglob("*") if not path.is_dir()]
    return [(found.st_dev, found.st_ino) for found in files]


async def test_no_two_files_of_a_sandbox_have_one_inode_number(store: RootStore, target: Path) -> None:
    def fill(name: str) -> Callable[[Path], None]:
        def write(root: Path) -> None:
            for number in range(50):
                (root / f"{name}-{number}").write_text(name)

        return write

    layers = [_layer(store, fill("first")), _layer(store, fill("second"))]
    for sandbox, name in ((ONE, "third"), (TWO, "fourth")):
        place = store.create_sandbox(sandbox, 64 * MIB, BASE, layers)
        await mount_root(_paths(store, *layers), place, target, BASE)
        fill(name)(target)
        found = _inodes(target)
        assert len(found) == 50 * (len(layers) + 1)
        assert len(set(found)) == len(found)
        await unmount_root(target)
        layers.append(store.commit(sandbox, BASE))
        store.remove_sandbox(sandbox)

"""What counts in a tree's digest, and what does not."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from corral.errors import InvalidInput
from corral.rootfs.digest import tree_digest


def _tree(root: Path) -> Path:
    root.mkdir()
    (root / "dir").mkdir()
    (root / "dir" / "file").write_bytes(b"content")
    (root / "empty").touch()
    (root / "link").symlink_to("dir/file")
    os.link(root / "dir" / "file", root / "second")
    os.mkfifo(root / "fifo")
    for path in (root, root / "dir"):
        path.chmod(0o755)
    return root


def test_equal_trees_have_equal_digests_whatever_their_times_and_order(tmp_path: Path) -> None:
    first = _tree(tmp_path / "a")
    second = tmp_path / "b"
    second.mkdir(mode=0o755)
    second.chmod(0o755)
    os.mkfifo(second / "fifo")
    (second / "second").write_bytes(b"content")
    (second / "link").symlink_to("dir/file")
    (second / "empty").touch()
    (second / "dir").mkdir()
    (second / "dir").chmod(0o755)
    os.link(second / "second", second / "dir" / "file")
    os.utime(second / "empty", (1, 1))
    assert tree_digest(first) == tree_digest(second)
    assert tree_digest(first).size == len(b"content")
    assert tree_digest(first).entries == 7


def _unlink_second(root: Path) -> None:
    (root / "second").unlink()
    (root / "second").write_bytes(b"content")


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "dir" / "file").write_bytes(b"Content"),
        lambda root: (root / "empty").chmod(0o600),
        lambda root: (root / "dir").chmod(0o4755),
        lambda root: (root / "empty").rename(root / "Empty"),
        lambda root: (root / "new").mkdir(),
        lambda root: [(root / "link").unlink(), (root / "link").symlink_to("dir")],
        lambda root: [(root / "fifo").unlink(), (root / "fifo").touch()],
        lambda root: os.setxattr(root / "empty", "user.key", b"value"),
        _unlink_second,
    ],
    ids=["content", "mode", "setgid", "name", "entry", "target", "type", "xattr", "hard link"],
)
def test_every_property_counts(tmp_path: Path, change: Callable[[Path], object]) -> None:
    root = _tree(tmp_path / "a")
    before = tree_digest(root).digest
    change(root)
    assert tree_digest(root).digest != before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_owners_count(tmp_path: Path) -> None:
    root = _tree(tmp_path / "a")
    before = tree_digest(root).digest
    os.chown(root / "empty", 1000, 0)
    uid = tree_digest(root).digest
    os.chown(root / "empty", 0, 1000)
    assert len({before, uid, tree_digest(root).digest}) == 3


def test_names_are_bytes(tmp_path: Path) -> None:
    names = [b"new\nline", b"\xff\xfe", b"-rf", b"a b", b"\x01"]
    for name in names:
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_bytes(name)
    assert tree_digest(tmp_path).entries == len(names) + 1


def test_a_tree_that_is_too_deep_is_refused(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    for _ in range(30):
        os.mkdir("d" * 200, dir_fd=fd)
        inner = os.open("d" * 200, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)
    with pytest.raises(InvalidInput, match="longer than"):
        tree_digest(tmp_path)

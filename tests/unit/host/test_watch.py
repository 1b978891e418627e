"""Following a tree by inotify."""

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import Conflict, TooLarge
from corral.host import syscalls, watch
from corral.host.files import GuestTree
from corral.host.watch import Change, ChangeKind, TreeWatch, parse_events


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[tuple[Path, TreeWatch]]:
    root = tmp_path / "watched"
    (root / "there" / "deep").mkdir(parents=True)
    tree = TreeWatch(os.open(root, os.O_PATH), recursive=True)
    yield root, tree
    tree.close()


def told(tree: TreeWatch) -> list[tuple[str, str]]:
    return [(change.kind.value, change.path) for change in tree.read()]


def test_the_kinds_of_change(watched: tuple[Path, TreeWatch]) -> None:
    root, tree = watched
    (root / "a").write_text("x")
    (root / "a").chmod(0o600)
    (root / "a").rename(root / "there" / "b")
    (root / "there" / "b").unlink()
    assert told(tree) == [
        ("create", "a"),
        ("write", "a"),
        ("chmod", "a"),
        ("rename", "a"),
        ("create", "there/b"),
        ("remove", "there/b"),
    ]
    assert told(tree) == []


def test_what_is_made_in_new_directories_is_told_once(watched: tuple[Path, TreeWatch]) -> None:
    root, tree = watched
    (root / "x" / "y").mkdir(parents=True)
    (root / "x" / "y" / "file").touch()
    assert told(tree) == [("create", "x"), ("create", "x/y"), ("create", "x/y/file")]
    (root / "x" / "y" / "more").mkdir()
    (root / "x" / "y" / "file").unlink()
    assert told(tree) == [("create", "x/y/more"), ("remove", "x/y/file")]
    (root / "x" / "y" / "file").touch()
    assert told(tree)[0] == ("create", "x/y/file")


def test_moved_directories_are_followed(watched: tuple[Path, TreeWatch], tmp_path: Path) -> None:
    root, tree = watched
    (root / "there").rename(root / "here")
    (root / "here" / "deep" / "file").touch()
    assert told(tree)[:3] == [("rename", "there"), ("create", "here"), ("create", "here/deep/file")]
    (root / "here").rename(tmp_path / "outside")
    assert told(tree) == [("rename", "here")]
    (tmp_path / "outside" / "deep" / "file").unlink()
    assert told(tree) == []
    (tmp_path / "outside").rename(root / "back")
    assert told(tree) == [("create", "back")]
    (root / "back" / "deep" / "again").mkdir()
    assert told(tree) == [("create", "back/deep/again")]


def test_own_writes_look_like_writes(watched: tuple[Path, TreeWatch]) -> None:
    root, tree = watched
    with GuestTree(os.open(root, os.O_PATH)) as door:
        for expected in ("create", "write"):
            pending = door.write("/there/file", None, 0o644)
            pending.write(b"x" * 10)
            pending.commit()
            assert told(tree) == [(expected, "there/file")]
        door.make_dir("/p/q", None, 0o755)
        assert told(tree) == [("create", "p"), ("create", "p/q")]
        door.move("/there/file", "/p/file", None)
        door.remove("/p")
    assert told(tree) == [
        ("rename", "there/file"), ("create", "p/file"),
        ("remove", "p/file"), ("remove", "p/q"), ("remove", "p"),
    ]  # fmt: skip


def test_links_are_not_followed(watched: tuple[Path, TreeWatch], tmp_path: Path) -> None:
    root, tree = watched
    (tmp_path / "outside").mkdir()
    (root / "link").symlink_to(tmp_path / "outside")
    assert told(tree) == [("create", "link")]
    (tmp_path / "outside" / "file").touch()
    assert told(tree) == []


def test_a_flat_watch_sees_one_level(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    tree = TreeWatch(os.open(tmp_path, os.O_PATH), recursive=False)
    try:
        (tmp_path / "sub" / "file").touch()
        (tmp_path / "new").mkdir()
        (tmp_path / "new" / "file").touch()
        assert told(tree) == [("create", "new")]
    finally:
        tree.close()


@pytest.mark.parametrize("kind", ["remove", "rename"])
def test_the_end_of_the_directory_ends_the_watch(tmp_path: Path, kind: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    tree = TreeWatch(os.open(root, os.O_PATH), recursive=True)
    try:
        if kind == "remove":
            root.rmdir()
        else:
            root.rename(tmp_path / "other")
        assert told(tree) == [(kind, "")]
        assert tree.ended
    finally:
        tree.close()


def test_lost_changes_are_an_error(watched: tuple[Path, TreeWatch], monkeypatch: pytest.MonkeyPatch) -> None:
    _, tree = watched
    overflow = struct.pack("=iIII", -1, syscalls.IN_Q_OVERFLOW, 0, 0)
    monkeypatch.setattr(os, "read", lambda fd, size: overflow)
    with pytest.raises(Conflict, match="changes were lost"):
        tree.read()


def test_too_many_directories_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "MAX_WATCHES", 5)
    for index in range(5):
        (tmp_path / str(index)).mkdir()
    with pytest.raises(TooLarge):
        TreeWatch(os.open(tmp_path, os.O_PATH), recursive=True)
    (tmp_path / "4").rmdir()
    tree = TreeWatch(os.open(tmp_path, os.O_PATH), recursive=True)
    try:
        (tmp_path / "more").mkdir()
        with pytest.raises(TooLarge):
            tree.read()
    finally:
        tree.close()


def test_a_tree_too_deep_to_be_named_is_an_error(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    name = "d" * 250
    for _ in range(20):
        os.mkdir(name, dir_fd=fd)
        inner = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)
    with pytest.raises(TooLarge):
        TreeWatch(os.open(tmp_path, os.O_PATH), recursive=True)


def test_nothing_stays_open(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    tree = TreeWatch(os.open(tmp_path, os.O_PATH), recursive=True)
    tree.close()
    tree.close()
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        TreeWatch(os.open(tmp_path / "file", os.O_PATH), recursive=True)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@given(st.binary(max_size=200))
def test_no_bytes_break_the_parser(data: bytes) -> None:
    assert len(list(parse_events(data))) <= len(data) // 16


def test_events_are_parsed() -> None:
    data = struct.pack("=iIII", 3, 0x100, 7, 16) + b"na\xffme".ljust(16, b"\0")
    (event,) = parse_events(data * 1)
    assert (event.watch, event.mask, event.cookie, event.name) == (3, 0x100, 7, "na\udcffme")
    assert Change(ChangeKind.CREATE, "x").kind.value == "create"

"""The door to a guest's tree, against what a guest may have put there. No root needed: owners are not set."""

import contextlib
import os
import socket
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.errors import Conflict, CorralError, Forbidden, InvalidInput, NotFound, TooLarge
from corral.host.files import GuestTree
from corral.host.filewrite import PendingFile


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret").write_text("host")
    return root


@pytest.fixture
def tree(root: Path) -> Iterator[GuestTree]:
    with GuestTree(os.open(root, os.O_PATH | os.O_DIRECTORY)) as tree:
        yield tree


def read(tree: GuestTree, path: str) -> bytes:
    with open(tree.open_file(path), "rb") as file:
        return file.read()


def write(tree: GuestTree, path: str, data: bytes = b"new", mode: int | None = 0o644) -> os.stat_result:
    pending = tree.write(path, None, mode)
    try:
        pending.write(data)
        return pending.commit()
    finally:
        pending.discard()


def everything(path: Path) -> list[str]:
    return sorted(str(found.relative_to(path)) for found in path.rglob("*"))


def test_every_byte_value_survives(tree: GuestTree) -> None:
    """FILE-18."""
    data = bytes(range(256)) * 1024
    write(tree, "/a/b/data.bin", data)
    assert read(tree, "/a/b/data.bin") == data


@pytest.mark.parametrize("target", ["../secret", "../../../../../../../..{tmp}/secret", "{tmp}/secret"])
def test_links_out_of_the_root_end_inside(root: Path, tree: GuestTree, tmp_path: Path, target: str) -> None:
    """FILE-7, FILE-10."""
    (root / "link").symlink_to(target.format(tmp=tmp_path))
    with pytest.raises(NotFound):
        read(tree, "/link")
    write(tree, "/link")
    assert (tmp_path / "secret").read_text() == "host"
    assert read(tree, "/link") == b"new"
    assert tree.stat("/link").target == target.format(tmp=tmp_path)


def test_linked_directories_lead_nowhere_outside(root: Path, tree: GuestTree, tmp_path: Path) -> None:
    """FILE-7, also for a target that does not exist."""
    (root / "up").symlink_to("..")
    (root / "absent").symlink_to(tmp_path / "later")
    with pytest.raises(NotFound):
        read(tree, "/up/secret")
    write(tree, "/up/made")
    assert read(tree, "/made") == b"new"
    with pytest.raises(Conflict):
        write(tree, "/absent/file")
    with pytest.raises(Conflict):
        tree.make_dir("/absent", None, 0o755)
    assert everything(tmp_path) == ["root", "root/absent", "root/made", "root/up", "secret"]


@pytest.mark.parametrize("path", ["/../secret", "/a/../../secret", "/../../../etc/passwd", "/./../secret"])
def test_dots_stay_inside(root: Path, tree: GuestTree, path: str) -> None:
    """FILE-9."""
    (root / "a").mkdir()
    for attempt in (tree.open_file, tree.remove, tree.stat):
        with pytest.raises(NotFound):
            attempt(path)


@pytest.mark.parametrize(
    "path", ["", "relative", "/nul\0", "/" + "x" * 4095, "/" + "n" * 256, "/\ud800", "./a"]
)
def test_paths_that_cannot_be_are_refused(root: Path, tree: GuestTree, path: str) -> None:
    for attempt in (
        tree.open_file,
        tree.stat,
        tree.remove,
        lambda path: tree.write(path, None, 0o644),
        lambda path: tree.make_dir(path, None, 0o755),
        lambda path: tree.move(path, "/b", None),
        lambda path: tree.list(path, 1, 10),
    ):
        with pytest.raises(InvalidInput):
            attempt(path)
    assert everything(root) == []


@pytest.mark.parametrize("path", ["/", "//", "/a/..", "/a/.", "/.."])
def test_what_names_no_entry_is_neither_written_nor_removed(tree: GuestTree, path: str) -> None:
    tree.make_dir("/a", None, 0o755)
    for attempt in (tree.remove, lambda path: tree.write(path, None, 0o644)):
        with pytest.raises(InvalidInput):
            attempt(path)


@pytest.mark.parametrize(
    "name", ["n" * 255, "new\nline", "\udcff\udcfe", "\u00e4 \u2028", "-rf", "a\\b", "*"]
)
def test_odd_names_are_names(root: Path, tree: GuestTree, name: str) -> None:
    write(tree, f"/d/{name}", b"odd")
    (found,) = tree.list("/d", 1, 10)
    assert found.path == f"/d/{name}"
    assert os.fsencode(root / "d" / name) in [os.fsencode(path) for path in (root / "d").iterdir()]
    assert read(tree, found.path) == b"odd"
    tree.move(found.path, "/plain", None)
    tree.remove("/plain")
    assert everything(root) == ["d"]


def test_special_files_are_not_opened(root: Path, tree: GuestTree) -> None:
    os.mkfifo(root / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(root / "sock"))
    (root / "link").symlink_to("fifo")
    for path in ("/fifo", "/sock", "/link"):
        with pytest.raises(Forbidden):
            tree.open_file(path)
        with pytest.raises(Forbidden):
            tree.write(path, None, 0o644)
    with pytest.raises(Conflict):
        tree.open_file("/")
    assert everything(root) == ["fifo", "link", "sock"]
    tree.remove("/fifo")
    assert everything(root) == ["link", "sock"]


def test_kernel_file_systems_are_not_entered(root: Path) -> None:
    with GuestTree(os.open("/", os.O_PATH | os.O_DIRECTORY)) as host:
        for attempt in (
            lambda: host.open_file("/proc/version"),
            lambda: host.open_file("/sys/kernel/uevent_seqnum"),
            lambda: host.list("/proc", 1, 100_000),
            lambda: host.write("/proc/sys/kernel/hostname", None, 0o644),
            lambda: host.remove("/proc/version"),
            lambda: host.move(f"{root}/x", "/proc/x", None),
            lambda: host.open_directory("/proc/self"),
        ):
            with pytest.raises((Forbidden, NotFound)):
                attempt()
        for magic in ("root", "cwd", "fd/0", "exe"):
            with pytest.raises(CorralError):
                host.open_file(f"/proc/self/{magic}/etc/passwd")


def test_a_write_is_seen_whole_or_not_at_all(root: Path, tree: GuestTree) -> None:
    (root / "file").write_text("old")
    pending = tree.write("/file", None, 0o640)
    pending.write(b"half")
    assert (root / "file").read_text() == "old"
    assert everything(root) == ["file"]
    pending.discard()
    assert (root / "file").read_text() == "old"
    assert everything(root) == ["file"]
    fresh = tree.write("/not/yet/there", None, 0o640)
    fresh.discard()
    assert everything(root) == ["file"]


@pytest.mark.parametrize("change", ["out", "away", "other"])
def test_what_moves_while_it_is_resolved_is_not_found(
    root: Path, tree: GuestTree, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, change: str
) -> None:
    """FILE-7: no path of the host's is told, and none of another file."""
    (root / "dir").mkdir()
    (root / "dir" / "file").write_text("x")
    path_of = tree._path_of

    def moved(fd: int) -> str:
        if change == "out":
            (root / "dir").rename(tmp_path / "dir")
            return path_of(fd)
        found = path_of(fd)
        (root / "dir" / "file").rename(root / "former")
        if change == "other":
            (root / "dir" / "file").write_text("y")
        return found

    monkeypatch.setattr(tree, "_path_of", moved)
    with pytest.raises(NotFound):
        tree.resolve("/dir/file")


def test_a_write_replaces_hard_links_instead_of_writing_through(root: Path, tree: GuestTree) -> None:
    (root / "one").write_text("shared")
    (root / "two").hardlink_to(root / "one")
    write(tree, "/two")
    assert (root / "one").read_text() == "shared"
    assert (root / "two").read_text() == "new"


def test_modes_do_not_depend_on_the_umask(root: Path, tree: GuestTree) -> None:
    before = os.umask(0o077)
    try:
        write(tree, "/a/file", mode=0o755)
        tree.make_dir("/b/c", None, 0o775)
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((root / path).stat().st_mode) for path in ("a", "a/file", "b", "b/c")]
    assert modes == [0o755, 0o755, 0o775, 0o775]
    for mode in (-1, 0o10000):
        with pytest.raises(InvalidInput):
            tree.write("/x", None, mode)


def test_a_write_follows_links_inside_the_root(root: Path, tree: GuestTree) -> None:
    (root / "home").mkdir()
    (root / "home" / "rc").symlink_to("../dotfiles/rc")
    (root / "abs").symlink_to("/home/rc")
    write(tree, "/abs", b"set -o vi")
    assert (root / "dotfiles" / "rc").read_bytes() == b"set -o vi"
    assert (root / "abs").is_symlink()
    (root / "loop").symlink_to("loop")
    with pytest.raises(Forbidden):
        tree.write("/loop", None, 0o644)


def test_directories_and_files_do_not_replace_each_other(root: Path, tree: GuestTree) -> None:
    write(tree, "/file")
    tree.make_dir("/dir/sub", None, 0o755)
    for attempt in (
        lambda: write(tree, "/dir"),
        lambda: write(tree, "/file/below"),
        lambda: tree.make_dir("/file", None, 0o755),
        lambda: tree.make_dir("/file/below", None, 0o755),
        lambda: tree.move("/file", "/dir", None),
        lambda: tree.move("/dir/sub", "/file", None),
        lambda: tree.list("/file", 1, 10),
        lambda: tree.open_directory("/file"),
    ):
        with pytest.raises(Conflict):
            attempt()
    with pytest.raises(InvalidInput):
        tree.move("/dir", "/dir/sub/dir", None)
    assert everything(root) == ["dir", "dir/sub", "file"]


def test_make_dir_says_whether_it_was_there(root: Path, tree: GuestTree) -> None:
    assert tree.make_dir("/a/b/c/", None, 0o755)
    assert not tree.make_dir("/a/b/c", None, 0o755)
    (root / "link").symlink_to("a/b")
    assert not tree.make_dir("/link", None, 0o755)
    assert tree.make_dir("/link/d", None, 0o755)
    assert (root / "a" / "b" / "d").is_dir()


def test_a_change_is_made_to_the_entry_itself(root: Path, tree: GuestTree, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.chmod(0o600)
    (root / "link").symlink_to(secret)
    write(tree, "/file")
    found = tree.change("/file", os.getuid(), None, 0o750)
    assert (found.path, stat.S_IMODE(found.status.st_mode)) == ("/file", 0o750)
    with pytest.raises(CorralError):
        tree.change("/link", None, None, 0o777)
    with pytest.raises(NotFound):
        tree.change("/none", None, None, 0o777)
    with pytest.raises(InvalidInput):
        tree.change("/file", None, None, 0o77777)
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


def test_move_replaces_files(root: Path, tree: GuestTree) -> None:
    write(tree, "/a", b"a")
    write(tree, "/b", b"b")
    assert tree.move("/a", "/b", None).status.st_size == 1
    assert (everything(root), read(tree, "/b")) == (["b"], b"a")
    with pytest.raises(NotFound):
        tree.move("/a", "/c", None)
    with pytest.raises(NotFound):
        tree.move("/b", "/none/b", None)


def test_lists_are_ordered_deep_and_bounded(root: Path, tree: GuestTree) -> None:
    for path in ("/d/b/x", "/d/a/y/z", "/d/c"):
        write(tree, path)
    (root / "d" / "link").symlink_to("/d/a")
    assert [found.path for found in tree.list("/d", 1, 10)] == ["/d/a", "/d/b", "/d/c", "/d/link"]
    assert [found.path for found in tree.list("/d/", 3, 10)] == [
        "/d/a", "/d/a/y", "/d/a/y/z", "/d/b", "/d/b/x", "/d/c", "/d/link",
    ]  # fmt: skip
    assert [found.path for found in tree.list("/", 1, 10)] == ["/d"]
    assert tree.list("/d", 1, 10)[3].target == "/d/a"
    with pytest.raises(TooLarge):
        tree.list("/d", 3, 6)
    for depth in (0, 65):
        with pytest.raises(InvalidInput):
            tree.list("/d", depth, 10)


def test_removal_leaves_what_links_point_to(root: Path, tree: GuestTree, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    tree.make_dir("/d/e", None, 0o755)
    (root / "d" / "e" / "link").symlink_to(outside)
    (root / "d" / "hard").hardlink_to(tmp_path / "secret")
    tree.remove("/d")
    assert everything(root) == []
    assert (outside / "kept").exists()
    assert (tmp_path / "secret").read_text() == "host"
    with pytest.raises(NotFound):
        tree.remove("/d")


def test_trees_deeper_than_anything_are_removed(root: Path, tree: GuestTree) -> None:
    depth = 3 * sys.getrecursionlimit()
    fd = os.open(root, os.O_RDONLY)
    for level in range(depth):
        os.mkdir("deeper", dir_fd=fd)
        if level % 100 == 0:
            os.close(os.open(f"file{level}", os.O_CREAT, dir_fd=fd))
        inner = os.open("deeper", os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)
    with pytest.raises(InvalidInput):
        tree.list("/deeper", 65, 10)
    assert len(tree.list("/deeper", 64, 1000)) == 64
    tree.remove("/deeper")
    assert everything(root) == ["file0"]


def test_wide_trees_are_removed(root: Path, tree: GuestTree) -> None:
    for index in range(2500):
        (root / "wide" / str(index)).mkdir(parents=True)
        (root / "wide" / f"{index}.txt").touch()
    tree.remove("/wide")
    assert everything(root) == []


def test_a_hundred_thousand_missing_parents_do_not_matter(tree: GuestTree) -> None:
    with pytest.raises(NotFound):
        tree.open_file("/" + "a/" * 2000 + "b")
    write(tree, "/" + "a/" * 500 + "b")
    assert read(tree, "/" + "a/" * 500 + "b") == b"new"


def test_nothing_stays_open(root: Path, tree: GuestTree) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    (root / "loop").symlink_to("loop")
    os.mkfifo(root / "fifo")
    before = descriptors()
    write(tree, "/a/b/c")
    for path in ("/none", "/loop", "/fifo", "/a", "/a/b/c/d", "/loop/x", "/"):
        for attempt in (
            tree.open_directory,
            tree.open_file,
            lambda path: tree.write(path, None, 0o644),
            lambda path: tree.make_dir(path, None, 0o755),
            lambda path: tree.move(path, "/a/b", None),
            lambda path: tree.list(path, 1, 0),
        ):
            with contextlib.suppress(CorralError):
                result = attempt(path)
                if isinstance(result, PendingFile):
                    result.discard()
                elif type(result) is int:
                    os.close(result)
    assert descriptors() == before


def test_without_a_mode_that_of_the_replaced_file_stays(root: Path, tree: GuestTree) -> None:
    def mode(name: str) -> int:
        return stat.S_IMODE((root / name).stat().st_mode)

    before = os.umask(0o077)
    try:
        write(tree, "/new", mode=None)
    finally:
        os.umask(before)
    assert mode("new") == 0o644
    (root / "run.sh").touch()
    (root / "run.sh").chmod(0o4755)
    (root / "link").symlink_to("run.sh")
    write(tree, "/link", mode=None)
    assert (mode("run.sh"), read(tree, "/run.sh")) == (0o755, b"new")
    write(tree, "/run.sh", mode=0o600)
    assert mode("run.sh") == 0o600


def test_the_mode_that_stays_is_that_of_the_moment_of_the_commit(root: Path, tree: GuestTree) -> None:
    (root / "file").touch(0o644)
    pending = tree.write("/file", None, None)
    (root / "file").chmod(0o750)
    assert stat.S_IMODE(pending.commit().st_mode) == 0o750


def test_paths_are_resolved_to_what_they_lead_to(root: Path, tree: GuestTree, tmp_path: Path) -> None:
    write(tree, "/data/v2/sub/file", b"12345")
    write(tree, "/data/v2/beside")
    (root / "current").symlink_to("data/v2/sub")
    (root / "data" / "v2" / "sub" / "up").symlink_to("../beside")
    (root / "abs").symlink_to("/current/up")
    for path, real in (
        ("/current/file", "/data/v2/sub/file"),
        ("/current/up", "/data/v2/beside"),
        ("/abs", "/data/v2/beside"),
        ("/current/..", "/data/v2"),
        ("/", "/"),
    ):
        assert tree.resolve(path).path == real
    assert tree.resolve("/current/file").status.st_size == 5
    (root / "out").symlink_to(tmp_path / "secret")
    (root / "loop").symlink_to("loop")
    for path in ("/out", "/none", "/loop"):
        with pytest.raises((NotFound, Forbidden)):
            tree.resolve(path)


def test_odd_names_are_resolved_as_they_are(root: Path, tree: GuestTree) -> None:
    for name in ("here (deleted)", "\udcff", "a\\b\n"):
        write(tree, f"/{name}")
        (root / "link").symlink_to(name)
        assert tree.resolve("/link").path == f"/{name}"
        tree.remove("/link")
    with GuestTree(os.open("/", os.O_PATH | os.O_DIRECTORY)) as host:
        assert host.resolve(str(root)).path == str(root.resolve())

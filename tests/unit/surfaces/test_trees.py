"""Copies of directories: what a hostile sandbox can put into an archive, and what is sent."""

import contextlib
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from corral.errors import Conflict, CorralError, InvalidInput, NotFound, UpstreamFailed
from corral.sdk.trees import Tree, link_stays, unpack


def archive(*members: tuple[str, bytes | str | None], **extra: tarfile.TarInfo) -> bytes:
    """Files (bytes), links (a string) and directories (None)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if content is None:
                info.type, info.mode = tarfile.DIRTYPE, 0o777
            elif isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
            else:
                info.size, info.mode = len(content), 0o6755
            tar.addfile(info, io.BytesIO(content) if isinstance(content, bytes) else None)
        for info in extra.values():
            tar.addfile(info)
    return buffer.getvalue()


def pieces(data: bytes, size: int = 777) -> Iterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


def test_a_tree_arrives(tmp_path: Path) -> None:
    data = archive(("d", None), ("d/e", None), ("d/e/f", b"x" * 5000), ("d/l", "e/f"), ("d/a\nb", b""))
    done = unpack(pieces(data), tmp_path / "copy")
    assert (done.files, done.bytes, done.skipped) == (2, 5000, [])
    assert (tmp_path / "copy/e/f").read_bytes() == b"x" * 5000
    assert (tmp_path / "copy/l").read_bytes() == b"x" * 5000
    assert (tmp_path / "copy/a\nb").exists()
    assert (tmp_path / "copy/e/f").stat().st_mode & 0o7777 == 0o755


def test_a_single_file_gets_the_name_of_the_target(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("old")
    unpack(pieces(archive(("f", b"new"))), tmp_path / "there")
    assert (tmp_path / "there").read_text() == "new"


@pytest.mark.parametrize(
    ("member", "reason"),
    [
        (("d/../../out", b"x"), "name leads out"),
        (("d//x", b"x"), "name leads out"),
        (("d/./x", b"x"), "name leads out"),
        (("d/l", "/etc/passwd"), "link leads out"),
        (("d/l", "../out"), "link leads out"),
        (("d/l", "a/../../out"), "link leads out"),
        (("d/none/x", b"x"), "directory was left out"),
    ],
)
def test_what_leads_out_of_the_tree_is_left_out_g276(
    tmp_path: Path, member: tuple[str, bytes | str], reason: str
) -> None:
    (tmp_path / "out").write_text("before")
    done = unpack(pieces(archive(("d", None), member, ("d/after", b"x"))), tmp_path / "copy")
    assert [name for name, _ in done.skipped] == [member[0]]
    assert reason in done.skipped[0][1]
    assert (tmp_path / "copy/after").exists()
    assert (tmp_path / "out").read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "out"]


def test_links_are_not_followed_even_those_inside_g276(tmp_path: Path) -> None:
    data = archive(("d", None), ("d/real", None), ("d/l", "real"), ("d/l/x", b"x"), ("d/l/y", None))
    done = unpack(pieces(data), tmp_path / "copy")
    assert [name for name, _ in done.skipped] == ["d/l/x", "d/l/y"]
    assert list((tmp_path / "copy/real").iterdir()) == []


def test_a_link_of_the_users_own_in_the_target_is_not_followed_g276(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy/l").symlink_to(outside)
    (tmp_path / "copy/f").symlink_to(tmp_path / "secret")
    data = archive(("d", None), ("d/l", None), ("d/l/x", b"x"), ("d/f", b"mine"))
    with pytest.raises(Conflict):
        unpack(pieces(data), tmp_path / "copy")
    data = archive(("d", None), ("d/l/x", b"x"), ("d/f", b"mine"))
    done = unpack(pieces(data), tmp_path / "copy")
    assert [name for name, _ in done.skipped] == ["d/l/x"]
    assert list(outside.iterdir()) == []
    assert not (tmp_path / "secret").exists()
    assert (tmp_path / "copy/f").read_text() == "mine"
    assert not (tmp_path / "copy/f").is_symlink()


def test_an_existing_git_directory_is_not_changed_but_a_new_one_arrives_g276(tmp_path: Path) -> None:
    git = tmp_path / "copy/.git"
    git.mkdir(parents=True)
    (git / "config").write_text("mine")
    data = archive(
        ("d", None),
        ("d/.git", None),
        ("d/.git/config", b"theirs"),
        ("d/.git/hooks", None),
        ("d/sub", None),
        ("d/sub/.git", None),
        ("d/sub/.git/config", b"new"),
    )
    done = unpack(pieces(data), tmp_path / "copy")
    assert [name for name, _ in done.skipped] == ["d/.git", "d/.git/config", "d/.git/hooks"]
    assert [path.name for path in git.iterdir()] == ["config"]
    assert (git / "config").read_text() == "mine"
    assert (tmp_path / "copy/sub/.git/config").read_text() == "new"


@pytest.mark.parametrize(
    "kind", [tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.LNKTYPE, tarfile.CONTTYPE]
)
def test_special_files_and_hard_links_are_left_out_g276(tmp_path: Path, kind: bytes) -> None:
    info = tarfile.TarInfo("d/special")
    info.type, info.linkname = kind, "d/other"
    done = unpack(pieces(archive(("d", None), special=info)), tmp_path / "copy")
    left_out = [name for name, _ in done.skipped]
    assert left_out == (["d/special"] if kind != tarfile.CONTTYPE else [])
    assert not any((tmp_path / "copy").iterdir()) or kind == tarfile.CONTTYPE


def test_a_broken_archive_is_told(tmp_path: Path) -> None:
    with pytest.raises(UpstreamFailed):
        unpack([b"no archive at all" * 100], tmp_path / "a")
    whole = archive(("d", b"x" * 5000))
    with pytest.raises(UpstreamFailed):
        unpack([whole[:2000]], tmp_path / "b")


@pytest.mark.parametrize("target", ["absent/x", "..", "/"])
def test_targets_that_are_none(tmp_path: Path, target: str) -> None:
    with pytest.raises((NotFound, InvalidInput)):
        unpack([archive(("d", b""))], tmp_path / target)


@given(st.binary(max_size=3000), st.integers(0, 600))
@hypothesis_settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_give_a_result_or_a_public_error(tmp_path: Path, noise: bytes, at: int) -> None:
    good = archive(("d", None), ("d/f", b"x" * 100))
    with contextlib.suppress(CorralError):
        unpack(pieces(good[:at] + noise + good[at + len(noise) :]), tmp_path / "copy")
    assert {path.name for path in tmp_path.iterdir()} <= {"copy"}


@pytest.mark.parametrize(
    ("parts", "target", "stays"),
    [
        (["l"], "a", True),
        (["l"], "./a/../b", True),
        (["l"], "..", False),
        (["l"], "/a", False),
        (["d", "l"], "../a", True),
        (["d", "l"], "../../a", False),
        (["d", "l"], "x/../../a", True),
        (["d", "l"], "x/../../../a", False),
        (["l"], "", True),
    ],
)
def test_link_stays(parts: list[str], target: str, stays: bool) -> None:
    assert link_stays(parts, target) is stays


# -- into a sandbox -------------------------------------------------------------------------------------------------


def test_what_is_sent_comes_back_the_same(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "d").mkdir(parents=True)
    (source / "d/f").write_bytes(bytes(range(256)) * 30)
    (source / "run").write_text("#!/bin/sh")
    (source / "run").chmod(0o750)
    (source / "l").symlink_to("d/f")
    os.mkdir(os.fsencode(source) + b"/\xff")  # noqa: PTH102  a name that is no text
    tree = Tree(source, "name")
    done = unpack(tree.archive(), tmp_path / "copy")
    assert (done.files, tree.copied.files, done.skipped) == (2, 2, [])
    assert (tmp_path / "copy/l").read_bytes() == bytes(range(256)) * 30
    assert (tmp_path / "copy/run").stat().st_mode & 0o777 == 0o750
    assert b"\xff" in os.listdir(os.fsencode(tmp_path / "copy"))  # noqa: PTH208  a name that is no text


def test_links_out_of_the_tree_and_special_files_are_not_sent(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (tmp_path / "secret").write_text("canary")
    (source / "l").symlink_to(tmp_path / "secret")
    (source / "up").symlink_to("../secret")
    os.mkfifo(source / "fifo")
    tree = Tree(source, "name")
    data = b"".join(tree.archive())
    assert b"canary" not in data
    assert sorted(name for name, _ in tree.copied.skipped) == ["name/fifo", "name/l", "name/up"]


def test_a_file_that_changes_while_it_is_sent_keeps_the_archive_whole(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in "ab":
        (source / name).write_bytes(b"x" * 3000)
    tree = Tree(source, "name")
    stream = tree.archive()
    sent = [next(stream), next(stream)]
    os.truncate(source / "a", 10)
    done = unpack([*sent, *stream], tmp_path / "copy")
    assert (done.files, done.bytes) == (2, 6000)


def test_what_cannot_be_read_is_told_before_anything_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_text("x")
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).endswith("secret"))
    with pytest.raises(InvalidInput, match="secret"):
        Tree(tmp_path, "name")

"""What git prints of a pack, read by bounded readers that the pack's maker cannot lead astray."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import CorralError, InvalidInput
from corral.wire.gitobjects import Change, ChangeReader, CommitReader, PatchReader

A, B, Z = "a" * 40, "1" * 40, "0" * 40


def pieces(data: bytes, step: int) -> list[bytes]:
    return [data[start : start + step] for start in range(0, len(data), step)]


@pytest.mark.parametrize("step", [1, 7, 4096])
def test_commits(step: int) -> None:
    body = (
        f"tree {B}\nparent {A}\nparent {Z}\nauthor Eve <eve@x> 1 +0000\ncommitter C <c@x> 1 +0000\n"
        "gpgsig -----BEGIN\n x\n\ntitle\x1b[31m\n\nmore"
    ).encode()
    tag = f"object {B}\ntype commit\ntag v1\ntagger T <t@x> 1 +0000\n\nv1\n".encode()
    data = (
        f"{A} commit {len(body)}\n".encode() + body + b"\n" + f"{B} tag {len(tag)}\n".encode() + tag + b"\n"
    )
    reader = CommitReader()
    found = [one for piece in pieces(data, step) for one in reader.feed(piece)]
    reader.finish()
    assert [one.id for one in found] == [A, B]
    assert (found[0].parents, found[0].author, found[0].email) == ((A, Z), "Eve", "eve@x")
    assert found[0].title == "title\ufffd[31m"
    assert found[0].signed
    assert (found[1].tag, found[1].parents) == (True, (B,))


@pytest.mark.parametrize("step", [1, 7, 4096])
def test_changes(step: int) -> None:
    data = (
        f"{A}\0:000000 100644 {Z} {B} A\0a b\0:100644 100755 {B} {A} M\0:x\0"
        f"{B}\0::100644 100644 100644 {A} {B} {Z[:-1]}1 MM\0merge\0"
    ).encode()
    reader = ChangeReader()
    found = [one for piece in pieces(data, step) for one in reader.feed(piece)]
    reader.finish()
    assert found == [
        Change(A, b"a b", "000000", "100644", Z, B, "A"),
        Change(A, b":x", "100644", "100755", B, A, "M"),
        Change(B, b"merge", "100644", "100644", A, Z[:-1] + "1", "M"),
    ]


@pytest.mark.parametrize("reader", [CommitReader, ChangeReader])
def test_nonsense_is_refused(reader: type[CommitReader] | type[ChangeReader]) -> None:
    with pytest.raises(InvalidInput):
        reader().feed(b"nonsense\n\0" * 100)


@given(st.binary(max_size=500), st.integers(1, 50))
def test_any_bytes(data: bytes, step: int) -> None:
    for make in (CommitReader, ChangeReader, PatchReader):
        reader = make()
        try:
            for piece in pieces(data, step):
                reader.feed(piece)
        except CorralError:
            continue


LINES = [
    b"+++ b/fake",
    b"++ x",
    b"@@ -1 +1 @@",
    b"diff --git a/x b/x",
    b"-",
    b"",
    b"\\ No newline",
    b"Binary files x",
]


@given(st.lists(st.sampled_from(LINES), min_size=1, max_size=8), st.sampled_from([1, 5, 4096]))
def test_lines_that_look_like_heads_are_lines(lines: list[bytes], step: int) -> None:
    """A `+++` in a file is an added line, not the head of another file."""
    text = b"".join(b"+" + line + b"\n" for line in lines)
    data = b"diff --git a/f b/f\n--- /dev/null\n+++ b/f\n" + f"@@ -0,0 +1,{len(lines)} @@\n".encode() + text
    reader = PatchReader()
    found = [one for piece in pieces(data, step) for one in reader.feed(piece)]
    assert found == [("f", line) for line in lines]


def test_real_patches(tmp_path: Path) -> None:
    """Each line that a history of adds, changes and an evil merge brings, once."""

    def git(*args: str, given: str = "") -> bytes:
        command = ["git", "-c", "user.name=n", "-c", "user.email=e", "-C", str(tmp_path), *args]
        return subprocess.run(command, input=given.encode(), check=True, capture_output=True).stdout

    git("init", "-q", "-b", "main")
    (tmp_path / "a").write_text("1\n2\n3\n")
    git("add", "-A")
    git("commit", "-qm", "one")
    git("checkout", "-qb", "side")
    (tmp_path / "b").write_text("side\n")
    git("add", "-A")
    git("commit", "-qm", "side")
    git("checkout", "-q", "main")
    (tmp_path / "a").write_text("1\n++ x\n3\nend")
    (tmp_path / "img").write_bytes(b"\0\1" * 50)
    git("add", "-A")
    git("commit", "-qm", "two")
    git("merge", "-q", "--no-commit", "side")
    (tmp_path / "a").write_text("1\n++ x\n3\nend\nevil\n")
    git("add", "-A")
    git("commit", "-qm", "merge")
    ids = git("rev-list", "HEAD").decode()
    options = ("diff-tree", "--stdin", "-c", "-r", "--root", "--no-renames")
    reader = PatchReader()
    patches = git(*options, "-p", "-U0", given=ids)
    added = [one for piece in pieces(patches, 10) for one in reader.feed(piece)]
    assert sorted(added) == sorted(
        [
            ("a", b"1"),
            ("a", b"2"),
            ("a", b"3"),
            ("a", b"++ x"),
            ("a", b"end"),
            ("b", b"side"),
            ("a", b"end"),
            ("a", b"evil"),
        ]
    )
    assert reader.totals.binary == {"img"}
    changes = ChangeReader().feed(git(*options, "--raw", "-z", "--no-abbrev", given=ids))
    assert sorted((one.status, one.path) for one in changes) == [
        ("A", b"a"), ("A", b"b"), ("A", b"img"), ("M", b"a"), ("M", b"a"),
    ]  # fmt: skip

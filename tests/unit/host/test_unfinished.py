"""What a kill between two system calls leaves of a write is found and removed, and nothing else."""

import os
from pathlib import Path

import pytest

from corral.host.files import GuestTree
from corral.host.unfinished import Unfinished

NAME = ".corral-0123456789abcdef"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "root"
    (made / "dir").mkdir(parents=True)
    return made


def _tree(root: Path, *noted: object) -> GuestTree:
    return GuestTree(os.open(root, os.O_PATH | os.O_DIRECTORY), *noted)  # type: ignore[arg-type]


def test_a_write_is_noted_while_it_replaces_a_file(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unfinished = Unfinished(tmp_path / "notes")
    unfinished.make()
    notes, rename = unfinished.of("box"), os.rename
    seen: list[str] = []

    def renaming(source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        seen.extend(note.path for note in notes.all())
        rename(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    monkeypatch.setattr(os, "rename", renaming)
    (root / "dir" / "ünï").write_text("former")
    with _tree(root, notes.noted) as tree:
        for name in ("ünï", "new"):
            pending = tree.write(f"/dir/{name}", None, None)
            pending.write(b"now")
            pending.commit()
    assert [Path(path).parent for path in seen] == [Path("/dir")]
    assert Path(seen[0]).name.startswith(".corral-")
    assert (unfinished.owners(), notes.all()) == (set(), [])
    assert {path.name: path.read_text() for path in (root / "dir").iterdir()} == {"ünï": "now", "new": "now"}


def test_notes_are_kept_by_owner_until_they_are_forgotten(tmp_path: Path) -> None:
    unfinished = Unfinished(tmp_path / "notes")
    unfinished.make()
    assert unfinished.owners() == set()
    with unfinished.of("one").noted("/a"), unfinished.of("two").noted("/b\udcff"):
        assert unfinished.owners() == {"one", "two"}
        assert [note.path for note in unfinished.of("two").all()] == ["/b\udcff"]
    assert unfinished.of("one").all() == []


def test_what_is_left_is_removed(root: Path) -> None:
    (root / "dir" / NAME).write_text("half")
    with _tree(root) as tree:
        for _ in range(2):
            tree.remove_unfinished(f"/dir/{NAME}")
        tree.remove_unfinished(f"/gone/{NAME}")
    assert list((root / "dir").iterdir()) == []


def test_nothing_else_is_removed_that_a_guest_has_put_there(root: Path, tmp_path: Path) -> None:
    """Neither what a link leads to, within the root or out of it, nor the link, nor what has another name or kind."""
    outside = tmp_path / "outside"
    outside.mkdir()
    for place in (outside / NAME, root / "dir" / "kept", root / NAME):
        place.write_text("kept")
    (root / "dir" / NAME).symlink_to("kept")
    (root / "out").symlink_to(outside)
    (root / "up").symlink_to("../../outside")
    (root / "made").mkdir()
    (root / "made" / NAME).mkdir()
    with _tree(root) as tree:
        for path in (
            f"/dir/{NAME}",
            "/dir/kept",
            f"/out/{NAME}",
            f"/up/{NAME}",
            f"/made/{NAME}",
            f"/dir/kept/{NAME}",
        ):
            tree.remove_unfinished(path)
        assert (root / NAME).exists()
    assert (outside / NAME).exists()
    assert (root / "dir" / "kept").exists()
    assert (root / "dir" / NAME).is_symlink()
    assert (root / "made" / NAME).is_dir()

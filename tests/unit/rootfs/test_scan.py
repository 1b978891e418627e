"""Finding secrets in trees: wherever they stand, in whatever form, and nothing else."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.policy.forms import forms
from corral.rootfs import scan
from corral.rootfs.scan import Scanner

SECRET = "sk-ant-0123456789/abcdef+xyz="
NEEDLES = dict.fromkeys(forms(SECRET), "it")


def found(root: Path, *, overwrite: bool = False) -> set[str]:
    return {leak.path for leak in Scanner(NEEDLES).tree(root, overwrite=overwrite)}


@pytest.mark.parametrize("form", sorted(forms(SECRET)))
def test_every_form_is_found_and_overwritten(tmp_path: Path, form: bytes) -> None:
    path = tmp_path / "a" / "b"
    path.parent.mkdir()
    path.write_bytes(b"before " + form + b" after")
    os.utime(path, ns=(1, 2))
    assert found(tmp_path) == {"/a/b"}
    assert form in path.read_bytes()
    (leak,) = Scanner(NEEDLES).tree(tmp_path, overwrite=True)
    assert leak.overwritten
    left = path.read_bytes()
    assert left.startswith(b"before ")
    assert left.endswith(b" after")
    assert len(left) == len(form) + 13
    assert path.stat().st_mtime_ns == 2
    assert found(tmp_path) == set()


@given(at=st.integers(0, 200), size=st.integers(0, 300))
def test_however_the_file_is_cut(tmp_path_factory: pytest.TempPathFactory, at: int, size: int) -> None:
    root = tmp_path_factory.mktemp("tree")
    (root / "f").write_bytes(b"x" * at + SECRET.encode() + b"y" * size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "_READ", 7)
        assert found(root, overwrite=True) == {"/f"}
    assert (root / "f").read_bytes() == b"x" * at + b"*" * len(SECRET) + b"y" * size


def test_holes_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.seek(1 << 40)
        file.write(b"..." + SECRET.encode())
        file.truncate(1 << 42)
    assert found(tmp_path, overwrite=True) == {"/sparse"}
    assert found(tmp_path) == set()
    assert path.stat().st_size == 1 << 42


def test_names_and_symlinks_are_looked_at_and_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text(SECRET)
    root = tmp_path / "root"
    root.mkdir()
    word = "sk-plain-0123456789"
    (root / "link").symlink_to(outside)
    (root / word).touch()
    (root / "to").symlink_to(f"/{word}")
    os.mkfifo(root / "fifo")
    leaks = Scanner({word.encode(): "it", **NEEDLES}).tree(root, overwrite=True)
    assert {(leak.path, leak.overwritten) for leak in leaks} == {(f"/{word}", False), ("/to", False)}
    assert outside.read_text() == SECRET


def test_a_hard_linked_file_is_told_once_and_odd_names_can_be_shown(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/\xff\n"
    with open(name, "w") as file:
        file.write(SECRET)
    os.link(name, os.fsencode(tmp_path) + b"/other")
    (leak,) = Scanner(NEEDLES).tree(tmp_path, overwrite=False)
    assert leak.path in ("/\\xff\n", "/other")


def test_findings_are_bounded(tmp_path: Path) -> None:
    for number in range(1100):
        (tmp_path / str(number)).write_text(SECRET)
    assert len(Scanner(NEEDLES).tree(tmp_path, overwrite=False)) == 1000

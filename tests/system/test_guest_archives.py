"""What corral-init unpacks: archives as several tools write them, and those that are broken or hostile."""

import io
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.host.programs import find_program

FORMATS = [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT]
LARGE = b"x" * 200_000
END = bytes(4)


def _archive(*members: "tuple[str, bytes, dict[str, Any]]", form: int = tarfile.PAX_FORMAT) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w", format=form) as archive:
        for name, data, more in members:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime = len(data), 1_234_567
            for key, value in more.items():
                setattr(entry, key, value)
            archive.addfile(entry, io.BytesIO(data))
    return held.getvalue()


def _unpack(place: Path, data: bytes, *, step: int = 4096, end: bytes = END) -> "tuple[int, str]":
    """Its exit code, and what it says."""
    cut = [data[at : at + step] for at in range(0, len(data), step)]
    fed = b"".join(len(piece).to_bytes(4, "big") + piece for piece in cut) + end
    command = [str(find_program("corral-init")), "unpack", str(place)]
    done = subprocess.run(command, input=fed, capture_output=True, check=False, timeout=60)
    return done.returncode, done.stderr.decode(errors="replace")


def _tree(place: Path) -> list[str]:
    return sorted(str(path.relative_to(place)) for path in place.rglob("*"))


@pytest.mark.parametrize("step", [7, 512, 100_000])
@pytest.mark.parametrize("form", FORMATS)
def test_what_tools_write_is_unpacked(tmp_path: Path, form: int, step: int) -> None:
    deep = "/".join(["d" * 50] * (3 if form == tarfile.USTAR_FORMAT else 8)) + "/end"
    link = "y" * (90 if form == tarfile.USTAR_FORMAT else 300)
    whole = _archive(
        ("top", b"", {"type": tarfile.DIRTYPE, "mode": 0o750}),
        ("top/large", LARGE, {"mode": 0o755}),
        ("top/hard", b"", {"type": tarfile.LNKTYPE, "linkname": "top/large"}),
        ("top/link", b"", {"type": tarfile.SYMTYPE, "linkname": link}),
        ("top/out", b"", {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}),
        ("top/ünï", b"", {}),
        (deep, b"deep", {}),
        form=form,
    )
    for _ in range(2):  # what is there is replaced
        assert _unpack(tmp_path, whole, step=step) == (0, "")
        top = tmp_path / "top"
        assert (top / "large").read_bytes() == LARGE
        assert (top / "large").stat().st_ino == (top / "hard").stat().st_ino
        assert str((top / "link").readlink()) == link
        assert str((top / "out").readlink()) == "/etc/passwd"
        assert (tmp_path / deep).read_bytes() == b"deep"
        assert sorted(path.name for path in top.iterdir()) == ["hard", "large", "link", "out", "ünï"]
        assert (top.stat().st_mode & 0o777, int(top.stat().st_mtime)) == (0o750, 1_234_567)
        assert (top / "large").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("end", [b"", END], ids=["cut", "short"])
@pytest.mark.parametrize("length", [100, 1000, 150_000])
def test_one_that_breaks_off_leaves_the_former_file(tmp_path: Path, length: int, end: bytes) -> None:
    (tmp_path / "large").write_text("former")
    code, said = _unpack(tmp_path, _archive(("large", LARGE, {}))[:length], end=end)
    assert (code, said.endswith("it breaks off\n")) == (5, True), said
    assert (_tree(tmp_path), (tmp_path / "large").read_text()) == (["large"], "former")


@pytest.mark.parametrize("name", ["../out", "a/../../out", "a/.."])
def test_names_that_lead_out_are_left_out_and_told(tmp_path: Path, name: str) -> None:
    (tmp_path / "in").mkdir()
    code, said = _unpack(tmp_path / "in", _archive((name, b"1", {}), ("..a/b..", b"2", {}), ("/c", b"3", {})))
    assert (code, "leads out" in said) == (5, True)
    assert _tree(tmp_path) == ["in", "in/..a", "in/..a/b..", "in/c"]


def test_nothing_of_it_goes_through_a_link_that_leads_out(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "other").mkdir()
    link = {"type": tarfile.SYMTYPE, "linkname": str(tmp_path / "other")}
    _unpack(tmp_path / "in", _archive(("link", b"", link), ("link/through", b"1", {})))
    assert _tree(tmp_path / "other") == []


def test_what_it_does_not_know_is_left_out_and_told(tmp_path: Path) -> None:
    device = {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3}
    sparse = {"pax_headers": {"GNU.sparse.major": "1"}}
    code, said = _unpack(
        tmp_path, _archive(("null", b"", device), ("holes", b"1" * 700, sparse), ("kept", b"1", {}))
    )
    assert (code, said.count("not unpacked")) == (5, 2)
    assert _tree(tmp_path) == ["kept"]


@pytest.mark.parametrize("data", [b"\x1f\x8b" + bytes(600), b"no archive" * 100])
def test_what_is_no_archive_is_told(tmp_path: Path, data: bytes) -> None:
    code, said = _unpack(tmp_path, data)
    assert (code, "no tar" in said, _tree(tmp_path)) == (5, True, [])


_GOOD = _archive(("é" * 80, b"1" * 700, {}), ("x", b"2", {"mtime": 1.5}), ("y", b"", {"size": 0}))


@settings(max_examples=150)
@given(
    st.lists(st.tuples(st.integers(0, len(_GOOD) - 1), st.integers(0, 255)), max_size=8),
    st.integers(100, 5000),
)
def test_whatever_is_in_it_unpacks_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory, changes: "list[tuple[int, int]]", step: int
) -> None:
    data = bytearray(_GOOD)
    for at, value in changes:
        data[at] = value
    for at in range(0, len(data) - 511, 512):
        if data[at + 257 : at + 262] == b"ustar":  # a changed header is read only if its sum is right
            block = data[at : at + 148] + b" " * 8 + data[at + 156 : at + 512]
            data[at + 148 : at + 156] = b"%06o\0 " % sum(block)
    code, _ = _unpack(tmp_path_factory.mktemp("any"), bytes(data), step=step)
    assert code in (0, 2, 3, 4, 5, 6)

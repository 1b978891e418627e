"""Reading mountinfo, and lists of mounts."""

from pathlib import Path

import pytest

from corral.host import mounts


def test_a_line_with_optional_fields_and_escapes() -> None:
    line = r"36 35 98:0 /a\040b /mnt\011x\134y rw,noatime shared:1 master:2 - ext4 /dev/ro\012ot rw,errors=continue"
    assert mounts._parse(line) == mounts.MountEntry(
        id=36, device="98:0", root="/a b", target=Path("/mnt\tx\\y"), fstype="ext4", source="/dev/ro\not"
    )


def test_a_line_without_optional_fields_and_a_dash_as_source() -> None:
    entry = mounts._parse("20 1 0:5 / /proc rw - proc - rw")
    assert (entry.fstype, entry.source) == ("proc", "-")


def test_this_machines_own_mounts_are_read() -> None:
    assert Path("/") in {entry.target for entry in mounts.mounts()}
    assert Path("/proc") in {entry.target for entry in mounts.mounts_below(Path("/proc"))}


def test_only_what_is_below_a_path_counts() -> None:
    line = r"36 35 98:0 / {} rw - tmpfs none rw"
    below = [r"/run/a", r"/run/a/b", r"/run/a\040b/c"]
    beside = [r"/run", r"/run/ab", r"/run/a\040b"]
    assert [mounts._is_below(line.format(target), "/run/a") for target in below] == [True, True, False]
    assert [mounts._is_below(line.format(target), "/run/a") for target in beside] == [False, False, False]
    assert mounts._is_below(line.format(r"/run/a\040b/c"), "/run/a b")
    assert mounts._is_below(line.format("/anything"), "")


def test_what_is_mounted(tmp_path: Path) -> None:
    assert mounts.is_mounted(Path("/proc"))
    assert not mounts.is_mounted(tmp_path)
    assert not mounts.is_mounted(tmp_path / "missing" / "deeper")
    link = tmp_path / "link"
    link.symlink_to("/proc")
    assert not mounts.is_mounted(link)


def test_operations_tell_what_they_do() -> None:
    assert mounts.Bind(Path("/a"), Path("/b"), read_only=True).describe() == "mount --bind -o ro /a /b"
    assert mounts.FileSystem("tmpfs", "none", Path("/b"), options="size=1m").describe() == (
        "mount -t tmpfs -o size=1m none /b"
    )


def test_the_operation_that_failed_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="mount --bind"):
        mounts.apply([mounts.Bind(tmp_path / "missing", tmp_path)])

"""Where volumes may be mounted, and how that is written."""

import pytest

from corral.errors import InvalidInput
from corral.model.volume import MAX_MOUNTS, VolumeWish, check_mounts, check_volume_name, parse_mount


@pytest.mark.parametrize(
    ("text", "wish"),
    [
        ("cache:/data", VolumeWish("cache", "/data")),
        ("Cache_2:/home/user/x:ro", VolumeWish("Cache_2", "/home/user/x", read_only=True)),
        ("cache:/data:rw", VolumeWish("cache", "/data")),
    ],
)
def test_a_mount_is_read(text: str, wish: VolumeWish) -> None:
    assert parse_mount(text) == wish


@pytest.mark.parametrize(
    "text", ["", "cache", "cache:", "cache:data", ":/data", "-c:/data", "a/b:/data", "c:/d:rx", "c:/d:ro:ro"]
)
def test_what_is_no_mount_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_mount(text)


@pytest.mark.parametrize(
    "path",
    [
        *("/", "//data", "/data/", "/data//x", "/data/../etc", "/..", "/./data", "data", "/data\0"),
        *("/proc", "/proc/1", "/sys", "/sys/fs/cgroup", "/dev", "/dev/shm", "/run", "/run/corral", "/run/corral/io"),
        *("/etc", "/usr", "/usr/local", "/usr/local/bin", "/etc/ssl", "/etc/ssl/certs", "/etc/hosts"),
    ],
)  # fmt: skip
def test_places_where_nothing_may_be_mounted(path: str) -> None:
    with pytest.raises(InvalidInput):
        check_mounts([VolumeWish("a", path)])


@pytest.mark.parametrize(
    "path", ["/data", "/etc/app", "/usr/share/x", "/tmp", "/home/user", "/procs", "/runs/x"]
)
def test_places_where_one_may(path: str) -> None:
    check_mounts([VolumeWish("a", path)])


@pytest.mark.parametrize("paths", [("/a", "/a"), ("/a", "/a/b"), ("/a/b/c", "/a/b"), ("/x", "/a", "/x/y")])
def test_no_volume_below_another(paths: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInput):
        check_mounts([VolumeWish("v", path) for path in paths])


def test_names_that_only_begin_alike_are_beside_each_other() -> None:
    check_mounts([VolumeWish("a", "/data"), VolumeWish("a", "/data2"), VolumeWish("b", "/dat")])


def test_how_many() -> None:
    wishes = [VolumeWish("a", f"/{number}") for number in range(MAX_MOUNTS + 1)]
    check_mounts(wishes[1:])
    with pytest.raises(InvalidInput):
        check_mounts(wishes)


@pytest.mark.parametrize("name", ["", "-a", "a/b", "a b", "é", "a" * 64, "a:b"])
def test_names_that_no_volume_has(name: str) -> None:
    with pytest.raises(InvalidInput):
        check_volume_name(name)

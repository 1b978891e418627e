"""Reading groups of both versions, from files as the kernel writes them."""

from pathlib import Path

import pytest

from corral.errors import InternalError
from corral.host.cgroups import CgroupUsage, Layout


def _write(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def _version2(root: Path) -> Layout:
    return Layout({}, root, (root,))


def _version1(root: Path) -> Layout:
    names = ("memory", "cpuacct", "pids", "freezer")
    return Layout({name: root / name for name in names}, None, tuple(root / name for name in names))


def test_version_2_usage(tmp_path: Path) -> None:
    _write(
        tmp_path / "corral" / "one",
        {
            "memory.current": "5000\n",
            "memory.peak": "9000\n",
            "memory.stat": "anon 100\nfile 2500\nshmem 500\nfile_mapped 1\ninactive_file 1200\n",
            "memory.events": "low 0\noom 3\noom_kill 2\n",
            "cpu.stat": "usage_usec 2500000\nuser_usec 1\n",
            "pids.current": "7\n",
        },
    )
    group = _version2(tmp_path).group("/corral/one")
    expected = CgroupUsage(
        memory=3800, memory_peak=9000, file_cache=2000, cpu_usec=2_500_000, pids=7, oom_kills=2
    )
    assert group.usage() == expected


def test_version_1_usage(tmp_path: Path) -> None:
    memory = {
        "memory.usage_in_bytes": "5000\n",
        "memory.max_usage_in_bytes": "9000\n",
        "memory.stat": "cache 1\ntotal_cache 2500\ntotal_shmem 500\ntotal_inactive_file 1200\n",
        "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
    }
    _write(tmp_path / "memory" / "c" / "one", memory)
    _write(tmp_path / "cpuacct" / "c" / "one", {"cpuacct.usage": "2500000000\n"})
    _write(tmp_path / "pids" / "c" / "one", {"pids.current": "7\n"})
    group = _version1(tmp_path).group("/c/one")
    expected = CgroupUsage(
        memory=3800, memory_peak=9000, file_cache=2000, cpu_usec=2_500_000, pids=7, oom_kills=2
    )
    assert group.usage() == expected


def test_what_was_written_and_is_in_memory_only(tmp_path: Path) -> None:
    """Version 2, and version 1, where the figures of the groups below have names of their own."""
    _write(tmp_path / "two", {"memory.stat": "anon 1\nfile_dirty 40\nfile_writeback 2\n"})
    assert _version2(tmp_path).group("/two").unwritten() == 42
    text = "dirty 1\nwriteback 1\ntotal_dirty 40\ntotal_writeback 2\n"
    _write(tmp_path / "memory" / "one", {"memory.stat": text})
    assert _version1(tmp_path).group("/one").unwritten() == 42


def test_processes_of_inner_groups_count(tmp_path: Path) -> None:
    _write(tmp_path / "one", {"cgroup.procs": "10\n11\n"})
    _write(tmp_path / "one" / "inner", {"cgroup.procs": "12\n"})
    assert sorted(_version2(tmp_path).group("/one").pids()) == [10, 11, 12]


@pytest.mark.parametrize("name", ["", "/", "one", "/..", "/one/../..", "/one//two", "/one/."])
def test_a_name_cannot_leave_its_place(tmp_path: Path, name: str) -> None:
    with pytest.raises(InternalError):
        _version2(tmp_path).group(name)


async def test_a_missing_group_is_clean_already(tmp_path: Path) -> None:
    group = _version2(tmp_path).group("/missing")
    assert not group.exists()
    assert group.pids() == []
    await group.kill()
    await group.remove()

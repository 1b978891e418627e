"""A sandbox that takes all it can get: its own limits stop it, and nobody else feels it (RES-11)."""

import contextlib
import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from corral import Sandbox
from corral.errors import CorralError

if TYPE_CHECKING:
    from tests.attack.conftest import Range

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]

MIB = 1024 * 1024
PIDS = 128
POLLS = 600


def start(box: Sandbox, way: str, limit: int = 0, *, user: str = "user", stdin: bool = False):  # type: ignore[no-untyped-def]
    """Start guest/exhaust.py on its own."""
    command = ["python3", "-m", "tests.attack.guest.exhaust", way, str(limit)]
    return box.spawn(command, user=user, cwd="/opt/attack", stdin=stdin)


def host_works() -> None:
    """The host can still start processes and write files."""
    assert subprocess.run(["true"], check=False).returncode == 0


@pytest.mark.parametrize("user", ["user", "root"])
def test_a_fork_bomb_stays_below_its_limit(arena: "Range", isolation: str, user: str) -> None:
    """RES-11: at the limit of processes; the host, the daemon and another sandbox go on; the sandbox can be removed."""
    other = arena.box()
    box = arena.box(isolation, limits={"pids": PIDS, "memory": 512 * MIB, "cpus": 1})
    start(box, "forks", user=user)
    peak = 0
    for _ in range(POLLS):
        used = box.stats().pids
        assert used <= PIDS
        peak = max(peak, used)
        if peak >= PIDS - 4 or box.refresh().info.state != "running":
            break
        assert other.exec("echo fine", timeout=60).stdout == "fine\n"
    host_works()
    with contextlib.suppress(CorralError):
        box.exec("true", timeout=5)
    box.kill()
    arena.alive()


def test_a_memory_bomb_ends_inside(arena: "Range", isolation: str) -> None:
    """RES-11: the kernel's killer ends what is in this sandbox, says so, and touches nothing else."""
    other = arena.box()
    keeper = other.spawn(["sleep", "300"])
    box = arena.box(isolation, limits={"memory": 192 * MIB})
    ended = start(box, "memory", 768).wait()
    assert ended.exit_code != 0
    killed = 0
    with contextlib.suppress(CorralError):
        killed = box.stats().oom_kills
    assert killed or ended.reason == "oom" or box.refresh().info.reason == "oom"
    assert keeper.refresh().exit is None
    assert other.exec("echo fine").stdout == "fine\n"
    arena.alive()


def test_memory_file_systems_count_as_memory(arena: "Range", isolation: str) -> None:
    """RES-11: /dev/shm, /run and /dev are bounded, each and by the limit of memory."""
    box = arena.box(isolation, limits={"memory": 256 * MIB})
    done = box.exec(
        ["python3", "-m", "tests.attack.guest.exhaust", "shared", "400"], user="root", cwd="/opt/attack"
    )
    found = json.loads(done.stdout or "{}")
    # Where the file systems are in the memory of gVisor's own kernel, the whole sandbox ends.
    assert found or (isolation == "gvisor" and done.exit_code == 137)
    for place, result in found.items():
        assert result["written"] <= 256 * MIB, place
        assert result["error"] in {"ENOSPC", "ENOMEM", "EACCES", "EPERM", "EDQUOT"}, place
    arena.alive()


def test_a_full_disk_is_the_sandboxs_own(arena: "Range", isolation: str) -> None:
    """RES-11: EDQUOT or ENOSPC at the quota; the daemon stores on, another sandbox writes, removing gives the space back."""
    other = arena.box()
    box = arena.box(isolation, limits={"disk": 64 * MIB, "memory": 512 * MIB})
    result = arena.run(box, "exhaust", "disk", 200)
    assert result["error"] in {"EDQUOT", "ENOSPC"}
    assert result["written"] <= 64 * MIB
    assert other.exec("head -c 33554432 /dev/urandom > big && sync && stat -c %s big").stdout == "33554432\n"
    other.files.write("/home/user/small", "still written")
    # A command in the full sandbox still gives an answer, be it without its output.
    with contextlib.suppress(CorralError):
        box.exec("echo full", timeout=30)
    box.kill()
    arena.alive()


def test_many_files_are_the_sandboxs_own(arena: "Range", isolation: str) -> None:
    """RES-11: what many empty files need counts as the sandbox's disk; others can make files all the while."""
    box = arena.box(isolation, limits={"disk": 16 * MIB, "memory": 512 * MIB})
    result = arena.run(box, "exhaust", "inodes", 60_000)
    assert result["error"] in {"EDQUOT", "ENOSPC"}
    arena.alive()


def test_descriptors_are_bounded(arena: "Range", isolation: str) -> None:
    """RES-11: a process's open files have a limit, and the host's table is far from full."""
    box = arena.box(isolation)
    result = arena.run(box, "exhaust", "descriptors", 200_000)
    assert result["error"] in {"EMFILE", "ENFILE", "ENOMEM"}
    assert result["opened"] <= 66_000
    used, _, most = (int(text) for text in Path("/proc/sys/fs/file-nr").read_text().split())
    assert used < most // 2
    arena.alive()


def test_terminals_are_bounded(arena: "Range") -> None:
    """RES-11: the kernel has some thousand terminals for all sandboxes; one that takes all it can leaves them to others."""
    other, box = arena.box(), arena.box()
    taking = start(box, "terminals", 9000, stdin=True)
    result = json.loads(next(iter(taking.output())).text)
    assert (result["opened"], result["error"]) == (256, "ENOSPC")
    assert arena.run(other, "exhaust", "terminals", 64)["opened"] == 64


def test_what_connections_hold_is_bounded(arena: "Range") -> None:
    """RES-11: bytes that wait in connections are memory of the kernel, which all of the host's network shares."""
    box = arena.box(limits={"memory": 512 * MIB})
    done = box.exec(["python3", "-m", "tests.attack.guest.exhaust", "unread", "400"], cwd="/opt/attack")
    # With version 2 of the cgroups it is memory like any other, and the program may be ended for it.
    assert done.exit_code == 137 or json.loads(done.stdout)["held"] < 200 * MIB


def test_connections_to_the_gateway_are_bounded(arena: "Range", isolation: str) -> None:
    """G-339, G-340: thousands of connections that say one byte each; the gateway's files and memory stay bounded, others served."""
    other = arena.box()
    box = arena.box(isolation, limits={"memory": 1024 * MIB, "pids": 256})
    gateway = arena.gateway
    files, memory = gateway.num_fds(), gateway.memory_info().rss
    flood = start(box, "connections", 10_000, stdin=True)
    first = next(iter(flood.output())).text
    assert first.startswith("ready")
    assert gateway.num_fds() <= files + 1100
    assert gateway.memory_info().rss <= memory + 128 * MIB
    [answer] = arena.net(other, ("http", "10.200.0.1", 80, "gateway.corral", "/policy"))
    assert answer["status"] == 200
    flood.write("go\n")
    flood.wait()
    [answer] = arena.net(box, ("http", "10.200.0.1", 80, "gateway.corral", "/policy"))
    assert answer["status"] == 200


def test_limits_are_always_set(arena: "Range", isolation: str) -> None:
    """RES-11: a sandbox that asked for nothing has limits of processes, memory and processor time, by the kernel's own word."""
    with Sandbox.create(client=arena.client, isolation=isolation) as box:
        limits = box.info.limits
        assert 0 < limits.pids < 100_000
        assert limits.memory > 0
        instance = arena.daemon.run.name
        found = {}
        for root in (
            "/sys/fs/cgroup",
            *(f"/sys/fs/cgroup/{name}" for name in ("pids", "memory", "cpu", "unified")),
        ):
            group = Path(root) / f"corral-{instance}" / box.id
            for name in ("pids.max", "memory.max", "memory.limit_in_bytes", "cpu.max", "cpu.cfs_quota_us"):
                with contextlib.suppress(OSError):
                    found[name] = (group / name).read_text().split()[0]
        assert found["pids.max"] == str(limits.pids)
        assert str(limits.memory) in (found.get("memory.max"), found.get("memory.limit_in_bytes"))
        assert "max" not in (found.get("cpu.max"), found.get("cpu.cfs_quota_us"))
        assert found.get("cpu.cfs_quota_us") != "-1"


def test_a_killed_sandbox_leaves_nothing(arena: "Range", isolation: str) -> None:
    """LIFE-4: processes that ignore signals and hide in sessions of their own are gone after removal, with cgroup and mounts."""
    box = arena.box(isolation)
    hide = "trap '' TERM HUP INT; setsid sh -c 'trap \"\" TERM HUP INT; while :; do sleep 1; done' & setsid env -i sleep 600 & wait"
    box.spawn(hide, user="root")
    box.exec("true")
    box.kill()
    groups = [
        *Path("/sys/fs/cgroup").glob(f"*/corral-*/{box.id}"),
        *Path("/sys/fs/cgroup").glob(f"corral-*/{box.id}"),
    ]
    assert groups == []
    assert box.id not in Path("/proc/self/mountinfo").read_text()
    left = [p.pid for p in psutil.process_iter() if box.id in " ".join(_command(p))]
    assert left == []


def _command(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error, OSError):
        return list(process.cmdline())
    return []


def test_the_store_has_no_room_for_one_to_take_all(arena: "Range") -> None:
    """RES-3: a sandbox's files are sparse and counted by blocks; a file that claims a terabyte costs nothing."""
    box = arena.box(limits={"disk": 64 * MIB, "memory": 512 * MIB})
    box.exec("truncate -s 1T huge && stat -c %s huge", check=True)
    assert box.stats().disk < 64 * MIB
    with contextlib.suppress(CorralError), contextlib.closing(box.files.stream("/home/user/huge")) as chunks:  # type: ignore[type-var]
        for _, _chunk in zip(range(4), chunks, strict=False):
            pass
    assert os.statvfs(arena.store).f_bavail > 0
    arena.alive()

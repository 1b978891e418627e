"""A hostile program against the kernel: what a sandbox's root may ask of it."""

import os
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.traces import wait_for

from corral import Sandbox

if TYPE_CHECKING:
    from tests.attack.conftest import Range

pytestmark = pytest.mark.root

REFUSED = {"EPERM", "ENOSYS"}
# What gives a capability that would be worth having; CAP_… by number.
DANGEROUS = {
    "DAC_READ_SEARCH": 2, "NET_ADMIN": 12, "NET_RAW": 13, "IPC_LOCK": 14, "SYS_MODULE": 16, "SYS_RAWIO": 17,
    "SYS_PTRACE": 19, "SYS_ADMIN": 21, "SYS_BOOT": 22, "SYS_RESOURCE": 24, "SYS_TIME": 25, "MKNOD": 27,
    "AUDIT_WRITE": 29, "AUDIT_CONTROL": 30, "MAC_ADMIN": 33, "SYSLOG": 34, "PERFMON": 38, "BPF": 39,
    "CHECKPOINT_RESTORE": 40,
}  # fmt: skip
HOST_KNOBS = (
    "kernel/core_pattern",
    "kernel/hostname",
    "kernel/randomize_va_space",
    "vm/overcommit_memory",
    "net/ipv4/ip_forward",
)


def test_calls_that_only_a_host_needs_are_refused(arena: "Range") -> None:
    """Design §5, seccomp: mounts, keyrings, bpf, perf, userfaultfd, io_uring, modules, kexec, file handles, clocks."""
    results = arena.run(arena.box(), "kernel", "calls")
    assert len(results) > 40
    assert {name: result for name, result in results.items() if result not in REFUSED} == {}


def test_no_new_namespaces(arena: "Range") -> None:
    """G-3; design §5: kernel code behind a user namespace of one's own is out of reach, and so is the way out of a chroot."""
    results = arena.run(arena.box(), "kernel", "namespaces")
    assert {name: result for name, result in results.items() if result not in REFUSED} == {}


def test_calls_of_another_abi_are_no_way_around_the_filter(arena: "Range") -> None:
    """Design §5, seccomp: 32-bit and x32 calls kill the process, for the filter is written for one architecture."""
    results = arena.run(arena.box(), "kernel", "abi")
    assert set(results.values()) <= {"SIGSYS", "ENOSYS", "SIGSEGV"}


def test_nobody_types_into_a_terminal(arena: "Range", isolation: str) -> None:
    """Principle 1: TIOCSTI would type commands into the terminal of whoever attaches."""
    results = arena.run(arena.box(isolation), "kernel", "terminal")
    # A recent kernel refuses it by itself (EIO); the filter does so before it.
    assert set(results.values()) <= (
        {"EPERM"} if isolation == "container" else {"EPERM", "ENOTTY", "EIO", "EINVAL"}
    )


def test_no_device_nodes(arena: "Range", isolation: str) -> None:
    """Design §5: the host's memory and disks cannot be opened by a node made inside."""
    results = arena.run(arena.box(isolation), "kernel", "devices")
    assert set(results.values()) <= {"EPERM", "EINVAL"}


def test_the_hosts_settings_are_out_of_reach(arena: "Range", isolation: str) -> None:
    """Design §5, masked and read-only paths: core_pattern, sysrq, release_agent and the like would run code on the host."""
    before = {name: Path("/proc/sys", name).read_text() for name in HOST_KNOBS}
    box = arena.box(isolation)
    results = arena.run(box, "kernel", "knobs")
    box.exec(
        "echo '|/tmp/x' > /proc/sys/kernel/core_pattern; hostname owned; sysctl -w kernel.panic=1",
        user="root",
    )
    assert {name: Path("/proc/sys", name).read_text() for name in HOST_KNOBS} == before
    assert socket.gethostname() != "owned"
    if isolation == "container":
        opened = {path for path, result in results.items() if result == "ok"}
        # The one setting that is a process's own: to be killed first may be chosen, to be spared not.
        assert opened <= {"/proc/1/oom_score_adj"}
        # Not by its owner's lack of rights alone: the file system itself is read-only.
        table = [line.split() for line in box.exec("cat /proc/mounts", check=True).stdout.splitlines()]
        read_only = {mount[1] for mount in table if "ro" in mount[3].split(",")}
        assert {"/proc/sys", "/proc/bus", "/proc/fs", "/proc/irq", "/sys"} <= read_only
        assert set(arena.run(box, "kernel", "masked").values()) <= {"nothing", "ENOENT"}


def test_mounts_stay_as_they_are(arena: "Range") -> None:
    """FILE-14: root in the sandbox cannot make a read-only mount writable, uncover what is below it, or mount anything."""
    box = arena.box()
    results = arena.run(box, "kernel", "mounts")
    assert set(results.values()) <= {"EPERM", "EROFS", "EACCES", "ENODEV"}
    assert "init" in box.files.stat("/run/corral/init").path


def test_gvisor_mounts_do_not_touch_the_host(arena: "Range") -> None:
    """FILE-14, where the sandbox has a kernel of its own: what it mounts there is not the host's, and init stays read-only."""
    results = arena.run(arena.box("gvisor"), "kernel", "mounts")
    assert results["write /run/corral/init"] in {"EROFS", "EACCES", "EPERM"}
    assert results["write /etc/resolv.conf"] in {"EROFS", "EACCES", "EPERM"}
    assert "/root/mnt" not in Path("/proc/self/mountinfo").read_text()


def test_rights_cannot_be_raised(arena: "Range", isolation: str) -> None:
    """NET-27, G-3: no dangerous capability in the bounding set, by capset, file capabilities or setuid programs."""
    results = arena.run(arena.box(isolation), "rights")
    every = sum(1 << number for number in DANGEROUS.values())
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(results["own"][name], 16) & every == 0, name
    assert results["raise"] == "EPERM"
    for way in ("file", "setuid"):
        gained = results[way]
        assert gained in {"refused", "EPERM", "ENOTSUP"} or int(gained, 16) & every == 0, way


def test_the_seccomp_filter_is_on(arena: "Range") -> None:
    """Design §5: every process of a container has the filter, from the first on."""
    results = arena.run(arena.box(), "rights")
    assert results["own"]["Seccomp"] == "2"


def test_pairs_of_sockets_are_local(arena: "Range") -> None:
    """Design §5, seccomp; G-300: a pair would be a way to sockets, and kernel modules, of families that are refused singly."""
    assert arena.run(arena.box(), "sockets")["pairs"] == [socket.AF_UNIX]


def test_a_crash_runs_no_program_of_the_host(arena: "Range", isolation: str, tmp_path: Path) -> None:
    """Principle 1: many hosts pipe core dumps to a program, which runs as the host's root on what a sandbox made, in its
    words. Two defences, of which the second keeps the first: the one limit at which the kernel pipes none, and that nobody
    inside can set another one.
    """
    log, program, pattern = tmp_path / "dumped", tmp_path / "dump", Path("/proc/sys/kernel/core_pattern")
    program.write_text(f"#!/bin/sh\necho $1 >> {log}\n")
    program.chmod(0o755)
    box = arena.box(isolation)
    before = pattern.read_text()
    try:
        pattern.write_text(f"|{program} %h")
        found = arena.run(box, "kernel", "core")
        # The control: a program of the host that crashes is dumped, after all those of the sandbox.
        subprocess.run(["sh", "-c", "ulimit -c 0; kill -SEGV $$"], check=False)
        wait_for(lambda: log.exists() and socket.gethostname() in log.read_text(), "nothing is dumped at all")
    finally:
        pattern.write_text(before)
    assert {said for what, said in found.items() if what.startswith("crash")} == {"SIGSEGV"}
    assert box.info.name not in log.read_text()
    if isolation == "container":
        assert {said for what, said in found.items() if what.startswith(("set", "at"))} == {"(1, 1)"}


def test_root_inside_is_not_root_outside(arena: "Range", isolation: str) -> None:
    """Design §5, user namespaces: what root makes inside belongs, on the host, to the tenant's range, and so do processes."""
    box = arena.box(isolation)
    results = arena.run(box, "rights")
    if isolation == "container":  # gVisor's own kernel shows its own numbers
        inner, outer, size = (int(text) for text in results["user map"])
        assert (inner, size) == (0, 65536)
        assert outer >= 100_000
    assert results["beyond"] in {"EINVAL", "EPERM", "EOVERFLOW"}
    box.exec("cp /bin/sh /root/shell && chmod 6755 /root/shell", user="root", check=True)
    found = (arena.store / box.id / "upper" / "root" / "shell").stat()
    assert found.st_uid >= 100_000
    assert found.st_gid >= 100_000


def test_files_of_other_ranges_are_nobodys(arena: "Range") -> None:
    """Design §5: a file that the host's root or another tenant owns is not root's inside, and cannot be taken."""
    box = arena.box()
    root = arena.daemon.run / "sandboxes" / box.id / "root"
    for name, owner in (("of-host", 0), ("of-tenant", 4_000_000)):
        path = root / "var" / name
        path.write_text("another's")
        path.chmod(0o600)
        os.chown(path, owner, owner)
        assert box.exec(["stat", "-c", "%u", f"/var/{name}"], user="root").stdout == "65534\n"
        for command in (
            f"cat /var/{name}",
            f"chown 0 /var/{name}",
            f"chmod 777 /var/{name}",
            f"echo x > /var/{name}",
        ):
            assert box.exec(command, user="root").exit_code != 0, command
        assert path.read_text() == "another's"


def test_only_own_processes_are_seen(arena: "Range", isolation: str) -> None:
    """G-1, design §5: no process of the host, of the gateway or of another sandbox is seen, traced, read or signalled."""
    neighbour = arena.box()
    sleeper = neighbour.spawn(["sleep", "987654"])
    box = arena.box(isolation)
    results = arena.run(box, "rights", arena.gateway.pid, arena.engine.pid, os.getpid())
    names = " ".join(results["processes"].values())
    assert "corral.gateway" not in names
    assert "corral.daemon" not in names
    assert "987654" not in names
    # The numbers may be taken by a process inside: then that one was met, as the list of processes shows.
    own = set(results["processes"])
    outcomes = {what: result for what, result in results["foreign"].items() if what.split()[1] not in own}
    assert set(outcomes.values()) <= {"ESRCH", "ENOENT", "EPERM", "EINVAL"}
    assert sleeper.refresh().exit is None


def test_a_cgroup_is_no_way_out(arena: "Range", isolation: str) -> None:
    """Design §5: a sandbox sees its own cgroup as the root, and none of its files can be written."""
    box = arena.box(isolation)
    results = arena.run(box, "rights")
    assert all(line.endswith(":/") for line in results["cgroup"].splitlines())
    done = box.exec("find /sys/fs/cgroup -type f -writable 2>/dev/null | head -3", user="root")
    assert done.stdout == "" or isolation == "gvisor"


def test_devices_are_the_harmless_ones(box: Sandbox) -> None:
    """Design §5: /dev holds nothing that leads to the host's memory, disks or virtual machines."""
    harmless = {"null", "zero", "full", "random", "urandom", "tty", "console", "ptmx", "pts", "shm", "mqueue", "fd",
                "stdin", "stdout", "stderr", "core"}  # fmt: skip
    if box.info.isolation == "gvisor":
        harmless |= {"char", "net", "fuse"}  # its own kernel's, empty or without rights
    assert set(box.exec(["ls", "/dev"], user="root", check=True).stdout.split()) <= harmless


def test_the_hosts_devices_stay_the_hosts(box: Sandbox) -> None:
    """Design §5: the devices that a sandbox sees are the host's own, and a root of it that owned one could close it to all."""
    devices = [Path(f"/dev/{name}") for name in ("null", "zero", "full", "random", "urandom", "tty")]
    assert {device.stat().st_uid for device in devices} == {0}
    modes = [device.stat().st_mode for device in devices]
    box.exec(["chmod", "0", *map(str, devices)], user="root")
    assert [device.stat().st_mode for device in devices] == modes

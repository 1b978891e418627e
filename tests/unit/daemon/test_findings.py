"""What `corral doctor` makes of facts."""

from dataclasses import replace
from pathlib import Path

import pytest

from corral.daemon import findings
from corral.daemon.findings import Check, Status
from corral.host.cgroups import Layout
from corral.host.probe import Kernel, KernelLimits, Room

KERNEL = Kernel(
    "6.1.0-18-amd64", frozenset({"allow", "errno"}), frozenset({"ext4", "btrfs"}), loop_control=True
)
GIB = 1 << 30


def version1(*controllers: str, unified: bool = False) -> Layout:
    root = Path("/sys/fs/cgroup")
    return Layout({name: root / name for name in controllers}, root / "unified" if unified else None, (root,))


@pytest.mark.parametrize(
    ("release", "status"),
    [("6.18.44-fc-v669", Status.OK), ("5.19", Status.OK), ("5.4.0-100", Status.FAIL), ("odd", Status.FAIL)],
)
def test_kernels(release: str, status: Status) -> None:
    assert findings.kernel(replace(KERNEL, release=release)).status is status


def test_seccomp() -> None:
    assert findings.seccomp(KERNEL).status is Status.OK
    assert findings.seccomp(replace(KERNEL, seccomp=frozenset())).status is Status.FAIL


ALL = ("memory", "pids", "cpu", "freezer", "blkio", "devices", "cpuset")


def test_a_switched_off_memory_controller_is_a_failure_that_says_so() -> None:
    without = findings.cgroups(Layout({}, Path("/sys/fs/cgroup"), ()), ["pids", "cpu", "io", "cpuset"])
    assert (without.status, "memory" in without.message) == (Status.FAIL, True)
    assert "limits cannot be enforced" in without.message
    assert findings.cgroups(None, (), "no cgroups at all") == Check(
        "cgroups", Status.FAIL, "no cgroups at all", "mount cgroup2 at /sys/fs/cgroup"
    )


def test_cgroup_layouts() -> None:
    assert findings.cgroups(version1(*ALL), ()).status is Status.OK
    mixed = findings.cgroups(version1(*ALL, unified=True), ())
    assert (mixed.status, mixed.message) == (Status.OK, "version 1, mixed with version 2")
    assert findings.cgroups(version1(*ALL[:-2]), ()).status is Status.WARN
    second = Layout({}, Path("/sys/fs/cgroup"), ())
    assert findings.cgroups(second, ["cpuset", "cpu", "io", "memory", "pids"]) == Check(
        "cgroups", Status.OK, "version 2"
    )


@pytest.mark.parametrize(
    ("kind", "kernel", "status"),
    [
        ("loop", KERNEL, Status.OK),
        ("btrfs", KERNEL, Status.OK),
        ("plain", KERNEL, Status.WARN),
        ("", KERNEL, Status.OK),
        ("", replace(KERNEL, loop_control=False), Status.WARN),
        ("", replace(KERNEL, filesystems=frozenset({"ext4"})), Status.WARN),
    ],
)
def test_stores(kind: str, kernel: Kernel, status: Status) -> None:
    assert findings.store(kind, "", kernel).status is status


def test_without_any_runtime_it_is_a_failure() -> None:
    one = findings.runtimes({"runc": "container"}, {"crun": "it does not work (do this)"})
    assert [(check.name, check.status) for check in one] == [
        ("runtime runc", Status.OK), ("runtime crun", Status.WARN)
    ]  # fmt: skip
    assert one[1].message == "it does not work (do this)"
    assert findings.runtimes({}, {"crun": "no"})[0].status is Status.FAIL


def test_missing_programs_name_their_package() -> None:
    found = findings.programs({"mmdebstrap": None, "corral-init": None, "git": Path("/usr/bin/git")})
    assert [check.status for check in found] == [Status.WARN, Status.FAIL, Status.OK]
    assert "apt-get install mmdebstrap" in found[0].hint
    assert "make setup" in found[1].hint


@pytest.mark.parametrize(
    ("room", "statuses"),
    [
        (Room(100 * GIB, 8 * GIB, None), [Status.OK, Status.OK]),
        (Room(1 * GIB, GIB // 2, None), [Status.FAIL, Status.WARN]),
        (Room(5 * GIB, 8 * GIB, None), [Status.WARN, Status.OK]),
        (Room(100 * GIB, 8 * GIB, 50), [Status.WARN, Status.OK]),
    ],
)
def test_room(room: Room, statuses: list[Status]) -> None:
    assert [check.status for check in findings.room(room)] == statuses


def test_limits() -> None:
    few = KernelLimits(128, 8192, 1024, 0, 4194304)
    checks = findings.limits(few)
    assert [check.status for check in checks] == [Status.WARN] * 4 + [Status.OK]
    assert all(check.hint for check in checks if check.status is Status.WARN)
    assert all(
        check.status is Status.OK for check in findings.limits(KernelLimits(None, None, 1 << 20, None, None))
    )


def test_registries_in_a_special_range_come_with_the_setting_that_opens_it() -> None:
    addresses = {
        "a.example": ["203.0.113.80"],
        "b.example": ["203.0.113.80", "203.0.113.81"],
        "c.example": ["8.8.8.8"],
    }
    found = findings.registries(addresses, ("10.0.0.0/8",), ())
    assert found.status is Status.WARN
    assert found.fix_value == ["10.0.0.0/8", "203.0.113.80/32", "203.0.113.81/32"]
    assert "corral config set egress.networks 10.0.0.0/8,203.0.113.80/32,203.0.113.81/32" in found.hint
    assert "a.example, b.example" in found.message
    again = findings.registries(addresses, tuple(found.fix_value), ())
    assert (again.status, again.fix_value) == (Status.OK, None)


def test_registries_that_do_not_resolve_or_are_this_host() -> None:
    assert "cannot be resolved" in findings.registries({"a.example": []}, (), ()).message
    own = findings.registries({"a.example": ["8.8.8.8"]}, (), ["8.8.8.8", "fe80::1"])
    assert own.status is Status.WARN

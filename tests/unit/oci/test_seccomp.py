"""The profile: what is in it, and that its argument filters say what they mean. The kernel's word is in the
system tests."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.oci.seccomp import _outside, seccomp_profile

REFUSED = """
keyctl add_key request_key bpf perf_event_open userfaultfd kexec_load kexec_file_load init_module
finit_module delete_module open_by_handle_at mount umount2 pivot_root fsopen fsmount fsconfig fspick
open_tree open_tree_attr move_mount mount_setattr setns swapon swapoff reboot syslog quotactl quotactl_fd
acct settimeofday clock_settime clock_adjtime adjtimex lookup_dcookie vm86 vm86old iopl ioperm nfsservctl
uselib ustat sysfs vhangup fanotify_init memfd_secret modify_ldt pidfd_getfd kcmp move_pages mbind
set_mempolicy process_madvise
""".split()  # noqa: SIM905 - as lines it can be read


def rules(name: str) -> list[dict[str, Any]]:
    return [rule for rule in seccomp_profile("x86_64")["syscalls"] if name in rule["names"]]


def action(name: str, *args: int) -> str | int:
    """What the profile does with a call; an errno, or "allow"."""
    profile = seccomp_profile("x86_64")
    for rule in rules(name):
        if all(matches(test, args[test["index"]]) for test in rule.get("args", [])):
            return "allow" if rule["action"] == "SCMP_ACT_ALLOW" else int(rule["errnoRet"])
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    return int(profile["defaultErrnoRet"])


def matches(test: dict[str, Any], value: int) -> bool:
    if test["op"] == "SCMP_CMP_EQ":
        return bool(value == test["value"])
    assert test["op"] == "SCMP_CMP_MASKED_EQ"
    return bool(value & test["value"] == test["valueTwo"])


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    assert action(name, *[0] * 6) == 1


@pytest.mark.parametrize("name", ["clone3", "io_uring_setup", "io_uring_enter", "io_uring_register"])
def test_said_to_be_unknown(name: str) -> None:
    assert action(name, *[0] * 6) == 38


@pytest.mark.parametrize(
    ("name", "args", "wanted"),
    [
        ("clone", (0x11,), "allow"),
        ("clone", (0x3D0F00,), "allow"),  # a thread
        ("clone", (0x10000011,), 1),
        ("clone", (0x40000000,), 1),
        ("clone", (0x00020000,), 1),
        ("unshare", (0x400,), "allow"),
        ("unshare", (0x10000000,), 1),
        ("unshare", (0x80,), 1),
        ("personality", (0,), "allow"),
        ("personality", (0xFFFFFFFF,), "allow"),
        ("personality", (0x40000,), "allow"),  # no address randomisation, for debuggers
        ("personality", (0x0400000,), 1),
        ("socket", (1, 1, 0), "allow"),
        ("socket", (2, 1, 6), "allow"),
        ("socket", (10, 2, 17), "allow"),
        ("socket", (16, 3, 0), "allow"),
        ("socket", (16, 3, 12), 1),
        ("socket", (16, 3, 9), 93),
        ("socket", (40, 1, 0), 1),
        ("socket", (17, 3, 0), 1),
        ("socket", (38, 5, 0), 1),
        ("socket", (2 + (1 << 32), 1, 0), 1),
        ("socketpair", (1, 1, 0), "allow"),
        ("socketpair", (17, 3, 0), 1),
        ("socketpair", (40, 1, 0), 1),
        ("socketpair", (1 + (1 << 32), 1, 0), 1),
        ("setrlimit", (7, 1), "allow"),
        ("setrlimit", (4, 1), 0),
        ("setrlimit", (4 + (1 << 32), 1), 0),
        ("prlimit64", (0, 7, 1, 1), "allow"),
        ("prlimit64", (0, 4, 0, 1), "allow"),
        ("prlimit64", (0, 4, 1, 0), 0),
        ("ioctl", (0, 0x5401), "allow"),
        ("ioctl", (0, 0x5413), "allow"),
        ("ioctl", (0, 0x5412), 1),
        ("ioctl", (0, 0x5412 + (1 << 32)), 1),
        ("ioctl", (0, 0x5000940E), 1),  # btrfs: a subvolume
        ("ioctl", (0, 0x50009418), 1),  # one that says its quota groups
        ("ioctl", (0, 0x50009418 + (1 << 32)), 1),
        ("ioctl", (0, 0x50009518), "allow"),
        ("ioctl", (0, 0x40049409), "allow"),  # clone a file
        ("ptrace", (0,), "allow"),
        ("chroot", (0,), "allow"),
    ],
)
def test_arguments(name: str, args: tuple[int, ...], wanted: str | int) -> None:
    assert action(name, *args) == wanted


shapes = st.tuples(st.integers(0, 0xFFFF), st.integers(0, 0xFFFF)).map(
    lambda made: (made[0], made[0] & made[1])
)


@given(st.lists(shapes, max_size=3), st.integers(0, 0xFFFF))
def test_what_is_outside_of_shapes(refused: list[tuple[int, int]], value: int) -> None:
    """A value is in one of the shapes outside, or in one of those that are refused, and never in both."""
    holding = [shape for shape in _outside(refused) if value & shape[0] == shape[1]]
    assert len(holding) == (0 if any(value & mask == left for mask, left in refused) else 1)


def test_one_architecture() -> None:
    assert seccomp_profile("x86_64")["architectures"] == ["SCMP_ARCH_X86_64"]
    assert seccomp_profile("aarch64")["architectures"] == ["SCMP_ARCH_AARCH64"]

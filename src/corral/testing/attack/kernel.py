"""Attacks on the kernel and on the limits, as the sandbox's root."""

import socket
from pathlib import Path

from corral.errors import CorralError
from corral.testing.attack.arena import MIB, Arena, Attack, SkippedError, expect

REFUSED = {"EPERM", "ENOSYS"}
# What gives a capability that would be worth having; CAP_… by number.
DANGEROUS = (2, 12, 13, 14, 16, 17, 19, 21, 22, 24, 25, 27, 29, 30, 33, 34, 38, 39, 40)
_MASKED = ("kernel/core_pattern", "kernel/hostname", "kernel/randomize_va_space", "net/ipv4/ip_forward")
_HARMLESS = frozenset(
    {
        "null",
        "zero",
        "full",
        "random",
        "urandom",
        "tty",
        "console",
        "ptmx",
        "pts",
        "shm",
        "mqueue",
        "fd",
        "core",
    }
    | {"stdin", "stdout", "stderr"}
)
_OWN_KERNEL = "the sandbox has a kernel of its own"


def _container_only(arena: Arena) -> None:
    if arena.isolation != "container":
        raise SkippedError(f"{_OWN_KERNEL}, whose calls are not the host's")


def _refused(arena: Arena, part: str, wanted: set[str]) -> int:
    found: dict[str, str] = arena.run(arena.plain, "kernel", part)
    bad = {name: result for name, result in found.items() if result not in wanted}
    expect(not bad, f"not refused: {bad}")
    return len(found)


def _calls(arena: Arena) -> str:
    _container_only(arena)
    count = _refused(arena, "calls", REFUSED)
    return (
        f"seccomp: {count} calls refused (mount, keyctl, bpf, perf, userfaultfd, io_uring, modules, kexec, …)"
    )


def _namespaces(arena: Arena) -> str:
    _container_only(arena)
    return f"seccomp: {_refused(arena, 'namespaces', REFUSED)} ways to new namespaces and out of a chroot refused"


def _abi(arena: Arena) -> str:
    _container_only(arena)
    _refused(arena, "abi", {"SIGSYS", "ENOSYS", "SIGSEGV"})
    return "seccomp: calls of the 32-bit and x32 ABI end the process"


def _terminal(arena: Arena) -> str:
    own = arena.isolation != "container"
    _refused(arena, "terminal", {"EPERM", "ENOTTY", "EIO", "EINVAL"} if own else {"EPERM"})
    return "the request to type into a terminal is refused, also with an odd upper half"


def _devices(arena: Arena) -> str:
    _refused(arena, "devices", {"EPERM", "EINVAL"})
    listed = set(arena.plain.exec(["ls", "/dev"], user="root").stdout.split())
    allowed = _HARMLESS | ({"char", "net", "fuse"} if arena.isolation != "container" else set())
    expect(listed <= allowed, f"devices: {sorted(listed - allowed)}")
    return "no right to make device nodes, and /dev holds harmless ones only"


def _knobs(arena: Arena) -> str:
    before = [Path("/proc/sys", name).read_text() for name in _MASKED]
    found = arena.run(arena.plain, "kernel", "knobs")
    arena.plain.exec("echo '|/tmp/x' > /proc/sys/kernel/core_pattern; hostname owned", user="root")
    expect(
        [Path("/proc/sys", name).read_text() for name in _MASKED] == before, "a setting of the host changed"
    )
    expect(socket.gethostname() != "owned", "the host was renamed")
    if arena.isolation == "container":
        opened = {path for path, result in found.items() if result == "ok"} - {"/proc/1/oom_score_adj"}
        expect(not opened, f"can be written: {sorted(opened)}")
        seen = set(arena.run(arena.plain, "kernel", "masked").values())
        expect(seen <= {"nothing", "ENOENT"}, f"the host can be read: {seen}")
    return "/proc/sys, sysrq, release_agent and their like are read-only or masked"


def _mounts(arena: Arena) -> str:
    found = arena.run(arena.plain, "kernel", "mounts")
    for path in ("/run/corral/init", "/etc/resolv.conf", "/run/corral/trust/ca.pem"):
        expect(found[f"write {path}"] in {"EROFS", "EACCES", "EPERM"}, f"{path} can be written")
    if arena.isolation == "container":
        bad = {
            name: said for name, said in found.items() if said not in {"EPERM", "EROFS", "EACCES", "ENODEV"}
        }
        expect(not bad, f"not refused: {bad}")
    return "nothing can be mounted, unmounted or made writable that the host bound read-only"


def _rights(arena: Arena) -> str:
    found = arena.run(arena.plain, "rights")
    every = sum(1 << number for number in DANGEROUS)
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        expect(int(found["own"][name], 16) & every == 0, f"{name} holds a dangerous right")
    expect(found["raise"] == "EPERM", "rights can be raised by capset")
    for way in ("file", "setuid"):
        gained = found[way]
        held = gained in {"refused", "EPERM", "ENOTSUP"} or int(gained, 16) & every == 0
        expect(held, f"rights can be raised by a {way} program")
    if arena.isolation == "container":
        expect(found["own"]["Seccomp"] == "2", "there is no seccomp filter")
    return "no dangerous capability in any set; capset, file rights and setuid programs give none"


def _users(arena: Arena) -> str:
    found = arena.run(arena.plain, "rights")
    if arena.isolation == "container":
        inner, outer, size = (int(text) for text in found["user map"])
        expect((inner, size) == (0, 65536) and outer >= 100_000, f"user map: {found['user map']}")
    expect(
        found["beyond"] in {"EINVAL", "EPERM", "EOVERFLOW"}, "a file was given to a user outside of the range"
    )
    return "root inside is a user without rights outside, and cannot name any other"


def _processes(arena: Arena) -> str:
    sleeper = arena.neighbour.spawn(["sleep", "987654"])
    found = arena.run(arena.plain, "rights", *range(1, 40))
    sleeper.kill()
    names = " ".join(found["processes"].values())
    seen = [name for name in ("corral.daemon", "corral.gateway", "987654") if name in names]
    expect(not seen, f"processes of others are seen: {seen}")
    own = set(found["processes"])
    bad = {
        what: said for what, said in found["foreign"].items()
        if what.split()[1] not in own and said not in {"ESRCH", "ENOENT", "EPERM", "EINVAL"}
    }  # fmt: skip
    expect(not bad, f"processes of others can be touched: {bad}")
    return "a pid namespace of its own: no process of the host or of another sandbox is seen or signalled"


def _cgroup(arena: Arena) -> str:
    found = arena.run(arena.plain, "rights")
    expect(all(line.endswith(":/") for line in found["cgroup"].splitlines()), "the host's cgroups are named")
    done = arena.plain.exec("find /sys/fs/cgroup -type f -writable 2>/dev/null | head -3", user="root")
    expect(not done.stdout or arena.isolation != "container", "a cgroup file can be written")
    return "it sees its own cgroup as the root, and can write none of its files"


def _forks(arena: Arena) -> str:
    box = arena.extra()
    bomb = box.spawn(["python3", "-m", "attack.exhaust", "forks", "0"], cwd="/opt/attack")
    most = 0
    for _ in range(200):
        most = max(most, box.stats().pids)
        if most > 200:
            break
    with_other = arena.plain.exec("echo alive").stdout
    bomb.kill()
    expect(most <= 256, f"{most} processes")
    expect(with_other == "alive\n", "another sandbox no longer answers")
    return f"the limit on processes holds ({most} of 256), and others go on"


def _memory(arena: Arena) -> str:
    box = arena.extra()
    done = box.exec(["python3", "-m", "attack.exhaust", "memory", "0"], cwd="/opt/attack", timeout=60)
    expect(done.exit_code != 0, "memory without end")
    expect(arena.plain.exec("echo alive").stdout == "alive\n", "another sandbox no longer answers")
    return "the memory limit holds: the kernel ends the program inside, and nothing outside"


def _disk(arena: Arena) -> str:
    box = arena.extra()
    try:
        found = arena.run(box, "exhaust", "disk", 400, user="user")
    except CorralError as error:
        raise SkippedError(error.message) from None
    expect(found["written"] <= 300 * MIB, f"{found['written'] // MIB} MiB written to a disk of 256")
    return f"the quota holds: {found['written'] // MIB} MiB, then {found['error']}"


ATTACKS = (
    Attack("G-1, G-3", "make system calls that only a host needs", _calls),
    Attack("G-3", "make new namespaces, and leave by the oldest chroot trick", _namespaces),
    Attack("G-3", "get around the filter by another ABI", _abi),
    Attack("G-1", "type into the terminal of whoever attaches", _terminal),
    Attack("G-1", "open the host's memory and disks by device nodes", _devices),
    Attack("G-1", "steer the host's kernel through /proc and /sys", _knobs),
    Attack("G-1", "mount, unmount and uncover file systems", _mounts),
    Attack("G-3", "raise one's rights", _rights),
    Attack("G-3", "be root outside", _users),
    Attack("G-1", "see and signal processes of the host and of others", _processes),
    Attack("G-1", "leave through cgroups", _cgroup),
    Attack("G-340", "fork without end", _forks),
    Attack("G-340", "take all memory", _memory),
    Attack("G-340", "fill the disk", _disk),
)

"""Attacks on the kernel and on the limits, as the sandbox's root."""

import contextlib
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from corral.errors import Conflict, CorralError
from corral.sdk.sandbox import Sandbox
from corral.testing.attack.arena import MIB, SMALL, Arena, Attack, EscapedError, SkippedError, expect, need

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
_READABLE = "a file of the host"
_OWN_KERNEL = "the sandbox has a kernel of its own"


def _container_only(arena: Arena) -> None:
    if arena.isolation != "container":
        raise SkippedError(f"{_OWN_KERNEL}, whose calls are not the host's")


def _refused(arena: Arena, part: str, wanted: set[str]) -> int:
    found: dict[str, str] = arena.run(arena.plain, "kernel", part)
    bad = {name: result for name, result in found.items() if result not in wanted}
    expect(not bad, f"not refused: {bad}")
    return len(found)


_CALLS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("keyrings", "use keyrings, which all of the kernel shares", ("add_key", "request_key", "keyctl")),
    ("io-uring", "use io_uring", ("io_uring_setup", "io_uring_enter")),
    ("bpf", "load programs into the kernel (bpf)", ("bpf",)),
    ("kernel-watching", "watch the kernel (perf, syslog, fanotify, accounting)",
     ("perf_event_open", "syslog", "fanotify_init", "acct")),
    ("userfaultfd", "stop the kernel at a page (userfaultfd) and hide memory from it", ("userfaultfd", "memfd_secret")),
    ("kernel-modules", "load modules, and another kernel",
     ("init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load")),
    ("clock", "set the host's clock", ("settimeofday", "clock_settime", "adjtimex")),
    ("file-handles", "open files of the host by handles", ("open_by_handle_at",)),
    ("mount-calls", "mount", ("mount", "umount2", "pivot_root")),
    ("new-mount-calls", "mount by the newer calls",
     ("fsopen", "fsconfig", "fsmount", "fspick", "open_tree", "move_mount", "mount_setattr")),
    ("enter-namespace", "enter another namespace", ("setns", "clone3")),
    ("move-pages", "move pages, and take another process's files", ("move_pages", "migrate_pages", "mbind", "pidfd_getfd")),
    ("host-calls", "swap, set quotas, rename and restart the host",
     ("swapon", "swapoff", "quotactl", "reboot", "sethostname", "setdomainname", "vhangup")),
    ("machine-ports", "reach ports of the machine, and its segments", ("iopl", "ioperm", "modify_ldt")),
)  # fmt: skip


def _call(names: tuple[str, ...]) -> Callable[[Arena], str]:
    def run(arena: Arena) -> str:
        _container_only(arena)
        found: dict[str, str] = arena.found("kernel", "calls")
        tried = {name: found[name] for name in names if name in found}
        if not tried:
            raise SkippedError("this machine has no such calls")
        bad = {name: said for name, said in tried.items() if said not in REFUSED}
        expect(not bad, f"not refused: {bad}")
        return f"seccomp: {', '.join(tried)} refused"

    return run


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
    most = still = 0
    with contextlib.suppress(Conflict):  # with a kernel of its own, it may end of it
        while still < 100 and most <= 256:
            now = box.stats().pids
            still = 0 if now > most else still + 1
            most = max(most, now)
    with_other = arena.plain.exec("echo alive").stdout
    with contextlib.suppress(CorralError):
        bomb.kill()
    expect(most <= 256, f"{most} processes")
    expect(with_other == "alive\n", "another sandbox no longer answers")
    return f"the limit on processes holds ({most} of 256), and others go on"


def _memory(arena: Arena) -> str:
    box = arena.extra()
    done = box.exec(["python3", "-m", "attack.exhaust", "memory", "768"], cwd="/opt/attack", timeout=60)
    expect(done.exit_code != 0, "768 MiB of memory in a sandbox of 512")
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


def _pairs(arena: Arena) -> str:
    _container_only(arena)
    found = arena.found("sockets")["pairs"]
    expect(found == [socket.AF_UNIX], f"pairs of families {found}")
    return "seccomp: pairs are local sockets, as single ones are of a few families"


def _core(arena: Arena) -> str:
    _container_only(arena)
    found = arena.found("kernel", "core")
    limits = {said for what, said in found.items() if what.startswith(("set", "at"))}
    expect(limits == {"(1, 1)"}, f"a limit at which the kernel runs the host's handler can be had: {limits}")
    return "the limit is 1, at which the kernel dumps nothing to anybody, and cannot be set to another"


def _programs(arena: Arena) -> str:
    places = ("/proc/1/exe", "/run/corral/init", "/usr/local/bin/corral-ask", "/run/corral/trust/ca.pem")
    # Nothing is written: where it could be, a program of the host would be spoiled.
    script = "; ".join(f"( : >> {place} ) 2>/dev/null && echo {place}" for place in places)
    done = arena.plain.exec(
        f"{script}; ln /run/corral/init /root/init 2>/dev/null && echo linked; true", user="root"
    )
    expect(not done.stdout, f"can be written: {done.stdout.split()}")
    return f"bound read-only from copies of the host's: {len(places)} cannot be written, nor linked to"


def _readable(arena: Arena) -> Path:
    """A file of the host that everybody may read who gets to it."""
    arena.folder.chmod(0o711)
    path = arena.folder / "readable"
    path.write_text(_READABLE)
    path.chmod(0o644)
    return path


def _descriptors_left(arena: Arena) -> str:
    outside = arena.run(arena.plain, "kernel", "descriptors")
    expect(not outside, f"descriptors of the host: {outside}")
    script = f"for f in /proc/[0-9]*/fd/*; do cat $f/../../../../../../../..{_readable(arena)}; done 2>/dev/null; true"
    up = arena.plain.exec(script, user="root").stdout
    expect(_READABLE not in up, "a descriptor leads to the host's files")
    return "open files of all processes: none lies on a file system of the host, nor leads to one"


def _directory_left(arena: Arena) -> str:
    script = f"cat ../../../../../../../..{_readable(arena)}"
    for number in range(3, 64):
        with contextlib.suppress(CorralError):
            done = arena.plain.exec(script, user="root", cwd=f"/proc/self/fd/{number}")
            expect(_READABLE not in done.stdout, "a command was started outside")
    return "a working directory is looked up inside, after all that the host had open is shut"


def _overlay(arena: Arena) -> str:
    code = (
        "import os, json\nfound = {}\nos.makedirs('/root/over', exist_ok=True)\n"
        "for name in ('trusted.overlay.redirect', 'trusted.overlay.opaque', 'trusted.overlay.metacopy', 'security.ima'):\n"
        "    try: os.setxattr('/root/over', name, b'/etc'); found[name] = 'ok'\n"
        "    except OSError as error: found[name] = error.strerror\n"
        "try: os.mknod('/root/white', 0o20000, 0); found['whiteout'] = 'ok'\n"
        "except OSError as error: found['whiteout'] = error.strerror\nprint(json.dumps(found))"
    )
    found = json.loads(arena.plain.exec(["python3", "-c", code], user="root").stdout)
    bad = [name for name, said in found.items() if said == "ok"]
    expect(not bad or arena.isolation != "container", f"could be set: {bad}")
    expect(not arena.plain.exec("ls /root/over", user="root").stdout, "uncovered")
    return f"attributes and nodes by which layers are joined cannot be set: {len(found)} refused"


def _exhaust(
    arena: Arena, way: str, limit: int, box: Sandbox | None = None, **options: Any
) -> tuple[int, dict[str, Any]]:
    command = ["python3", "-m", "attack.exhaust", way, str(limit)]
    done = (box or arena.glutton).exec(command, cwd="/opt/attack", timeout=60, **options)
    expect(arena.plain.exec("echo alive").stdout == "alive\n", "another sandbox no longer answers")
    return done.exit_code, json.loads(done.stdout.strip() or "{}")


def _terminals(arena: Arena) -> str:
    _container_only(arena)
    _, found = _exhaust(arena, "terminals", 9000)
    expect(found.get("opened", 0) <= 256, f"{found.get('opened')} terminals")
    return f"{found['opened']} terminals, then {found['error']}"


def _unread(arena: Arena) -> str:
    _container_only(arena)
    code, found = _exhaust(arena, "unread", 400)
    held = found.get("held", 0)
    expect(code == 137 or held < 200 * MIB, f"{held // MIB} MiB of the host's memory in a sandbox of 512")
    return f"what connections hold is bounded: {held // MIB} MiB of 400"


def _memory_files(arena: Arena) -> str:
    code, found = _exhaust(arena, "shared", 600, arena.extra(), user="root")
    over = {place: said for place, said in found.items() if said["written"] > 512 * MIB}
    expect(not over and (found or code == 137), f"more than its memory: {over}")
    return "every file system in memory has a size, and counts as memory"


def _open_files(arena: Arena) -> str:
    code, found = _exhaust(arena, "descriptors", 200_000)
    expect(code == 137 or found.get("opened", 0) <= 66_000, f"{found} open files")
    return f"{found.get('opened', 0)} open files in one process, then {found.get('error', 'its end')}"


def _inodes(arena: Arena) -> str:
    box = arena.extra(limits={**SMALL, "disk": 16 * MIB})
    found = arena.run(box, "exhaust", "inodes", 30_000, user="user")
    expect(
        found["error"] in {"EDQUOT", "ENOSPC"},
        f"{found['made']} files on a disk of 16 MiB, then {found['error']}",
    )
    return f"empty files count as disk: {found['made']}, then {found['error']}"


def _sparse(arena: Arena) -> str:
    box = arena.plain
    before = box.stats().disk
    box.exec("for i in 1 2 3 4; do truncate -s 1T /home/user/hole$i; done; sync", user="root")
    used = box.stats().disk - before
    with contextlib.suppress(CorralError):
        box.files.write("/home/user/after", "still written")
    written = box.exec("cat /home/user/after; rm -f /home/user/hole*").stdout
    expect(used < 16 * MIB and written == "still written", f"holes of 4 TB cost {used} bytes")
    return "holes cost nothing, and what is read of them is bounded by who reads"


def _deep(arena: Arena) -> str:
    box = arena.extra()
    code = "import os\nfor _ in range(3000):\n    os.mkdir('d' * 200); os.chdir('d' * 200)\n"
    made = box.exec(["python3", "-c", code], timeout=60).exit_code
    listed = len(box.files.list("/home/user"))
    try:
        arena.remove(box)
    except CorralError as error:
        raise EscapedError(f"a deep tree cannot be removed: {error.message}") from None
    need(made == 0 and listed >= 1, "the tree was not made")
    expect(arena.plain.exec("echo alive").stdout == "alive\n", "another sandbox no longer answers")
    return "3,000 levels, paths of 600,000 bytes: listed, and removed with their sandbox"


def _spool(arena: Arena) -> str:
    box, place = arena.extra(), "/run/corral/io/fill"
    script = f"fallocate -l 700M {place}; stat -c %b {place} > /tmp/blocks; rm -f {place}; true"
    box.exec(script, user="root", timeout=60)
    size = int(box.exec("cat /tmp/blocks", user="root").stdout or 0) * 512
    expect(size < 600 * MIB, f"{size // MIB} MiB beside the disk's limit")
    return f"the place of output has a limit of its own: 700 MiB are refused at {size // MIB}"


def _subvolume(arena: Arena) -> str:
    made = arena.run(arena.plain, "exhaust", "subvolume", "/run/corral/io")["made"]
    expect(made in {*REFUSED, "ENOTTY"}, f"a subvolume that joins no quota group: {made}")
    return f"subvolumes of one's own: {made}"


ATTACKS = (
    *(Attack(name, "G-3, design 5", tried, _call(calls)) for name, tried, calls in _CALLS),
    Attack(
        "socket-pairs", "G-300, design 5", "have a pair of sockets of a family that is refused singly", _pairs
    ),
    Attack("core-dumps", "design 1", "have the host's crash handler run", _core),
    Attack("host-programs", "G-1, FILE-14", "write to the programs that the host starts inside", _programs),
    Attack("descriptors", "G-1", "find a descriptor of the host that was left open", _descriptors_left),
    Attack("directories", "G-1", "run a command in a directory that was left open", _directory_left),
    Attack("overlay", "G-1", "reach below one's files by the file system's own attributes", _overlay),
    Attack("terminals", "RES-11", "take all terminals", _terminals),
    Attack("unread", "RES-11", "fill the kernel's memory with what nobody reads", _unread),
    Attack("memory-files", "RES-11", "fill memory by files in it", _memory_files),
    Attack("open-files", "RES-11", "open files without end", _open_files),
    Attack("inodes", "RES-11", "make files without end", _inodes),
    Attack("holes", "RES-3", "claim a disk by files of holes", _sparse),
    Attack("deep-trees", "RES-11", "nest directories without end", _deep),
    Attack("output", "G-340", "fill what the output is kept in", _spool),
    Attack("subvolumes", "RES-3", "make a directory whose content counts nowhere", _subvolume),
    Attack("namespaces", "G-3", "make new namespaces, and leave by the oldest chroot trick", _namespaces),
    Attack("other-abi", "G-3", "get around the filter by another ABI", _abi),
    Attack("typing", "G-1", "type into the terminal of whoever attaches", _terminal),
    Attack("device-nodes", "G-1", "open the host's memory and disks by device nodes", _devices),
    Attack("kernel-settings", "G-1", "steer the host's kernel through /proc and /sys", _knobs),
    Attack("mounts", "G-1", "mount, unmount and uncover file systems", _mounts),
    Attack("rights", "G-3", "raise one's rights", _rights),
    Attack("users", "G-3", "be root outside", _users),
    Attack("processes", "G-1", "see and signal processes of the host and of others", _processes),
    Attack("cgroups", "G-1", "leave through cgroups", _cgroup),
    Attack("forks", "G-340", "fork without end", _forks),
    Attack("memory", "G-340", "take all memory", _memory),
    Attack("disk", "G-340", "fill the disk", _disk),
)

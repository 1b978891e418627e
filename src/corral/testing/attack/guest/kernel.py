"""Knocks at the parts of the kernel that a sandbox has no business with; prints what each call gave."""

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import re
import resource
import signal
import stat
import sys
import termios
from collections.abc import Callable
from pathlib import Path

from .kit import ARM, in_child, libc, outcome, report, syscall, touch

# name: (number on x86-64, number on 64-bit ARM)
CALLS = {
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "setns": (308, 268), "add_key": (248, 217),
    "request_key": (249, 218), "keyctl": (250, 219), "bpf": (321, 280), "perf_event_open": (298, 241),
    "userfaultfd": (323, 282), "kexec_load": (246, 104), "kexec_file_load": (320, 294), "open_by_handle_at": (304, 265),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "swapon": (167, 224), "swapoff": (168, 225), "reboot": (169, 142),
    "sethostname": (170, 161), "setdomainname": (171, 162), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "adjtimex": (159, 171), "quotactl": (179, 60), "acct": (163, 89), "syslog": (103, 116), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "open_tree": (428, 428),
    "move_mount": (429, 429), "mount_setattr": (442, 442), "fanotify_init": (300, 262), "vhangup": (153, 58),
    "move_pages": (279, 239), "migrate_pages": (256, 238), "mbind": (237, 235), "clone3": (435, 435),
    "pidfd_getfd": (438, 438), "memfd_secret": (447, 447),
}  # fmt: skip
X86_ONLY = {"iopl": 172, "ioperm": 173, "modify_ldt": 154}
NAMESPACES = {
    "user": 0x10000000, "mount": 0x20000, "pid": 0x20000000, "net": 0x40000000, "ipc": 0x8000000, "uts": 0x4000000,
    "cgroup": 0x2000000, "time": 0x80,
}  # fmt: skip
TIOCSTI = 0x5412
KNOBS = (
    "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/hostname",
    "/proc/sys/kernel/randomize_va_space", "/proc/sys/kernel/panic", "/proc/sys/vm/overcommit_memory",
    "/proc/sys/vm/drop_caches", "/proc/sys/fs/binfmt_misc/register", "/proc/sys/fs/file-max",
    "/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/disable_ipv6", "/proc/sysrq-trigger",
    "/proc/kcore", "/proc/kmem", "/proc/kmsg", "/proc/kallsyms", "/proc/irq/default_smp_affinity", "/proc/1/oom_score_adj",
    "/sys/kernel/mm/transparent_hugepage/enabled", "/sys/kernel/uevent_helper", "/sys/power/state",
    "/sys/module/kernel/parameters/panic", "/sys/fs/cgroup/release_agent", "/sys/class/net/eth0/mtu",
    "/sys/firmware/efi", "/dev/mem", "/dev/kmem", "/dev/port", "/dev/kmsg", "/dev/vda", "/dev/sda", "/dev/loop-control",
    "/dev/fuse", "/dev/kvm", "/dev/net/tun", "/dev/vsock", "/dev/btrfs-control",
)  # fmt: skip


MASKED = (
    "/proc/kcore",
    "/proc/keys",
    "/proc/timer_list",
    "/proc/interrupts",
    "/proc/latency_stats",
    "/proc/sched_debug",
)


def calls() -> dict[str, str]:
    """Each call with arguments that are nothing."""
    numbers = {name: pair[ARM] for name, pair in CALLS.items()} | ({} if ARM else X86_ONLY)
    return {name: in_child(syscall, number, 0, 0, 0, 0, 0, 0) for name, number in numbers.items()}


def namespaces() -> dict[str, str]:
    """New namespaces, by unshare and by clone; a new view of one's own, by setns."""
    unshare, clone = (97, 220) if ARM else (272, 56)
    found = {f"unshare {name}": in_child(syscall, unshare, flag) for name, flag in NAMESPACES.items()}

    def cloned(flag: int) -> None:
        if syscall(clone, flag | 17, 0, 0, 0, 0) == 0:
            os._exit(0)

    found |= {f"clone {name}": in_child(cloned, flag) for name, flag in NAMESPACES.items() if flag != 0x80}
    found["chroot escape"] = in_child(_chroot_escape)
    return found


def _chroot_escape() -> None:
    """The oldest trick: a directory outside of a second chroot."""
    os.makedirs("/tmp/jail", exist_ok=True)
    outside = os.open("/", os.O_RDONLY)
    os.chroot("/tmp/jail")
    os.fchdir(outside)
    for _ in range(64):
        os.chdir("..")
    os.chroot(".")
    if not Path("/run/corral/init").exists():
        return  # out of the sandbox: `ok` is the worst answer
    raise PermissionError(1, "")


def foreign_abi() -> dict[str, str]:
    """System calls of another ABI, which a filter for one architecture may not see."""
    if ARM:
        return {}
    machine_code = bytes.fromhex("b814000000cd80c3")  # mov eax, 20 (getpid in 32 bits); int 0x80; ret

    def interrupt() -> None:
        area = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        area.write(machine_code)
        if ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(area)))() < 0:
            raise PermissionError(1, "")

    return {"int 0x80": in_child(interrupt), "x32": in_child(syscall, 0x40000000 + 39)}


def terminal() -> dict[str, str]:
    """Typing into one's own terminal, also with a request whose upper half differs."""
    ioctl = 29 if ARM else 16

    def type_in(request: int) -> None:
        os.setsid()
        _, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        syscall(ioctl, slave, ctypes.c_ulong(request), ctypes.create_string_buffer(b"x"))

    requests = {"TIOCSTI": TIOCSTI, "TIOCSTI, upper half": 0x1_0000_0000 | TIOCSTI}
    return {name: in_child(type_in, request) for name, request in requests.items()}


def devices() -> dict[str, str]:
    """Device nodes, made new."""
    wanted = {
        "memory": (1, 1),
        "kmsg": (1, 11),
        "disk": (254, 0),
        "loop": (7, 0),
        "null": (1, 3),
        "fuse": (10, 229),
    }

    def make(number: tuple[int, int], kind: int) -> None:
        os.mknod(f"/root/node-{kind}-{number[0]}-{number[1]}", 0o666 | kind, os.makedev(*number))

    return {
        f"{label} {name}": outcome(make, number, kind)
        for name, number in wanted.items()
        for label, kind in (("char", stat.S_IFCHR), ("block", stat.S_IFBLK))
    }


def knobs() -> dict[str, str]:
    """Files by which a kernel is steered or read out."""
    return {path: outcome(touch, path, os.O_WRONLY | os.O_NONBLOCK) for path in KNOBS}


def masked() -> dict[str, str]:
    """What is read of files that tell about the whole host; `nothing` or the error, else the first bytes."""

    def look(path: str) -> str:
        try:
            with open(path, "rb", 0) as file:
                return repr(file.read(64)) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else "nothing"
        except OSError as error:
            return errno.errorcode.get(error.errno or 0, "error")

    return {path: look(path) for path in MASKED}


def mounts() -> dict[str, str]:
    """What a container would need to leave its mounts."""
    fixed = ("/run/corral/init", "/etc/resolv.conf", "/etc/hosts", "/run/corral/trust/ca.pem")

    def mount(source: str, target: str, kind: str, flags: int) -> None:
        if libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), None) != 0:
            raise OSError(ctypes.get_errno(), "")

    found = {f"remount {path}": in_child(mount, "none", path, "", 0x20 | 0x1000) for path in fixed}
    for path in fixed:
        found[f"write {path}"] = outcome(touch, path, os.O_WRONLY)
        found[f"unmount {path}"] = in_child(_unmount, path)
    os.makedirs("/root/mnt", exist_ok=True)
    kinds = (
        "proc",
        "sysfs",
        "tmpfs",
        "cgroup",
        "cgroup2",
        "overlay",
        "debugfs",
        "bpf",
        "securityfs",
        "btrfs",
        "mqueue",
    )
    found |= {f"mount {kind}": in_child(mount, kind, "/root/mnt", kind, 0) for kind in kinds}
    found["bind /proc"] = in_child(mount, "/proc", "/root/mnt", "", 0x1000 | 0x4000)
    return found


def _unmount(path: str) -> None:
    if libc.umount2(path.encode(), 2) != 0:
        raise OSError(ctypes.get_errno(), "")


def core() -> dict[str, str]:
    """Crash with every limit that a core dump may have; the limit before and after."""
    found = {"at first": str(resource.getrlimit(resource.RLIMIT_CORE))}

    def crash(limit: int) -> None:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))
        os.kill(os.getpid(), signal.SIGSEGV)

    for limit in (0, 1, 1 << 20, resource.RLIM_INFINITY):
        found[f"crash {limit}"] = in_child(crash, limit)
        for hard in (resource.RLIM_INFINITY, 1):
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_CORE, (limit, hard))
        found[f"set {limit}"] = str(resource.getrlimit(resource.RLIMIT_CORE))
    return found


def descriptors() -> dict[str, str]:
    """Open files and directories, of all processes, that lie on no file system that the process has."""
    found = {}
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            mode, target = os.stat(link).st_mode, os.readlink(link)
            info = (link.parents[1] / "fdinfo" / link.name).read_text()
            mounts = (link.parents[1] / "mountinfo").read_text()
        except OSError:
            continue
        mount = re.search(r"^mnt_id:\s*(\d+)", info, re.MULTILINE)
        known = {line.split()[0] for line in mounts.splitlines()}
        anonymous = target.startswith("/memfd:") or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
        if mount is not None and mount[1] not in known and not anonymous:
            found[str(link)] = target
    return found


PARTS: dict[str, Callable[[], dict[str, str]]] = {
    "calls": calls, "namespaces": namespaces, "abi": foreign_abi, "terminal": terminal, "devices": devices,
    "knobs": knobs, "masked": masked, "mounts": mounts, "core": core, "descriptors": descriptors,
}  # fmt: skip

if __name__ == "__main__":
    report(PARTS[sys.argv[1]]())

"""The system calls that a sandbox may make of the host's kernel, as data for an OCI runtime.

Theory. What is not listed is refused (EPERM), so a call that a later kernel adds is not reachable before
somebody has looked at it. The list is what programs use without privileges. Left out, beside all that needs
rights which no sandbox has: keyrings (not namespaced), bpf, perf, userfaultfd and io_uring (long records of
holes), the whole mount family and new user namespaces (each opens kernel code that was written for root),
open_by_handle_at, and sockets of families other than local, IP and routing netlink; pairs of sockets are local.

Only the machine's own architecture is listed: calls of any other one (32 bit, x32) kill the process.
Comparisons are made on 64-bit registers although the kernel looks at 32 bits of some arguments, so a rule
here never says "all but this value": such a value with high bits set would pass. TIOCSTI, which types into a
terminal, is told apart bit by bit.

btrfs lets anybody who may write a directory make a subvolume in it, and say which quota groups it joins: none, and what is
written into it counts nowhere. So of btrfs's own calls those are refused that take a name, as that one does.

A core dump may be piped to a program of the host, which then runs as the host's root on what the sandbox made. The
kernel pipes none for a process whose limit is 1, whatever that program is, but does for 0. So the limit is 1, and
setting another one does nothing: it is said to be done, since programs that hold keys end if they cannot set it.

gVisor does not get this profile: its guests make no calls of the host's kernel.
"""

import errno
from collections.abc import Sequence
from typing import Any

_ALLOW = "SCMP_ACT_ALLOW"
_ERRNO = "SCMP_ACT_ERRNO"

_PLAIN = """
accept accept4 access alarm arch_prctl bind brk cachestat capget capset chdir chmod chown chroot clock_getres
clock_gettime clock_nanosleep close close_range connect copy_file_range creat dup dup2 dup3 epoll_create
epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old eventfd eventfd2
execve execveat exit exit_group faccessat faccessat2 fadvise64 fallocate fchdir fchmod fchmodat fchmodat2
fchown fchownat fcntl fdatasync fgetxattr flistxattr flock fork fremovexattr fsetxattr fstat fstatfs fsync
ftruncate futex futex_requeue futex_wait futex_waitv futex_wake futimesat get_mempolicy get_robust_list
get_thread_area getcpu getcwd getdents getdents64 getegid geteuid getgid getgroups getitimer getpeername
getpgid getpgrp getpid getppid getpriority getrandom getresgid getresuid getrlimit getrusage getsid
getsockname getsockopt gettid gettimeofday getuid getxattr getxattrat inotify_add_watch inotify_init
inotify_init1 inotify_rm_watch io_cancel io_destroy io_getevents io_pgetevents io_setup io_submit ioprio_get
ioprio_set kill landlock_add_rule landlock_create_ruleset landlock_restrict_self lchown lgetxattr link linkat
listen listxattr listxattrat llistxattr lremovexattr lseek lsetxattr lstat madvise map_shadow_stack membarrier
memfd_create mincore mkdir mkdirat mknod mknodat mlock mlock2 mlockall mmap mprotect mq_getsetattr mq_notify
mq_open mq_timedreceive mq_timedsend mq_unlink mremap mseal msgctl msgget msgrcv msgsnd msync munlock
munlockall munmap name_to_handle_at nanosleep newfstatat open openat openat2 pause pidfd_open
pidfd_send_signal pipe pipe2 pkey_alloc pkey_free pkey_mprotect poll ppoll prctl pread64 preadv preadv2
process_mrelease process_vm_readv process_vm_writev pselect6 ptrace pwrite64 pwritev pwritev2 read
readahead readlink readlinkat readv recvfrom recvmmsg recvmsg remap_file_pages removexattr removexattrat
rename renameat renameat2 restart_syscall rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo
rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min
sched_getaffinity sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval sched_setaffinity
sched_setattr sched_setparam sched_setscheduler sched_yield seccomp select semctl semget semop semtimedop
sendfile sendmmsg sendmsg sendto set_robust_list set_thread_area set_tid_address setfsgid setfsuid setgid
setgroups setitimer setpgid setpriority setregid setresgid setresuid setreuid setsid setsockopt
setuid setxattr setxattrat shmat shmctl shmdt shmget shutdown sigaltstack signalfd signalfd4 splice
stat statfs statx symlink symlinkat sync sync_file_range syncfs sysinfo tee tgkill time timer_create
timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create timerfd_gettime timerfd_settime times
tkill truncate umask uname unlink unlinkat utime utimensat utimes vfork vmsplice wait4 waitid write writev
""".split()  # noqa: SIM905 - as lines it can be read

# Programs try these and have another way where the kernel does not know them.
_UNKNOWN = ("clone3", "io_uring_setup", "io_uring_enter", "io_uring_register")

# Families of sockets: local, IPv4, IPv6. Of netlink: routes and devices, socket lists, device events.
_FAMILIES = (1, 2, 10)
_NETLINK = 16
_NETLINK_PROTOCOLS = (0, 4, 15)
_NETLINK_AUDIT = 9

_RLIMIT_CORE = 4
_LOW_HALF = 0xFFFFFFFF  # what the kernel looks at

_PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0x40000, 0xFFFFFFFF)
_CLONE_NAMESPACES = 0x7E020080  # every CLONE_NEW…, the time namespace included
_CLONE_TIME = 0x80  # in clone() part of the signal number
_TIOCSTI = (_LOW_HALF, 0x5412)
_BTRFS_NAMED = (0xFFFFFF00, 0x50009400)
"""Group 0x94 with an argument of 4,096 bytes, whatever its number: subvolumes and snapshots made and deleted. Cloning a range
of a file is none of them."""

_ARCHITECTURES = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}


def seccomp_profile(machine: str) -> dict[str, Any]:
    """The `linux.seccomp` part of a bundle, for a machine as `uname -m` names it."""
    return {
        "defaultAction": _ERRNO,
        "defaultErrnoRet": errno.EPERM,
        "architectures": [_ARCHITECTURES[machine]] if machine in _ARCHITECTURES else [],
        "syscalls": [
            {"names": list(_PLAIN), "action": _ALLOW},
            {"names": list(_UNKNOWN), "action": _ERRNO, "errnoRet": errno.ENOSYS},
            _allowed("clone", _masked(0, _CLONE_NAMESPACES & ~_CLONE_TIME, 0)),
            _allowed("unshare", _masked(0, _CLONE_NAMESPACES, 0)),
            *(_allowed("personality", _equal(0, value)) for value in _PERSONALITIES),
            *_sockets(),
            *_ioctls(),
            *_limits(),
        ],
    }


def _sockets() -> list[dict[str, Any]]:
    # sudo goes on without the audit system if the kernel does not know it, and ends if it is refused.
    no_audit = {"names": ["socket"], "action": _ERRNO, "errnoRet": errno.EPROTONOSUPPORT}
    return [
        *(_allowed("socket", _equal(0, family)) for family in _FAMILIES),
        _allowed("socketpair", _equal(0, _FAMILIES[0])),
        *(_allowed("socket", _equal(0, _NETLINK), _equal(2, protocol)) for protocol in _NETLINK_PROTOCOLS),
        {**no_audit, "args": [_equal(0, _NETLINK), _equal(2, _NETLINK_AUDIT)]},
    ]


def _ioctls() -> list[dict[str, Any]]:
    return [_allowed("ioctl", _masked(1, *shape)) for shape in _outside((_TIOCSTI, _BTRFS_NAMED))]


def _limits() -> list[dict[str, Any]]:
    rules = [_allowed("prlimit64", _equal(2, 0))]  # which asks, and sets nothing
    for name, resource in (("prlimit64", 1), ("setrlimit", 0)):
        rules += [
            _allowed(name, _masked(resource, *shape)) for shape in _outside(((_LOW_HALF, _RLIMIT_CORE),))
        ]
        core = _masked(resource, _LOW_HALF, _RLIMIT_CORE)
        rules.append({"names": [name], "action": _ERRNO, "errnoRet": 0, "args": [core]})
    return rules


_Shape = tuple[int, int]
"""A mask and what is left of a value by it: the 32-bit values of which that is so."""


def _outside(shapes: Sequence[_Shape], known: _Shape = (0, 0)) -> list[_Shape]:
    """Shapes that together hold all values of the shape `known` that none of `shapes` holds.

    A bit that tells is settled both ways, and each half goes on with those that are still possible in it.
    """
    mask, value = known
    possible = [shape for shape in shapes if not (shape[1] ^ value) & shape[0] & mask]
    if not possible:
        return [known]
    open_bits = possible[0][0] & ~mask
    if not open_bits:
        return []
    first, last = possible[0], possible[-1]
    apart = (first[1] ^ last[1]) & first[0] & last[0] & ~mask
    bit = apart & -apart or open_bits & -open_bits  # the lowest that tells the two apart, else the lowest
    return [found for half in (value | bit, value & ~bit) for found in _outside(possible, (mask | bit, half))]


def _allowed(name: str, *args: dict[str, Any]) -> dict[str, Any]:
    return {"names": [name], "action": _ALLOW, "args": list(args)}


def _equal(index: int, value: int) -> dict[str, Any]:
    return {"index": index, "value": value, "op": "SCMP_CMP_EQ"}


def _masked(index: int, mask: int, value: int) -> dict[str, Any]:
    return {"index": index, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}

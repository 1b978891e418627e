"""System calls that Python 3.11 does not offer, by ctypes: the only module that uses it.

Each function is the call of the same name. Failures raise OSError with `errno` and the call's name. Paths
may be `str` (surrogateescape) or `bytes`. Calls release the interpreter's lock while the kernel works.
Numbers of the newer calls are the same on all architectures that Corral supports (x86_64, aarch64).
"""

import ctypes
import errno
import os
import struct
from typing import Any

AT_FDCWD = -100
AT_SYMLINK_NOFOLLOW = 0x100
AT_EMPTY_PATH = 0x1000
AT_RECURSIVE = 0x8000

CLONE_FS = 0x00000200
CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

RESOLVE_NO_XDEV = 0x01
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08
RESOLVE_IN_ROOT = 0x10
RESOLVE_CACHED = 0x20

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_NOATIME = 0x400
MS_BIND = 0x1000
MS_MOVE = 0x2000
MS_REC = 0x4000
MS_UNBINDABLE = 1 << 17
MS_PRIVATE = 1 << 18
MS_SLAVE = 1 << 19
MS_SHARED = 1 << 20

MNT_FORCE = 1
MNT_DETACH = 2
UMOUNT_NOFOLLOW = 8

OPEN_TREE_CLONE = 0x1
OPEN_TREE_CLOEXEC = os.O_CLOEXEC

MOVE_MOUNT_F_EMPTY_PATH = 0x04
MOVE_MOUNT_T_EMPTY_PATH = 0x40

MOUNT_ATTR_RDONLY = 0x01
MOUNT_ATTR_NOSUID = 0x02
MOUNT_ATTR_NODEV = 0x04
MOUNT_ATTR_NOEXEC = 0x08
MOUNT_ATTR_NOATIME = 0x10
MOUNT_ATTR_IDMAP = 0x00100000

FSOPEN_CLOEXEC = 0x1
FSMOUNT_CLOEXEC = 0x1

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_SET_SECUREBITS = 28
SECBIT_NO_SETUID_FIXUP = 1 << 2

IN_MODIFY = 0x2
IN_ATTRIB = 0x4
IN_MOVED_FROM = 0x40
IN_MOVED_TO = 0x80
IN_CREATE = 0x100
IN_DELETE = 0x200
IN_DELETE_SELF = 0x400
IN_MOVE_SELF = 0x800
IN_UNMOUNT = 0x2000
IN_Q_OVERFLOW = 0x4000
IN_IGNORED = 0x8000
IN_ONLYDIR = 0x01000000
IN_ISDIR = 0x40000000

_SYS_OPEN_TREE = 428
_SYS_MOVE_MOUNT = 429
_SYS_FSOPEN = 430
_SYS_FSCONFIG = 431
_SYS_FSMOUNT = 432
_SYS_OPENAT2 = 437
_SYS_MOUNT_SETATTR = 442

_FSCONFIG_SET_STRING = 1
_FSCONFIG_SET_FD = 5
_FSCONFIG_CMD_CREATE = 6

Path = str | bytes

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


class _MountAttr(ctypes.Structure):
    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


def _checked(name: str, result: int, path: Path | None = None) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}", None if path is None else os.fsdecode(path))
    return result


def _call(name: str, number: int, *args: Any, path: Path | None = None) -> int:
    return _checked(name, _libc.syscall(ctypes.c_long(number), *args), path)


def _bytes(value: Path) -> bytes:
    encoded = os.fsencode(value)
    if b"\0" in encoded:
        raise OSError(errno.EINVAL, "a path or value holds a NUL byte")
    return encoded


def ioctl(fd: int, request: int, arguments: bytes = b"") -> bytes:
    """ioctl(2) on a structure; what the kernel leaves in it. `fcntl.ioctl` keeps the interpreter's lock where it has more
    than 1024 bytes.
    """
    buffer = (ctypes.c_char * len(arguments)).from_buffer_copy(arguments)
    _checked("ioctl", _libc.ioctl(ctypes.c_int(fd), ctypes.c_ulong(request), buffer))
    return buffer.raw


def unshare(flags: int) -> None:
    """Leave the calling thread's namespaces of these kinds for new ones."""
    _checked("unshare", _libc.unshare(ctypes.c_int(flags)))


def setns(fd: int, nstype: int) -> None:
    """Enter a namespace, for the calling thread only."""
    _checked("setns", _libc.setns(ctypes.c_int(fd), ctypes.c_int(nstype)))


def openat2(dirfd: int, path: Path, flags: int, mode: int = 0, resolve: int = 0) -> int:
    """Open with restricted path resolution; close-on-exec. EAGAIN (a rename raced `..`) is tried again."""
    how = _OpenHow(flags | os.O_CLOEXEC, mode, resolve)
    name = _bytes(path)
    for attempt in range(128):
        try:
            return _call(
                "openat2", _SYS_OPENAT2, ctypes.c_int(dirfd), ctypes.c_char_p(name), ctypes.byref(how),
                ctypes.c_size_t(ctypes.sizeof(how)), path=path,
            )  # fmt: skip
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EINTR) or attempt == 127:
                raise
    raise OSError(errno.EAGAIN, "openat2: the path changes too often", os.fsdecode(path))


def open_by_handle(mount_fd: int, handle_type: int, handle: bytes, flags: int) -> int:
    """open_by_handle_at(2): a file by its file system's own name for it. Close-on-exec."""
    buffer = struct.pack("=Ii", len(handle), handle_type) + handle
    result = _libc.open_by_handle_at(
        ctypes.c_int(mount_fd), ctypes.c_char_p(buffer), ctypes.c_int(flags | os.O_CLOEXEC)
    )
    return _checked("open_by_handle_at", result)


def mount(source: Path, target: Path, fstype: Path | None, flags: int = 0, data: Path | None = None) -> None:
    """The classic mount(2)."""
    result = _libc.mount(
        ctypes.c_char_p(_bytes(source)),
        ctypes.c_char_p(_bytes(target)),
        ctypes.c_char_p(None if fstype is None else _bytes(fstype)),
        ctypes.c_ulong(flags),
        ctypes.c_char_p(None if data is None else _bytes(data)),
    )
    _checked("mount", result, target)


def umount2(target: Path, flags: int = 0) -> None:
    """Unmount what is mounted last at `target`."""
    _checked("umount2", _libc.umount2(ctypes.c_char_p(_bytes(target)), ctypes.c_int(flags)), target)


def open_tree(dirfd: int, path: Path, flags: int) -> int:
    """A descriptor of a mount or, with OPEN_TREE_CLONE, of a detached copy of it. Close-on-exec."""
    return _call(
        "open_tree", _SYS_OPEN_TREE, ctypes.c_int(dirfd), ctypes.c_char_p(_bytes(path)),
        ctypes.c_uint(flags | OPEN_TREE_CLOEXEC), path=path,
    )  # fmt: skip


def move_mount(
    from_fd: int, from_path: Path, to_fd: int, to_path: Path, flags: int = MOVE_MOUNT_F_EMPTY_PATH
) -> None:
    """Attach a detached mount (`from_path` empty), or move one."""
    _call(
        "move_mount", _SYS_MOVE_MOUNT, ctypes.c_int(from_fd), ctypes.c_char_p(_bytes(from_path)),
        ctypes.c_int(to_fd), ctypes.c_char_p(_bytes(to_path)), ctypes.c_uint(flags), path=to_path,
    )  # fmt: skip


def mount_setattr(
    fd: int,
    *,
    set_flags: int = 0,
    clear_flags: int = 0,
    propagation: int = 0,
    userns_fd: int = 0,
    recursive: bool = False,
) -> None:
    """Change attributes (MOUNT_ATTR_…) of the mount behind `fd`; MOUNT_ATTR_IDMAP takes its mapping from
    `userns_fd`.
    """
    attr = _MountAttr(set_flags, clear_flags, propagation, userns_fd)
    flags = AT_EMPTY_PATH | (AT_RECURSIVE if recursive else 0)
    _call(
        "mount_setattr", _SYS_MOUNT_SETATTR, ctypes.c_int(fd), ctypes.c_char_p(b""), ctypes.c_uint(flags),
        ctypes.byref(attr), ctypes.c_size_t(ctypes.sizeof(attr)),
    )  # fmt: skip


def fsopen(fstype: str) -> int:
    """A new file system context. Close-on-exec."""
    return _call("fsopen", _SYS_FSOPEN, ctypes.c_char_p(fstype.encode()), ctypes.c_uint(FSOPEN_CLOEXEC))


def _fsconfig(fd: int, command: int, key: str | None, value: bytes | None, aux: int) -> None:
    _call(
        f"fsconfig {key or 'create'}", _SYS_FSCONFIG, ctypes.c_int(fd), ctypes.c_uint(command),
        ctypes.c_char_p(None if key is None else key.encode()), ctypes.c_char_p(value), ctypes.c_int(aux),
    )  # fmt: skip


def fsconfig_set_string(fd: int, key: str, value: Path) -> None:
    """Set an option to a string of at most 255 bytes."""
    _fsconfig(fd, _FSCONFIG_SET_STRING, key, _bytes(value), 0)


def fsconfig_set_fd(fd: int, key: str, value: int) -> None:
    """Set an option to an open file."""
    _fsconfig(fd, _FSCONFIG_SET_FD, key, None, value)


def fsconfig_create(fd: int) -> None:
    """Make the superblock."""
    _fsconfig(fd, _FSCONFIG_CMD_CREATE, None, None, 0)


def fsmount(fd: int, attributes: int = 0) -> int:
    """A detached mount (MOUNT_ATTR_… attributes) of a context. Close-on-exec."""
    return _call(
        "fsmount", _SYS_FSMOUNT, ctypes.c_int(fd), ctypes.c_uint(FSMOUNT_CLOEXEC), ctypes.c_uint(attributes)
    )


def prctl(option: int, value: int) -> None:
    """Set a property (PR_SET_…) of the calling process or thread."""
    zero = ctypes.c_ulong(0)
    _checked("prctl", _libc.prctl(ctypes.c_int(option), ctypes.c_ulong(value), zero, zero, zero))


def setfsuid(uid: int) -> None:
    """Set the id that the calling thread makes and is checked for files with."""
    _set_file_id("setfsuid", _libc.setfsuid, uid)


def setfsgid(gid: int) -> None:
    """As `setfsuid`, for the group."""
    _set_file_id("setfsgid", _libc.setfsgid, gid)


def _set_file_id(name: str, call: Any, value: int) -> None:
    call(ctypes.c_uint(value))
    # The call reports no failure: it returns the former value. An invalid value changes nothing and asks.
    if call(ctypes.c_uint(0xFFFFFFFF)) != value:
        raise OSError(errno.EPERM, f"{name}: {os.strerror(errno.EPERM)}")


def fstatfs_type(fd: int) -> int:
    """The magic number of the file system that `fd` is on."""
    buffer = (ctypes.c_ulong * 32)()
    _checked("fstatfs", _libc.fstatfs(ctypes.c_int(fd), ctypes.byref(buffer)))
    return buffer[0]


def inotify_init() -> int:
    """A new inotify queue; non-blocking, close-on-exec."""
    return _checked("inotify_init1", _libc.inotify_init1(ctypes.c_int(os.O_NONBLOCK | os.O_CLOEXEC)))


def inotify_add_watch(fd: int, path: Path, mask: int) -> int:
    """Watch for IN_… events; the watch's number."""
    result = _libc.inotify_add_watch(ctypes.c_int(fd), ctypes.c_char_p(_bytes(path)), ctypes.c_uint32(mask))
    return _checked("inotify_add_watch", result, path)


def inotify_rm_watch(fd: int, watch: int) -> None:
    """End a watch."""
    _checked("inotify_rm_watch", _libc.inotify_rm_watch(ctypes.c_int(fd), ctypes.c_int(watch)))


def punch_hole(fd: int, offset: int, length: int) -> None:
    """Free the blocks of a range of a file, which keeps its size and reads as zeros there."""
    mode = ctypes.c_int(0x01 | 0x02)  # FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE
    _checked(
        "fallocate", _libc.fallocate(ctypes.c_int(fd), mode, ctypes.c_int64(offset), ctypes.c_int64(length))
    )

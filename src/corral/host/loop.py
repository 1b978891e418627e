"""Loop devices: a file as a block device, by ioctl.

One file must never be behind two devices: two mounts of one file system through two caches destroy it. So a
device that has the file already is found and used again, whoever attached it.
"""

import contextlib
import errno
import fcntl
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

from corral.errors import Unsupported

_LOOP_CTL_GET_FREE = 0x4C82
_LOOP_CONFIGURE = 0x4C0A
_LOOP_GET_STATUS64 = 0x4C05
_LOOP_SET_DIRECT_IO = 0x4C08
_LO_FLAGS_AUTOCLEAR = 4
_LOOP_MAJOR = 7

# struct loop_info64, and struct loop_config around it: fd, block size, info, eight reserved words.
_INFO = struct.Struct("=QQQQQIIII64s64s32s2Q")
_CONFIG = struct.Struct(f"=II{_INFO.size}s64x")
_ATTEMPTS = 64


@contextlib.contextmanager
def attached(file: Path) -> Iterator[Path]:
    """The loop device of `file`, for the block: it goes away by itself once neither the block nor a mount
    uses it.

    Raises Unsupported where the host offers no loop devices, OSError.
    """
    backing = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    try:
        fd, device = _existing(os.fstat(backing)) or _attach(backing, file)
    finally:
        os.close(backing)
    try:
        yield device
    finally:
        os.close(fd)


def require() -> None:
    """Raise Unsupported where the host offers no loop devices."""
    os.close(_control())


def _existing(backing: os.stat_result) -> tuple[int, Path] | None:
    for folder in Path("/sys/block").glob("loop*"):
        if not (folder / "loop" / "backing_file").exists():
            continue
        fd = _open(int(folder.name.removeprefix("loop")))
        info = bytearray(_INFO.size)
        try:
            fcntl.ioctl(fd, _LOOP_GET_STATUS64, info)
        except OSError as error:
            os.close(fd)
            if error.errno == errno.ENXIO:  # detached in this moment
                continue
            raise
        device, inode = _INFO.unpack(info)[:2]
        if (device, inode) == (_encoded(backing.st_dev), backing.st_ino):
            return fd, Path("/dev") / folder.name
        os.close(fd)
    return None


def _encoded(device: int) -> int:
    # The kernel's encoding of a device number in this struct: low minor bits, major, high minor bits.
    major, minor = os.major(device), os.minor(device)
    return (minor & 0xFF) | (major << 8) | ((minor & ~0xFF) << 12)


def _attach(backing: int, file: Path) -> tuple[int, Path]:
    name = os.fsencode(file)[:63]
    info = _INFO.pack(0, 0, 0, 0, 0, 0, 0, 0, _LO_FLAGS_AUTOCLEAR, name, b"", b"", 0, 0)
    config = bytearray(_CONFIG.pack(backing, 4096, info))
    for _ in range(_ATTEMPTS):
        number = _free_number()
        fd = _open(number)
        try:
            fcntl.ioctl(fd, _LOOP_CONFIGURE, config)
        except OSError as error:
            os.close(fd)
            if error.errno == errno.EBUSY:  # another process took this number
                continue
            raise
        # Without the page cache of the file below, nothing is cached twice. Not every file system can.
        with contextlib.suppress(OSError):
            fcntl.ioctl(fd, _LOOP_SET_DIRECT_IO, 1)
        return fd, Path("/dev") / f"loop{number}"
    raise OSError(errno.EBUSY, "no free loop device", os.fspath(file))


def _free_number() -> int:
    control = _control()
    try:
        return fcntl.ioctl(control, _LOOP_CTL_GET_FREE)
    finally:
        os.close(control)


def _control() -> int:
    try:
        return os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise Unsupported(
            f"this host offers no loop devices: {error}",
            "load the module (`modprobe loop`), or put the data directory on a btrfs",
        ) from error


def _open(number: int) -> int:
    path = Path("/dev") / f"loop{number}"
    if not path.exists():  # /dev of a container is often a plain tmpfs
        with contextlib.suppress(FileExistsError):
            os.mknod(path, stat.S_IFBLK | 0o660, os.makedev(_LOOP_MAJOR, number))
    return os.open(path, os.O_RDWR | os.O_CLOEXEC)

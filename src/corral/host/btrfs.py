"""btrfs by its ioctls: subvolumes, snapshots, quotas.

Quotas. A subvolume's own group (0/ID) bills what is written into it. Limits are set on a group above it
(1/ID), for one reason: anyone who may write a directory may make a subvolume in it, and that one gets a
group of its own, with no limit. With simple quotas (Linux 6.7) a nested subvolume joins the groups above
its parent's, so the limit holds. With the older full quotas it does not, and there a seccomp filter of
these ioctls is the only defence. All limits' groups are members of one more (2/"corral"), by which all that
is written by those who have limits can be bounded together.

Simple quotas bill an extent to the subvolume that wrote it, for as long as anything refers to it: a
snapshot costs nothing, and what its source deletes later stays on the source's bill while the snapshot
exists.
"""

import contextlib
import errno
import os
import struct
import uuid
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

from corral.host import process, syscalls

_MAGIC = 0x94
_ROOT_INODE = 256
_MAX_NAME = 255

_NAME_ARGS = struct.Struct("=q4088s")
_NAME_ARGS_V2 = struct.Struct("=qQQ32s4040s")
_SNAP_READ_ONLY = 1 << 1
_SPEC_BY_ID = 1 << 4

_QUOTA_ENABLE = 1
_QUOTA_ENABLE_SIMPLE = 4
_LIMIT_MAX_REFERENCED = 1
_ALL = 2 << 48 | int.from_bytes(b"corral")

# A file handle without its parent: inode, subvolume, and generation 0, which stands for any.
_HANDLE_TYPE = 0x4D
_HANDLE = struct.Struct("=QQI")

_ROOT_TREE = 1
_KEY_ROOT_REF = 156
_SEARCH_BUFFER = 4096
_SEARCH_KEY = struct.Struct("=QQQQQQQIIII4Q")
_SEARCH_HEADER = struct.Struct("=QQQII")


def _request(direction: int, number: int, size: int) -> int:
    return direction << 30 | size << 16 | _MAGIC << 8 | number


_W, _R = 1, 2
_SYNC = _request(0, 8, 0)
_SUBVOL_CREATE = _request(_W, 14, 4096)
_SNAP_DESTROY = _request(_W, 15, 4096)
_TREE_SEARCH = _request(_W | _R, 17, _SEARCH_BUFFER)
_INO_LOOKUP = _request(_W | _R, 18, 4096)
_SNAP_CREATE_V2 = _request(_W, 23, 4096)
_WAIT_SYNC = _request(_W, 22, 8)
_START_SYNC = _request(_R, 24, 8)
_SUBVOL_SETFLAGS = _request(_W, 26, 8)
_FS_INFO = _request(_R, 31, 1024)
_QUOTA_CTL = _request(_W | _R, 40, 16)
_QGROUP_ASSIGN = _request(_W, 41, 24)
_QGROUP_CREATE = _request(_W, 42, 16)
_QGROUP_LIMIT = _request(_R, 43, 48)
_SNAP_DESTROY_V2 = _request(_W, 63, 4096)


class Quotas(StrEnum):
    """How a btrfs counts."""

    NONE = "none"
    FULL = "qgroup"
    SIMPLE = "squota"


@contextlib.contextmanager
def _directory(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _name(path: Path) -> bytes:
    name = os.fsencode(path.name)
    if not name or len(name) > _MAX_NAME:
        raise OSError(errno.ENAMETOOLONG, "not a valid subvolume name", os.fspath(path))
    return name


def filesystem_id(path: Path) -> uuid.UUID | None:
    """The id of the btrfs on which the directory `path` is; None on another file system."""
    with _directory(path) as fd:
        try:
            info = syscalls.ioctl(fd, _FS_INFO, bytes(1024))
        except OSError as error:
            if error.errno in (errno.ENOTTY, errno.EOPNOTSUPP, errno.EINVAL):
                return None
            raise
    return uuid.UUID(bytes=info[16:32])


async def format_file(file: Path, label: str) -> None:
    """Make an empty btrfs in `file`, which has its size already. Raises Unsupported without mkfs.btrfs."""
    # One copy of the metadata: both would be in the same file.
    argv = ["mkfs.btrfs", "--quiet", "--force", "--metadata", "single", "--label", label, str(file)]
    await process.run(argv, timeout=120, check=True)


def enable_quotas(path: Path, *, simple_only: bool = False) -> Quotas:
    """Switch quotas on, if none are: simple ones, or full ones where the kernel lacks those (unless
    `simple_only`: OSError EINVAL). Returns the kind that is on."""
    current = quotas(path)
    if current is not Quotas.NONE:
        return current
    with _directory(path) as fd:
        try:
            syscalls.ioctl(fd, _QUOTA_CTL, struct.pack("=QQ", _QUOTA_ENABLE_SIMPLE, 0))
        except OSError as error:
            if simple_only or error.errno != errno.EINVAL:  # EINVAL: a kernel before 6.7
                raise
            syscalls.ioctl(fd, _QUOTA_CTL, struct.pack("=QQ", _QUOTA_ENABLE, 0))
    return quotas(path)


def quotas(path: Path) -> Quotas:
    """Which quotas are on at the btrfs of `path`."""
    folder = _groups_folder(path)
    if not folder.is_dir():
        return Quotas.NONE
    mode = folder / "mode"  # kernels before 6.7 have no such file
    return Quotas(mode.read_text().strip()) if mode.exists() else Quotas.FULL


def create_subvolume(path: Path) -> None:
    """A new, empty subvolume. FileExistsError if there is something at `path`."""
    with _directory(path.parent) as fd:
        syscalls.ioctl(fd, _SUBVOL_CREATE, _NAME_ARGS.pack(0, _name(path)))


def snapshot(source: Path, target: Path, *, read_only: bool = False) -> None:
    """A snapshot of the subvolume `source` as `target`: as it is now, what is not yet on disk included."""
    flags = _SNAP_READ_ONLY if read_only else 0
    with _directory(source) as fd, _directory(target.parent) as parent:
        syscalls.ioctl(parent, _SNAP_CREATE_V2, _NAME_ARGS_V2.pack(fd, 0, flags, b"", _name(target)))


def set_read_only(path: Path, *, read_only: bool = True) -> None:
    """Refuse changes of a subvolume from now on, or allow them again."""
    with _directory(path) as fd:
        syscalls.ioctl(fd, _SUBVOL_SETFLAGS, struct.pack("=Q", _SNAP_READ_ONLY if read_only else 0))


def is_subvolume(path: Path) -> bool:
    """Whether `path` is the root of a subvolume (of a btrfs: there no other directory has this inode
    number).
    """
    try:
        return path.lstat().st_ino == _ROOT_INODE
    except FileNotFoundError:
        return False


def subvolume_id(path: Path) -> int:
    """The id of the subvolume that the directory `path` is in. Never used again in this file system."""
    with _directory(path) as fd:
        return int.from_bytes(
            syscalls.ioctl(fd, _INO_LOOKUP, struct.pack("=QQ4080x", 0, _ROOT_INODE))[:8], "little"
        )


def delete_subvolume(path: Path) -> None:
    """Delete a subvolume, its limit, and all that were made inside of it. Its space comes back in the
    background. Idempotent."""
    try:
        number = subvolume_id(path)
    except FileNotFoundError:
        return
    with _directory(path.parent) as fd:
        nested = _nested(fd, number)
        # To take an entry out of a full subvolume needs space for its metadata.
        for full in (number, *nested):
            _leave_group(fd, full, _level1(number))
        for outer in nested:  # nor can it be taken out of one that its owner made read-only
            _make_writable(fd, outer)
        for inner in reversed(nested):
            syscalls.ioctl(fd, _SNAP_DESTROY_V2, _by_id(inner))
        _drop_group(fd, number)
        syscalls.ioctl(fd, _SNAP_DESTROY, _NAME_ARGS.pack(0, _name(path)))


def _by_id(number: int) -> bytes:
    return _NAME_ARGS_V2.pack(0, 0, _SPEC_BY_ID, b"", number.to_bytes(8, "little"))


def _make_writable(fd: int, number: int) -> None:
    # By file handle: no path of the guest's is followed, and none is too long.
    root = syscalls.open_by_handle(fd, _HANDLE_TYPE, _HANDLE.pack(_ROOT_INODE, number, 0), os.O_RDONLY)
    try:
        syscalls.ioctl(root, _SUBVOL_SETFLAGS, bytes(8))
    finally:
        os.close(root)


def _nested(fd: int, number: int) -> list[int]:
    """Subvolumes inside of one, outermost first."""
    found = [number]
    for parent in found:  # grows while it is walked
        found.extend(_children(fd, parent))
    return found[1:]


def _children(fd: int, number: int) -> Iterator[int]:
    """Ids of the subvolumes whose parent is `number`, from the references in the root tree: no path is
    followed.
    """
    start = 0
    top = 2**64 - 1
    while True:
        key = _SEARCH_KEY.pack(
            _ROOT_TREE, number, number, start, top, 0, top, _KEY_ROOT_REF, _KEY_ROOT_REF, 64, 0, 0, 0, 0, 0
        )
        answer = syscalls.ioctl(fd, _TREE_SEARCH, key.ljust(_SEARCH_BUFFER, b"\0"))
        count = int.from_bytes(answer[64:68], "little")
        if count == 0:
            return
        position = _SEARCH_KEY.size
        for _ in range(count):
            _, _, child, _, length = _SEARCH_HEADER.unpack_from(answer, position)
            position += _SEARCH_HEADER.size + length
            yield child
            start = child + 1


def _level1(number: int) -> int:
    return 1 << 48 | number


def set_limit(path: Path, size: int) -> None:
    """Let the subvolume `path`, with all made inside of it, hold at most `size` bytes (then EDQUOT). Set it
    while the subvolume is empty."""
    number = subvolume_id(path)
    with _directory(path) as fd:
        _make_group(fd, _level1(number))
        _limit(fd, _level1(number), size)
        _join_group(fd, number, _level1(number))
        _join_all(fd, _level1(number))


def limit_all(path: Path, size: int) -> None:
    """Let all subvolumes that have a limit, on the btrfs of `path`, hold at most `size` bytes together."""
    with _directory(path) as fd:
        _make_group(fd, _ALL)
        _limit(fd, _ALL, size)


def usage_of_all(path: Path) -> tuple[int, int]:
    """Bytes billed to all subvolumes that have a limit, and bytes that they have written since, which will be billed."""
    group = _groups_folder(path) / f"2_{_ALL & 2**48 - 1}"
    with contextlib.suppress(FileNotFoundError):
        return int((group / "referenced").read_text()), int((group / "rsv_data").read_text())
    return 0, 0


def _make_group(fd: int, group: int) -> None:
    with contextlib.suppress(FileExistsError):
        syscalls.ioctl(fd, _QGROUP_CREATE, struct.pack("=QQ", 1, group))


def _join_group(fd: int, member: int, group: int) -> None:
    with contextlib.suppress(FileExistsError):
        syscalls.ioctl(fd, _QGROUP_ASSIGN, struct.pack("=QQQ", 1, member, group))


def _join_all(fd: int, group: int) -> None:
    try:
        _join_group(fd, group, _ALL)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EINVAL):
            raise
        _make_group(fd, _ALL)
        _join_group(fd, group, _ALL)


def _leave_group(fd: int, member: int, group: int) -> None:
    _unless_gone(fd, _QGROUP_ASSIGN, struct.pack("=QQQ", 0, member, group))


def _limit(fd: int, group: int, size: int) -> None:
    syscalls.ioctl(fd, _QGROUP_LIMIT, struct.pack("=QQQQQQ", group, _LIMIT_MAX_REFERENCED, size, 0, 0, 0))


def _drop_group(fd: int, number: int) -> None:
    _unless_gone(fd, _QGROUP_CREATE, struct.pack("=QQ", 0, _level1(number)))


def _unless_gone(fd: int, request: int, arguments: bytes) -> None:
    # ENOENT: it had no limit. ENOTCONN, EINVAL: quotas are off. EBUSY: its members are not gone yet, and ENOSPC: the
    # file system is full, which a removal must not be stopped by; `sweep_groups`.
    try:
        syscalls.ioctl(fd, request, arguments)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTCONN, errno.EINVAL, errno.EBUSY, errno.ENOSPC):
            raise


def usage(path: Path) -> int:
    """Bytes billed to a subvolume, and to all made inside of it if it has a limit. 0 without quotas."""
    folder = _groups_folder(path)
    number = subvolume_id(path)
    for group in (f"1_{number}", f"0_{number}"):
        with contextlib.suppress(FileNotFoundError):
            return int((folder / group / "referenced").read_text())
    return 0


def sweep_groups(path: Path) -> None:
    """Remove limits whose subvolume is gone entirely, and let the others be bounded together: an earlier version's are not."""
    folder = _groups_folder(path)
    with _directory(path) as fd:
        for group in folder.glob("1_*"):
            number = int(group.name.removeprefix("1_"))
            if (folder / f"0_{number}").exists():
                _join_all(fd, _level1(number))
            else:
                _drop_group(fd, number)


def sync(path: Path) -> None:
    """Put all of the file system on disk."""
    with _directory(path) as fd:
        syscalls.ioctl(fd, _SYNC)


def commit(path: Path) -> None:
    """Put on disk all that was made, renamed and removed, and snapshots whole, but no files' contents that wait to be
    written: those of others can be gigabytes."""
    with _directory(path) as fd:
        syscalls.ioctl(fd, _WAIT_SYNC, bytes(syscalls.ioctl(fd, _START_SYNC, bytes(8))))


def _groups_folder(path: Path) -> Path:
    return Path("/sys/fs/btrfs") / str(filesystem_id(path)) / "qgroups"

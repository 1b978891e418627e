"""Many layers made one, with the same tree.

A layer holds changes: files, and marks for what was deleted or moved below it, which only the kernel reads rightly. So the
kernel does the work: one overlay shows the whole stack, another one only its lower part with a fresh upper directory; the
second is brought to show what the first shows, and its upper directory is the new layer. A file that neither touches is the
same inode in both, with the same change time, which no program can set: it is passed over without being read.

Both overlays are mounts that were never attached anywhere: they end with their descriptors, also by `kill -9`.
"""

import contextlib
import os
import shutil
import stat
from pathlib import Path

from corral.rootfs.sparse import data_ranges

_HIDDEN = ("trusted.overlay.", "user.overlay.")
_COPY = 1 << 26


def bring(source: bytes, target: bytes) -> None:
    """Make the tree `target` show what the tree `source` shows. Raises OSError, for paths longer than 4,095 bytes too."""
    _Bringing(source, target).folder(b"")


class _Bringing:
    def __init__(self, source: bytes, target: bytes) -> None:
        self._source = source
        self._target = target
        self._links: dict[int, bytes] = {}

    def folder(self, name: bytes) -> None:
        """A directory that is there in both, with all below it."""
        source, target = self._source + name, self._target + name
        wanted, there = set(os.listdir(source)), set(os.listdir(target))
        for gone in there - wanted:
            _remove(target + b"/" + gone)
        for each in sorted(wanted):
            self._entry(name + b"/" + each)
        _copy_metadata(source, target, os.lstat(source), os.lstat(target))

    def _entry(self, name: bytes) -> None:
        source, target = self._source + name, self._target + name
        is_like, was = os.lstat(source), _lstat(target)
        folder = stat.S_ISDIR(is_like.st_mode)
        if was is not None and not folder and _untouched(is_like, was):
            return
        if was is not None and not (folder and stat.S_ISDIR(was.st_mode)):
            _remove(target)
            was = None
        if folder:
            if was is None:
                os.mkdir(target, 0o700)
            self.folder(name)
        else:
            self._file(name, is_like)

    def _file(self, name: bytes, status: os.stat_result) -> None:
        source, target = self._source + name, self._target + name
        first = self._links.get(status.st_ino)
        if first is not None and status.st_nlink > 1:
            os.link(self._target + first, target, follow_symlinks=False)
            return
        if stat.S_ISREG(status.st_mode):
            _copy_content(source, target)
        elif stat.S_ISLNK(status.st_mode):
            os.symlink(os.readlink(source), target)
        else:
            os.mknod(target, stat.S_IFMT(status.st_mode) | 0o600, status.st_rdev)
        _copy_metadata(source, target, status, None)
        if status.st_nlink > 1:
            self._links[status.st_ino] = name


def _untouched(one: os.stat_result, other: os.stat_result) -> bool:
    """Whether both are the same inode of a layer below."""
    fields = ("st_ino", "st_ctime_ns", "st_mtime_ns", "st_size", "st_mode", "st_uid", "st_gid")
    return all(getattr(one, field) == getattr(other, field) for field in fields)


def _lstat(path: bytes) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None


def _remove(path: bytes) -> None:
    if stat.S_ISDIR(os.lstat(path).st_mode):
        shutil.rmtree(path)
    else:
        os.unlink(path)


def _copy_content(source: bytes, target: bytes) -> None:
    """Data where there is some; what is a hole stays one."""
    reading = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        writing = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(writing, os.fstat(reading).st_size)
            for start, end in data_ranges(reading):
                _copy_range(reading, writing, start, end)
        finally:
            os.close(writing)
    finally:
        os.close(reading)


def _copy_range(reading: int, writing: int, start: int, end: int) -> None:
    while start < end:
        done = os.sendfile(writing, reading, start, min(end - start, _COPY)) if _seek(writing, start) else 0
        if done == 0:
            return
        start += done


def _seek(fd: int, offset: int) -> bool:
    return os.lseek(fd, offset, os.SEEK_SET) == offset


def _copy_metadata(source: bytes, target: bytes, like: os.stat_result, was: os.stat_result | None) -> None:
    """Owner, mode, attributes and times; nothing is written where all are as they shall be."""
    if was is not None and _described(source, like) == _described(target, was):
        return
    os.lchown(target, like.st_uid, like.st_gid)
    wanted = _attributes(source)
    for key in _attributes(target).keys() - wanted.keys():
        os.removexattr(target, key, follow_symlinks=False)
    if not stat.S_ISLNK(like.st_mode):
        os.chmod(target, stat.S_IMODE(like.st_mode))
    for key, value in wanted.items():
        os.setxattr(target, key, value, follow_symlinks=False)
    os.utime(target, ns=(like.st_atime_ns, like.st_mtime_ns), follow_symlinks=False)


def _described(path: bytes, status: os.stat_result) -> tuple[object, ...]:
    return status.st_uid, status.st_gid, status.st_mode, status.st_mtime_ns, _attributes(path)


def _attributes(path: bytes) -> dict[str, bytes]:
    found = {}
    for key in os.listxattr(path, follow_symlinks=False):
        if not key.startswith(_HIDDEN):
            with contextlib.suppress(OSError):  # the file system does not give it
                found[key] = os.getxattr(path, key, follow_symlinks=False)
    return found


def descriptor_path(fd: int) -> bytes:
    """The path by which a mount that is attached nowhere is reached."""
    return os.fsencode(Path("/proc/self/fd") / str(fd))

"""The only door to a guest's files.

A guest may change its tree at any moment, and puts there what it likes: links to `/etc/shadow`, FIFOs,
devices, directories a million levels deep. What holds against it:

* A path is resolved by one `openat2(RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS)` on a descriptor of the guest's
  root. Absolute links and `..` stay inside, and no check can be raced, since there is none between looking
  and opening. All later steps are relative to the descriptor that came of it.
* Nothing is opened before it is known to be a regular file or a directory: first a path descriptor
  (`O_PATH`), which runs no driver and wakes nobody at a FIFO, then the same inode through it.
* Files are only touched on file systems that hold data. A running guest's root shows its /proc, where the
  daemon's rights would read the host's kernel log and write the host's settings.
* A write never opens what is there. It fills a nameless file and puts it in place by rename, so that a hard
  link or a link planted in between is replaced, not written through.
* New entries are made with the file system ids of their owner. Root of the host has no place in the guest's
  user namespace: what it makes belongs to nobody there, and on the guest's own tmpfs it can make nothing.

What remains: a guest can make its own files slow to resolve, or unreachable, for itself.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from corral.errors import InvalidInput, TooLarge
from corral.host import syscalls
from corral.host.filechecks import (
    check_mode,
    closing,
    holds_data,
    inner_path,
    refuse_mount,
    require_data,
    require_regular,
    split_path,
)
from corral.host.fileerrors import translated
from corral.host.filewrite import TEMPORARY_PREFIX, Noted, Owner, PendingFile, acting_as, unnoted
from corral.host.removal import remove_entry
from corral.host.xattrs import read_metadata, set_metadata

MAX_DEPTH = 64
MAX_LINKS = 40
_PARENT_MODE = 0o755

_RESOLVE = syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_MAGICLINKS
_DIRECTORY = os.O_PATH | os.O_DIRECTORY


@dataclass(frozen=True, slots=True)
class Found:
    """An entry: its path as asked for, its status with host ids, where it points if it is a symlink, and its metadata
    if it is a file or a directory."""

    path: str
    status: os.stat_result
    target: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)


class GuestTree:
    """A guest's tree, by a descriptor of its root, which it owns. Blocking; each call may run in any thread
    that does nothing but such calls.

    Paths are absolute in the guest; a name that is not UTF-8 is spelled with surrogate escapes. Raises
    NotFound, Conflict, Forbidden, InvalidInput, TooLarge, DiskFull.
    """

    def __init__(self, root: int, noted: Noted = unnoted) -> None:
        """`noted` keeps in mind the paths of hidden entries for as long as there may be one."""
        self._root = root
        self._noted = noted

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the root. Idempotent."""
        if self._root >= 0:
            os.close(self._root)
            self._root = -1

    def stat(self, path: str) -> Found:
        """The entry itself; a symlink is not followed."""
        with translated(path), closing(self._open(path, os.O_PATH | os.O_NOFOLLOW)) as fd:
            status = os.fstat(fd)
            target = None
            if stat.S_ISLNK(status.st_mode) and holds_data(fd):
                target = os.readlink("", dir_fd=fd)
            return Found(path, status, target, _metadata(fd, status.st_mode))

    def resolve(self, path: str) -> Found:
        """What `path` leads to, symlinks followed; the entry's path is the one without symlinks."""
        with translated(path), closing(self._open(path, os.O_PATH)) as fd:
            status = os.fstat(fd)
            real = self._path_of(fd)
            # What was removed or renamed since has another name by now, or one that the kernel added to.
            with closing(self._open(real, os.O_PATH | os.O_NOFOLLOW)) as again:
                if not os.path.samestat(status, os.fstat(again)):
                    raise FileNotFoundError(errno.ENOENT, "it was replaced meanwhile")
            return Found(real, status, metadata=_metadata(fd, status.st_mode))

    def describe(self, path: str, metadata: Mapping[str, str]) -> bool:
        """Attach metadata to a regular file that has none; False where the file system keeps none."""
        with closing(self.open_file(path)) as fd, translated(path):
            return set_metadata(fd, metadata)

    def list(self, path: str, depth: int, limit: int) -> list[Found]:
        """What is below a directory, down to `depth` levels (1 to 64), in order of path. Raises TooLarge if
        there is more than `limit`.
        """
        if not 1 <= depth <= MAX_DEPTH:
            raise InvalidInput(f"depth {depth} is out of range", f"use 1 to {MAX_DEPTH}")
        found: list[Found] = []
        with translated(path), closing(self._open(path, _DIRECTORY)) as fd:
            require_data(fd, path)
            _collect(fd, path.rstrip("/"), depth, limit, found)
        found.sort(key=lambda entry: entry.path)
        return found

    def open_file(self, path: str) -> int:
        """A descriptor to read a regular file by; the caller closes it. Symlinks are followed."""
        with translated(path), closing(self._open(path, os.O_PATH)) as fd:
            require_regular(os.fstat(fd), path)
            require_data(fd, path)
            # Non-blocking, since the guest may hold a lease on the file, which makes others' opens wait.
            return _reopen(fd, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)

    def open_directory(self, path: str) -> int:
        """A path descriptor (O_PATH) of a directory that holds data; the caller closes it."""
        with translated(path):
            fd = self._open(path, _DIRECTORY)
            try:
                require_data(fd, path)
            except BaseException:
                os.close(fd)
                raise
            return fd

    def make_dir(self, path: str, owner: Owner | None, mode: int) -> bool:
        """Make a directory and its parents; False if it was there."""
        check_mode(mode)
        with translated(path):
            try:
                os.close(self._open(path, _DIRECTORY))
                return False
            except FileNotFoundError:
                os.close(self._make_dirs(path, owner, mode))
                return True

    def change(self, path: str, uid: int | None, gid: int | None, mode: int | None) -> Found:
        """Set the host's ids and the mode of an entry itself, as far as they are given. A symlink has no mode to set."""
        if mode is not None:
            check_mode(mode)
        with translated(path), closing(self._open(path, os.O_PATH | os.O_NOFOLLOW)) as fd:
            require_data(fd, path)
            inode = Path(f"/proc/self/fd/{fd}")
            os.chown(inode, -1 if uid is None else uid, -1 if gid is None else gid)
            if mode is not None:  # after that: a change of owner takes the setuid bit away
                inode.chmod(mode)
        return self.stat(path)

    def move(self, source: str, target: str, owner: Owner | None) -> Found:
        """Rename, with the ids of `owner`. An existing file is replaced, a directory only if it is empty."""
        source_parent, source_name = split_path(source)
        target_parent, target_name = split_path(target)
        with (
            translated(source),
            closing(self._open(source_parent, _DIRECTORY)) as source_fd,
            translated(target),
            closing(self._open(target_parent, _DIRECTORY)) as target_fd,
        ):
            for fd, name, path in ((source_fd, source_name, source), (target_fd, target_name, target)):
                require_data(fd, path)
                refuse_mount(fd, name, path)
            with translated(source), acting_as(owner):
                os.rename(source_name, target_name, src_dir_fd=source_fd, dst_dir_fd=target_fd)
        return self.stat(target)

    def remove(self, path: str) -> None:
        """Remove an entry, with all below it; symlinks are removed, not followed. Mount points stay."""
        parent, name = split_path(path)
        with translated(path), closing(self._open(parent, _DIRECTORY)) as fd:
            require_data(fd, path)
            refuse_mount(fd, name, path)
            remove_entry(fd, name)

    def write(self, path: str, owner: Owner | None, mode: int | None) -> PendingFile:
        """Begin to replace or make a regular file. Nothing is seen of it before its `commit`. Symlinks at
        the end of `path` are followed, also to where nothing is yet. None keeps the mode of what is replaced.
        """
        if mode is not None:
            check_mode(mode)
        with translated(path):
            target = self._follow(path)
            parent, _ = split_path(target)
            with closing(self._nearest(parent)) as near:
                require_data(near, path)
                return PendingFile(
                    target,
                    near,
                    owner,
                    mode,
                    lambda: self._make_dirs(parent, owner, _PARENT_MODE),
                    self._noted,
                )

    def remove_unfinished(self, path: str) -> None:
        """Remove what a kill left of a write: a regular file of a hidden name, and nothing else that may be there by now."""
        parent, name = split_path(path)
        with (
            translated(path),
            contextlib.suppress(FileNotFoundError, NotADirectoryError),
            closing(self._open(parent, _DIRECTORY)) as fd,
        ):
            require_data(fd, path)
            status = os.stat(name, dir_fd=fd, follow_symlinks=False)
            if name.startswith(TEMPORARY_PREFIX) and stat.S_ISREG(status.st_mode):
                os.unlink(name, dir_fd=fd)

    def _open(self, path: str, flags: int) -> int:
        return syscalls.openat2(self._root, inner_path(path), flags, resolve=_RESOLVE)

    def _path_of(self, fd: int) -> str:
        """What the kernel says is the path of a descriptor, below the root."""
        root, path = (str(Path(f"/proc/self/fd/{one}").readlink()).rstrip("/") for one in (self._root, fd))
        if path != root and not path.startswith(f"{root}/"):
            raise FileNotFoundError(errno.ENOENT, "it was moved out of the root meanwhile")
        return path[len(root) :] or "/"

    def _follow(self, path: str) -> str:
        """The path that a write to `path` ends at. Links are read by hand since their target may be missing;
        each step is resolved by the kernel inside the root all the same.
        """
        for _ in range(MAX_LINKS):
            parent, name = split_path(path)
            try:
                fd = self._open(parent, _DIRECTORY)
            except FileNotFoundError:
                return path
            with closing(fd):
                require_data(fd, path)
                try:
                    status = os.stat(name, dir_fd=fd, follow_symlinks=False)
                    if not stat.S_ISLNK(status.st_mode):
                        require_regular(status, path)
                        return path
                    link = os.readlink(name, dir_fd=fd)
                except FileNotFoundError:
                    return path
            path = link if link.startswith("/") else f"{parent.rstrip('/')}/{link}"
        raise OSError(errno.ELOOP, "the symlinks form a loop")

    def _nearest(self, path: str) -> int:
        """The deepest directory of `path` that exists."""
        while True:
            try:
                return self._open(path, _DIRECTORY)
            except FileNotFoundError:
                path = path.rstrip("/").rpartition("/")[0] or "/"

    def _make_dirs(self, path: str, owner: Owner | None, mode: int) -> int:
        """A descriptor of the directory `path`, made with its parents where they are missing."""
        with contextlib.suppress(FileNotFoundError):
            return self._open(path, _DIRECTORY)
        fd = self._open("/", _DIRECTORY)
        prefix = ""
        for name in filter(None, path.split("/")):
            prefix = f"{prefix}/{name}"
            with closing(fd) as parent:
                try:
                    fd = self._open(prefix, _DIRECTORY)
                except FileNotFoundError:
                    require_data(parent, path)
                    _make_dir(parent, name, owner, mode)
                    fd = self._open_made(prefix)
        return fd

    def _open_made(self, path: str) -> int:
        try:
            return self._open(path, _DIRECTORY)
        except FileNotFoundError:
            raise OSError(errno.EEXIST, "a symlink to nothing") from None


def _reopen(fd: int, flags: int) -> int:
    """Open the inode behind a path descriptor. The link is the host's own /proc, never a guest's."""
    return os.open(f"/proc/self/fd/{fd}", flags | os.O_CLOEXEC)


def _make_dir(parent: int, name: str, owner: Owner | None, mode: int) -> None:
    with acting_as(owner):
        try:
            os.mkdir(name, mode, dir_fd=parent)
        except FileExistsError:
            # It appeared meanwhile, or is a symlink to nothing: the open that follows tells.
            return
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    with closing(syscalls.openat2(parent, name, flags, resolve=syscalls.RESOLVE_BENEATH)) as fd:
        status = os.fstat(fd)
        wanted = mode | status.st_mode & stat.S_ISGID
        if stat.S_IMODE(status.st_mode) != wanted:  # the daemon's umask took something away
            os.fchmod(fd, wanted)


def _collect(fd: int, prefix: str, depth: int, limit: int, found: list[Found]) -> None:
    """Add what is in a directory. Recursion is at most MAX_DEPTH deep."""
    with closing(_reopen(fd, os.O_RDONLY | os.O_DIRECTORY)) as directory, os.scandir(directory) as entries:
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
                is_link = stat.S_ISLNK(status.st_mode)
                target = os.readlink(entry.name, dir_fd=directory) if is_link else None
                metadata = _metadata_below(directory, entry.name, status.st_mode)
            except FileNotFoundError:
                continue  # removed meanwhile
            if len(found) >= limit:
                raise TooLarge(f"the directory holds more than {limit} entries", "list its parts one by one")
            found.append(Found(f"{prefix}/{entry.name}", status, target, metadata))
            if depth > 1 and stat.S_ISDIR(status.st_mode):
                _descend(directory, entry.name, f"{prefix}/{entry.name}", depth - 1, limit, found)


def _metadata(fd: int, mode: int) -> dict[str, str]:
    return read_metadata(fd) if (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) and holds_data(fd) else {}


def _metadata_below(directory: int, name: str, mode: int) -> dict[str, str]:
    if not stat.S_ISREG(mode):
        return {}
    try:
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return {}  # removed or replaced meanwhile
    with closing(fd):
        return read_metadata(fd)


def _descend(directory: int, name: str, prefix: str, depth: int, limit: int, found: list[Found]) -> None:
    try:
        fd = os.open(name, _DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except (FileNotFoundError, NotADirectoryError):
        return  # replaced meanwhile
    with closing(fd):
        if holds_data(fd):
            _collect(fd, prefix, depth, limit, found)

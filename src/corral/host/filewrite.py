"""Writing a file of a guest: nothing is seen of it before it is whole, and nothing that was there is opened.

New entries are made with the file system ids of their owner. The host's root has no place in a guest's user
namespace: what it makes belongs to nobody there, and on a tmpfs of the guest's it can make nothing.
"""

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from corral.host import syscalls
from corral.host.filechecks import closing, refuse_mount, require_data, split_path
from corral.host.fileerrors import translated
from corral.host.xattrs import set_metadata

TEMPORARY_PREFIX = ".corral-"
"""How names of unfinished files begin, where the file system has no nameless ones, and of those that replace another."""
NEW_MODE = 0o644
"""What a new file's permission bits are where none are given."""

Noted = Callable[[str], contextlib.AbstractContextManager[None]]
"""Keeps the path of a hidden entry in mind within its block."""


def unnoted(_: str) -> contextlib.AbstractContextManager[None]:
    """For those whom a hidden entry that is left does not trouble."""
    return contextlib.nullcontext()


@dataclass(frozen=True, slots=True)
class Owner:
    """Host ids that new entries get."""

    uid: int
    gid: int


@contextlib.contextmanager
def acting_as(owner: Owner | None) -> Iterator[None]:
    """In the block, the calling thread makes files as `owner`, and keeps the daemon's right to do so
    anywhere. None changes nothing. Not to be nested.
    """
    if owner is None:
        yield
        return
    syscalls.prctl(syscalls.PR_SET_SECUREBITS, syscalls.SECBIT_NO_SETUID_FIXUP)
    try:
        syscalls.setfsgid(owner.gid)
        syscalls.setfsuid(owner.uid)
        yield
    finally:
        syscalls.setfsuid(os.geteuid())
        syscalls.setfsgid(os.getegid())


class PendingFile:
    """A file that is being written. Ends by `commit` or `discard`. Not for two threads at once.

    It has no name before `commit`; `near` is a directory of the file system that it will be on, and
    `open_parent` opens (or makes) the directory that it will be in. Without a `mode` it has the permission bits of the
    file that it replaces, as that is at `commit`; never its setuid and setgid bits, which a write takes away too.
    """

    def __init__(
        self,
        path: str,
        near: int,
        owner: Owner | None,
        mode: int | None,
        open_parent: Callable[[], int],
        noted: Noted = unnoted,
    ) -> None:
        """`noted` keeps the path of a hidden entry in mind for as long as there may be one."""
        self._noted = noted
        self._path = path
        self._owner = owner
        self._keeps_mode = mode is None
        self._open_parent = open_parent
        self._name: str | None = None
        self._near = os.dup(near)
        try:
            with acting_as(owner):
                self._fd = self._create()
            os.fchmod(self._fd, NEW_MODE if mode is None else mode)
        except BaseException:
            os.close(self._near)
            raise

    def write(self, data: bytes) -> None:
        """Append."""
        with translated(self._path):
            view = memoryview(data)
            while view:
                view = view[os.write(self._fd, view) :]

    def describe(self, metadata: Mapping[str, str]) -> bool:
        """Attach metadata; False where the file system keeps none."""
        with translated(self._path):
            return set_metadata(self._fd, metadata)

    def commit(self) -> os.stat_result:
        """Put the file in place, its parents made where missing, and close it; its status."""
        _, name = split_path(self._path)
        try:
            with translated(self._path), closing(self._open_parent()) as parent:
                require_data(parent, self._path)
                refuse_mount(parent, name, self._path)
                if self._keeps_mode:
                    self._take_mode(parent, name)
                self._place(parent, name)
                return os.fstat(self._fd)
        finally:
            self.discard()

    def discard(self) -> None:
        """Close it; without `commit` nothing remains. Idempotent."""
        if self._fd < 0:
            return
        if self._name is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._name, dir_fd=self._near)
        os.close(self._fd)
        os.close(self._near)
        self._fd = -1

    def _create(self) -> int:
        directory = f"/proc/self/fd/{self._near}"
        try:
            return os.open(directory, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT):
                raise
        # No nameless files here (an overlay before Linux 6.1).
        self._name = _temporary_name()
        flags = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_WRONLY | os.O_CLOEXEC
        return os.open(self._name, flags, 0o600, dir_fd=self._near)

    def _take_mode(self, fd: int, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(name, dir_fd=fd, follow_symlinks=False)
            if stat.S_ISREG(status.st_mode):
                os.fchmod(self._fd, status.st_mode & 0o777)

    def _place(self, fd: int, name: str) -> None:
        if self._name is not None:
            with acting_as(self._owner):
                os.rename(self._name, name, src_dir_fd=self._near, dst_dir_fd=fd)
            self._name = None
        elif not self._is_linked(fd, name):
            self._replace(fd, name)

    def _is_linked(self, fd: int, name: str) -> bool:
        """Link it where nothing is; whether that was so."""
        with acting_as(self._owner):
            try:
                self._link(fd, name)
            except FileExistsError:
                return False
            return True

    def _replace(self, fd: int, name: str) -> None:
        temporary = _temporary_name()
        parent, _ = split_path(self._path)
        with self._noted(f"{parent.rstrip('/')}/{temporary}"), acting_as(self._owner):
            self._link(fd, temporary)
            try:
                os.rename(temporary, name, src_dir_fd=fd, dst_dir_fd=fd)
            except OSError:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=fd)
                raise

    def _link(self, fd: int, name: str) -> None:
        os.link(f"/proc/self/fd/{self._fd}", name, dst_dir_fd=fd, follow_symlinks=True)


def _temporary_name() -> str:
    return TEMPORARY_PREFIX + secrets.token_hex(8)

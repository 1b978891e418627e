"""Removal of a directory that its owner keeps changing.

Only descriptors and single names are used, never a path: whatever is moved or replaced meanwhile, nothing
outside of the tree is touched, and a symlink is removed as a link.

A process that keeps adding to a directory could keep its removal from ever ending: such a directory is taken
from its owner, so that nobody in the guest can add to it, and given back if the removal fails. (On a tmpfs of
the guest's own it cannot be taken: there a budget ends the removal.)

A tree may be deeper than a process has descriptors, and than a path can name: at a certain depth the next
directory is moved to the top of the tree that is being removed, and its turn comes later.
"""

import contextlib
import errno
import os
import stat

from corral.host import syscalls

_INNER = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_XDEV | syscalls.RESOLVE_NO_SYMLINKS
# Directories of a template's layers cannot be moved (EXDEV): below the first depth such ones are descended
# into all the same, down to the second.
_DEPTH = 64
_HARD_DEPTH = 512
_BATCH = 1024
# A directory with more entries may be one that is being filled faster than it is emptied.
_MANY = 20_000


class _Budget:
    """How much a removal may take, so that a process that keeps making files ends it, not the daemon."""

    def __init__(self) -> None:
        self.entries = 5_000_000
        self.surprises = 100

    def spend_entry(self) -> None:
        self.entries -= 1
        if self.entries < 0:
            raise OSError(errno.ENOTEMPTY, "too many entries")

    def spend_surprise(self) -> None:
        self.surprises -= 1
        if self.surprises < 0:
            raise OSError(errno.ENOTEMPTY, "it is being filled")


class _Level:
    """An open directory of the tree: its files are removed, its directories handed out."""

    def __init__(self, parent: int, name: str, budget: _Budget) -> None:
        self.name = name
        self._budget = budget
        self._pending: list[str] = []
        self._scanned = False
        try:
            self.fd = syscalls.openat2(parent, name, os.O_RDONLY | os.O_DIRECTORY, resolve=_INNER)
        except OSError as error:
            if error.errno == errno.EXDEV:
                raise OSError(errno.EBUSY, "a mount point") from error
            raise
        self._before: os.stat_result | None = None

    def next_directory(self) -> str | None:
        """A directory in it; None once nothing was left in it."""
        while not self._pending:
            if self._scanned:
                return None
            self._scan()
        return self._pending.pop()

    def scan_again(self) -> None:
        """It was not empty after all: something adds to it."""
        self._take()
        self._scanned = False

    def adopt(self, source: "_Level", name: str) -> bool:
        """Move a directory of a deeper level here; False where that cannot be."""
        adopted = f".removed-{self._budget.entries:x}-{os.urandom(6).hex()}"
        try:
            os.rename(name, adopted, src_dir_fd=source.fd, dst_dir_fd=self.fd)
        except OSError as error:
            if error.errno in (errno.EXDEV, errno.EBUSY):
                return False
            raise
        self._pending.append(adopted)
        return True

    def _take(self) -> None:
        if self._before is None:
            self._before = os.fstat(self.fd)
            with contextlib.suppress(OSError):
                os.fchown(self.fd, os.geteuid(), os.getegid())
                os.fchmod(self.fd, stat.S_IRWXU)

    def give_back(self) -> None:
        """Undo a change of owner."""
        if self._before is not None:
            with contextlib.suppress(OSError):
                os.fchown(self.fd, self._before.st_uid, self._before.st_gid)
                os.fchmod(self.fd, stat.S_IMODE(self._before.st_mode))

    def close(self) -> None:
        os.close(self.fd)

    def _scan(self) -> None:
        with os.scandir(self.fd) as entries:
            for count, entry in enumerate(entries):
                if count == _MANY:
                    self._take()
                self._budget.spend_entry()
                if entry.is_dir(follow_symlinks=False):
                    self._pending.append(entry.name)
                    if len(self._pending) == _BATCH:
                        return
                else:
                    self._unlink(entry.name)
        self._scanned = True

    def _unlink(self, name: str) -> None:
        try:
            os.unlink(name, dir_fd=self.fd)
        except FileNotFoundError:
            return
        except IsADirectoryError:
            self._pending.append(name)


def remove_entry(parent: int, name: str) -> None:
    """Remove what `name` is in the directory `parent`, with all below it. Raises OSError; ENOTEMPTY where it
    is filled faster than it can be emptied, EBUSY at a mount point.
    """
    try:
        os.unlink(name, dir_fd=parent)
    except IsADirectoryError:
        _remove_directory(parent, name)


def _remove_directory(parent: int, name: str) -> None:
    budget = _Budget()
    levels = [_Level(parent, name, budget)]
    try:
        while levels:
            level = levels[-1]
            inner = level.next_directory()
            if inner is None:
                _leave(levels, parent, budget)
            elif len(levels) < _DEPTH or not levels[0].adopt(level, inner):
                _enter(levels, inner, budget)
    finally:
        for level in levels:
            level.give_back()
            level.close()


def _enter(levels: list[_Level], name: str, budget: _Budget) -> None:
    if len(levels) >= _HARD_DEPTH:
        raise OSError(errno.ENAMETOOLONG, "the tree is too deep")
    try:
        levels.append(_Level(levels[-1].fd, name, budget))
    except (FileNotFoundError, NotADirectoryError):
        budget.spend_surprise()  # moved away or replaced
        levels[-1].scan_again()
    except OSError as error:
        if error.errno != errno.ELOOP:  # replaced by a symlink
            raise
        budget.spend_surprise()
        levels[-1].scan_again()


def _leave(levels: list[_Level], parent: int, budget: _Budget) -> None:
    level = levels[-1]
    above = levels[-2].fd if len(levels) > 1 else parent
    try:
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(level.name, dir_fd=above)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        budget.spend_surprise()
        if error.errno != errno.ENOTDIR:
            level.scan_again()
            return
    levels.pop().close()

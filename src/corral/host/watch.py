"""Changes below a directory of a guest, by inotify on the host.

inotify watches single directories, so a tree is watched by adding each directory found and each that appears.
What is made in a new directory before its watch is in place gives no event: the directory is read once it is
watched, and what is found there is told as created; an event that says the same again is dropped.

A directory is named to inotify by `/proc/self/fd/N` of a path descriptor that was resolved below the watched
root, never by a path that the guest could bend. Directories on other file systems are not entered. The queue
of the kernel is bounded, and so is the number of watches: where either is too small, the watch ends with an
error instead of missing changes silently.
"""

import contextlib
import errno
import os
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from corral.errors import Conflict, NoCapacity, TooLarge
from corral.host import syscalls
from corral.host.filechecks import closing
from corral.host.filewrite import TEMPORARY_PREFIX

MAX_WATCHES = 16_384
"""Directories of one watch."""
MAX_READ = 2_000_000
"""Entries that are read to find directories."""
MAX_TOLD = 100_000
"""Entries of a directory that appeared, told as created."""

_EVENT = struct.Struct("=iIII")
_BUFFER = 1 << 18
_LONGEST = _EVENT.size + 256
_MASK = (
    syscalls.IN_CREATE
    | syscalls.IN_MODIFY
    | syscalls.IN_ATTRIB
    | syscalls.IN_DELETE
    | syscalls.IN_MOVED_FROM
    | syscalls.IN_MOVED_TO
    | syscalls.IN_ONLYDIR
)
_ROOT_MASK = _MASK | syscalls.IN_MOVE_SELF
_INNER = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_XDEV
# Unfinished files of the daemon or the guest's init: named ones, and nameless ones, which the kernel calls `#` and
# a number.
_UNFINISHED = re.compile(re.escape(TEMPORARY_PREFIX) + r"[0-9A-Za-z]{6,16}|#[0-9]+")
_GONE = (FileNotFoundError, NotADirectoryError)


class ChangeKind(StrEnum):
    """What happened. RENAME: moved away from the path; where it came to is told as CREATE."""

    CREATE = "create"
    WRITE = "write"
    REMOVE = "remove"
    RENAME = "rename"
    CHMOD = "chmod"


@dataclass(frozen=True, slots=True)
class Change:
    """One change; `path` is relative to the watched directory, and empty for itself."""

    kind: ChangeKind
    path: str


@dataclass(frozen=True, slots=True)
class RawEvent:
    """An inotify event."""

    watch: int
    mask: int
    cookie: int
    name: str


def parse_events(data: bytes) -> Iterator[RawEvent]:
    """The events of one read of an inotify descriptor."""
    offset = 0
    while offset + _EVENT.size <= len(data):
        watch, mask, cookie, length = _EVENT.unpack_from(data, offset)
        offset += _EVENT.size
        name = data[offset : offset + length].partition(b"\0")[0]
        offset += length
        yield RawEvent(watch, mask, cookie, os.fsdecode(name))


@dataclass(slots=True)
class _Watched:
    # Relative to the root; empty for it, else it ends with a slash.
    path: str
    # Names told as created by reading the directory; their own event may still come.
    told: set[str] = field(default_factory=set)


class TreeWatch:
    """A watch of the directory behind the path descriptor `root`, which it owns, in place once made.

    `read` when `fileno` is readable, and now and then: the removal of the directory itself makes nothing
    readable. Blocking. Raises TooLarge where the tree has more directories than can
    be watched, NoCapacity where the host allows no more watches.
    """

    def __init__(self, root: int, *, recursive: bool) -> None:
        self._root = root
        self._recursive = recursive
        self._watched: dict[int, _Watched] = {}
        # By cookie, what left its name and may appear under another: a directory's path, or None for an
        # unfinished file.
        self._moving: dict[int, str | None] = {}
        self._telling: list[_Watched] = []
        self.ended = False
        try:
            self._queue = _capacity_checked(syscalls.inotify_init)
        except BaseException:
            os.close(root)
            raise
        try:
            top = self._add(".", "", _ROOT_MASK)
            if recursive:
                self._scan(top, told=False)
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int:
        """The descriptor to wait for."""
        return self._queue

    def close(self) -> None:
        """End the watch. Idempotent."""
        if self._queue >= 0:
            os.close(self._queue)
            os.close(self._root)
            self._queue = -1

    def read(self) -> list[Change]:
        """What has happened since; empty if nothing has. `ended` is set once the directory itself is gone.
        Raises Conflict if changes were lost.
        """
        changes = self._read_some()
        if self._moving:
            # Where it came to is told at once, but perhaps not in one read. What is not told now is outside.
            changes += self._read_some()
            for path in self._moving.values():
                if path is not None:
                    self._forget(path)
            self._moving.clear()
        if not self.ended and os.fstat(self._root).st_nlink == 0:
            # The kernel would tell this only once nobody has the directory open: the watch has.
            self.ended = True
            changes.append(Change(ChangeKind.REMOVE, ""))
        return changes

    def _read_some(self) -> list[Change]:
        try:
            data = os.read(self._queue, _BUFFER)
        except BlockingIOError:
            return []
        changes: list[Change] = []
        told_before, self._telling = self._telling, []
        for event in parse_events(data):
            for change in self._changes(event):
                if not changes or changes[-1] != change:
                    changes.append(change)
        if len(data) > _BUFFER - _LONGEST:
            self._telling += told_before  # there may be more in the queue from the time of the telling
        else:
            for watched in told_before:
                watched.told.clear()
        return changes

    def _changes(self, event: RawEvent) -> list[Change]:
        if event.mask & syscalls.IN_Q_OVERFLOW:
            raise Conflict(
                "so much changed at once that changes were lost", "read the directory, then watch it again"
            )
        watched = self._watched.get(event.watch)
        if watched is None:
            return []
        if event.mask & syscalls.IN_IGNORED:
            del self._watched[event.watch]
            return []
        if event.mask & (syscalls.IN_MOVE_SELF | syscalls.IN_UNMOUNT):
            return self._self_changed(watched)
        if not event.name:
            return []  # an attribute of the directory: its parent's event tells it
        if _UNFINISHED.fullmatch(event.name):
            if event.mask & syscalls.IN_MOVED_FROM:
                self._moving[event.cookie] = None
            return []
        return self._entry_changed(event, watched, f"{watched.path}{event.name}")

    def _self_changed(self, watched: _Watched) -> list[Change]:
        if watched.path:
            return []
        self.ended = True
        return [Change(ChangeKind.RENAME, "")]

    def _entry_changed(self, event: RawEvent, watched: _Watched, path: str) -> list[Change]:
        is_directory = bool(event.mask & syscalls.IN_ISDIR)
        if event.mask & (syscalls.IN_CREATE | syscalls.IN_MOVED_TO):
            return self._appeared(event, watched, path, is_directory=is_directory)
        watched.told.discard(event.name)
        if event.mask & syscalls.IN_MOVED_FROM:
            if is_directory:
                self._moving[event.cookie] = f"{path}/"
            return [Change(ChangeKind.RENAME, path)]
        if event.mask & syscalls.IN_DELETE:
            return [Change(ChangeKind.REMOVE, path)]
        kind = ChangeKind.WRITE if event.mask & syscalls.IN_MODIFY else ChangeKind.CHMOD
        return [Change(kind, path)]

    def _appeared(self, event: RawEvent, watched: _Watched, path: str, *, is_directory: bool) -> list[Change]:
        if event.mask & syscalls.IN_MOVED_TO:
            if event.cookie in self._moving:
                return self._arrived(self._moving.pop(event.cookie), path)
        elif event.name in watched.told:
            watched.told.discard(event.name)
            return []
        changes = [Change(ChangeKind.CREATE, path)]
        if is_directory and self._recursive:
            # What is in a directory that was moved here was not made now.
            made = not event.mask & syscalls.IN_MOVED_TO
            with contextlib.suppress(*_GONE):
                entered = self._enter(f"{path}/")
                if entered is not None:
                    changes += self._scan(entered, told=made)
        return changes

    def _arrived(self, source: str | None, path: str) -> list[Change]:
        """What was moved within the tree is at `path` now."""
        if source is None:
            return [Change(ChangeKind.WRITE, path)]
        for watched in self._watched.values():
            if watched.path.startswith(source):
                watched.path = f"{path}/{watched.path[len(source) :]}"
        return [Change(ChangeKind.CREATE, path)]

    def _enter(self, path: str) -> _Watched | None:
        """Watch a directory; None for what is none any more or is on another file system."""
        if len(self._watched) >= MAX_WATCHES:
            raise TooLarge(f"the tree has more than {MAX_WATCHES} directories", "watch a smaller directory")
        try:
            return self._add(path, path, _MASK)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                raise TooLarge("the tree is too deep to be watched", "watch a smaller directory") from None
            if error.errno not in (errno.ELOOP, errno.EXDEV):
                raise
            return None

    def _add(self, name: str, path: str, mask: int) -> _Watched:
        flags = os.O_PATH | os.O_DIRECTORY
        with closing(syscalls.openat2(self._root, name, flags, resolve=_INNER)) as fd:
            link = f"/proc/self/fd/{fd}"
            watch = _capacity_checked(lambda: syscalls.inotify_add_watch(self._queue, link, mask))
        watched = self._watched.setdefault(watch, _Watched(path))
        watched.path = path
        return watched

    def _forget(self, prefix: str) -> None:
        """A directory went away with all below it; it may come back elsewhere."""
        gone = [watch for watch, watched in self._watched.items() if watched.path.startswith(prefix)]
        for watch in gone:
            del self._watched[watch]
            with contextlib.suppress(OSError):  # it ended by itself
                syscalls.inotify_rm_watch(self._queue, watch)

    def _scan(self, top: _Watched, *, told: bool) -> list[Change]:
        """Watch all directories below `top`. With `told`, what is found counts as created just now."""
        limit = MAX_TOLD if told else MAX_READ
        pending, changes, read = [top], [], 0
        while pending:
            directory = pending.pop()
            if told:
                self._telling.append(directory)
            with contextlib.suppress(*_GONE):
                for name, is_directory in self._entries(directory.path):
                    read += 1
                    if read > limit:
                        raise TooLarge(f"more than {limit} entries at once", "watch a smaller directory")
                    if told:
                        changes.append(Change(ChangeKind.CREATE, f"{directory.path}{name}"))
                        directory.told.add(name)
                    if is_directory:
                        with contextlib.suppress(*_GONE):
                            entered = self._enter(f"{directory.path}{name}/")
                            if entered is not None:
                                pending.append(entered)
        return changes

    def _entries(self, path: str) -> Iterator[tuple[str, bool]]:
        """Names in a directory, and whether they are directories; none if it was replaced by something."""
        flags = os.O_RDONLY | os.O_DIRECTORY
        try:
            fd = syscalls.openat2(self._root, path or ".", flags, resolve=_INNER)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EXDEV):
                return
            raise
        with closing(fd), os.scandir(fd) as entries:
            for entry in entries:
                if not _UNFINISHED.fullmatch(entry.name):
                    yield entry.name, entry.is_dir(follow_symlinks=False)


def _capacity_checked(call: Callable[[], int]) -> int:
    try:
        return call()
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EMFILE):
            raise NoCapacity(
                "the host allows no more file watches",
                "raise the sysctls fs.inotify.max_user_watches and fs.inotify.max_user_instances",
            ) from error
        raise

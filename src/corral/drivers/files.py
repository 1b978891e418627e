"""A sandbox's files, read and written from the host.

Which root to go through is the driver's choice. Of a running sandbox that shares the host's kernel it is
`/proc/<pid 1>/root`, opened after the process was seen to be the right one (pidfd): it shows the sandbox's own
tmpfs as well, and `corral.host.files` keeps out of its /proc. Of all others it is the mounted root.
"""

import contextlib
import functools
import logging
import os
import stat
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TypeVar

from corral.drivers.watching import watch_tree
from corral.engine.ports import Entry, EntryKind, Watch
from corral.errors import Conflict, CorralError, Forbidden, InvalidInput, NotFound
from corral.host.fileerrors import translated
from corral.host.files import Found, GuestTree
from corral.host.filewrite import Owner, PendingFile, unnoted
from corral.host.turns import Turns
from corral.host.unfinished import Notes
from corral.wire.passwd import ID_RANGE, MAX_PASSWD, GuestUser, find_user

log = logging.getLogger(__name__)

_T = TypeVar("_T")
CHUNK = 256 * 1024
_CHUNKS = 4
MAX_ENTRIES = 100_000
_AT_ONCE = 4
# What a process sees for an id that its user namespace does not map.
_NOBODY = 65534
_PASSWD = "/etc/passwd"  # noqa: S105 - a path
_ELSE_THERE = (NotFound, Conflict, Forbidden, InvalidInput)
"""What is raised where all of a path is gone, or something else is there by now."""


class HostGuestFiles:
    """`ports.GuestFiles` through the host's view of the root.

    `root` opens the sandbox's root directory (O_PATH), anew for each operation and in a thread; it raises a
    CorralError where there is none now. `uid_base` is the host's id of the sandbox's root. `threads` must
    run nothing but files' work. One instance per sandbox.
    """

    def __init__(
        self, root: Callable[[], int], uid_base: int, threads: Executor, notes: Notes | None = None
    ) -> None:
        """`notes` tells a next daemon what this one was at, if it is killed."""
        self._root = root
        self._notes = notes
        self._noted = unnoted if notes is None else notes.noted
        self._uid_base = uid_base
        self._turns = Turns(threads, _AT_ONCE)

    async def stat(self, path: str) -> Entry:
        """The entry itself (a symlink is not followed)."""
        return self._entry(await self._in_tree(lambda tree: tree.stat(path)))

    async def resolve(self, path: str) -> Entry:
        """What `path` leads to, symlinks followed, under its path without symlinks."""
        return self._entry(await self._in_tree(lambda tree: tree.resolve(path)))

    async def list(self, path: str, depth: int = 1) -> list[Entry]:
        """Entries below a directory, down to `depth` levels (1 to 64), in order of path. Raises TooLarge for
        more than 100,000.
        """
        return await self._in_tree(
            lambda tree: [self._entry(found) for found in tree.list(path, depth, MAX_ENTRIES)]
        )

    async def read(self, path: str, offset: int = 0, size: int | None = None) -> AsyncIterator[bytes]:
        """The bytes that a regular file has now, or a part of them, in chunks of at most 256 KiB."""
        if offset < 0 or (size is not None and size < 0):
            raise InvalidInput("an offset and a size cannot be negative")
        fd = await self._in_tree(lambda tree: tree.open_file(path), os.close)
        try:
            # Not more than there is now: a process may append for ever.
            end = os.fstat(fd).st_size
            if size is not None:
                end = min(end, offset + size)
            while chunks := await self._read_at(fd, path, offset, end):
                for chunk in chunks:
                    offset += len(chunk)
                    yield chunk
        finally:
            os.close(fd)

    async def write(
        self,
        path: str,
        data: AsyncIterator[bytes],
        user: str,
        mode: int | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Entry:
        """Replace or create a regular file at once, parents created. A failed write changes nothing."""
        upload = await self._turns.call(lambda: self._begin(path, user, mode), _Upload.close)
        try:
            async for block in _blocks(data):
                await self._append(upload, block)
            kept = await self._describe(upload, metadata or {})
            status = await self._turns.call(upload.pending.commit)
        finally:
            await self._turns.call(upload.close)
        return self._entry(Found(path, status, metadata=kept))

    async def describe(self, path: str, metadata: Mapping[str, str]) -> None:
        """Attach metadata to a file that has none."""
        await self._in_tree(lambda tree: tree.describe(path, metadata))

    async def make_dir(self, path: str, user: str, mode: int = 0o755) -> bool:
        """Create a directory and its parents; False if it was there."""
        return await self._in_tree(lambda tree: tree.make_dir(path, self._owner(tree, user), mode))

    async def change(self, path: str, uid: int | None, gid: int | None, mode: int | None) -> Entry:
        """Set what is given of an entry itself."""
        ids = [None if id is None else self._uid_base + id for id in (uid, gid)]
        return self._entry(await self._in_tree(lambda tree: tree.change(path, ids[0], ids[1], mode)))

    async def move(self, source: str, target: str) -> Entry:
        """Rename within the sandbox."""
        root = Owner(self._uid_base, self._uid_base)
        return self._entry(await self._in_tree(lambda tree: tree.move(source, target, root)))

    async def remove(self, path: str) -> None:
        """Remove a file, or a directory with all below it."""
        await self._in_tree(lambda tree: tree.remove(path))

    def watch(self, path: str, *, recursive: bool) -> AbstractAsyncContextManager[Watch]:
        """Changes below a directory from now on. The iterator raises Conflict where changes were lost, and
        TooLarge where the tree outgrows what can be watched; it ends when the directory itself is gone.
        """

        def open_root() -> int:
            with self._tree() as tree:
                return tree.open_directory(path)

        return watch_tree(self._turns, path, open_root, recursive=recursive)

    async def user(self, user: str) -> GuestUser:
        """The ids of a user inside the sandbox. Raises InvalidInput for an unknown one."""
        return await self._in_tree(lambda tree: find_user(user, _passwd(tree)))

    async def is_directory(self, path: str) -> bool:
        """Whether there is a directory at `path`, symlinks followed."""
        try:
            os.close(await self._in_tree(lambda tree: tree.open_directory(path), os.close))
        except (NotFound, Conflict):
            return False
        return True

    async def tidy(self) -> None:
        """Remove what a daemon that was killed has left of writes. What fails is logged, and tried again by the next one."""
        for note in [] if self._notes is None else self._notes.all():
            try:
                with contextlib.suppress(*_ELSE_THERE):
                    await self._in_tree(functools.partial(GuestTree.remove_unfinished, path=note.path))
            except CorralError as error:
                log.warning("%s, which a write left, could not be removed: %s", ascii(note.path), error)
            else:
                note.forget()

    def _tree(self) -> GuestTree:
        with translated("/"):
            return GuestTree(self._root(), self._noted)

    async def _in_tree(
        self, work: Callable[[GuestTree], _T], undo: Callable[[_T], object] | None = None
    ) -> _T:
        def in_tree() -> _T:
            with self._tree() as tree:
                return work(tree)

        return await self._turns.call(in_tree, undo)

    async def _read_at(self, fd: int, path: str, offset: int, end: int) -> Sequence[bytes]:
        """Some chunks: a turn costs more than the reading of one."""

        def read() -> Sequence[bytes]:
            starts = range(offset, min(end, offset + _CHUNKS * CHUNK), CHUNK)
            with translated(path):
                chunks = [os.pread(fd, min(CHUNK, end - start), start) for start in starts]
            # A file that shrinks meanwhile has holes in what was asked for: stop at the first short one.
            full = next((index for index, chunk in enumerate(chunks) if len(chunk) < CHUNK), len(chunks))
            return [chunk for chunk in chunks[: full + 1] if chunk]

        return await self._turns.call(read)

    async def _describe(self, upload: "_Upload", metadata: Mapping[str, str]) -> dict[str, str]:
        if not metadata:
            return {}
        kept = await self._turns.call(lambda: upload.pending.describe(metadata))
        return dict(metadata) if kept else {}

    async def _append(self, upload: "_Upload", block: bytes) -> None:
        await self._turns.call(lambda: upload.pending.write(block))

    def _begin(self, path: str, user: str, mode: int | None) -> "_Upload":
        tree = self._tree()
        try:
            return _Upload(tree, tree.write(path, self._owner(tree, user), mode))
        except BaseException:
            tree.close()
            raise

    def _owner(self, tree: GuestTree, user: str) -> Owner:
        found = find_user(user, _passwd(tree))
        return Owner(self._uid_base + found.uid, self._uid_base + found.gid)

    def _entry(self, found: Found) -> Entry:
        status = found.status
        path = found.path.rstrip("/") or "/"
        return Entry(
            path=path,
            name=path.rpartition("/")[2] or "/",
            kind=_kind(status.st_mode),
            size=status.st_size,
            mode=stat.S_IMODE(status.st_mode),
            uid=self._guest_id(status.st_uid),
            gid=self._guest_id(status.st_gid),
            mtime=status.st_mtime,
            target=found.target,
            metadata=found.metadata,
            atime=status.st_atime,
            ctime=status.st_ctime,
        )

    def _guest_id(self, host_id: int) -> int:
        own = host_id - self._uid_base
        return own if 0 <= own < ID_RANGE else _NOBODY


async def _blocks(data: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same bytes in larger pieces: a turn costs more than the writing of a small one."""
    held: list[bytes] = []
    size = 0
    async for chunk in data:
        held.append(chunk)
        size += len(chunk)
        if size >= _CHUNKS * CHUNK:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)


@dataclass(frozen=True, slots=True)
class _Upload:
    tree: GuestTree
    pending: PendingFile

    def close(self) -> None:
        self.pending.discard()
        self.tree.close()


def _passwd(tree: GuestTree) -> bytes:
    """The guest's list of users; empty where it has none that can be read."""
    try:
        fd = tree.open_file(_PASSWD)
    except (NotFound, Conflict, Forbidden):
        return b""
    with open(fd, "rb") as file, translated(_PASSWD):
        return file.read(MAX_PASSWD)


def _kind(mode: int) -> EntryKind:
    if stat.S_ISREG(mode):
        return EntryKind.FILE
    if stat.S_ISDIR(mode):
        return EntryKind.DIRECTORY
    if stat.S_ISLNK(mode):
        return EntryKind.SYMLINK
    return EntryKind.OTHER

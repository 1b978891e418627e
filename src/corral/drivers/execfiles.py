"""A sandbox's files, for runtimes that believe to own the root alone.

gVisor caches what it read: what the host changes in the root of a running sandbox is not seen inside. What
the sandbox changes is seen by the host at once. So all changes go through a process inside, and all reading
is done from the host.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

from corral.drivers.files import HostGuestFiles
from corral.engine.ports import Entry, EntryKind, Watch
from corral.errors import Conflict, CorralError, DiskFull, Forbidden, HostError, NotFound
from corral.host.filechecks import check_mode, inner_path, split_path
from corral.host.fileerrors import shown
from corral.host.filewrite import NEW_MODE
from corral.wire.guest import DISK_FULL, PROGRAM
from corral.wire.pieces import pieces

Run = Callable[[Sequence[str], AsyncIterator[bytes] | None, str], Awaitable[tuple[int, bytes, bytes]]]
"""Run a command inside as a user, fed from an iterator; its exit code, stdout and stderr."""

_AS_ROOT = "0:0"
_REFUSALS: dict[int, type[CorralError]] = {2: NotFound, 3: Conflict, DISK_FULL: DiskFull, 6: Forbidden}
_MAX_REASON = 200


class ExecGuestFiles:
    """`ports.GuestFiles` by `reader` (from the host) and `run` (inside)."""

    def __init__(self, reader: HostGuestFiles, run: Run) -> None:
        self._reader = reader
        self._run = run

    async def stat(self, path: str) -> Entry:
        """The entry itself (a symlink is not followed)."""
        return await self._reader.stat(path)

    async def resolve(self, path: str) -> Entry:
        """What `path` leads to, symlinks followed, under its path without symlinks."""
        return await self._reader.resolve(path)

    async def list(self, path: str, depth: int = 1) -> list[Entry]:
        """Entries below a directory in order of path."""
        return await self._reader.list(path, depth)

    def read(self, path: str, offset: int = 0, size: int | None = None) -> AsyncIterator[bytes]:
        """The bytes that a regular file has now."""
        return self._reader.read(path, offset, size)

    async def write(
        self,
        path: str,
        data: AsyncIterator[bytes],
        user: str,
        mode: int | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Entry:
        """Replace or create a regular file at once, parents created."""
        split_path(path)
        if mode is None:
            mode = await self._mode_of(path)
        check_mode(mode)
        owner = await self._reader.user(user)
        await self._change(path, pieces(data), "write", path, f"{mode:o}", str(owner.uid), str(owner.gid))
        if metadata:
            await self._reader.describe(path, metadata)
        return await self._reader.stat(path)

    async def make_dir(self, path: str, user: str, mode: int = 0o755) -> bool:
        """Create a directory and its parents; False if it was there."""
        inner_path(path)
        check_mode(mode)
        owner = await self._reader.user(user)
        if await self._reader.is_directory(path):
            return False
        await self._change(path, None, "mkdir", path, f"{mode:o}", str(owner.uid), str(owner.gid))
        return True

    async def move(self, source: str, target: str) -> Entry:
        """Rename within the sandbox."""
        split_path(source)
        split_path(target)
        await self._change(source, None, "move", source, target)
        return await self._reader.stat(target)

    async def remove(self, path: str) -> None:
        """Remove a file, or a directory with all below it."""
        split_path(path)
        await self._change(path, None, "remove", path)

    def watch(self, path: str, *, recursive: bool) -> AbstractAsyncContextManager[Watch]:
        """Changes below a directory: those that reach the root file system, not the sandbox's own tmpfs."""
        return self._reader.watch(path, recursive=recursive)

    async def _mode_of(self, path: str) -> int:
        """The permission bits of the file that a write to `path` replaces, or those of a new one."""
        try:
            entry = await self._reader.resolve(path)
        except (NotFound, Conflict, Forbidden):
            return NEW_MODE
        return entry.mode & 0o777 if entry.kind is EntryKind.FILE else NEW_MODE

    async def _change(self, path: str, stdin: AsyncIterator[bytes] | None, *argv: str) -> None:
        code, _, stderr = await self._run((PROGRAM, *argv), stdin, _AS_ROOT)
        if code == 0:
            return
        reason = ascii(stderr.decode("utf-8", "replace").strip()[:_MAX_REASON])
        kind = _REFUSALS.get(code, HostError)
        raise kind(f"the sandbox could not {argv[0]} {shown(path)}: {reason}")

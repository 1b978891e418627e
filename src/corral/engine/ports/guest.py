"""What the engine needs of a sandbox's inside: its PID 1, its files, its output."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from corral.model.ids import ProcessId
from corral.model.process import ProcessInfo, Stream


class GuestLink(Protocol):
    """The connection to a sandbox's PID 1, which starts processes and keeps their output in spool files.

    The link survives the daemon: opened again, it goes on with the same guest. All that comes from it is hostile.
    One task may receive; sending is atomic per frame.
    """

    async def send(self, frame: bytes) -> None:
        """Deliver one frame of at most 4,096 bytes; wait while the guest is slow. Raises Conflict if the guest is gone."""

    async def receive(self) -> bytes:
        """Some bytes from the guest, as they come; empty once it is gone for good."""

    def read_spool(self, process: ProcessId, stream: Stream, offset: int, size: int) -> bytes:
        """Up to `size` bytes of a process's output from `offset`; fewer or none where there are no more. Never blocks
        on what the guest does; what the guest replaced by something else than a regular file reads as empty."""

    def free_spool(self, process: ProcessId, stream: Stream, upto: int) -> None:
        """Give back the disk space of the first `upto` bytes, whose offsets stay valid but read as zeros."""

    def remove_spool(self, process: ProcessId) -> None:
        """Remove all that is kept of a process's output. Idempotent."""

    def save_process(self, info: ProcessInfo) -> None:
        """Keep `info` where the guest cannot reach it, so that it is known after a restart of the daemon."""

    def saved_processes(self) -> list[ProcessInfo]:
        """What `save_process` kept, in the order of ids."""

    def forget_process(self, process: ProcessId) -> None:
        """Drop what `save_process` kept. Idempotent."""

    def close(self) -> None:
        """Let go of the link; the guest goes on."""


class EntryKind(StrEnum):
    """The type of a file."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Entry:
    """A file as its sandbox sees it: ids are the guest's; times in seconds since 1970; `target` of a symlink;
    `metadata` that was attached when it was written, or since, inside."""

    path: str
    name: str
    kind: EntryKind
    size: int
    mode: int
    uid: int
    gid: int
    mtime: float
    target: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    atime: float = 0.0
    ctime: float = 0.0


class WatchEventKind(StrEnum):
    """What happened below a watched directory."""

    CREATE = "create"
    WRITE = "write"
    REMOVE = "remove"
    RENAME = "rename"
    CHMOD = "chmod"


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One change; `path` is absolute in the guest."""

    kind: WatchEventKind
    path: str


class Watch(Protocol):
    """Changes as they come. Each is told once: to the one who iterates, or to a drain, which may be called meanwhile."""

    def __aiter__(self) -> AsyncIterator[WatchEvent]:
        """Changes, as they come."""

    async def __anext__(self) -> WatchEvent:
        """The next one."""

    async def drain(self) -> list[WatchEvent]:
        """All changes that were made before the call and were not told yet; does not wait for others."""


class GuestFiles(Protocol):
    """A sandbox's files, from the host. Paths are absolute in the guest and resolved inside its root: no symlink, `..`,
    FIFO or device of the guest reaches the host or blocks. New files and directories belong to `user` (a name of the
    guest's /etc/passwd, or uid[:gid]). Raises NotFound, Conflict (wrong type, not empty), Forbidden (special file),
    DiskFull, InvalidInput.
    """

    async def stat(self, path: str) -> Entry:
        """The entry itself (a symlink is not followed)."""

    async def resolve(self, path: str) -> Entry:
        """What `path` leads to, symlinks followed inside the root, under its path without symlinks. Raises Forbidden for
        links in a circle."""

    async def list(self, path: str, depth: int = 1) -> list[Entry]:
        """Entries below a directory in order of path, at most 100,000."""

    def read(self, path: str, offset: int = 0, size: int | None = None) -> AsyncIterator[bytes]:
        """The bytes of a regular file (symlinks followed inside the root) in chunks of at most 256 KiB."""

    async def write(
        self,
        path: str,
        data: AsyncIterator[bytes],
        user: str,
        mode: int | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Entry:
        """Replace or create a regular file at once (temporary file and rename), parents created. A failed write changes
        nothing. Without a `mode` the permission bits of the file that is replaced stay (not setuid, setgid, sticky); a new
        one has 0644. The new file has `metadata` (at most 4 KiB in all) and no other; where the file system keeps none, none."""

    async def make_dir(self, path: str, user: str, mode: int = 0o755) -> bool:
        """Create a directory and its parents; False if it was there."""

    async def move(self, source: str, target: str) -> Entry:
        """Rename within the sandbox."""

    async def remove(self, path: str) -> None:
        """Remove a file, or a directory with all below it."""

    def watch(self, path: str, *, recursive: bool) -> AbstractAsyncContextManager[Watch]:
        """Changes below a directory from now on, until closed. Entering returns once the watch is in place."""

"""Directories as tar streams: packed from what the files port shows, unpacked by `corral-init` inside the sandbox.

Packing here, rather than by a process inside, works on stopped sandboxes and on images without tar, and needs no disk of
the sandbox's. What a file holds may change while it is read: its header says a size, so its content is cut or padded
to that. Special files are left out. Unpacking happens inside, where a hostile archive meets only its own sandbox.
"""

import tarfile
from collections.abc import AsyncIterator

from corral.engine.ports import Entry, EntryKind, GuestFiles
from corral.engine.processes import Processes
from corral.engine.shell import Shell
from corral.errors import DiskFull, InvalidInput
from corral.model.ids import SandboxId, TenantId
from corral.wire.guest import DISK_FULL, PROGRAM
from corral.wire.pieces import pieces

BLOCK = 512
MAX_ID = 0o7777777


async def pack(files: GuestFiles, path: str) -> AsyncIterator[bytes]:
    """A tar stream of the file or directory at `path`; names in it start with the last part of `path`."""
    top = await files.stat(path)
    parent = len(top.path.rstrip("/")) - len(top.path.rstrip("/").rpartition("/")[2])
    pending = [top]
    while pending:
        entry = pending.pop()
        async for chunk in _member(files, entry, entry.path[parent:] or "."):
            yield chunk
        if entry.kind is EntryKind.DIRECTORY:
            pending.extend(reversed(await files.list(entry.path)))
    yield bytes(2 * BLOCK)


async def _member(files: GuestFiles, entry: Entry, name: str) -> AsyncIterator[bytes]:
    info = tarfile.TarInfo(name)
    info.mode = entry.mode & 0o7777
    info.mtime = entry.mtime
    info.uid, info.gid = min(entry.uid, MAX_ID), min(entry.gid, MAX_ID)
    match entry.kind:
        case EntryKind.DIRECTORY:
            info.type = tarfile.DIRTYPE
        case EntryKind.SYMLINK:
            info.type = tarfile.SYMTYPE
            info.linkname = entry.target or ""
        case EntryKind.FILE:
            info.size = entry.size
        case EntryKind.OTHER:
            return
    yield info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    if info.size:
        async for chunk in _content(files, entry):
            yield chunk


async def _content(files: GuestFiles, entry: Entry) -> AsyncIterator[bytes]:
    left = entry.size
    async for chunk in files.read(entry.path, 0, entry.size):
        piece = chunk[:left]
        left -= len(piece)
        yield piece
        if not left:
            break
    padding = left + -entry.size % BLOCK
    while padding > 0:
        piece = bytes(min(padding, 64 * 1024))
        padding -= len(piece)
        yield piece


async def unpack(
    processes: Processes,
    tenant: TenantId,
    sandbox: SandboxId,
    user: str,
    path: str,
    data: AsyncIterator[bytes],
) -> None:
    """Unpack a tar stream below the directory `path`, as `user`, who will own what is made. Each file is there as it was or
    as it is to be, also where the stream breaks off. Raises InvalidInput, DiskFull."""
    shell = Shell(processes, tenant, sandbox, user)
    argv = (PROGRAM, "unpack", path)
    code, _, errors = await shell.run(argv, stdin=pieces(data), timeout=24 * 3600.0)
    said = errors.decode("utf-8", "replace").strip()[-500:]
    if code == DISK_FULL:
        raise DiskFull(f"the archive could not be unpacked: {said}", "remove files in the sandbox")
    if code != 0:
        raise InvalidInput(
            f"the archive could not be unpacked: {said or f'it ended with {code}'}",
            "check the target's owner; it must be a tar that is not compressed",
        )

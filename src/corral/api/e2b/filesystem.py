"""The service `filesystem.Filesystem`, on the files port."""

import posixpath

from corral.api.e2b.box import Box
from corral.api.e2b.rpc import RpcError
from corral.api.e2b.watching import kind_of
from corral.engine.ports import EntryKind
from corral.errors import Conflict, Forbidden, NotFound
from corral.protocol.e2b import filesystem as wire
from corral.protocol.e2b.process import Nothing
from corral.wire.connect import Code

KEEPALIVE = wire.WatchReply(keepalive=Nothing())
MAX_DEPTH = 64


async def stat(box: Box, request: wire.PathRequest) -> wire.EntryReply:
    """One entry."""
    path = await _path(box, request.path)
    try:
        entry = await (await box.files()).stat(path)
    except (NotFound, Conflict):
        raise RpcError(Code.NOT_FOUND, f"file not found: {path}") from None
    return wire.EntryReply(entry=await box.info(entry))


async def make_dir(box: Box, request: wire.PathRequest) -> wire.EntryReply:
    """Make a directory and its parents."""
    user = await box.user()
    path = await box.path(request.path, user)
    files = await box.files()
    if (kind := await kind_of(files, path)) is not None:
        if kind is EntryKind.DIRECTORY:
            raise RpcError(Code.ALREADY_EXISTS, f"directory already exists: {path}")
        raise RpcError(Code.INVALID_ARGUMENT, f"path already exists but it is not a directory: {path}")
    try:
        made = await files.make_dir(path, user)
    except Conflict:
        raise RpcError(Code.INTERNAL, f"path is a file: one of the parents of {path}") from None
    if not made:
        raise RpcError(Code.ALREADY_EXISTS, f"directory already exists: {path}")
    return wire.EntryReply(entry=await box.info(await files.stat(path)))


async def move(box: Box, request: wire.MoveRequest) -> wire.EntryReply:
    """Rename; parents of the destination are made."""
    user = await box.user()
    source, target = await box.path(request.source, user), await box.path(request.destination, user)
    files = await box.files()
    if await kind_of(files, source) is None:
        raise RpcError(Code.NOT_FOUND, f"source file not found: {source}")
    await files.make_dir(posixpath.dirname(target), user)
    return wire.EntryReply(entry=await box.info(await files.move(source, target)))


async def list_dir(box: Box, request: wire.ListDirRequest) -> wire.EntriesReply:
    """What is below a directory, each directory before its content."""
    path = await _path(box, request.path)
    files = await box.files()
    try:
        found = await files.list(path, min(max(request.depth, 1), MAX_DEPTH))
    except NotFound:
        raise RpcError(Code.NOT_FOUND, f"directory not found: {path}") from None
    except Forbidden:
        if await box.resolved(path) is not None:
            raise
        raise RpcError(Code.FAILED_PRECONDITION, f"the symlinks of {path} lead in a circle") from None
    except Conflict:
        raise RpcError(Code.INVALID_ARGUMENT, f"path is not a directory: {path}") from None
    ordered = sorted(found, key=lambda entry: entry.path.split("/"))
    return wire.EntriesReply(entries=[await box.info(entry) for entry in ordered])


async def remove(box: Box, request: wire.PathRequest) -> Nothing:
    """Remove what is there, with all below it."""
    path = await _path(box, request.path)
    try:
        await (await box.files()).remove(path)
    except NotFound:
        return Nothing()
    return Nothing()


async def _path(box: Box, text: str) -> str:
    return await box.path(text, await box.user())

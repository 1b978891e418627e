"""The service `filesystem.Filesystem`, on the files port."""

import posixpath
import secrets as randomness
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack

from corral.api.e2b.box import Box
from corral.api.e2b.rpc import RpcError
from corral.engine.ports import EntryKind, GuestFiles, Watch, WatchEvent
from corral.errors import Conflict, CorralError, InvalidInput, NotFound, TooLarge
from corral.host.tasks import TaskOwner
from corral.model.ids import SandboxId
from corral.protocol.e2b import filesystem as wire
from corral.protocol.e2b.process import Nothing
from corral.wire.connect import Code

KEEPALIVE = wire.WatchReply(keepalive=Nothing())
MAX_DEPTH = 64
MAX_WATCHERS = 64
MAX_KEPT = 100_000


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
    if (kind := await _kind(files, path)) is not None:
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
    if await _kind(files, source) is None:
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


async def watch_dir(box: Box, request: wire.WatchRequest) -> AsyncGenerator[wire.WatchReply, None]:
    """Changes below a directory, as they come."""
    path = await _watchable(box, request)
    async with (await box.files()).watch(path, recursive=request.recursive) as changes:
        yield wire.WatchReply(start=Nothing())
        async for change in changes:
            if (event := _event(path, change)) is not None:
                yield wire.WatchReply(filesystem=event)


async def _watchable(box: Box, request: wire.WatchRequest) -> str:
    if request.include_entry:
        raise RpcError(Code.UNIMPLEMENTED, "entries in watches are not supported by Corral")
    path = await _path(box, request.path)
    kind = await _kind(await box.files(), path)
    if kind is None:
        raise RpcError(Code.NOT_FOUND, f"path {path} not found")
    if kind is not EntryKind.DIRECTORY:
        raise RpcError(Code.INVALID_ARGUMENT, f"path {path} not a directory")
    return path


def _event(path: str, change: WatchEvent) -> wire.FilesystemEvent | None:
    name = change.path.removeprefix(path.rstrip("/")).lstrip("/")
    shown = name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return wire.FilesystemEvent(name=shown, type=f"EVENT_TYPE_{change.kind.value.upper()}") if name else None


async def _path(box: Box, text: str) -> str:
    return await box.path(text, await box.user())


async def _kind(files: GuestFiles, path: str) -> EntryKind | None:
    """What is at a path, symlinks at its end followed as far as they lead to directories; None for nothing."""
    try:
        entry = await files.stat(path)
    except (NotFound, Conflict):
        return None
    if entry.kind is EntryKind.SYMLINK:
        try:
            await files.list(path, 1)
        except (NotFound, Conflict, InvalidInput):
            return entry.kind
        return EntryKind.DIRECTORY
    return entry.kind


class _Watcher:
    """A watch whose changes are collected between polls: what is made in a new directory is seen only by who follows."""

    def __init__(self, path: str, watch: Watch, stack: AsyncExitStack) -> None:
        self.path = path
        self.stack = stack
        self._watch = watch
        self._kept: list[WatchEvent] = []
        self._failure: CorralError | None = None

    async def follow(self) -> None:
        """Collect changes, until cancelled or until they cannot be followed."""
        try:
            async for change in self._watch:
                self._kept.append(change)
                if len(self._kept) > MAX_KEPT:
                    raise TooLarge(
                        f"more than {MAX_KEPT} changes were not asked for", "watch anew, ask more often"
                    )
        except CorralError as error:
            self._failure = error

    async def take(self) -> list[WatchEvent]:
        """All changes since the last call."""
        if self._failure is not None:
            raise self._failure
        last = await self._watch.drain()
        told, self._kept = [*self._kept, *last], []
        return told


class Watchers:
    """Watches that clients poll. They last until they are removed or their sandbox ends."""

    def __init__(self) -> None:
        self._of: dict[SandboxId, dict[str, _Watcher]] = {}

    async def create(self, box: Box, request: wire.WatchRequest) -> wire.CreatedWatcher:
        """Begin to watch."""
        await self._prune(box)
        path = await _watchable(box, request)
        own = self._of.setdefault(box.sandbox.id, {})
        if len(own) >= MAX_WATCHERS:
            raise RpcError(Code.RESOURCE_EXHAUSTED, f"{len(own)} watchers are there already: remove some")
        stack = AsyncExitStack()
        watch = await stack.enter_async_context((await box.files()).watch(path, recursive=request.recursive))
        watcher = _Watcher(path, watch, stack)
        tasks = await stack.enter_async_context(TaskOwner())
        tasks.start(watcher.follow(), name=f"watcher-{box.id}")
        name = randomness.token_hex(8)
        own[name] = watcher
        return wire.CreatedWatcher(watcher_id=name)

    async def events(self, box: Box, request: wire.WatcherRequest) -> wire.EventsReply:
        """Changes since the last call, all those included that were made before this one."""
        watcher = self._of.get(box.sandbox.id, {}).get(request.watcher_id)
        if watcher is None:
            raise _unknown(request.watcher_id)
        found = [_event(watcher.path, change) for change in await watcher.take()]
        return wire.EventsReply(events=[event for event in found if event is not None])

    async def remove(self, box: Box, request: wire.WatcherRequest) -> Nothing:
        """Stop watching."""
        watcher = self._of.get(box.sandbox.id, {}).pop(request.watcher_id, None)
        if watcher is None:
            raise _unknown(request.watcher_id)
        await watcher.stack.aclose()
        return Nothing()

    async def _prune(self, box: Box) -> None:
        """Let go of watchers of sandboxes that are gone."""
        gone = [name for name in self._of if box.engine.sandboxes.by_id(name) is None]
        for name in gone:
            for watcher in self._of.pop(name, {}).values():
                await watcher.stack.aclose()


def _unknown(watcher: str) -> RpcError:
    return RpcError(Code.NOT_FOUND, f"watcher with id {watcher[:40]} not found")

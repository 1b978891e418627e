"""Watches of E2B's clients: those that stream, and those that are polled.

Clients count on three events of an uploaded file: CREATE, CHMOD, WRITE (the last two where it was there). Corral's uploads
appear at once, whole, which the kernel tells as one. So an upload announces itself to the watches of its sandbox, and each
tells the one event as what clients expect. What is changed inside is told as the kernel tells it.
"""

import posixpath
import secrets as randomness
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager

from corral.api.e2b.box import Box
from corral.api.e2b.rpc import RpcError
from corral.engine.ports import EntryKind, GuestFiles, Watch, WatchEvent, WatchEventKind
from corral.errors import Conflict, CorralError, Forbidden, InvalidInput, NotFound, TooLarge
from corral.host.tasks import TaskOwner
from corral.model.ids import SandboxId
from corral.protocol.e2b import filesystem as wire
from corral.protocol.e2b.process import Nothing
from corral.wire.connect import Code

MAX_WATCHERS = 64
MAX_KEPT = 100_000
_WITH_ENTRY = (WatchEventKind.CREATE, WatchEventKind.WRITE, WatchEventKind.CHMOD)


class Upload:
    """An upload under way; `size` counts its bytes, all of them by the time that its file appears."""

    def __init__(self) -> None:
        self.size = 0

    async def counted(self, data: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The same bytes."""
        async for chunk in data:
            self.size += len(chunk)
            yield chunk


def expanded(change: WatchEvent, uploads: dict[str, Upload]) -> list[WatchEvent]:
    """What is told of a change: that of an announced upload as several."""
    if change.kind not in (WatchEventKind.CREATE, WatchEventKind.WRITE) or change.path not in uploads:
        return [change]
    filled = uploads.pop(change.path).size > 0
    kinds = [WatchEventKind.CREATE] if change.kind is WatchEventKind.CREATE else []
    kinds += [WatchEventKind.CHMOD, *([WatchEventKind.WRITE] if filled else [])]
    return [WatchEvent(kind, change.path) for kind in kinds]


async def kind_of(files: GuestFiles, path: str) -> EntryKind | None:
    """What is at a path, symlinks at its end followed as far as they lead to directories; None for nothing."""
    try:
        entry = await files.stat(path)
    except (NotFound, Conflict):
        return None
    if entry.kind is EntryKind.SYMLINK:
        try:
            await files.list(path, 1)
        except (NotFound, Conflict, Forbidden, InvalidInput):
            return entry.kind
        return EntryKind.DIRECTORY
    return entry.kind


class _Following:
    """One watch: its directory, and the uploads that it has yet to see."""

    def __init__(self, path: str, *, recursive: bool, entries: bool) -> None:
        self.path = path
        self._recursive = recursive
        self._entries = entries
        self.uploads: dict[str, Upload] = {}

    def covers(self, path: str) -> bool:
        """Whether a change of `path` is told here."""
        parent = posixpath.dirname(path)
        return parent == self.path or (self._recursive and path.startswith(self.path.rstrip("/") + "/"))

    async def told(self, box: Box, change: WatchEvent) -> list[wire.FilesystemEvent]:
        """A change as clients are told of it; nothing of the directory itself."""
        name = change.path.removeprefix(self.path.rstrip("/")).lstrip("/")
        if not name:
            return []
        shown = name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        return [
            wire.FilesystemEvent(
                name=shown, type=f"EVENT_TYPE_{item.kind.value.upper()}", entry=await self._entry(box, item)
            )
            for item in expanded(change, self.uploads)
        ]

    async def _entry(self, box: Box, change: WatchEvent) -> wire.EntryInfo | None:
        if not self._entries or change.kind not in _WITH_ENTRY:
            return None
        try:
            return await box.info(await (await box.files()).stat(change.path))
        except CorralError:
            return None  # it is gone already


class _Polled(_Following):
    """A watch whose changes are collected between polls: what is made in a new directory is seen only by who follows."""

    def __init__(self, path: str, watch: Watch, stack: AsyncExitStack, request: wire.WatchRequest) -> None:
        super().__init__(path, recursive=request.recursive, entries=request.include_entry)
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
    """The watches of all sandboxes. Those that are polled last until they are removed or their sandbox ends."""

    def __init__(self) -> None:
        self._polled: dict[SandboxId, dict[str, _Polled]] = {}
        self._streams: dict[SandboxId, set[_Following]] = {}

    @contextmanager
    def uploading(self, sandbox: SandboxId, path: str) -> Iterator[Upload]:
        """Around the write of an upload, whose bytes go through what is given."""
        upload = Upload()
        watches = [*self._polled.get(sandbox, {}).values(), *self._streams.get(sandbox, ())]
        watches = [item for item in watches if item.covers(path) and len(item.uploads) < MAX_KEPT]
        for watch in watches:
            watch.uploads[path] = upload
        try:
            yield upload
        except BaseException:
            for watch in watches:
                if watch.uploads.get(path) is upload:
                    del watch.uploads[path]
            raise

    async def stream(self, box: Box, request: wire.WatchRequest) -> AsyncGenerator[wire.WatchReply, None]:
        """Changes below a directory, as they come."""
        path = await _watchable(box, request)
        following = _Following(path, recursive=request.recursive, entries=request.include_entry)
        own = self._streams.setdefault(box.sandbox.id, set())
        own.add(following)
        try:
            async with (await box.files()).watch(path, recursive=request.recursive) as changes:
                yield wire.WatchReply(start=Nothing())
                async for change in changes:
                    for event in await following.told(box, change):
                        yield wire.WatchReply(filesystem=event)
        finally:
            own.discard(following)
            if not own:
                self._streams.pop(box.sandbox.id, None)

    async def create(self, box: Box, request: wire.WatchRequest) -> wire.CreatedWatcher:
        """Begin to watch."""
        await self._prune(box)
        path = await _watchable(box, request)
        own = self._polled.setdefault(box.sandbox.id, {})
        if len(own) >= MAX_WATCHERS:
            raise RpcError(Code.RESOURCE_EXHAUSTED, f"{len(own)} watchers are there already: remove some")
        stack = AsyncExitStack()
        watch = await stack.enter_async_context((await box.files()).watch(path, recursive=request.recursive))
        watcher = _Polled(path, watch, stack, request)
        tasks = await stack.enter_async_context(TaskOwner())
        tasks.start(watcher.follow(), name=f"watcher-{box.id}")
        name = randomness.token_hex(8)
        own[name] = watcher
        return wire.CreatedWatcher(watcher_id=name)

    async def events(self, box: Box, request: wire.WatcherRequest) -> wire.EventsReply:
        """Changes since the last call, all those included that were made before this one."""
        watcher = self._polled.get(box.sandbox.id, {}).get(request.watcher_id)
        if watcher is None:
            raise _unknown(request.watcher_id)
        return wire.EventsReply(
            events=[event for change in await watcher.take() for event in await watcher.told(box, change)]
        )

    async def remove(self, box: Box, request: wire.WatcherRequest) -> Nothing:
        """Stop watching."""
        watcher = self._polled.get(box.sandbox.id, {}).pop(request.watcher_id, None)
        if watcher is None:
            raise _unknown(request.watcher_id)
        await watcher.stack.aclose()
        return Nothing()

    async def _prune(self, box: Box) -> None:
        """Let go of watchers of sandboxes that are gone."""
        gone = [name for name in self._polled if box.engine.sandboxes.by_id(name) is None]
        for name in gone:
            for watcher in self._polled.pop(name, {}).values():
                await watcher.stack.aclose()


async def _watchable(box: Box, request: wire.WatchRequest) -> str:
    path = await box.path(request.path, await box.user())
    kind = await kind_of(await box.files(), path)
    if kind is None:
        raise RpcError(Code.NOT_FOUND, f"path {path} not found")
    if kind is not EntryKind.DIRECTORY:
        raise RpcError(Code.INVALID_ARGUMENT, f"path {path} not a directory")
    return path


def _unknown(watcher: str) -> RpcError:
    return RpcError(Code.NOT_FOUND, f"watcher with id {watcher[:40]} not found")

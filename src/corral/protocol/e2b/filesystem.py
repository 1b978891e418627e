"""Messages of the service `filesystem.Filesystem`. In binary form a field's number is its place (`proto.py`)."""

from pydantic import BaseModel, Field

from corral.protocol.e2b.base import Wire
from corral.protocol.e2b.process import Nothing


class PathRequest(Wire):
    """A request about a path: Stat, MakeDir and Remove."""

    path: str = ""


class ListDirRequest(PathRequest):
    """List a directory, `depth` levels deep; 0 counts as 1."""

    depth: int = 0


class MoveRequest(Wire):
    """Rename."""

    source: str = ""
    destination: str = ""


class WatchRequest(PathRequest):
    """Watch a directory."""

    recursive: bool = False
    include_entry: bool = False
    allow_network_mounts: bool = False


class WatcherRequest(Wire):
    """A request about a watcher."""

    watcher_id: str = ""


class EntryInfo(Wire):
    """A file; of a symlink `type` and `mode` are its target's."""

    name: str
    type: str
    path: str
    size: str
    mode: int
    permissions: str
    owner: str
    group: str
    modified_time: str
    symlink_target: str | None = None
    metadata: dict[str, str] | None = None
    is_symlink: bool | None = None


class ComposeRequest(BaseModel):
    """Make one file of several."""

    source_paths: list[str] = Field(default_factory=list, max_length=10_000)
    destination: str = ""
    username: str | None = None


class EntryReply(Wire):
    """One file."""

    entry: EntryInfo


class EntriesReply(Wire):
    """Files."""

    entries: list[EntryInfo]


class FilesystemEvent(Wire):
    """A change; `name` is relative to the directory."""

    name: str
    type: str
    entry: EntryInfo | None = None


class WatchReply(Wire):
    """A message of WatchDir's answer."""

    start: Nothing | None = None
    filesystem: FilesystemEvent | None = None
    keepalive: Nothing | None = None


class CreatedWatcher(Wire):
    """Its id."""

    watcher_id: str


class EventsReply(Wire):
    """Changes since the last call."""

    events: list[FilesystemEvent]

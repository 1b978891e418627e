"""Shapes of files. Paths travel in the query as percent-encoded bytes, so that any file name can be given."""

import os

from pydantic import Field

from corral.protocol.base import Data, Reply

MAX_DEPTH = 64
MAX_FILE = 1024**4


class PathText(Reply):
    """A path as text, and as bytes where the text could not hold it."""

    path: str = Field(description="Bytes that are not UTF-8 are shown as U+FFFD; then `raw_path` is set.")
    raw_path: Data | None = None

    @property
    def os_path(self) -> str:
        """The exact path, as `os.fsdecode` spells it: it can be given back to the API."""
        return self.path if self.raw_path is None else os.fsdecode(self.raw_path)


def path_fields(path: str) -> tuple[str, bytes | None]:
    """The two fields of a PathText for a path that may hold surrogate-escaped bytes."""
    raw = os.fsencode(path)
    shown = raw.decode("utf-8", "replace")
    return shown, None if shown.encode() == raw else raw


class FileEntry(PathText):
    """A file as its sandbox sees it. All of it is under the control of the sandbox."""

    kind: str = Field(description="`file`, `directory`, `symlink` or `other`.")
    size: int
    mode: int = Field(description="Permission bits.")
    uid: int
    gid: int
    mtime: float = Field(description="Seconds since 1970.")
    target: str | None = Field(default=None, description="Where a symlink points to.")

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.os_path.rstrip("/").rpartition("/")[2] or "/"


class FileList(Reply):
    """Entries below a directory, in order of path."""

    entries: list[FileEntry]


class Created(Reply):
    """Whether something was made, or was there before."""

    created: bool


class WatchEvent(PathText):
    """A change below a watched directory (event `change`)."""

    kind: str = Field(description="`create`, `write`, `remove`, `rename` or `chmod`.")

"""Requests about files, as operations. Paths may hold any bytes: give them as `os.fsdecode` spells them."""

import os
from typing import Any

from corral.protocol import files as protocol
from corral.protocol.base import Done
from corral.sdk.operations import Call, Content, Download, Event, Follow, Request, parse, reply
from corral.sdk.requests import EVENTS, url

Path = str | os.PathLike[str]


def read_bytes(ref: str, path: Path) -> Call[bytes]:
    """A regular file's bytes. Raises NotFound, Conflict (not a file)."""
    return Call(_file("GET", ref, "files", path=path, accept="*/*"), bytes)


def read(ref: str, path: Path) -> Call[str]:
    """A regular file's text; bytes that are not UTF-8 become U+FFFD."""
    return Call(
        _file("GET", ref, "files", path=path, accept="*/*"), lambda body: body.decode("utf-8", "replace")
    )


def stream(ref: str, path: Path) -> Download:
    """A regular file's bytes, as they come; a broken connection raises, so that all chunks are the whole file."""
    return Download(_file("GET", ref, "files", path=path, accept="*/*"))


def write(
    ref: str, path: Path, data: str | Content, *, mode: int | None = None, user: str | None = None
) -> Call[protocol.FileEntry]:
    """Replace or create a regular file at once; parents are created. A failed write changes nothing."""
    body = data.encode() if isinstance(data, str) else data
    return Call(
        _file("PUT", ref, "files", path=path, body=body, mode=_octal(mode), user=user),
        reply(protocol.FileEntry),
    )


def stat(ref: str, path: Path) -> Call[protocol.FileEntry]:
    """The entry itself; a symlink is not followed. Raises NotFound."""
    return Call(_file("GET", ref, "files", "stat", path=path), reply(protocol.FileEntry))


def list_dir(ref: str, path: Path, depth: int = 1) -> Call[list[protocol.FileEntry]]:
    """Entries below a directory, `depth` levels deep, in order of path."""
    request = _file("GET", ref, "files", "list", path=path, depth=depth)
    return Call(request, lambda body: parse(protocol.FileList, body).entries)


def mkdir(ref: str, path: Path, *, mode: int | None = None, user: str | None = None) -> Call[bool]:
    """Create a directory and its parents; False if it was there."""
    request = _file("POST", ref, "files", "mkdir", path=path, mode=_octal(mode), user=user)
    return Call(request, lambda body: parse(protocol.Created, body).created)


def move(ref: str, source: Path, target: Path) -> Call[protocol.FileEntry]:
    """Rename within the sandbox."""
    request = _file("POST", ref, "files", "move", source=source, target=target)
    return Call(request, reply(protocol.FileEntry))


def remove(ref: str, path: Path) -> Call[None]:
    """Remove a file, or a directory with all below it."""
    return Call(_file("DELETE", ref, "files", path=path), _done)


def watch(ref: str, path: Path, *, recursive: bool = False) -> Follow[protocol.WatchEvent]:
    """Changes below a directory, without end; the first `next` returns after the watch is in place."""

    def decode(event: Event) -> protocol.WatchEvent | None:
        return parse(protocol.WatchEvent, event.data) if event.name == "change" else None

    request = _file("GET", ref, "files", "watch", path=path, accept=EVENTS, recursive=str(recursive).lower())
    return Follow(request, decode)


def read_archive(ref: str, path: Path) -> Download:
    """A file or directory as a tar stream. Its content is hostile: unpack it with `corral.sdk.trees.unpack`."""
    return Download(_file("GET", ref, "archive", path=path, accept="*/*"))


def write_archive(ref: str, path: Path, data: Content, *, user: str | None = None) -> Call[None]:
    """Unpack a tar stream below a directory of a running sandbox."""
    return Call(_file("PUT", ref, "archive", path=path, body=data, user=user), _done)


def _file(
    method: str,
    ref: str,
    *parts: str,
    body: Content | None = None,
    accept: str = "application/json",
    **query: Any,
) -> Request:
    paths = {key: os.fsencode(value) for key, value in query.items() if key in ("path", "source", "target")}
    path = url("sandboxes", ref, *parts, **{**query, **paths})
    return Request(method, path, body, accept=accept, timeout=None if method in ("PUT", "DELETE") else 60.0)


def _octal(mode: int | None) -> str | None:
    return None if mode is None else f"{mode & 0o7777:03o}"


def _done(body: bytes) -> None:
    parse(Done, body)

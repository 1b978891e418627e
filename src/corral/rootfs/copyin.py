"""Copies files of an archive into the tree of an image. Run as a program of its own: `python -m`.

The tree is as hostile as the archive: both are a tenant's. As in `unpack`, the program mounts the layers below with the
new one on top, for itself alone, and changes its root to that: links of the image lead where they lead inside of it,
and nowhere else. The archive was read before (`archive_index`), and is opened before the root is changed.

A request is one JSON object on standard input, see `Request`; the outcome one on standard output.
"""

import contextlib
import errno
import io
import os
import posixpath
import stat
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from corral.errors import Conflict, InvalidInput
from corral.policy.copying import Item, Kind
from corral.rootfs.archive_index import read_index, unpacked
from corral.rootfs.outcome import answer
from corral.rootfs.sparse import write_file
from corral.rootfs.unpack import (
    DAMAGED,
    LayerReader,
    Unpacker,
    clean_path,
    enter,
    owned_xattr,
    public_error,
)
from corral.wire.passwd import MAX_PASSWD, find_group, find_user

if TYPE_CHECKING:
    from typing_extensions import Buffer

_CHUNK = 1 << 18
_ARCHIVES = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd")


@dataclass(frozen=True, slots=True)
class Request:
    """`tar`: a plain archive; `plan`: a file whose lines are the items to copy (as of an index), each with `place` below
    the target in place of its path. `directories` are `[path, owner]`, made where they are missing. `lowers`, `upper`
    and `mount` are as in `unpack`; `uid_base` is the id of the image's root on disk. `owner` is `user[:group]` of the
    image, or empty for root. `max_entries`, `max_bytes`: of all archives that it unpacks, together.
    """

    tar: str
    plan: str
    lowers: list[str]
    upper: str
    mount: str
    uid_base: int
    directories: list[list[str]]
    target: str
    directory: bool
    owner: str
    mode: int | None
    unpack: bool
    max_entries: int
    max_bytes: int


@dataclass(slots=True)
class Outcome:
    """`changed`: something was put there."""

    changed: bool = False


@dataclass(frozen=True, slots=True)
class Owner:
    """Ids as they are on disk."""

    uid: int
    gid: int


def owner_of(text: str, uid_base: int) -> Owner:
    """The ids on disk of `user[:group]` by the image's own tables. Raises InvalidInput."""
    if not text:
        return Owner(uid_base, uid_base)
    name, _, group = text.partition(":")
    user = find_user(name, _table("/etc/passwd"))
    gid = find_group(group, _table("/etc/group")) if group else user.gid
    return Owner(uid_base + user.uid, uid_base + gid)


def _table(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return b""
        return file.read(MAX_PASSWD)


class Copier:
    """Puts items at the process's own root."""

    def __init__(self, archive: BinaryIO, request: Request, owner: Owner) -> None:
        self._archive = archive
        self._request = request
        self._owner = owner
        self._entries_left = request.max_entries
        self._bytes_left = request.max_bytes
        self.outcome = Outcome()

    def run(self, items: Iterator[Item]) -> None:
        """Copy all. The path of each item is its place below the target."""
        for item in items:
            target = posixpath.join(self._request.target, item.path) if item.path else self._request.target
            if item.kind is Kind.DIRECTORY:
                self._directory(target, item)
                continue
            if not item.path and not self._request.directory and os.path.isdir(target):
                raise Conflict(
                    f"{target!r} is a directory of the image", "end the target with a slash to copy into it"
                )
            self.make_parents(posixpath.dirname(target))
            if item.kind is Kind.SYMLINK:
                self._clear(target)
                os.symlink(item.target, target)
                os.lchown(target, self._owner.uid, self._owner.gid)
            elif self._request.unpack and self._unpack(item, target):
                pass
            else:
                self._file(target, item)
            self.outcome.changed = True

    def make_parents(self, path: str) -> None:
        """The directory `path` and those above it, where they are missing; links of the image are followed."""
        if os.path.isdir(path):
            return
        if os.path.lexists(path):
            raise Conflict(f"{path!r} of the image is no directory", "choose another target")
        self.make_parents(posixpath.dirname(path))
        os.mkdir(path, 0o755)
        os.chown(path, self._owner.uid, self._owner.gid)
        self.outcome.changed = True

    def _directory(self, target: str, item: Item) -> None:
        present = os.path.isdir(target)
        self.make_parents(target)
        if present and not item.path:
            return  # the target itself stays what it is; what is copied goes into it
        fd = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._dress(fd, item)
        finally:
            os.close(fd)
        self.outcome.changed = True

    def _file(self, target: str, item: Item) -> None:
        self._clear(target)
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            write_file(fd, self._content(item))
            self._dress(fd, item)
            os.utime(fd, (item.mtime, item.mtime))
        finally:
            os.close(fd)

    def _dress(self, fd: int, item: Item) -> None:
        os.fchown(
            fd, self._owner.uid, self._owner.gid
        )  # before the rest: it clears setuid bits and capabilities
        os.fchmod(fd, item.mode if self._request.mode is None else self._request.mode)
        for name, value in item.xattrs:
            os.setxattr(fd, name, owned_xattr(name, value.encode("latin-1"), self._request.uid_base))

    def _clear(self, target: str) -> None:
        if os.path.isdir(target) and not os.path.islink(target):
            raise Conflict(
                f"{target!r} is a directory of the image", "choose another target, or remove it before"
            )
        with contextlib.suppress(FileNotFoundError):
            os.unlink(target)

    def _content(self, item: Item) -> Iterator[bytes]:
        self._archive.seek(item.offset)
        left = item.size
        while left:
            piece = self._archive.read(min(left, _CHUNK))
            if not piece:
                raise InvalidInput("the archive is shorter than its index says", "upload it again")
            left -= len(piece)
            yield piece

    def _unpack(self, item: Item, target: str) -> bool:
        """Unpack an archive of the archive below the target; False if it is none."""
        self._archive.seek(item.offset)
        head = self._archive.read(min(item.size, 512))
        if not head.startswith(_ARCHIVES) and head[257:262] != b"ustar":
            return False
        place = self._request.target
        self.make_parents(place)
        inner = io.BufferedReader(_Window(self._archive, item.offset, item.size))
        reader = LayerReader(unpacked(inner), self._bytes_left)
        forced = self._owner if self._request.owner else None
        extractor = _Extractor(reader, self._entries_left, place.lstrip("/"), forced, self._request.uid_base)
        try:
            extractor.run()
        except DAMAGED as error:
            raise InvalidInput(f"the archive {item.path or target!r} is damaged: {error}"[:300]) from error
        self._entries_left -= extractor.outcome.entries
        self._bytes_left -= extractor.outcome.bytes
        return True


class _Window(io.RawIOBase):
    """A part of a file, as a file."""

    def __init__(self, file: BinaryIO, offset: int, size: int) -> None:
        self._file, self._offset, self._size, self._at = file, offset, size, 0

    def readinto(self, buffer: "Buffer") -> int:
        view = memoryview(buffer)
        self._file.seek(self._offset + self._at)
        data = self._file.read(min(len(view), self._size - self._at))
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, base + position)
        return self._at

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


class _Extractor(Unpacker):
    """The entries of an archive below `place`: files whose names look like whiteouts are files."""

    def __init__(
        self, reader: LayerReader, max_entries: int, place: str, owner: Owner | None, uid_base: int
    ) -> None:
        super().__init__(reader, max_entries, uid_base)
        self._place_below = place
        self._forced = owner

    def _apply(self, entry: tarfile.TarInfo) -> None:
        path = clean_path(entry.name)
        if not path:
            return
        if entry.sparse is not None:
            raise InvalidInput(f"{path[:200]!r} is a sparse file", "make the archive without sparse files")
        if not (entry.issym() or entry.islnk() or entry.isdir() or entry.isreg()):
            return
        if entry.islnk():
            entry.linkname = f"{self._place_below}/{clean_path(entry.linkname)}"
        if self._forced is not None:
            entry.uid = self._forced.uid - self._uid_base
            entry.gid = self._forced.gid - self._uid_base
        path = f"{self._place_below}/{path}".lstrip("/")
        self._place(path, path.rpartition("/")[0], entry)


def copy_in(request: Request) -> Outcome:
    """Copy in this process, which cannot be used for anything else after. Raises CorralError."""
    with open(request.tar, "rb") as archive:
        items = list(read_index(request.plan))
        enter(request.lowers, request.upper, request.mount, request.uid_base)
        try:
            changed = False
            for path, owner in request.directories:
                maker = Copier(archive, request, owner_of(owner, request.uid_base))
                maker.make_parents(path)
                changed = changed or maker.outcome.changed
            copier = Copier(archive, request, owner_of(request.owner, request.uid_base))
            copier.run(iter(items))
            copier.outcome.changed = copier.outcome.changed or changed
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG):
                raise Conflict(
                    f"the image has something in the way: {error}", "choose another target"
                ) from error
            raise public_error(error) from error
        return copier.outcome


def main() -> int:
    """Read a request, copy, write the outcome."""
    return answer(Request, copy_in)


if __name__ == "__main__":
    sys.exit(main())

"""Directories between this machine and a sandbox, as tar streams.

What comes from a sandbox is hostile: names, links and sizes are chosen by whoever controls it. Python's own extraction
filters decide by path text, and text can lie about what is on disk. Here every directory on the way is opened by
descriptor without following links, so that a name can only lead to where it says: below the target. The same rule holds
in both directions: a link is copied as a link where it stays inside the tree, and left out where it leaves it.
"""

import errno
import io
import os
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from corral.errors import Conflict, DiskFull, InvalidInput, NotFound, UpstreamFailed

CHUNK = 256 * 1024
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True)
class Copied:
    """What became of a tree: files copied, their bytes, and `skipped` names with the reason each was left out."""

    files: int = 0
    bytes: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)


class _LeftOut(Exception):
    """One entry is not copied, for the reason given; the others are."""


def link_stays(parts: list[str], target: str) -> bool:
    """Whether a link at `parts` below the tree's root leads to somewhere in the tree, as far as text can tell."""
    depth = len(parts) - 1
    for part in target.split("/"):
        depth += -1 if part == ".." else int(part not in ("", "."))
        if depth < 0:
            return False
    return not target.startswith("/")


# -- out of a sandbox ---------------------------------------------------------------------------------------------


def unpack(chunks: Iterable[bytes], target: Path) -> Copied:
    """Unpack an archive whose names start with one common part, which becomes `target`.

    A file takes the place of a file; a directory is merged into one that is there; an existing `.git` is not touched.
    Raises NotFound for a target without a parent, Conflict where a directory meets a file, DiskFull, UpstreamFailed.
    """
    if target.name in ("", ".."):
        raise InvalidInput(f"{target} is no place for a copy", "name the file or directory to make")
    try:
        root = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise NotFound(f"{target.parent} is not a directory here", "create it first") from error
    unpacker = _Unpacker(root, target.name)
    try:
        with tarfile.open(
            fileobj=Reader(chunks), mode="r|", encoding="utf-8", errors="surrogateescape"
        ) as archive:
            for member in archive:
                unpacker.add(archive, member)
    except tarfile.TarError as error:
        raise UpstreamFailed(f"the sandbox's archive is not valid: {error}") from error
    finally:
        os.close(root)
    return unpacker.done


class _Unpacker:
    """Writes members below `name` in the directory `root`."""

    def __init__(self, root: int, name: str) -> None:
        self._root = root
        self._name = name
        self._made: set[tuple[str, ...]] = set()
        self.done = Copied()

    def add(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        """Write one member, or note why it is left out."""
        try:
            below = _checked(member)
            parts = (self._name, *below)
            with self._directory(parts[:-1]) as place:
                self._write(archive, member, place, parts)
        except _LeftOut as error:
            self.done.skipped.append((member.name, str(error)))
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull("this machine's disk is full", "free space, and copy again") from error
            raise Conflict(
                f"{member.name!r} cannot be written: {error.strerror}", "choose another target"
            ) from error

    @contextmanager
    def _directory(self, parts: tuple[str, ...]) -> Iterator[int]:
        here = os.dup(self._root)
        try:
            for index, part in enumerate(parts):
                if part == ".git" and index and parts[: index + 1] not in self._made:
                    raise _LeftOut("it would change a .git that was there before")
                try:
                    below = os.open(part, _DIRECTORY, dir_fd=here)
                except FileNotFoundError:
                    raise _LeftOut("its directory was left out") from None
                except OSError as error:
                    if error.errno in (errno.ENOTDIR, errno.ELOOP):
                        raise _LeftOut("a link or file is in the way") from None
                    raise
                os.close(here)
                here = below
            yield here
        finally:
            os.close(here)

    def _write(
        self, archive: tarfile.TarFile, member: tarfile.TarInfo, place: int, parts: tuple[str, ...]
    ) -> None:
        name = parts[-1]
        if name == ".git" and len(parts) > 1 and _exists(name, place):
            raise _LeftOut("there is a .git already")
        if member.isdir():
            self._make_directory(member, place, parts)
            return
        _clear(name, place)
        if member.issym():
            os.symlink(member.linkname, name, dir_fd=place)
            return
        fd = os.open(name, _NEW, 0o600, dir_fd=place)
        with os.fdopen(fd, "wb") as file:
            content = archive.extractfile(member)
            while content is not None and (chunk := content.read(CHUNK)):
                file.write(chunk)
                self.done.bytes += len(chunk)
            os.fchmod(fd, member.mode & 0o755 | 0o600)
            file.flush()
            os.utime(fd, (member.mtime, member.mtime))
        self.done.files += 1

    def _make_directory(self, member: tarfile.TarInfo, place: int, parts: tuple[str, ...]) -> None:
        try:
            os.mkdir(parts[-1], member.mode & 0o755 | 0o700, dir_fd=place)
            self._made.add(parts)
        except FileExistsError:
            os.close(os.open(parts[-1], _DIRECTORY, dir_fd=place))


def _checked(member: tarfile.TarInfo) -> list[str]:
    """The parts of a member's name below the common one; raises _LeftOut for what is not copied."""
    below = member.name.strip("/").split("/")[1:]
    if any(part in ("", ".", "..") or "\0" in part for part in below):
        raise _LeftOut("its name leads out of the tree")
    if member.issym():
        if not link_stays(below or [""], member.linkname):
            raise _LeftOut("its link leads out of the tree")
    elif member.sparse is not None or not (member.isreg() or member.isdir()):
        raise _LeftOut("it is not a regular file, directory or link")
    return below


def _exists(name: str, place: int) -> bool:
    try:
        os.lstat(name, dir_fd=place)
    except FileNotFoundError:
        return False
    return True


def _clear(name: str, place: int) -> None:
    try:
        os.unlink(name, dir_fd=place)
    except FileNotFoundError:
        return


class Reader(io.RawIOBase):
    """What tarfile reads from: pieces of any size, as they come."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        super().__init__()
        self._chunks = iter(chunks)
        self._left = memoryview(b"")

    def readable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Some bytes; none at the end."""
        while not self._left:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._left = memoryview(chunk)
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count


# -- into a sandbox -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Found:
    path: str
    name: str


class Tree:
    """A directory of this machine to be copied into a sandbox: looked through before anything is sent."""

    def __init__(self, source: Path, name: str) -> None:
        """Raises NotFound, and InvalidInput that names the first entry that cannot be read."""
        self.copied = Copied()
        self._found = list(self._scan(os.fspath(source.resolve()), name))

    def _scan(self, top: str, name: str) -> Iterator[_Found]:
        yield _Found(_readable(top, directory=True), name)
        pending = [(top, name)]
        while pending:
            place, prefix = pending.pop()
            for entry in sorted(os.scandir(place), key=lambda item: item.name):
                here = f"{prefix}/{entry.name}"
                if entry.is_symlink():
                    if link_stays(here.split("/")[1:], os.readlink(entry.path)):  # noqa: PTH115
                        yield _Found(entry.path, here)
                    else:
                        self.copied.skipped.append((here, "its link leads out of the tree"))
                elif entry.is_dir():
                    yield _Found(_readable(entry.path, directory=True), here)
                    pending.append((entry.path, here))
                elif entry.is_file():
                    yield _Found(_readable(entry.path, directory=False), here)
                else:
                    self.copied.skipped.append((here, "it is not a regular file, directory or link"))

    def archive(self) -> Iterator[bytes]:
        """The tar stream, read as it is sent."""
        for found in self._found:
            info = tarfile.TarInfo(found.name)
            status = os.lstat(found.path)
            info.mode, info.mtime = status.st_mode & 0o777, status.st_mtime
            if os.path.islink(found.path):  # noqa: PTH114  names here may hold any bytes and come as strings
                info.type, info.linkname = tarfile.SYMTYPE, os.readlink(found.path)  # noqa: PTH115
                yield header(info)
            elif os.path.isdir(found.path):  # noqa: PTH112
                info.type = tarfile.DIRTYPE
                yield header(info)
            else:
                info.size = status.st_size
                yield header(info)
                yield from content(found.path, info.size)
                self.copied.files += 1
                self.copied.bytes += info.size
        yield bytes(2 * tarfile.BLOCKSIZE)


def file_chunks(path: Path) -> Iterator[bytes]:
    """A local file's bytes."""
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            yield chunk


def _readable(path: str, *, directory: bool) -> str:
    if not os.access(path, os.R_OK | (os.X_OK if directory else 0)):
        raise InvalidInput(f"{path} cannot be read; nothing was copied", "change its mode, or move it away")
    return path


def header(info: tarfile.TarInfo) -> bytes:
    """The header of an archive's entry."""
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def content(path: str, size: int) -> Iterator[bytes]:
    """Exactly `size` bytes and the padding, whatever happens to the file in between."""
    left = size
    with open(path, "rb") as file:
        while left and (chunk := file.read(min(CHUNK, left))):
            left -= len(chunk)
            yield chunk
    padding = left + -size % tarfile.BLOCKSIZE
    while padding > 0:
        yield bytes(min(padding, CHUNK))
        padding -= CHUNK

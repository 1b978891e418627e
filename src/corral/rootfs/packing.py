"""Packs files of an image's layers into an archive. Run as a program of its own: `python -m`.

The layers are a tenant's, and hostile. The program mounts them for itself alone and changes its root to that: no link
leads out of it. Only regular files, directories and symlinks are read; a named path that is a link is followed.

A request is one JSON object on standard input, see `Request`; the outcome one on standard output.
"""

import os
import posixpath
import stat
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass

from corral.errors import InvalidInput, NotFound, TooLarge
from corral.policy.copying import pattern_of
from corral.rootfs.outcome import answer
from corral.rootfs.room import WithRoom
from corral.rootfs.unpack import XATTR, enter, is_allowed_xattr, owned_xattr, public_error


@dataclass(frozen=True, slots=True)
class Request:
    """`sources`: clean paths or patterns below the root. `tar`: the file to write. `lowers`, `upper`, `mount`, `uid_base`: as in
    `copyin`."""

    sources: list[str]
    tar: str
    lowers: list[str]
    upper: str
    mount: str
    uid_base: int
    max_entries: int
    max_bytes: int


class Packer:
    """Writes what is below the process's own root to an archive."""

    def __init__(self, archive: tarfile.TarFile, request: Request) -> None:
        self._archive = archive
        self._request = request
        self._entries = 0
        self._bytes = 0
        self._done: set[str] = set()

    def add(self, source: str) -> None:
        """All that matches `source`. Raises NotFound for nothing."""
        found = list(_matching(source))
        if not found:
            raise NotFound(
                f"there is no {source[:200]!r} in what is copied from", "see the path, from its root"
            )
        for path in found:
            real = os.path.realpath("/" + path)
            for name, place in _walk(real, path):
                if name not in self._done:
                    self._done.add(name)
                    self._member(name, place)

    def _member(self, name: str, place: str) -> None:
        status = os.lstat(place)
        info = tarfile.TarInfo(name or ".")
        info.mode, info.mtime = status.st_mode & 0o7777, status.st_mtime
        if stat.S_ISDIR(status.st_mode):
            info.type = tarfile.DIRTYPE
            self._count(0)
            self._archive.addfile(info)
        elif stat.S_ISLNK(status.st_mode):
            info.type, info.linkname = tarfile.SYMTYPE, os.readlink(place)
            self._count(0)
            self._archive.addfile(info)
        elif stat.S_ISREG(status.st_mode):
            fd = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(fd, "rb") as file:
                info.size = os.fstat(fd).st_size
                self._count(info.size)
                info.pax_headers = _xattrs(fd)
                self._archive.addfile(info, file)

    def _count(self, size: int) -> None:
        self._entries += 1
        self._bytes += size
        if self._entries > self._request.max_entries or self._bytes > self._request.max_bytes:
            raise TooLarge("what is to be copied is too large", "copy less of it")


def _xattrs(fd: int) -> dict[str, str]:
    return {
        XATTR + name: owned_xattr(name, os.getxattr(fd, name), 0).decode("utf-8", "surrogateescape")
        for name in os.listxattr(fd)
        if is_allowed_xattr(name)
    }


def _matching(source: str) -> Iterator[str]:
    """Paths below the root, links followed on the way."""
    if not set(source) & set("*?[\\"):
        if os.path.exists("/" + source):
            yield source
        return
    found = [""]
    for part in source.split("/"):
        pattern = pattern_of(part)
        found = [
            posixpath.join(place, name)
            for place in found
            if os.path.isdir("/" + place)
            for name in sorted(os.listdir("/" + place))
            if pattern.fullmatch(name)
        ]
    yield from (path for path in found if os.path.exists("/" + path))


def _walk(real: str, name: str) -> Iterator[tuple[str, str]]:
    pending = [(name, real)]
    while pending:
        name, place = pending.pop()
        yield name, place
        if os.path.isdir(place) and not os.path.islink(place):
            pending += [
                (posixpath.join(name, child), posixpath.join(place, child)) for child in os.listdir(place)
            ]


def pack(request: Request) -> None:
    """Pack in this process, which cannot be used for anything else after. Raises CorralError."""
    with open(request.tar, "wb") as target:
        enter(request.lowers, request.upper, request.mount, request.uid_base)
        try:
            with tarfile.open(
                fileobj=WithRoom(target),
                mode="w",
                format=tarfile.PAX_FORMAT,
                encoding="utf-8",
                errors="surrogateescape",
            ) as archive:
                packer = Packer(archive, request)
                for source in request.sources:
                    packer.add(source)
        except OSError as error:
            raise public_error(error) from error
        except ValueError as error:
            raise InvalidInput(f"a path cannot be copied: {error}"[:300]) from error


def main() -> int:
    """Read a request, pack, write the outcome."""
    os.umask(0o077)
    return answer(Request, pack)


if __name__ == "__main__":
    sys.exit(main())

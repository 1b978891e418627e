"""Writes one layer of the store as a layer of an OCI image. Run as a program of its own: `python -m`.

overlayfs notes what a layer takes away in its own form: a character device 0/0 for a removed file, an attribute for a
directory that replaces one below, another for a directory that was renamed from below. An image has whiteout files for
the first two, and nothing for the third: of a renamed directory everything is written, read from the merged tree.

The layer is a tenant's, and hostile. The program mounts the layers up to this one for itself alone, with the layer's own
tree beside them, and makes their parent its root: no link leads out. Left out: sockets, device nodes, attributes that
are no file's own.

A request is one JSON object on standard input, see `Request`; the outcome one on standard output.
"""

import hashlib
import io
import os
import posixpath
import stat
import sys
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from corral.errors import InvalidInput, TooLarge
from corral.host import syscalls
from corral.rootfs.outcome import answer
from corral.rootfs.room import WithRoom
from corral.rootfs.unpack import XATTR, is_allowed_xattr, mount_for_self, owned_xattr, public_error

_NOBODY = 65534
_IDS = 65536
_OPAQUE = "trusted.overlay.opaque"
_REDIRECT = "trusted.overlay.redirect"


@dataclass(frozen=True, slots=True)
class Request:
    """`tree`: the layer's own; `raw_base`: the id of root in it. `lowers`: trees up to this layer, lowest first, itself
    included; `upper`, `work` beside it, and `mount` as in `unpack`; `uid_base`: the id of root in the merged tree. `raw`: an
    empty directory beside `mount`. `blob`: the file to write, compressed by gzip."""

    tree: str
    raw_base: int
    lowers: list[str]
    upper: str
    mount: str
    raw: str
    uid_base: int
    blob: str
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Written:
    """Digests of the archive, plain and as written; the size as written; entries left out."""

    diff_id: str
    digest: str
    size: int
    skipped: int


class _Blob(io.RawIOBase):
    """What tarfile writes to: hashed, compressed, hashed again."""

    def __init__(self, file: WithRoom, limit: int) -> None:
        self._file = file
        self._limit = limit
        self._packer = zlib.compressobj(1, zlib.DEFLATED, 31)
        self._plain, self._packed = hashlib.sha256(), hashlib.sha256()
        self._position = 0
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: "bytes | bytearray | memoryview") -> int:  # type: ignore[override]  # as tarfile calls it
        piece = bytes(data)
        self._position += len(piece)
        if self._position > self._limit:
            raise TooLarge(f"a layer has more than {self._limit} bytes", "remove large files from it before")
        self._plain.update(piece)
        self._put(self._packer.compress(piece))
        return len(piece)

    def tell(self) -> int:
        return self._position

    def finish(self) -> tuple[str, str]:
        """The digests of all that was written: plain, and packed."""
        self._put(self._packer.flush())
        return self._plain.hexdigest(), self._packed.hexdigest()

    def _put(self, data: bytes) -> None:
        self._packed.update(data)
        self.size += len(data)
        self._file.write(data)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an entry is read: a path of the program's root, and the id of root there. `whole`: all below is the layer's,
    and nothing stands for something removed."""

    path: str
    base: int
    whole: bool


class LayerWriter:
    """Writes what is below `/raw` (the layer's own tree) with the help of `/mount` (the merged one)."""

    def __init__(self, archive: tarfile.TarFile, request: Request) -> None:
        self._archive = archive
        self._raw = _Place("/" + posixpath.basename(request.raw), request.raw_base, whole=False)
        self._merged = _Place("/" + posixpath.basename(request.mount), request.uid_base, whole=True)
        self._links: dict[tuple[int, int], str] = {}
        self.skipped = 0

    def run(self) -> None:
        """Write all, parents first, in order of names."""
        pending: list[tuple[str, _Place]] = [("", self._raw)]
        while pending:
            name, place = pending.pop()
            status = os.lstat(place.path)
            if name:
                self._entry(name, place, status)
            if stat.S_ISDIR(status.st_mode):
                pending += reversed(list(self._below(name, place)))

    def _below(self, name: str, place: _Place) -> Iterator[tuple[str, _Place]]:
        if not place.whole and _attribute(place.path, _REDIRECT) is not None:
            place = _Place(posixpath.join(self._merged.path, name), self._merged.base, whole=True)
            self._whiteout(name, ".wh..opq")
        elif not place.whole and _attribute(place.path, _OPAQUE) == b"y":
            self._whiteout(name, ".wh..opq")
        for child in sorted(os.listdir(place.path)):
            path = posixpath.join(place.path, child)
            yield posixpath.join(name, child), _Place(path, place.base, place.whole)

    def _whiteout(self, directory: str, hidden: str) -> None:
        info = tarfile.TarInfo(posixpath.join(directory, f".wh.{hidden}"))
        info.mode = 0
        self._archive.addfile(info)

    def _entry(self, name: str, place: _Place, status: os.stat_result) -> None:
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFCHR and status.st_rdev == 0 and not place.whole:
            self._whiteout(posixpath.dirname(name), posixpath.basename(name))
            return
        if posixpath.basename(name).startswith(".wh."):
            raise InvalidInput(
                f"{name[:200]!r} has a name that images keep for removed files", "rename it before"
            )
        info = tarfile.TarInfo(name)
        info.mode, info.mtime = status.st_mode & 0o7777, int(status.st_mtime)
        info.uid, info.gid = _id(status.st_uid - place.base), _id(status.st_gid - place.base)
        inode = (status.st_dev, status.st_ino)
        if kind != stat.S_IFDIR and status.st_nlink > 1 and inode in self._links:
            info.type, info.linkname = tarfile.LNKTYPE, self._links[inode]
            self._archive.addfile(info)
            return
        match kind:
            case stat.S_IFDIR:
                info.type = tarfile.DIRTYPE
                info.pax_headers = _xattrs(place.path)
                self._archive.addfile(info)
            case stat.S_IFLNK:
                info.type, info.linkname = tarfile.SYMTYPE, os.readlink(place.path)
                self._archive.addfile(info)
            case stat.S_IFREG:
                self._file(info, place.path)
            case stat.S_IFIFO:
                info.type = tarfile.FIFOTYPE
                self._archive.addfile(info)
            case _:
                self.skipped += 1
                return
        self._links.setdefault(inode, name)

    def _file(self, info: tarfile.TarInfo, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            info.size = os.fstat(fd).st_size
            info.pax_headers = _xattrs(path)
            self._archive.addfile(info, file)


def _id(number: int) -> int:
    return number if 0 <= number < _IDS else _NOBODY


def _attribute(path: str, name: str) -> bytes | None:
    try:
        return os.getxattr(path, name, follow_symlinks=False)
    except OSError:
        return None


def _xattrs(path: str) -> dict[str, str]:
    return {
        XATTR + name: owned_xattr(name, os.getxattr(path, name, follow_symlinks=False), 0).decode(
            "utf-8", "surrogateescape"
        )
        for name in sorted(os.listxattr(path, follow_symlinks=False))
        if is_allowed_xattr(name)
    }


def write_layer(request: Request) -> Written:
    """Write in this process, which cannot be used for anything else after. Raises CorralError."""
    with open(request.blob, "wb") as file:
        mount_for_self(request.lowers, request.upper, request.mount, request.uid_base)
        syscalls.mount(request.tree, request.raw, None, syscalls.MS_BIND)
        os.chroot(Path(request.mount).parent)
        os.chdir("/")
        blob = _Blob(WithRoom(file), request.max_bytes)
        try:
            with tarfile.open(
                fileobj=blob, mode="w", format=tarfile.PAX_FORMAT, encoding="utf-8", errors="surrogateescape"
            ) as archive:
                writer = LayerWriter(archive, request)
                writer.run()
        except OSError as error:
            raise public_error(error) from error
        except ValueError as error:
            raise InvalidInput(f"a path cannot be written: {error}"[:300]) from error
        diff_id, digest = blob.finish()
        return Written(f"sha256:{diff_id}", f"sha256:{digest}", blob.size, writer.skipped)


def main() -> int:
    """Read a request, write the layer, write the outcome."""
    os.umask(0o077)
    return answer(Request, write_layer)


if __name__ == "__main__":
    sys.exit(main())

"""Reads an uploaded archive and writes down what it holds. Run as a program of its own: `python -m`.

The archive is hostile. Nothing of it is unpacked: it is copied to a plain tar file, and each entry becomes one line of
the index, with the digest of its content and where that begins. Refused: paths that climb, an entry below what is no
directory (a link, then a file through it), more entries, bytes or names than allowed. Device nodes and FIFOs are left out. A
hard link becomes a file with the content of what it links to.

A request is one JSON object on standard input, see `Request`; the outcome one on standard output.
"""

import bz2
import hashlib
import json
import lzma
import os
import posixpath
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import BinaryIO

from corral.errors import InvalidInput, TooLarge
from corral.policy.copying import Item, Kind
from corral.rootfs.outcome import answer
from corral.rootfs.room import WithRoom
from corral.rootfs.unpack import (
    DAMAGED,
    XATTR,
    LayerReader,
    clean_path,
    decompressed,
    is_allowed_xattr,
    public_error,
)

_CHUNK = 1 << 18


@dataclass(frozen=True, slots=True)
class Request:
    """`source`: the archive, plain or compressed by gzip, zstd, bzip2 or xz. `tar` and `index`: files to write. `max_names`: bytes
    of all paths, targets of links and attributes together: whoever reads the index holds them in memory."""

    source: str
    tar: str
    index: str
    max_entries: int
    max_bytes: int
    max_names: int


@dataclass(frozen=True, slots=True)
class Indexed:
    """`digest` (hex) of the plain archive. `size` in bytes of all files; `skipped` entries: devices, FIFOs."""

    digest: str
    entries: int
    size: int
    skipped: int


class Indexer:
    """The entries of an archive, later ones over earlier ones."""

    def __init__(self, reader: LayerReader, max_entries: int, max_names: int) -> None:
        self._reader = reader
        self._max_entries = max_entries
        self._max_names = max_names
        self._names = 0
        self.items: dict[str, Item] = {}
        self.skipped = 0

    def run(self) -> None:
        """Read all. Raises CorralError for what is refused."""
        with tarfile.TarFile(
            fileobj=self._reader, mode="r", errors="surrogateescape", encoding="utf-8"
        ) as archive:
            entries = 0
            while (entry := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]  # it would keep them all
                entries += 1
                if entries > self._max_entries:
                    raise TooLarge(
                        f"the archive holds more than {self._max_entries} files",
                        "leave some out: .dockerignore",
                    )
                self._add(entry)
                self._reader.next_header()
        self._reader.drain()

    def _add(self, entry: tarfile.TarInfo) -> None:
        path = clean_path(entry.name)
        item = self._item(path, entry)
        if item is None:
            self.skipped += 1
            return
        if not path:
            if item.kind is not Kind.DIRECTORY:
                raise InvalidInput("the archive's root is not a directory")
            return
        self._make_parents(path)
        former = self.items.get(path)
        if former is not None and former.kind is Kind.DIRECTORY and item.kind is not Kind.DIRECTORY:
            raise InvalidInput(f"the archive holds {path[:200]!r} as a directory and as something else")
        self._keep(item)

    def _keep(self, item: Item) -> None:
        self._names += len(item.path) + len(item.target)
        self._names += sum(len(name) + len(value) for name, value in item.xattrs)
        if self._names > self._max_names:
            raise TooLarge(
                f"the archive's names are longer than {self._max_names} bytes together",
                "leave files out: .dockerignore",
            )
        self.items[item.path] = item

    def _make_parents(self, path: str) -> None:
        parent = posixpath.dirname(path)
        missing = []
        while parent and parent not in self.items:
            missing.append(parent)
            parent = posixpath.dirname(parent)
        if parent and self.items[parent].kind is not Kind.DIRECTORY:
            raise InvalidInput(f"the archive holds a file below {parent[:200]!r}, which is no directory")
        for directory in missing:
            self._keep(Item(directory, Kind.DIRECTORY, 0o755))

    def _item(self, path: str, entry: tarfile.TarInfo) -> Item | None:
        mode, mtime = entry.mode & 0o7777, _time(entry.mtime)
        if entry.issym():
            return Item(path, Kind.SYMLINK, 0o777, mtime=mtime, target=entry.linkname)
        if entry.islnk():
            linked = self.items.get(clean_path(entry.linkname))
            if linked is None or linked.kind is not Kind.FILE:
                raise InvalidInput(f"the archive's hard link {path[:200]!r} leads to no file of it")
            return replace(linked, path=path)
        if entry.isdir():
            return Item(path, Kind.DIRECTORY, mode, mtime=mtime, xattrs=_xattrs(entry))
        if not entry.isreg():
            return None
        if entry.sparse is not None:
            raise InvalidInput(f"{path[:200]!r} is a sparse file", "make the archive without sparse files")
        offset = self._reader.tell()
        content = hashlib.sha256()
        for piece in self._reader.data(entry.size):
            content.update(piece)
        return Item(
            path,
            Kind.FILE,
            mode,
            size=entry.size,
            mtime=mtime,
            digest=content.hexdigest(),
            offset=offset,
            xattrs=_xattrs(entry),
        )


def _time(value: float) -> float:
    return min(max(0.0, float(value)), float(1 << 33))  # not a number becomes zero


def _xattrs(entry: tarfile.TarInfo) -> tuple[tuple[str, str], ...]:
    found = {
        key.removeprefix(XATTR): value.encode("utf-8", "surrogateescape").decode("latin-1")
        for key, value in entry.pax_headers.items()
        if key.startswith(XATTR) and is_allowed_xattr(key.removeprefix(XATTR))
    }
    return tuple(sorted(found.items()))


def unpacked(blob: BinaryIO) -> BinaryIO:
    """An archive's bytes, by its first ones: gzip, zstd, bzip2, xz, or plain."""
    magic = blob.read(6)
    blob.seek(0)
    if magic.startswith(b"BZh"):
        return bz2.BZ2File(blob)  # type: ignore[return-value]
    if magic == b"\xfd7zXZ\x00":
        return lzma.LZMAFile(blob)  # type: ignore[return-value]
    return decompressed(blob)


def _copy(request: Request) -> None:
    left = request.max_bytes
    with open(request.source, "rb") as blob, open(request.tar, "wb") as target:
        source, copy = unpacked(blob), WithRoom(target)
        while piece := source.read(_CHUNK):
            left -= len(piece)
            if left < 0:
                raise TooLarge(
                    f"the archive has more than {request.max_bytes} bytes unpacked",
                    "leave some out: .dockerignore",
                )
            copy.write(piece)


def index(request: Request) -> Indexed:
    """Write the plain archive and its index. Raises CorralError."""
    try:
        _copy(request)
        with open(request.tar, "rb") as plain:
            reader = LayerReader(plain, request.max_bytes)
            indexer = Indexer(reader, request.max_entries, request.max_names)
            indexer.run()
    except DAMAGED as error:
        raise InvalidInput(f"the archive is damaged: {error}"[:300], "make it again") from error
    except OSError as error:
        if error.errno is None:  # what bz2 raises for damaged data
            raise InvalidInput(f"the archive is damaged: {error}"[:300], "make it again") from error
        raise public_error(error) from error
    with open(request.index, "w", encoding="ascii") as lines:
        for item in indexer.items.values():
            lines.write(json.dumps(asdict(item)) + "\n")
    size = sum(item.size for item in indexer.items.values())
    return Indexed(reader.hash.hexdigest(), len(indexer.items), size, indexer.skipped)


def read_index(path: str) -> Iterator[Item]:
    """The items of an index that `index` wrote."""
    with open(path, encoding="ascii") as lines:
        for line in lines:
            fields = json.loads(line)
            fields["kind"] = Kind(fields["kind"])
            fields["xattrs"] = tuple((name, value) for name, value in fields["xattrs"])
            yield Item(**fields)


def main() -> int:
    """Read a request, index, write the outcome."""
    os.umask(0o077)
    return answer(Request, index)


if __name__ == "__main__":
    sys.exit(main())

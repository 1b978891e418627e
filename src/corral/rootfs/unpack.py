"""Unpacks one layer of an OCI image over the layers below it. Run as a program of its own: `python -m`.

The archive is hostile. The program makes itself a mount namespace, mounts the lower layers with the new one on top
(overlayfs then writes whiteouts and replaced directories in its own form), and changes its root to that mount: no
path, symlink or hard link of the archive leads out of it, and the mount ends with the process. Never made: device
nodes, FIFOs, attributes of overlayfs, files of tar's own sparse forms, which images do not hold. Entries and bytes are
counted before they are written, and the headers of one entry are read into bounded memory.

A request is one JSON object on standard input, see `Request`; the outcome one on standard output.
"""

import asyncio
import contextlib
import errno
import gzip
import hashlib
import io
import lzma
import os
import shutil
import stat
import sys
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import zstandard

from corral.errors import CorralError, DiskFull, HostError, InvalidInput, TooLarge, UpstreamFailed
from corral.host import syscalls
from corral.rootfs.outcome import answer
from corral.rootfs.overlay import mount_root
from corral.rootfs.sparse import write_file

_CHUNK = 1 << 18
_MAX_HEADER = 1 << 20
_MAX_ID = 65535
_NOBODY = 65534
_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"
XATTR = "SCHILY.xattr."
_OWN_MODE = 0o7777
_LATEST = float(1 << 33)
# What the libraries raise for archives that are not as they should be. BadGzipFile is an OSError: this comes first.
DAMAGED = (
    tarfile.TarError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError, lzma.LZMAError,
    EOFError, ValueError, KeyError, OverflowError,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Request:
    """`blob`: the archive, plain or compressed by gzip or zstd. `diff_id`: the digest of it unpacked. `lowers`: trees of
    the layers below, lowest first. `upper`: the directory to fill, with an empty `work` beside it; `mount`: an empty
    directory to mount at.
    """

    blob: str
    diff_id: str
    lowers: list[str]
    upper: str
    mount: str
    max_entries: int
    max_bytes: int


@dataclass(slots=True)
class Outcome:
    """`bytes` of the archive, unpacked; `skipped` entries: devices, FIFOs."""

    entries: int = 0
    bytes: int = 0
    skipped: int = 0


class LayerReader(io.RawIOBase):
    """The unpacked archive, forward only, for tarfile: hashed, counted, and with bounded reads of headers."""

    def __init__(self, source: BinaryIO, limit: int) -> None:
        self._source = source
        self._limit = limit
        self._position = 0
        self._header_budget = _MAX_HEADER
        self.hash = hashlib.sha256()

    def next_header(self) -> None:
        """The next reads are of an entry's headers."""
        self._header_budget = _MAX_HEADER

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes of headers."""
        self._header_budget -= size
        if size < 0 or self._header_budget < 0:
            raise InvalidInput(f"an entry's headers are larger than {_MAX_HEADER} bytes")
        return b"".join(self._pieces(size))

    def data(self, size: int) -> Iterator[bytes]:
        """The next `size` bytes in pieces. Raises InvalidInput if the archive ends before."""
        for piece in self._pieces(size):
            size -= len(piece)
            yield piece
        if size:
            raise InvalidInput("the archive ends in the middle of a file")

    def drain(self) -> None:
        """Read to the end of the archive."""
        while any(True for _ in self._pieces(_CHUNK)):
            pass

    def tell(self) -> int:
        """Bytes read so far."""
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Skip forward."""
        if whence != os.SEEK_SET or offset < self._position:
            raise InvalidInput("the archive's entries overlap")
        for _ in self._pieces(offset - self._position):
            pass
        return self._position

    def _pieces(self, size: int) -> Iterator[bytes]:
        while size > 0 and (piece := self._source.read(min(size, _CHUNK))):
            size -= len(piece)
            self._position += len(piece)
            if self._position > self._limit:
                raise TooLarge(f"the image has more than {self._limit} bytes unpacked", "use a smaller image")
            self.hash.update(piece)
            yield piece


class Unpacker:
    """Applies the entries of an archive to the tree at the process's own root."""

    def __init__(self, reader: LayerReader, max_entries: int, uid_base: int = 0) -> None:
        self._reader = reader
        self._uid_base = uid_base
        self._max_entries = max_entries
        # Paths that this layer holds, and the directories above them: whiteouts do not concern them.
        self._own: set[str] = set()
        self.outcome = Outcome()

    def run(self) -> None:
        """Unpack all. Raises CorralError for what is refused; the tree is then of no use."""
        with tarfile.TarFile(
            fileobj=self._reader, mode="r", errors="surrogateescape", encoding="utf-8"
        ) as archive:
            while (entry := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]  # it would keep them all
                self.outcome.entries += 1
                if self.outcome.entries > self._max_entries:
                    raise TooLarge(
                        f"the image has more than {self._max_entries} files", "use a smaller image"
                    )
                self._apply(entry)
                self._reader.next_header()
        self._reader.drain()
        self.outcome.bytes = self._reader.tell()

    def _apply(self, entry: tarfile.TarInfo) -> None:
        path = clean_path(entry.name)
        parent, _, name = path.rpartition("/")
        if name.startswith(_WHITEOUT):
            self._whiteout(parent, name)
        elif entry.issym() or entry.islnk() or entry.isdir() or entry.isreg():
            if entry.sparse is not None:
                raise InvalidInput(f"{path!r} is a sparse file, which images do not hold")
            self._place(path, parent, entry)
        else:
            self.outcome.skipped += 1

    def _whiteout(self, parent: str, name: str) -> None:
        if name == _OPAQUE:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                for child in Path("/", parent).iterdir():
                    self._clear(f"{parent}/{child.name}".lstrip("/"))
        elif not name.startswith(".wh..wh."):  # notes of an old union file system
            hidden = name.removeprefix(_WHITEOUT)
            if hidden in ("", ".", ".."):
                raise InvalidInput("a whiteout names no file")
            self._clear(f"{parent}/{hidden}".lstrip("/"))

    def _clear(self, path: str) -> None:
        """Remove what lower layers have at `path`, and keep what this one has put there."""
        if path not in self._own:
            remove_tree(Path("/", path))
        elif is_directory(Path("/", path)):
            for child in Path("/", path).iterdir():
                self._clear(f"{path}/{child.name}")

    def _place(self, path: str, parent: str, entry: tarfile.TarInfo) -> None:
        if not path and not entry.isdir():
            raise InvalidInput("the archive's root is not a directory")
        target = Path("/", path)
        Path("/", parent).mkdir(0o755, parents=True, exist_ok=True)
        self._claim(path)
        if not (entry.isdir() and is_directory(target)):
            remove_tree(target)
        if entry.islnk():
            os.link(Path("/", clean_path(entry.linkname)), target, follow_symlinks=False)
            return
        owner = self._uid_base + _owner(entry.uid), self._uid_base + _owner(entry.gid)
        if entry.issym():
            target.symlink_to(entry.linkname)
            os.lchown(target, *owner)
            return
        if entry.isdir():
            target.mkdir(0o700, exist_ok=True)
            fd = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        else:
            fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            self._fill(fd, entry, owner)
        finally:
            os.close(fd)

    def _fill(self, fd: int, entry: tarfile.TarInfo, owner: tuple[int, int]) -> None:
        if entry.isreg():
            write_file(fd, self._reader.data(entry.size))
        os.fchown(fd, *owner)  # before the mode and the attributes: it clears setuid bits and capabilities
        os.fchmod(fd, entry.mode & _OWN_MODE)
        for key, value in entry.pax_headers.items():
            name = key.removeprefix(XATTR)
            if key.startswith(XATTR) and is_allowed_xattr(name):
                raw = value.encode("utf-8", "surrogateescape")
                os.setxattr(fd, name, owned_xattr(name, raw, self._uid_base))
        if entry.isreg():
            time = min(max(0.0, float(entry.mtime)), _LATEST)  # not a number becomes zero
            os.utime(fd, (time, time))

    def _claim(self, path: str) -> None:
        while path and path not in self._own:
            self._own.add(path)
            path = path.rpartition("/")[0]


def clean_path(name: str) -> str:
    """An archive's path without leading slashes and dots; empty for the root. Raises InvalidInput if it climbs."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts or "\0" in name or len(os.fsencode(name)) > 4095:
        raise InvalidInput(f"the archive holds a path that leaves its root: {name[:200]!r}")
    return "/".join(parts)


def _owner(number: int) -> int:
    """A sandbox has 65,536 ids; files of others belong to nobody in it."""
    return number if 0 <= number <= _MAX_ID else _NOBODY


def is_allowed_xattr(name: str) -> bool:
    """Whether an attribute of a foreign file may be set: capabilities of programs, and what users may set."""
    return name == _CAPABILITY or (name.startswith("user.") and not name.startswith("user.overlay."))


_CAPABILITY = "security.capability"
_REVISIONS = {2: 20, 3: 24}
"""Sizes of the kernel's two forms of file capabilities in use: the third names the root that they are of."""


def owned_xattr(name: str, value: bytes, uid_base: int) -> bytes:
    """An attribute as it is to be stored where the sandbox's root is `uid_base`: capabilities are those of that root.

    Raises InvalidInput for capabilities of no known form.
    """
    if name != _CAPABILITY:
        return value
    if len(value) != _REVISIONS.get(value[3] if len(value) > 3 else 0):
        raise InvalidInput("a file has capabilities of no known form", "build the image again")
    plain = value[:3] + b"\x02" + value[4:20]
    return plain[:3] + b"\x03" + plain[4:] + uid_base.to_bytes(4, "little") if uid_base else plain


def is_directory(path: Path) -> bool:
    """Whether it is there and a directory; a symlink to one is none."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def remove_tree(path: Path) -> None:
    """Remove a file, or a directory with all below it. Idempotent."""
    if is_directory(path):
        shutil.rmtree(path)
    else:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            path.unlink()


def decompressed(blob: BinaryIO) -> BinaryIO:
    """The archive itself, by its first bytes."""
    magic = blob.read(4)
    blob.seek(0)
    if magic.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=blob)  # type: ignore[return-value]
    if magic == b"\x28\xb5\x2f\xfd":
        # A frame may ask for a window of any size: 128 MiB is what the format's own tools grant.
        decompressor = zstandard.ZstdDecompressor(max_window_size=128 << 20)
        return decompressor.stream_reader(blob, read_across_frames=True)
    return blob


def public_error(error: OSError) -> CorralError:
    """Why unpacking failed, as a public error."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull("the store is full: cannot unpack the image")
    if error.errno == errno.EIO:
        return HostError(f"cannot unpack the image: {error}", "look at the host's disks and its kernel log")
    return InvalidInput(f"a layer of the image contradicts itself: {error}", "build the image again")


def mount_for_self(lowers: Sequence[str], upper: str, mount: str, uid_base: int = 0) -> None:
    """Mount `upper` over `lowers` at `mount`, with the ids of a sandbox from `uid_base` on, for this process alone."""
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    trees = [Path(lower) for lower in lowers]
    asyncio.run(mount_root(trees, Path(upper).parent, Path(mount), uid_base=uid_base))


def enter(lowers: Sequence[str], upper: str, mount: str, uid_base: int = 0) -> None:
    """Make the tree to write to this process's root: `upper` over `lowers`, mounted for this process alone, with the ids
    of a sandbox from `uid_base` on."""
    if lowers:
        mount_for_self(lowers, upper, mount, uid_base)
    os.chroot(mount if lowers else upper)
    os.chdir("/")
    os.umask(0)


def unpack(request: Request) -> Outcome:
    """Unpack in this process, which cannot be used for anything else after. Raises CorralError."""
    with open(request.blob, "rb") as blob:
        reader = LayerReader(decompressed(blob), request.max_bytes)
        enter(request.lowers, request.upper, request.mount)
        unpacker = Unpacker(reader, request.max_entries)
        try:
            unpacker.run()
        except DAMAGED as error:
            raise UpstreamFailed(
                f"a layer of the image is damaged: {error}", "build or push it again"
            ) from error
        except OSError as error:
            raise public_error(error) from error
        if f"sha256:{reader.hash.hexdigest()}" != request.diff_id:
            raise UpstreamFailed("a layer of the image is not what its configuration says", "build it again")
        return unpacker.outcome


def main() -> int:
    """Read a request, unpack, write the outcome."""
    return answer(Request, unpack)


if __name__ == "__main__":
    sys.exit(main())

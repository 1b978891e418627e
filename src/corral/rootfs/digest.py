"""The content digest of a directory tree: equal trees have equal digests, on whatever file system they are.

What counts: paths, types, modes, owners, sizes, contents, link targets, device numbers, extended
attributes, and which names are hard links of one file. What does not: times, inode numbers, the order of
directories. Each field is preceded by its length, so that no two trees can be spelled alike.
"""

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from corral.errors import InvalidInput
from corral.model.ids import LayerDigest

_READ = 1 << 20
_UNIT = 512
"""Of `st_blocks`, whatever the file system."""
_VERSION = b"corral-tree-1"
# Set by the host on its own account: they differ between equal trees.
_IGNORED_XATTRS = ("btrfs.", "security.selinux", "security.ima", "security.evm", "system.nfs4_acl")


@dataclass(frozen=True, slots=True)
class TreeDigest:
    """A tree's digest, the sum of the bytes that its files take (hard links once, holes not), and the number of
    entries.
    """

    digest: LayerDigest
    size: int
    entries: int


def tree_digest(root: Path) -> TreeDigest:
    """The digest of the tree below the directory `root`, which nobody may change meanwhile. Blocks: it
    reads every file. Raises InvalidInput for a tree deeper than paths can be, OSError."""
    total = hashlib.sha256(_VERSION)
    first_names: dict[tuple[int, int], bytes] = {}
    size = entries = 0
    base = os.fsencode(root)
    try:
        for name, path, status in _walk(base):
            entries += 1
            inode = (status.st_dev, status.st_ino)
            fields = [name, *_metadata(path, status)]
            if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode) and inode in first_names:
                fields = [name, b"link", first_names[inode]]
            elif stat.S_ISREG(status.st_mode):
                size += min(status.st_size, status.st_blocks * _UNIT)
                fields.append(_file_digest(path))
            first_names.setdefault(inode, name)
            for field in fields:
                total.update(len(field).to_bytes(8, "big") + field)
            total.update(b"\n")
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise InvalidInput(
                "a path of the layer is longer than 4,095 bytes", "shorten it, or leave it out"
            ) from error
        raise
    return TreeDigest(LayerDigest(f"sha256:{total.hexdigest()}"), size, entries)


def _walk(base: bytes) -> Iterator[tuple[bytes, bytes, os.stat_result]]:
    """Name from the root, path and status of the root and of everything below it, in order of names."""
    pending = [b""]
    while pending:
        name = pending.pop()
        path = base + b"/" + name
        status = os.lstat(path)
        yield name, path, status
        if stat.S_ISDIR(status.st_mode):
            prefix = name + b"/" if name else b""
            children = os.listdir(path)  # noqa: PTH208 - names may be any bytes
            pending += [prefix + child for child in sorted(children, reverse=True)]


def _metadata(path: bytes, status: os.stat_result) -> list[bytes]:
    device = status.st_rdev if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode) else 0
    fields = [b"%o" % status.st_mode, b"%d" % status.st_uid, b"%d" % status.st_gid, b"%d" % device]
    if stat.S_ISREG(status.st_mode):
        fields.append(b"%d" % status.st_size)
    if stat.S_ISLNK(status.st_mode):
        fields.append(os.readlink(path))  # noqa: PTH115 - any bytes
    for key in sorted(os.listxattr(path, follow_symlinks=False)):
        if not key.startswith(_IGNORED_XATTRS):
            fields += [os.fsencode(key), os.getxattr(path, key, follow_symlinks=False)]
    return fields


def _file_digest(path: bytes) -> bytes:
    content = hashlib.sha256()
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb", buffering=0) as file:
        while data := file.read(_READ):
            content.update(data)
    return content.digest()

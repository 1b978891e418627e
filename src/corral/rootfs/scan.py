"""Looking for secrets in what a sandbox left: in its files, and in its memory.

Looked for are the secrets themselves and their common encodings, in the content of regular files, in names and in the
targets of symlinks. What a program compressed, encrypted or wrote in pieces is not found. Nothing of the tree is followed,
and nobody may change it meanwhile.
"""

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from corral.model.leak import Leak
from corral.policy.needles import Needles
from corral.rootfs.sparse import data_ranges

_READ = 1 << 20
_MOST = 1000
_FILLER = b"*"


class Scanner:
    """Finds any of `needles`, which says for each byte string what it is; at least one."""

    def __init__(self, needles: Mapping[bytes, str]) -> None:
        self._needles = Needles(needles)

    def tree(self, root: Path, *, overwrite: bool) -> list[Leak]:
        """What is below a directory, at most 1,000 findings. With `overwrite`, found content is replaced by as many
        asterisks, times kept; names and symlinks cannot be. Raises OSError.
        """
        found: list[Leak] = []
        seen: set[tuple[int, int]] = set()
        base = os.fsencode(root)
        for name, path, status in _walk(base):
            leaks = self._in_name(name)
            if stat.S_ISLNK(status.st_mode):
                leaks += self._in_name(os.readlink(path))  # noqa: PTH115 - any bytes
            shown = "/" + name.decode("utf-8", "backslashreplace")
            found += [Leak(shown, what, overwritten=False) for what in leaks]
            inode = (status.st_dev, status.st_ino)
            if stat.S_ISREG(status.st_mode) and status.st_size and inode not in seen:
                seen.add(inode)
                found += [
                    Leak(shown, what, overwritten=overwrite)
                    for what in self._content(path, status, overwrite)
                ]
            if len(found) >= _MOST:
                break
        return found[:_MOST]

    def _content(self, path: bytes, status: os.stat_result, overwrite: bool) -> list[str]:
        mode = os.O_RDWR if overwrite else os.O_RDONLY
        hits = list(self._hits(path))
        if hits and overwrite:
            fd = os.open(path, mode | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                for offset, word in hits:
                    os.pwrite(fd, _FILLER * len(word), offset)
                os.utime(fd, ns=(status.st_atime_ns, status.st_mtime_ns))
            finally:
                os.close(fd)
        return sorted({self._needles.labels[word] for _, word in hits})

    def _hits(self, path: bytes) -> Iterator[tuple[int, bytes]]:
        """Offsets and what is there. Each is told once, however the file is cut. No needle holds zeros: holes hold none."""
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            for start, end in data_ranges(fd):
                yield from self._hits_between(fd, start, end)
        finally:
            os.close(fd)

    def _hits_between(self, fd: int, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        at, tail, told = start, b"", start
        while data := os.pread(fd, min(_READ, end - at), at):
            at += len(data)
            block = tail + data
            for place, word in self._needles.hits(block):
                offset = at - len(block) + place
                if offset >= told:
                    yield offset, word
                    told = offset + len(word)
            keep = min(len(block), self._needles.longest - 1)
            tail = block[len(block) - keep :]

    def _in_name(self, text: bytes) -> list[str]:
        return [self._needles.labels[word] for _, word in self._needles.hits(text)]


def _walk(base: bytes) -> Iterator[tuple[bytes, bytes, os.stat_result]]:
    """Name from the root, path and status of everything below it."""
    pending = [b""]
    while pending:
        folder = pending.pop()
        with os.scandir(base + b"/" + folder if folder else base) as entries:
            for entry in entries:
                name = folder + b"/" + entry.name if folder else entry.name
                status = entry.stat(follow_symlinks=False)
                yield name, entry.path, status
                if stat.S_ISDIR(status.st_mode):
                    pending.append(name)

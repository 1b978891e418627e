"""Machine images: what ran in a sandbox at one moment, so that it can go on later, elsewhere, several times.

```
STORE/machines/ID/         runtime/  the runtime's own files: kernel, memory
                           processes/  the daemon's records of the processes
                           image.json  see `ImageRecord`
STORE/machines/ID.spool/   their output so far, where the image is to be used by another sandbox
```

An image is whole once ID is there. Its memory holds whatever the processes held, the sandbox's token among it: wherever
that is found it is overwritten, and noted, so that whoever the image becomes gets a token of its own in its place. What a
process holds in pieces, encoded or encrypted is not found; a token is of no use to any other sandbox in any case.
"""

import contextlib
import json
import mmap
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from corral.errors import HostError, InternalError, NotFound
from corral.model.ids import ImageId, SandboxId, is_id
from corral.model.leak import Leak
from corral.rootfs.scan import Scanner
from corral.rootfs.store import RootStore, public_errors

_RUNTIME, _PROCESSES, _RECORD, _SPOOL = "runtime", "processes", "image.json", ".spool"
_OVERHEAD = 512 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ImageRecord:
    """`runtime` names the program and its version that can read the image; `tokens` are the places of the overwritten
    token as file name and offset, `token_size` its length; `size` of all files in bytes.
    """

    runtime: str
    size: int
    token_size: int
    tokens: tuple[tuple[str, int], ...]


class MachineImages:
    """The machine images of a store. All methods block. Raise DiskFull and HostError beside what they name."""

    def __init__(self, store: RootStore) -> None:
        self._store = store

    @contextlib.contextmanager
    def making(self, memory: int) -> Iterator[Path]:
        """An empty directory to fill: `runtime/` and `processes/` are there. `memory`: bytes that it may take, about.
        It is gone at the end of the block unless it was kept.
        """
        fresh = self._store.temporary()
        with public_errors("make a machine image"):
            self._store.require_room(memory + _OVERHEAD)
            self._store.subvolumes.create(fresh)
            try:
                self._store.subvolumes.limit(fresh, memory + _OVERHEAD)
                for name in (_RUNTIME, _PROCESSES):
                    (fresh / name).mkdir(0o700)
                yield fresh
            finally:
                self._store.subvolumes.remove(fresh)

    def keep(
        self,
        fresh: Path,
        image: ImageId,
        *,
        runtime: str,
        token: bytes,
        spool_of: SandboxId | None,
        safe: bool,
    ) -> int:
        """Make what was filled the image `image`, without the token; its size in bytes. `spool_of`: whose output goes
        with it. `safe`: only return once all of it is on disk.
        """
        with public_errors("keep a machine image"):
            found = tuple(
                (path.name, offset)
                for path in sorted((fresh / _RUNTIME).iterdir())
                for offset in _overwrite(path, token, b"0" * len(token))
            )
            size = sum(path.stat().st_size for path in (fresh / _RUNTIME).iterdir())
            record = ImageRecord(runtime, size, len(token), found)
            (fresh / _RECORD).write_text(json.dumps(asdict(record)))
            self.remove(image)
            if spool_of is not None:
                self._store.subvolumes.copy(self._store.spool_dir(spool_of), self._spool(image))
            if safe:
                self._store.subvolumes.flush(fresh)
            fresh.rename(self._place(image))
            if safe:
                self._store.settle()
        return size

    def record(self, image: ImageId) -> ImageRecord:
        """What is known of it. Raises NotFound, HostError for a damaged one."""
        try:
            data = json.loads((self._place(image) / _RECORD).read_bytes())
            tokens = tuple((str(name), int(offset)) for name, offset in data["tokens"])
            return ImageRecord(str(data["runtime"]), int(data["size"]), int(data["token_size"]), tokens)
        except FileNotFoundError:
            raise NotFound(
                f"the machine image {image} is not there", "start from the files alone, or save it again"
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise HostError(f"the machine image {image} is damaged: {error}", "save it again") from error

    @contextlib.contextmanager
    def opened(self, image: ImageId, token: bytes) -> Iterator[Path]:
        """A directory with the runtime's files, `token` in the place of the former one. It is gone after the block."""
        record = self.record(image)
        if not record.tokens or len(token) != record.token_size:
            yield self._place(image) / _RUNTIME
            return
        own = self._store.temporary()
        with public_errors("open a machine image"):
            self._store.subvolumes.copy(self._place(image), own)
        try:
            with public_errors("open a machine image"):
                for name, offset in record.tokens:
                    _write_at(own / _RUNTIME / Path(name).name, offset, token)
            yield own / _RUNTIME
        finally:
            with public_errors("close a machine image"):
                self._store.subvolumes.remove(own)

    def unpack(self, image: ImageId, sandbox: SandboxId, records: Path) -> None:
        """Give a sandbox that is about to go on from an image its processes' output, if that is in it, and below
        `records` their records, if there are none.
        """
        with public_errors("unpack a machine image"):
            if self._spool(image).is_dir():
                self._store.replace_spool(sandbox, self._spool(image))
            records.mkdir(0o700, exist_ok=True)
            if not any(records.iterdir()):
                shutil.copytree(self._place(image) / _PROCESSES, records, dirs_exist_ok=True)

    def scan(self, image: ImageId, scanner: Scanner, *, overwrite: bool) -> list[Leak]:
        """What a scanner finds in an image that nothing uses yet."""
        with public_errors("look for secrets in a machine image"):
            found = scanner.tree(self._place(image), overwrite=overwrite)
        return [Leak(f"memory:{leak.path}", leak.what, leak.overwritten) for leak in found]

    def remove(self, image: ImageId) -> None:
        """Idempotent."""
        with public_errors("remove a machine image"):
            for place in (self._place(image), self._spool(image)):
                self._store.subvolumes.remove(place)

    def known(self) -> set[ImageId]:
        """All images, and what is left of half made ones."""
        names = {entry.name.removesuffix(_SPOOL) for entry in self._store.machines.iterdir()}
        return {ImageId(name) for name in names if is_id(name)}

    def _place(self, image: ImageId) -> Path:
        if not is_id(image):
            raise InternalError(f"{image!r} is not an image's id")
        return self._store.machines / image

    def _spool(self, image: ImageId) -> Path:
        return self._place(image).with_name(image + _SPOOL)


def _overwrite(path: Path, old: bytes, new: bytes) -> Iterator[int]:
    """Where `old` stood in a file, which then holds `new` there, of the same length."""
    if not old or path.stat().st_size == 0:
        return
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as content:
        at = content.find(old)
        while at >= 0:
            content[at : at + len(old)] = new
            yield at
            at = content.find(old, at + len(old))


def _write_at(path: Path, offset: int, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.pwrite(fd, data, offset)
    finally:
        os.close(fd)

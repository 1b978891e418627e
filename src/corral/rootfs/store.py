"""The store: layers that sandboxes share, and each sandbox's own writable directory with its quota.

```
DATA/store/            on a btrfs: the data directory's own, or DATA/store.img (sparse) mounted here
  layers/HEX/          upper/ (the tree) and layer.json; read-only
  sandboxes/ID/        upper/ and work/ of its overlay
  spools/ID/           the output of its processes, with a limit of its own: a full disk still says so
  machines/            see `machine_images`
  volumes/ID           see `volumes`
  trusted/             see `trusted`
  damaged/HEX          what is wrong with a layer (see `soundness`)
  seeds/               what new ones are made from, so that no two files of a sandbox have one inode number
  tmp/                 what is being made or removed
DATA/store.json        the kind of this store, which never changes
```

Every change becomes visible by one rename or one subvolume operation; what a crash leaves in `tmp` is
removed by the next `open`. The store stays mounted when the daemon ends, since sandboxes outlive it.

Only root may enter `layers`, `sandboxes`, `spools`, `machines`, `volumes`, `trusted`, `seeds` and `tmp`: they hold setuid programs
that anyone may have put into an image, and processes' memory.
"""

import asyncio
import contextlib
import errno
import os
import re
import shutil
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path

from corral.errors import DiskFull, HostError, InternalError, InvalidInput, NotFound
from corral.host.capacity import unwritten
from corral.host.statefile import flush
from corral.model.ids import LayerDigest, SandboxId, is_id
from corral.model.leak import Leak
from corral.rootfs.backing import IMAGE, Backing, StoreKind, close_backing, open_backing
from corral.rootfs.digest import tree_digest
from corral.rootfs.records import RECORD, TREE, LayerRecord, read_record, write_record
from corral.rootfs.scan import Scanner
from corral.rootfs.seeds import seed_above, top_of
from corral.rootfs.soundness import Marks, damaged, problem_of
from corral.rootfs.subvolumes import Subvolumes, free_bytes, remove_trees

_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_MAX_IDS = 2**32 - 65536

SPOOL_BYTES = 512 * 1024 * 1024
"""Disk that the kept output of a sandbox's processes may take, beside the sandbox's own limit."""

_MIB = 1024 * 1024
_LAYER_BYTES = 1 << 40
_ROOM = 256 * _MIB
"""Disk that must be free before anything new is put into a store in a sparse file. Where the disk cannot take what the
kernel writes to that file, it ends all writing to the store, that of running sandboxes too."""
_LAYER_ROOM = 1024 * _MIB
"""The same before a layer is made, which takes more than all others and tells how much only at its end."""


class RootStore:
    """The store of one data directory, which one daemon owns.

    All methods but `open` and `close` block: sandbox operations for about a millisecond (on a plain store:
    for as long as the content takes), layer operations for as long as it takes to read the content. Call
    them from worker threads. Calls for different sandboxes and layers may overlap; those for one must not.
    Raise DiskFull and HostError beside what they name.
    """

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._backing: Backing | None = None
        self._marks: Marks | None = None
        # Records of committed layers: not flushed while their sandboxes stand still.
        self._unflushed: set[Path] = set()
        self._staging = threading.Lock()
        self._seeding = threading.Lock()
        self._bound = 0

    async def open(self) -> None:
        """Make or mount the store, and remove what a crash left half done. Idempotent."""
        with public_errors("open the store"):
            self._backing = await open_backing(self._data_dir)
            await asyncio.to_thread(self._tidy)
            self._marks = Marks(self._damaged)

    async def close(self) -> None:
        """Unmount the store. For one that is given up: a daemon that ends leaves it mounted."""
        if self._backing is not None:
            await close_backing(self._backing)
            self._backing = None

    @property
    def kind(self) -> StoreKind:
        """What the store stands on."""
        return self._opened.kind

    @property
    def quota(self) -> bool:
        """Whether disk limits are enforced."""
        return self._opened.subvolumes.quota

    @property
    def reason(self) -> str:
        """Why the store is not of a better kind, and what would help; empty where it is."""
        return self._opened.reason

    @property
    def root(self) -> Path:
        """The store's root directory."""
        return self._opened.root

    # Sandboxes

    def create_sandbox(
        self, sandbox: SandboxId, quota_bytes: int, uid_base: int, layers: Sequence[LayerDigest] = ()
    ) -> Path:
        """The directory of a sandbox over `layers`, with `upper` and `work`, and its spool, made where they are
        missing; its limit is set anew.

        `upper` and the spool belong to `uid_base`, the sandbox's root. Files above the limit fail with EDQUOT.
        """
        if not 0 < uid_base <= _MAX_IDS or quota_bytes <= 0:
            raise InternalError(f"no sandbox can have ids from {uid_base} and {quota_bytes} bytes of disk")
        place = self.sandbox_dir(sandbox)
        with public_errors("make a sandbox's directory"):
            if not self.spool_dir(sandbox).is_dir():
                self._make(
                    self.spool_dir(sandbox), SPOOL_BYTES, lambda fresh: _own(fresh, 0o700, uid_base), 0
                )
            if place.is_dir():
                self._opened.subvolumes.limit(place, quota_bytes)
            else:
                self._make(place, quota_bytes, lambda fresh: _furnish(fresh, uid_base), self._top(layers))
        return place

    def _make(self, place: Path, quota_bytes: int, fill: Callable[[Path], None], above: int) -> None:
        self.require_room(_ROOM)
        fresh = self.temporary()
        self._create(fresh, above)
        try:
            self._opened.subvolumes.limit(fresh, quota_bytes)
            fill(fresh)
            fresh.rename(place)
        except OSError:
            self._opened.subvolumes.remove(fresh)
            raise

    def sandbox_dir(self, sandbox: SandboxId) -> Path:
        """Where a sandbox's `upper` and `work` are, or would be."""
        return self._sandboxes / _checked_id(sandbox)

    def spool_dir(self, sandbox: SandboxId) -> Path:
        """Where the output of a sandbox's processes is kept, or would be."""
        return self._spools / _checked_id(sandbox)

    def replace_spool(self, sandbox: SandboxId, source: Path) -> None:
        """Make a sandbox's spool a copy of `source`, with the limit of a spool."""
        fresh = self.temporary()
        with public_errors("copy the output of processes"):
            self.subvolumes.copy(source, fresh)
            try:
                self.subvolumes.limit(fresh, SPOOL_BYTES)
                self._discard(self.spool_dir(sandbox))
                fresh.rename(self.spool_dir(sandbox))
            except OSError:
                self.subvolumes.remove(fresh)
                raise

    def remove_sandbox(self, sandbox: SandboxId) -> None:
        """Remove all files of a sandbox; its root must be unmounted. Idempotent."""
        with public_errors("remove a sandbox's files"):
            self._discard(self.sandbox_dir(sandbox))
            self._discard(self.spool_dir(sandbox))

    def sandboxes(self) -> set[SandboxId]:
        """Every sandbox that has a directory."""
        places = (*self._sandboxes.iterdir(), *self._spools.iterdir())
        return {SandboxId(place.name) for place in places if is_id(place.name)}

    def usage(self, sandbox: SandboxId) -> int:
        """Bytes of disk that count against a sandbox's limit. Raises NotFound."""
        with public_errors("read a sandbox's disk usage"):
            try:
                return self._opened.subvolumes.usage(self.sandbox_dir(sandbox))
            except FileNotFoundError:
                raise NotFound(f"the store has no sandbox {sandbox}") from None

    def commit(self, sandbox: SandboxId, uid_base: int) -> LayerDigest:
        """The changes of a sandbox over its template, as of now, as a new layer. It must be stopped or
        frozen.

        Takes milliseconds on btrfs. Owners stay shifted on disk and are mapped when mounted (see
        `records`). The digest identifies the layer; it is not a hash of its content, which is not read.
        """
        source = self.sandbox_dir(sandbox)
        digest = LayerDigest(f"sha256:{os.urandom(32).hex()}")
        with public_errors("commit a sandbox"):
            if not source.is_dir():
                raise NotFound(f"the store has no sandbox {sandbox}")
            self.require_room(_ROOM)
            size = self._opened.subvolumes.usage(source)
            fresh = self.temporary()
            try:
                self._copy_tree(source, fresh)
                record = LayerRecord(uid_base=uid_base, size=size, content=False, top=self._top_of(fresh))
                write_record(fresh, record)
                self._publish(fresh, digest)
            except BaseException:
                self._opened.subvolumes.remove(fresh)
                raise
            self._unflushed.add(self._layer_dir(digest) / RECORD)
        return digest

    @contextlib.contextmanager
    def stacking(self, layers: Sequence[LayerDigest]) -> Iterator[Path]:
        """An empty `upper` and `work` over these layers, as a sandbox has them; gone after the block unless it was added."""
        with public_errors("make a directory over layers"):
            self.require_room(_LAYER_ROOM)
            fresh = self._new_layer(layers)
            _furnish(fresh, self.ids_of(layers))
        try:
            yield fresh
        finally:
            with public_errors("remove a directory over layers"):
                self._opened.subvolumes.remove(fresh)

    def add_stacked(self, fresh: Path, uid_base: int) -> LayerDigest:
        """Make what was written over layers in `stacking` a layer, whose owners are those of `uid_base`'s range."""
        digest = LayerDigest(f"sha256:{os.urandom(32).hex()}")
        with public_errors("add a layer"):
            remove_trees(fresh / "work")
            size = self._opened.subvolumes.usage(fresh)
            record = LayerRecord(uid_base=uid_base, size=size, content=False, top=self._top_of(fresh))
            write_record(fresh, record)
            self._opened.subvolumes.flush(fresh)
            self._publish(fresh, digest)
        return digest

    def leading(self, layers: Sequence[LayerDigest]) -> int:
        """How many of the lowest layers the host made: those that many templates share."""
        made = [read_record(self._layer_dir(layer)).content for layer in layers]
        return next((place for place, content in enumerate(made) if not content), len(made))

    def scan_layer(self, layer: LayerDigest, scanner: Scanner, *, overwrite: bool) -> list[Leak]:
        """What a scanner finds in a committed layer that nothing uses yet. Takes as long as to read it."""
        place = self._layer_dir(layer)
        with public_errors("look for secrets in a layer"):
            if overwrite:
                self._opened.subvolumes.unseal(place)
            try:
                return scanner.tree(place / TREE, overwrite=overwrite)
            finally:
                if overwrite:
                    self._opened.subvolumes.seal(place)

    # Layers

    @contextlib.contextmanager
    def staging(self) -> Iterator[Path]:
        """A fresh, empty directory in the store (mode 0755, root's) to fill for `add_layer`; removed at the
        end of the block unless it was added. Ids in it are plain: root is 0. One at a time: others wait."""
        with self._staging:
            with public_errors("make a directory for a layer"):
                self.require_room(_LAYER_ROOM)
                fresh = self._new_layer(self._readable())
                (fresh / TREE).mkdir()
                (fresh / TREE).chmod(0o755)
            try:
                yield fresh / TREE
            finally:
                with public_errors("remove a directory for a layer"):
                    self._opened.subvolumes.remove(fresh)

    @contextlib.contextmanager
    def workspace(self, names: Sequence[str]) -> Iterator[Path]:
        """A fresh directory in the store with empty directories of these names, removed at the end of the block: for
        mounts that nothing is kept of."""
        with public_errors("make a directory"):
            self.require_room(_ROOM)
            fresh = self.temporary()
            self._opened.subvolumes.create(fresh)
        try:
            for name in names:
                (fresh / name).mkdir()
            yield fresh
        finally:
            with public_errors("remove a directory"):
                self._opened.subvolumes.remove(fresh)

    def add_layer(self, staging: Path, below: Collection[LayerDigest] = (), uid_base: int = 0) -> LayerDigest:
        """Make a filled staging directory a layer, named by its content; it is gone from its place after.
        The same content is kept once. Nobody may write to it any more. Raises InvalidInput for trees that
        are too deep. `uid_base`: the id of root in it.

        One that is among those `below` it gets a name of its own: a stack cannot hold one layer twice, and what lies
        between may have changed what it holds.
        """
        if staging.name != TREE or staging.parent.parent != self._tmp:
            raise InternalError(f"{staging} is not a staging directory of this store")
        with public_errors("add a layer"):
            tree = tree_digest(staging)
            again = tree.digest in below
            digest = LayerDigest(f"sha256:{os.urandom(32).hex()}") if again else tree.digest
            if not self.has_layer(digest):
                record = LayerRecord(
                    uid_base=uid_base, size=tree.size, content=not again, top=self._top_of(staging.parent)
                )
                write_record(staging.parent, record)
                self._opened.subvolumes.flush(staging.parent)
                self._publish(staging.parent, digest)
        return digest

    def layer_path(self, layer: LayerDigest) -> Path:
        """The root of a layer's tree, for `mount_root`. Never write to it. Raises HostError for one that is known to be
        damaged."""
        place = self._layer_dir(layer)
        if problem := self._known_damage.get(place.name):
            raise damaged(layer, problem)
        return place / TREE

    def has_layer(self, layer: LayerDigest) -> bool:
        """Whether the store has it, whole."""
        place = self._layer_dir(layer)
        return (place / TREE).is_dir() and not self._known_damage.get(place.name)

    def check_layer(self, layer: LayerDigest) -> str:
        """Read all of a layer and tell what is wrong with it: empty if nothing is. From then on it is not used, if
        something is."""
        place = self._layer_dir(layer)
        problem = problem_of(layer, place)
        with public_errors("note what is wrong with a layer"):
            self._known_damage.set(place.name, problem)
        return problem

    def ids_of(self, layers: Iterable[LayerDigest]) -> int:
        """The id of root that a layer on top of these is to have: that of the tenant whose sandboxes made some of them,
        else 0. Raises InternalError for layers of two tenants."""
        bases = {read_record(self._layer_dir(layer)).uid_base for layer in layers} - {0}
        if len(bases) > 1:
            raise InternalError("a stack of layers belongs to two tenants")
        return bases.pop() if bases else 0

    def layers(self) -> set[LayerDigest]:
        """All layers."""
        return {LayerDigest(f"sha256:{entry.name}") for entry in self._layers.iterdir()}

    def _readable(self) -> Iterator[LayerDigest]:
        """All layers but those whose record is damaged, which nothing can be put upon."""
        for layer in self.layers():
            with contextlib.suppress(HostError):
                read_record(self._layer_dir(layer))
                yield layer

    def layer_size(self, layer: LayerDigest) -> int:
        """Bytes of its files. Of a committed layer: what its sandbox used then. Raises NotFound."""
        if not (self._layer_dir(layer) / TREE).is_dir():
            raise NotFound(f"the store has no layer {layer}", "list templates with `corral template ls`")
        return read_record(self._layer_dir(layer)).size

    def remove_layer(self, layer: LayerDigest) -> None:
        """Remove a layer, which no sandbox may have mounted or need again. Idempotent."""
        with public_errors("remove a layer"):
            self._discard(self._layer_dir(layer))
            self._known_damage.set(self._layer_dir(layer).name, "")

    def settle(self) -> None:
        """Return when all layers and machine images that were added before survive a power cut."""
        with public_errors("put the store on disk"):
            for record in tuple(self._unflushed):
                with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
                    flush(record)
                self._unflushed.discard(record)
            self._opened.subvolumes.settle(self.root)

    # Parts

    def _tidy(self) -> None:
        for folder in (
            self._layers,
            self._sandboxes,
            self._spools,
            self.machines,
            self.volumes,
            self.trusted,
            self._seeds,
            self._damaged,
            self._tmp,
        ):
            folder.mkdir(mode=0o700, exist_ok=True)
        seeds = sorted(self._seeds.iterdir(), key=lambda seed: int(seed.name))
        for leftover in (*self._tmp.iterdir(), *seeds[:-1]):
            self._opened.subvolumes.remove(leftover)
        self._opened.subvolumes.sweep(self.root)

    def require_room(self, needed: int) -> None:
        """Raise DiskFull unless a store in a sparse file may grow by `needed` bytes."""
        free = free_bytes(self._data_dir)
        if self.kind is StoreKind.LOOP and free < needed:
            raise DiskFull(
                f"the disk of {self._data_dir} has {free // _MIB} MiB left, and this needs {needed // _MIB} MiB",
                "free space there: `corral rm` old sandboxes, `corral template rm` unused templates, or other files",
            )

    def leave_free(self, size: int) -> None:
        """Let all that is written under a limit from now on leave `size` bytes of the host's disk; what would not fails with
        EDQUOT. Without it, what passes the disk's end makes the kernel end all writing to a store in a sparse file.

        Set anew only where it has become wrong by an eighth of what may still be written: others write to the disk, too.
        """
        if not self.quota:
            return
        with public_errors("bound what sandboxes write"):
            counted, pending = self._opened.subvolumes.usage_of_all(self.root)
            on_disk = counted + max(pending - int(unwritten()), 0)
            room = free_bytes(self._data_dir) - size
            bound = max(on_disk + room, 1)
            if abs(bound - self._bound) > max(bound - counted - pending, 0) / 8:
                self._opened.subvolumes.limit_all(self.root, bound)
                self._bound = bound

    @property
    def _opened(self) -> Backing:
        if self._backing is None:
            raise InternalError("the store was used before it was opened")
        return self._backing

    @property
    def _layers(self) -> Path:
        return self.root / "layers"

    @property
    def _seeds(self) -> Path:
        return self.root / "seeds"

    def space(self) -> tuple[int, int, int, int | None]:
        """Bytes that it can hold, those that are used, those that may still be written, and those that its file takes of
        the host's disk, if it has one."""
        with public_errors("read the store's use of disk"):
            usage = shutil.disk_usage(self.root)
            image = self._data_dir / IMAGE
            file = image.stat().st_blocks * 512 if self.kind is StoreKind.LOOP else None
            return usage.total, usage.used, min(usage.free, free_bytes(self._data_dir)), file

    @property
    def machines(self) -> Path:
        """Where machine images are."""
        return self.root / "machines"

    @property
    def volumes(self) -> Path:
        """Where volumes are."""
        return self.root / "volumes"

    @property
    def trusted(self) -> Path:
        """Where layers of certificates are."""
        return self.root / "trusted"

    @property
    def subvolumes(self) -> Subvolumes:
        """How its directories are made and copied."""
        return self._opened.subvolumes

    @property
    def _sandboxes(self) -> Path:
        return self.root / "sandboxes"

    @property
    def _spools(self) -> Path:
        return self.root / "spools"

    @property
    def _damaged(self) -> Path:
        return self.root / "damaged"

    @property
    def _known_damage(self) -> Marks:
        if self._marks is None:
            raise InternalError("the store was used before it was opened")
        return self._marks

    @property
    def _tmp(self) -> Path:
        return self.root / "tmp"

    def _layer_dir(self, layer: LayerDigest) -> Path:
        match = _DIGEST.fullmatch(layer)
        if match is None:
            raise InvalidInput(
                f"{layer[:80]!r} is not a layer's digest", "use sha256: and 64 hexadecimal digits"
            )
        return self._layers / match.group(1)

    def temporary(self) -> Path:
        """A path for something that is being made; nobody else gets it."""
        return self._tmp / os.urandom(8).hex()

    def _create(self, fresh: Path, above: int) -> None:
        """A new subvolume; where these number their inodes each for itself, with numbers above `above`."""
        if self.kind is StoreKind.PLAIN or not above:
            self._opened.subvolumes.create(fresh)
        else:
            with self._seeding:
                self._opened.subvolumes.copy(seed_above(above, self._seeds, self.temporary()), fresh)

    def _new_layer(self, above: Iterable[LayerDigest]) -> Path:
        """A directory to be filled. What fills it may be hostile: it counts among those that leave the host's disk room."""
        fresh = self.temporary()
        self._create(fresh, self._top(above))
        self._opened.subvolumes.limit(fresh, _LAYER_BYTES)
        return fresh

    def _top(self, layers: Iterable[LayerDigest]) -> int:
        return max((read_record(self._layer_dir(layer)).top for layer in layers), default=0)

    def _top_of(self, place: Path) -> int:
        return 0 if self.kind is StoreKind.PLAIN else top_of(place)

    def _copy_tree(self, source: Path, target: Path) -> None:
        """A copy of a sandbox's directory with its upper tree alone."""
        self._opened.subvolumes.copy(source, target)
        remove_trees(target / "work")

    def _publish(self, fresh: Path, digest: LayerDigest) -> None:
        place = self._layer_dir(digest)
        try:
            fresh.rename(place)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            if problem := self._known_damage.get(place.name):
                raise damaged(digest, problem) from error
            return  # another task added the same content meanwhile; the caller removes this one
        self._opened.subvolumes.seal(place)

    def _discard(self, place: Path) -> None:
        if self.kind is StoreKind.PLAIN:  # file by file: half of a layer must not look like a layer
            condemned = self.temporary()
            with contextlib.suppress(FileNotFoundError):
                place.rename(condemned)
            place = condemned
        self._opened.subvolumes.remove(place)


def _checked_id(sandbox: SandboxId) -> str:
    if not is_id(sandbox):
        raise InternalError(f"{sandbox!r} is not a sandbox's id")
    return sandbox


def _furnish(place: Path, uid_base: int) -> None:
    place.chmod(0o711)
    for name, mode, owner in (("upper", 0o755, uid_base), ("work", 0o700, 0)):
        (place / name).mkdir()
        _own(place / name, mode, owner)


def _own(place: Path, mode: int, owner: int) -> None:
    place.chmod(mode)
    os.chown(place, owner, owner)


@contextlib.contextmanager
def public_errors(what: str) -> Iterator[None]:
    """Errors of the system as public ones."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(f"the store is full: cannot {what}") from error
        if error.errno == errno.EROFS:
            raise HostError(
                f"cannot {what}: the kernel has made the store read-only, as it does when its disk is full or fails",
                "free space and see `dmesg`; then remove what runs, and restart the daemon",
            ) from error
        raise HostError(f"cannot {what}: {error}") from error

"""The port `Layers`: the store of layers, and the ways to fill it."""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Callable, Sequence, Set
from pathlib import Path

from corral.engine.ports import ImportedImage, Progress
from corral.errors import HostError, Unsupported
from corral.host.threads import in_thread
from corral.model.build import RegistryLogin
from corral.model.ids import LayerDigest
from corral.model.template import Template
from corral.rootfs.base import build_base, known_base
from corral.rootfs.flatten import bring, descriptor_path
from corral.rootfs.images import import_image
from corral.rootfs.index import LayerIndex
from corral.rootfs.oci_archive import export_image, import_archive
from corral.rootfs.overlay import detached_root
from corral.rootfs.store import RootStore, public_errors

KEPT_SECONDS = 14 * 24 * 3600.0
"""How long a step of a build is remembered after its last use."""
KEPT_BYTES = 20 << 30
"""What remembered steps may take, those of templates included."""


class LayerStore:
    """Implements `corral.engine.ports.Layers` over a store that is open.

    `data_dir` is the daemon's; `index/` in it remembers what layers were made from (`index/steps/` those of builds),
    `scratch/` holds downloads,
    `exports/` archives while they are sent or read.
    """

    def __init__(self, store: RootStore, data_dir: Path) -> None:
        self._store = store
        self._index = LayerIndex(data_dir / "index")
        self._steps = LayerIndex(data_dir / "index" / "steps")
        self._scratch = data_dir / "scratch"
        self._exports = data_dir / "exports"
        # What a crash left: downloads, and logins of registries.
        for folder in (self._exports, self._scratch):
            shutil.rmtree(folder, ignore_errors=True)
        for index in (self._index, self._steps):
            index.tidy()
        self._making = asyncio.Lock()
        self._base: tuple[LayerDigest, ...] | None = None

    async def base(self, progress: Progress) -> tuple[LayerDigest, ...]:
        """Layers of the `base` image of this version of Corral, built where they are missing."""
        base = self._known_base()
        if base is None:
            async with self._making:
                base = self._known_base() or await build_base(self._store, self._index, progress)
        self._base = base
        return base

    async def image(
        self, reference: str, progress: Progress, login: RegistryLogin | None = None
    ) -> ImportedImage:
        """Layers and configuration of an OCI image pulled from a registry."""
        async with self._making:
            await asyncio.to_thread(self._make_scratch)
            return await import_image(self._store, self._index, self._scratch, reference, progress, login)

    async def export(self, template: Template) -> AsyncIterator[bytes]:
        """A template as an OCI image archive."""
        await asyncio.to_thread(self._exports.mkdir, mode=0o700, exist_ok=True)
        async for data in export_image(
            self._store,
            self._exports,
            template.layers,
            template.config,
            name=template.name,
            created=template.created_at,
        ):
            yield data

    async def import_archive(self, data: AsyncIterator[bytes], progress: Progress) -> ImportedImage:
        """Layers and configuration of an image's archive."""
        await asyncio.to_thread(self._exports.mkdir, mode=0o700, exist_ok=True)
        return await import_archive(self._store, self._index, self._exports, data, progress)

    async def size(self, layer: LayerDigest) -> int:
        """Bytes of a layer."""
        return await asyncio.to_thread(self._store.layer_size, layer)

    async def flush(self) -> None:
        """Put all layers on disk."""
        await asyncio.to_thread(self._store.settle)

    async def damaged(self) -> dict[LayerDigest, str]:
        """What is wrong with layers, of all that are there; those are not used any more. Takes as long as to read them."""
        found = {}
        for layer in sorted(self._store.layers()):
            if problem := await asyncio.to_thread(self._store.check_layer, layer):
                found[layer] = problem
        return found

    async def known(self, key: str) -> LayerDigest | None:
        """The layer that was remembered by `key`, if the store still has it. It counts as used now."""
        layer = self._steps.get(key)
        if layer is None or not self._store.has_layer(layer):
            return None
        self._steps.touch(key)
        return layer

    async def remember(self, key: str, layer: LayerDigest) -> None:
        """Find `layer` by `key` from now on."""
        await asyncio.to_thread(self._steps.put, key, layer)

    async def forget(self, keep: Set[LayerDigest]) -> int:
        """Forget all remembered layers but those in `keep`; how many."""
        return await asyncio.to_thread(self._forget, lambda layer, _: layer not in keep)

    async def flatten(self, layers: Sequence[LayerDigest]) -> tuple[LayerDigest, ...]:
        """A shorter stack with the same tree: the layers that the host made, and one more."""
        kept = max(await asyncio.to_thread(self._store.leading, layers), 1)
        below, uid_base = layers[:kept], self._store.ids_of(layers)
        async with (
            in_thread(self._store.stacking(layers)) as fresh,
            in_thread(self._store.stacking(layers)) as unused,
        ):
            paths = [self._store.layer_path(layer) for layer in layers]
            async with (
                detached_root(paths, unused, uid_base) as whole,
                detached_root(paths[:kept], fresh, uid_base) as short,
            ):
                await asyncio.to_thread(self._bring, whole, short)
            merged = await asyncio.to_thread(self._store.add_stacked, fresh, uid_base)
        return (*below, merged)

    @staticmethod
    def _bring(whole: int, short: int) -> None:
        with public_errors("make many layers one"):
            bring(descriptor_path(whole), descriptor_path(short))

    async def unused(self, keep: set[LayerDigest]) -> set[LayerDigest]:
        """What `prune` would remove."""
        remembered = {layer for _, layer, _ in await asyncio.to_thread(self._steps.entries)}
        return await asyncio.to_thread(self._store.layers) - keep - remembered - self._base_layers()

    async def prune(self, keep: set[LayerDigest]) -> int:
        """Remove layers that are neither in `keep` nor remembered; bytes freed. Those of the `base` image stay, even if
        no row names them."""
        async with self._making:
            await asyncio.to_thread(self._forget_old)
            remembered = {layer for _, layer, _ in await asyncio.to_thread(self._steps.entries)}
            return await asyncio.to_thread(self._prune, keep | remembered | self._base_layers())

    def _forget_old(self) -> None:
        """Steps unused for two weeks, and those used longest ago while all of them together are too large."""
        sizes = {layer: self._size(layer) for _, layer, _ in self._steps.entries()}
        total = sum(sizes.values())
        oldest = time.time() - KEPT_SECONDS

        def is_old(layer: LayerDigest, used: float) -> bool:
            nonlocal total
            if used >= oldest and total <= KEPT_BYTES:
                return False
            total -= sizes.pop(layer, 0)
            return True

        self._forget(is_old)

    def _forget(self, is_old: Callable[[LayerDigest, float], bool]) -> int:
        gone = [key for key, layer, used in self._steps.entries() if is_old(layer, used)]
        for key in gone:
            self._steps.remove(key)
        return len(gone)

    def _size(self, layer: LayerDigest) -> int:
        try:
            return self._store.layer_size(layer) if self._store.has_layer(layer) else 0
        except HostError:  # a damaged one must not keep others from being removed
            return 0

    def _known_base(self) -> tuple[LayerDigest, ...] | None:
        if self._base is None or not all(self._store.has_layer(layer) for layer in self._base):
            self._base = known_base(self._store, self._index)
        return self._base

    def _base_layers(self) -> set[LayerDigest]:
        try:
            return {*(self._known_base() or ())}
        except Unsupported:  # this machine has none
            return set()

    def _prune(self, keep: set[LayerDigest]) -> int:
        freed = 0
        for layer in self._store.layers() - keep:
            freed += self._size(layer)
            self._store.remove_layer(layer)
        return freed

    def _make_scratch(self) -> None:
        """An empty directory for downloads: one daemon owns it, and uses it for one image at a time."""
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch.mkdir(mode=0o700)

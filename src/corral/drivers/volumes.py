"""Volumes on the host's store, and what is in them, from the host."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from corral.drivers.files import HostGuestFiles
from corral.engine.ports import VolumeFiles
from corral.errors import Unsupported
from corral.host.unfinished import Unfinished
from corral.model.ids import VolumeId
from corral.model.volume import Volume
from corral.rootfs.store import RootStore
from corral.rootfs.volumes import VolumeDirectories

_THREADS = 4


class StoreVolumes:
    """`ports.VolumeDisk`. `unlimited`: whether volumes may be on a store without quotas. `unfinished`: notes of writes."""

    def __init__(self, store: RootStore, unlimited: Callable[[], bool], unfinished: Unfinished) -> None:
        self._unfinished = unfinished
        self._store = store
        self._directories = VolumeDirectories(store)
        self._unlimited = unlimited
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="volumes")

    def close(self) -> None:
        """Let go of the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def create(self, volume: Volume, uid_base: int) -> None:
        """As VolumeDisk says."""
        if not (self._store.quota or self._unlimited()):
            raise Unsupported(
                f"this store cannot limit a volume's disk: {self._store.reason}",
                "see `corral doctor`; to go without disk limits: `corral config set store.unlimited true`",
            )
        await asyncio.to_thread(self._directories.create, volume.id, volume.size, uid_base)

    async def remove(self, volume: VolumeId) -> None:
        """As VolumeDisk says."""
        await asyncio.to_thread(self._directories.remove, volume)

    async def known(self) -> set[VolumeId]:
        """As VolumeDisk says."""
        return await asyncio.to_thread(self._directories.known)

    async def usage(self, volume: VolumeId) -> int:
        """As VolumeDisk says."""
        return await asyncio.to_thread(self._directories.usage, volume)

    async def tidy(self) -> None:
        """As VolumeDisk says."""
        for owner in self._unfinished.owners():
            await self._files(VolumeId(owner), 0).tidy()

    def files(self, volume: VolumeId, uid_base: int) -> VolumeFiles:
        """As VolumeDisk says."""
        return self._files(volume, uid_base)

    def _files(self, volume: VolumeId, uid_base: int) -> HostGuestFiles:
        def root() -> int:
            return os.open(self._directories.path(volume), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

        return HostGuestFiles(root, uid_base, self._threads, self._unfinished.of(volume))

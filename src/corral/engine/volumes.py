"""Volumes: made, mounted by sandboxes, and removed when none mounts them any more.

A volume's row says whether it is `ready`. It is written before its directory is made, and again, no longer ready, before that
is removed: so whatever a crash leaves is not ready, or has no row, and the next start removes it.

A create and a removal may meet. The removal looks for sandboxes and takes the volume away in one step of the event loop; a
create looks for its volumes once its own row is there. So one of the two sees the other.
"""

import asyncio
import logging
import secrets as randomness
from collections.abc import Sequence
from dataclasses import replace

from corral.engine.admission import Admission
from corral.engine.ports import Clock, Store, VolumeDisk, VolumeFiles
from corral.engine.registry import Registry
from corral.errors import Conflict, NoCapacity, NotFound
from corral.model.capacity import Holding, Resource
from corral.model.ids import TenantId, VolumeId
from corral.model.lifecycle import State
from corral.model.sandbox import Limits, Sandbox
from corral.model.volume import DEFAULT_SIZE, Volume, VolumeMount, VolumeWish

log = logging.getLogger(__name__)

MAX_VOLUMES = 1000
"""Of one tenant."""
_NAMED = 4
"""Sandboxes that a refusal names."""


class Volumes:
    """The volumes of all tenants."""

    def __init__(
        self, *, store: Store, disk: VolumeDisk, registry: Registry, admission: Admission, clock: Clock
    ) -> None:
        self._store = store
        self._disk = disk
        self._registry = registry
        self._admission = admission
        self._clock = clock
        self._volumes: dict[VolumeId, Volume] = {}
        self._used: dict[VolumeId, int] = {}
        self._changing = asyncio.Lock()
        admission.count(self)

    async def recover(self) -> None:
        """Read the volumes from the store, and remove what a crash left of others."""
        self._volumes = {volume.id: volume for volume in await self._store.volumes()}
        unfinished = [volume.id for volume in self._volumes.values() if not volume.ready]
        for left in {*unfinished, *(await self._disk.known() - self._volumes.keys())}:
            log.warning("removing volume %s, which was not finished", left)
            await self._discard(left)
        await self._disk.tidy()

    # -- use cases ------------------------------------------------------------------------------------------------

    async def create(self, tenant: TenantId, name: str, size: int = DEFAULT_SIZE) -> Volume:
        """An empty volume. One that fails leaves nothing. Raises InvalidInput, Conflict (name), DiskFull, NoCapacity,
        Unsupported."""
        id = VolumeId(randomness.token_hex(8))
        volume = Volume(id, tenant, name, size, self._clock.now()).checked()
        async with self._changing:
            if any(other.name == name for other in self._of(tenant)):
                raise Conflict(
                    f"there is a volume {name!r} already",
                    f"see `corral volume ls`; `corral volume rm {name}`",
                )
            if len(self._of(tenant)) >= MAX_VOLUMES:
                raise NoCapacity(
                    f"you have {MAX_VOLUMES} volumes, the most", "remove some: `corral volume rm`"
                )
            self._admission.require(self._holding(volume))
            try:
                return await self._make(volume)
            except BaseException:
                await asyncio.shield(self._discard(id))
                raise

    async def _make(self, volume: Volume) -> Volume:
        self._volumes[volume.id] = volume
        await self._store.put_volume(volume)
        await self._disk.create(volume, (await self._store.tenant(volume.tenant)).uid_base)
        ready = replace(volume, ready=True)
        await self._store.put_volume(ready)
        self._volumes[volume.id] = ready
        return ready

    async def remove(self, tenant: TenantId, ref: str) -> None:
        """With all that is in it. Raises NotFound, and Conflict while a sandbox mounts it, whether that runs or not."""
        async with self._changing:
            volume = self._find(self._of(tenant), ref)  # also what a removal that failed has left
            await self._wait_for_leaving(volume.id)
            if users := self.users(volume.id):
                raise Conflict(
                    f"volume {volume.name} is mounted by {_named(users)}",
                    f"remove what mounts it first: `corral rm {users[0]}`",
                )
            going = self._volumes[volume.id] = replace(volume, ready=False)
            await asyncio.shield(self._remove(going))

    async def _wait_for_leaving(self, volume: VolumeId) -> None:
        """Until sandboxes are gone that are being removed already."""
        for sandbox in self._mounting(volume):
            if sandbox.state is State.REMOVING:
                async with self._registry.lock(sandbox.id):
                    continue

    async def _remove(self, volume: Volume) -> None:
        await self._store.put_volume(volume)
        await self._discard(volume.id)
        self._admission.changed()

    async def _discard(self, volume: VolumeId) -> None:
        """Let nothing be left of it. Idempotent."""
        await self._disk.remove(volume)
        await self._store.remove_volume(volume)
        self._volumes.pop(volume, None)
        self._used.pop(volume, None)

    def get(self, tenant: TenantId, ref: str) -> Volume:
        """By name or id. Raises NotFound, also for another tenant's."""
        return self._find(self.list(tenant), ref)

    def by_id(self, volume: VolumeId) -> Volume:
        """Of any tenant: for callers who prove by the volume's own token that they may use it. Raises NotFound."""
        found = self._volumes.get(volume)
        if found is None or not found.ready:
            raise NotFound("the volume is gone")
        return found

    def users(self, volume: VolumeId) -> Sequence[str]:
        """Names of the sandboxes that mount it, whatever their state."""
        return [sandbox.spec.name for sandbox in self._mounting(volume)]

    def _mounting(self, volume: VolumeId) -> Sequence[Sandbox]:
        return [
            sandbox
            for sandbox in self._registry.all()
            if any(mount.id == volume for mount in sandbox.spec.volumes)
        ]

    async def usage(self, volume: Volume) -> int:
        """Bytes of disk that it takes."""
        return await self._disk.usage(volume.id)

    async def files(self, volume: Volume) -> VolumeFiles:
        """What it holds, with `/` as its root."""
        return self._disk.files(volume.id, (await self._store.tenant(volume.tenant)).uid_base)

    # -- for sandboxes --------------------------------------------------------------------------------------------

    def resolve(self, tenant: TenantId, wishes: Sequence[VolumeWish]) -> tuple[VolumeMount, ...]:
        """The volumes that a create asks for. Raises NotFound."""
        found = [(self.get(tenant, wish.volume), wish) for wish in wishes]
        return tuple(VolumeMount(volume.id, volume.name, wish.path, wish.read_only) for volume, wish in found)

    def require(self, tenant: TenantId, mounts: Sequence[VolumeMount]) -> None:
        """Raise NotFound unless they are all still there: they stay as long as a row names them."""
        for mount in mounts:
            if self.by_id(mount.id).tenant != tenant:
                raise NotFound("the volume is gone")

    # -- for admission --------------------------------------------------------------------------------------------

    def holdings(self) -> Sequence[Holding]:
        """What volumes take, and may come to take, of the disk."""
        return [self._holding(volume) for volume in self._volumes.values()]

    async def measure(self) -> None:
        """See how much they take now."""
        self._used = {volume: await self._disk.usage(volume) for volume in list(self._volumes)}

    def _holding(self, volume: Volume) -> Holding:
        """As a sandbox that is stopped, of which only the disk counts."""
        used = {Resource.DISK: float(self._used.get(volume.id, 0))}
        return Holding(
            volume.id, f"volume {volume.name}", volume.tenant, Limits(disk=volume.size), State.STOPPED, used
        )

    def _of(self, tenant: TenantId) -> Sequence[Volume]:
        return [volume for volume in self._volumes.values() if volume.tenant == tenant]

    def _find(self, volumes: Sequence[Volume], ref: str) -> Volume:
        for volume in volumes:
            if ref in (volume.name, volume.id):
                return volume
        raise NotFound(f"there is no volume {ref[:80]!r}", "list yours with `corral volume ls`")

    def list(self, tenant: TenantId) -> list[Volume]:
        """A tenant's volumes, by name."""
        return sorted((item for item in self._of(tenant) if item.ready), key=lambda item: item.name)


def _named(users: Sequence[str]) -> str:
    more = len(users) - _NAMED
    return ", ".join(users[:_NAMED]) + (f" and {more} more" if more > 0 else "")

"""Routes of volumes."""

from fastapi import APIRouter

from corral.api.context import Caller, CallerDep, RefPath
from corral.api.failures import documented
from corral.errors import DiskFull, NoCapacity, Unsupported
from corral.model.volume import Volume
from corral.protocol import volumes as protocol
from corral.protocol.base import Done

router = APIRouter(prefix="/v1")


@router.post(
    "/volumes", status_code=201, tags=["volumes"], responses=documented(DiskFull, NoCapacity, Unsupported)
)
async def create_volume(caller: CallerDep, body: protocol.NewVolume) -> protocol.VolumeInfo:
    """Make an empty volume, which sandboxes can mount."""
    return await _info(caller, await caller.engine.volumes.create(caller.tenant, body.name, body.size))


@router.get("/volumes", tags=["volumes"], responses=documented())
async def list_volumes(caller: CallerDep) -> protocol.VolumeList:
    """The tenant's volumes, by name."""
    found = caller.engine.volumes.list(caller.tenant)
    return protocol.VolumeList(volumes=[await _info(caller, volume) for volume in found])


@router.get("/volumes/{ref}", tags=["volumes"], responses=documented())
async def get_volume(caller: CallerDep, ref: RefPath) -> protocol.VolumeInfo:
    """A volume, by name or id."""
    return await _info(caller, caller.engine.volumes.get(caller.tenant, ref))


@router.delete("/volumes/{ref}", tags=["volumes"], responses=documented())
async def remove_volume(caller: CallerDep, ref: RefPath) -> Done:
    """Remove a volume with all that is in it. Refused while a sandbox mounts it, whether that runs or not."""
    await caller.engine.volumes.remove(caller.tenant, ref)
    return Done()


async def _info(caller: Caller, volume: Volume) -> protocol.VolumeInfo:
    volumes = caller.engine.volumes
    return protocol.VolumeInfo(
        id=volume.id,
        name=volume.name,
        size=volume.size,
        used=await volumes.usage(volume),
        sandboxes=list(volumes.users(volume.id)),
        created_at=volume.created_at,
    )

"""Routes of disk use."""

from fastapi import APIRouter

from corral.api.context import CallerDep
from corral.api.failures import documented
from corral.engine.disk import Use
from corral.policy.retention import Retention
from corral.protocol import disk as protocol

router = APIRouter(prefix="/v1")


@router.get("/disk", tags=["daemon"], responses=documented())
async def get_disk(caller: CallerDep) -> protocol.DiskOverview:
    """What the store holds, and what of the tenant's takes its disk: own, and shared with others."""
    found = await caller.engine.disk.overview(caller.tenant)
    space = found.space
    return protocol.DiskOverview(
        total=space.total,
        used=space.used,
        free=space.free,
        file=space.file,
        uses=[_use(item) for item in found.uses],
    )


@router.post("/disk/prune", tags=["daemon"], responses=documented())
async def prune_disk(caller: CallerDep, body: protocol.Prune | None = None) -> protocol.Pruned:
    """Remove the tenant's checkpoints beyond the bounds, and what nothing needs. Those that pools are made of are kept."""
    asked = body or protocol.Prune()
    wanted = None if asked.keep is None and asked.size is None else Retention(asked.keep, asked.size)
    done = await caller.engine.disk.prune(caller.tenant, wanted, dry_run=asked.dry_run)
    return protocol.Pruned(removed=[_use(item) for item in done.removed], freed=done.freed)


def _use(value: Use) -> protocol.DiskUse:
    return protocol.DiskUse(kind=value.kind, name=value.name, own=value.own, shared=value.shared)

"""Routes of warm pools."""

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Query

from corral.api import shapes
from corral.api.context import CallerDep, RefPath
from corral.api.failures import documented
from corral.errors import Unsupported
from corral.model.sandbox import Isolation, Limits
from corral.protocol import pools as protocol
from corral.protocol.base import Done

router = APIRouter(prefix="/v1")


@router.get("/pools", tags=["pools"], responses=documented())
async def list_pools(caller: CallerDep) -> protocol.PoolList:
    """The tenant's warm pools: how many are ready, and what keeps the others from it."""
    return protocol.PoolList(
        pools=[shapes.pool_info(item) for item in caller.engine.pools.statuses(caller.tenant)]
    )


@router.put("/pools", tags=["pools"], responses=documented(Unsupported))
async def set_pool(caller: CallerDep, body: protocol.SetPool) -> protocol.PoolInfo:
    """Have sandboxes of a template ready; replaces the pool of the same template and isolation. It fills in the background."""
    limits = None
    if body.limits is not None:
        limits = replace(Limits(), **body.limits.model_dump(exclude_none=True))
    status = await caller.engine.pools.set(
        caller.tenant,
        body.template,
        body.size,
        isolation=body.isolation,
        runtime=body.runtime,
        limits=limits,
        idle=body.idle,
    )
    return shapes.pool_info(status)


@router.delete("/pools/{ref}", tags=["pools"], responses=documented())
async def remove_pool(
    caller: CallerDep,
    ref: RefPath,
    isolation: Annotated[Isolation | None, Query(description="Default: all of the template's pools.")] = None,
) -> Done:
    """End a template's pools and remove the sandboxes that wait in them."""
    await caller.engine.pools.remove(caller.tenant, ref, isolation)
    return Done()

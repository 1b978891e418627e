"""Routes of rates."""

from fastapi import APIRouter

from corral.api.context import CallerDep, RefPath
from corral.api.failures import documented
from corral.model.budget import Rates
from corral.model.ids import TenantId
from corral.protocol import rates as protocol

router = APIRouter(prefix="/v1", tags=["budgets"])


def _shown(found: Rates) -> protocol.Rates:
    return protocol.Rates(requests=found.requests, tokens=found.tokens, calls=found.calls)


@router.get("/sandboxes/{ref}/rates", responses=documented())
async def get_rates(caller: CallerDep, ref: RefPath) -> protocol.Rates:
    """How many model calls and tokens a sandbox may use in a minute, and how many calls at a time."""
    return _shown(await caller.engine.budgets.rates_of(caller.tenant, ref))


@router.put("/sandboxes/{ref}/rates", responses=documented())
async def set_rates(caller: CallerDep, ref: RefPath, body: protocol.SetRates) -> protocol.Rates:
    """Change a sandbox's limits at a time, from its next call on."""
    return _shown(await caller.engine.budgets.set_rates(caller.tenant, ref, body.given()))


@router.get("/rates", responses=documented())
async def get_tenant_rates(caller: CallerDep) -> protocol.Rates:
    """The limits at a time of all of the tenant's sandboxes together."""
    return _shown(await caller.engine.budgets.rates_of(caller.tenant, None))


@router.put("/rates", responses=documented())
async def set_tenant_rates(caller: CallerDep, body: protocol.SetTenantRates) -> protocol.Rates:
    """Change a tenant's limits at a time, from the next call on. The operator's only."""
    caller.check_operator("setting the limits of a tenant")
    tenant = caller.tenant if body.tenant is None else TenantId(body.tenant)
    return _shown(await caller.engine.budgets.set_rates(tenant, None, body.given()))

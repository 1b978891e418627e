"""Routes of models: what all of a tenant's sandboxes may use."""

from fastapi import APIRouter

from corral.api.context import CallerDep
from corral.api.failures import documented
from corral.api.grants import model_rules
from corral.model.grants import ModelRules
from corral.model.ids import TenantId
from corral.protocol import grants as protocol

router = APIRouter(prefix="/v1", tags=["grants"])


def _shown(rules: ModelRules) -> protocol.Models:
    return protocol.Models(
        models=list(rules.allow), aliases={alias.asked: alias.sent for alias in rules.aliases}
    )


@router.get("/models", responses=documented())
async def get_models(caller: CallerDep) -> protocol.Models:
    """Which models all of the tenant's sandboxes may use."""
    return _shown(await caller.engine.models.of(caller.tenant))


@router.put("/models", responses=documented())
async def set_models(caller: CallerDep, body: protocol.SetModels) -> protocol.Models:
    """Change which models all of a tenant's sandboxes may use, from the next call on. The operator's only."""
    caller.check_operator("setting the models of a tenant")
    tenant = caller.tenant if body.tenant is None else TenantId(body.tenant)
    old = await caller.engine.models.of(tenant)
    return _shown(await caller.engine.models.change(tenant, model_rules(body.models, body.aliases, old)))

"""Routes of grants."""

from datetime import UTC, datetime
from typing import Literal, cast

from fastapi import APIRouter

from corral.api.context import CallerDep, RefPath
from corral.api.failures import documented
from corral.model.grants import Alias, Grant, ModelRules
from corral.model.sandbox import Sandbox
from corral.protocol import grants as protocol

router = APIRouter(prefix="/v1", tags=["grants"])


def grant_info(found: tuple[Sandbox, Grant]) -> protocol.GrantInfo:
    """A grant as the API shows it."""
    sandbox, grant = found
    return protocol.GrantInfo(
        sandbox=sandbox.id,
        name=sandbox.spec.name,
        state=cast(Literal["good", "revoked", "expired"], grant.state(datetime.now(UTC))),
        secrets=list(grant.secrets),
        models=list(grant.models.allow),
        aliases={alias.asked: alias.sent for alias in grant.models.aliases},
        hosts=[f"{rule.host}:{port}" for rule in sandbox.spec.egress.allowing for port in rule.ports],
        created_at=grant.created_at,
        expires_at=grant.expires_at,
        revoked_at=grant.revoked_at,
        former_until=grant.former_until,
    )


def model_rules(
    allow: list[str] | None, aliases: dict[str, str] | None, base: ModelRules | None = None
) -> ModelRules:
    """Rules of a request over those that hold."""
    old = base or ModelRules()
    return ModelRules(
        old.allow if allow is None else tuple(allow),
        old.aliases if aliases is None else tuple(Alias(asked, sent) for asked, sent in aliases.items()),
    )


@router.get("/grants", responses=documented())
async def list_grants(caller: CallerDep) -> protocol.GrantList:
    """What the tokens of the tenant's sandboxes may be used for."""
    found = await caller.engine.grants.list(caller.tenant)
    return protocol.GrantList(grants=[grant_info(item) for item in found])


@router.get("/sandboxes/{ref}/grant", responses=documented())
async def get_grant(caller: CallerDep, ref: RefPath) -> protocol.GrantInfo:
    """What a sandbox's token may be used for."""
    return grant_info(await caller.engine.grants.show(caller.tenant, ref))


@router.put("/sandboxes/{ref}/grant", responses=documented())
async def change_grant(caller: CallerDep, ref: RefPath, body: protocol.ChangeGrant) -> protocol.GrantInfo:
    """Change what a grant covers; calls under way that it no longer covers are cut."""
    grants = caller.engine.grants
    _, old = await grants.show(caller.tenant, ref)
    given = body.models is not None or body.aliases is not None
    changed = await grants.change(
        caller.tenant,
        ref,
        secrets=body.secrets,
        models=model_rules(body.models, body.aliases, old.models) if given else None,
        expires=body.expires if isinstance(body.expires, int) else None,
        endless=body.expires == "never",
    )
    return grant_info(changed)


@router.post("/sandboxes/{ref}/grant/renew", responses=documented())
async def renew_grant(caller: CallerDep, ref: RefPath, body: protocol.RenewGrant) -> protocol.GrantInfo:
    """Give a sandbox a new token; new processes get it, running ones may use the former for a while."""
    renewed = await caller.engine.grants.renew(caller.tenant, ref, expires=body.expires, overlap=body.overlap)
    return grant_info(renewed)


@router.post("/sandboxes/{ref}/grant/revoke", responses=documented())
async def revoke_grant(caller: CallerDep, ref: RefPath, body: protocol.RevokeGrant) -> protocol.GrantInfo:
    """Take secrets out of a grant, or all that it covers; what is under way with it is cut within a second."""
    return grant_info(await caller.engine.grants.revoke(caller.tenant, ref, body.secrets))

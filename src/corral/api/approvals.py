"""Routes of approvals."""

from typing import Annotated

from fastapi import APIRouter, Path, Query

from corral.api import shapes
from corral.api.context import Caller, CallerDep
from corral.api.failures import documented
from corral.errors import InvalidInput
from corral.model.approval import Status
from corral.protocol import approvals as protocol
from corral.protocol.base import MAX_REF

router = APIRouter(prefix="/v1", tags=["approvals"])

ApprovalPath = Annotated[str, Path(max_length=MAX_REF, description="Id of an approval.")]


@router.get("/approvals", responses=documented())
async def list_approvals(
    caller: CallerDep,
    status: Annotated[Status | None, Query(description="Only those in this status.")] = None,
    sandbox: Annotated[
        str | None, Query(max_length=MAX_REF, description="Only those of this sandbox: its name or id.")
    ] = None,
    standing: Annotated[bool, Query(description="Only those whose yes still allows something.")] = False,
) -> protocol.ApprovalList:
    """The tenant's latest approvals, oldest first; those of removed sandboxes too."""
    approvals = caller.engine.approvals
    if standing:
        if status is not None or sandbox is not None:
            raise InvalidInput("what still stands is listed as a whole", "leave status and sandbox out")
        found = await approvals.standing(caller.tenant)
    else:
        found = await approvals.list(caller.tenant, sandbox, status)
    return protocol.ApprovalList(approvals=[shapes.approval_info(item) for item in found])


@router.get("/approvals/{approval}", responses=documented())
async def get_approval(caller: CallerDep, approval: ApprovalPath) -> protocol.ApprovalInfo:
    """An approval."""
    return shapes.approval_info(await caller.engine.approvals.get(caller.tenant, approval))


@router.post("/approvals/{approval}/approve", responses=documented())
async def approve(caller: CallerDep, approval: ApprovalPath, body: protocol.Approve) -> protocol.ApprovalInfo:
    """Say yes: what was asked happens before the sandbox hears of it. The same answer again changes nothing."""
    approvals = caller.engine.approvals
    answered = await approvals.allow(caller.tenant, approval, scope=body.scope, by=_by(caller, body.by))
    return shapes.approval_info(answered)


@router.post("/approvals/{approval}/deny", responses=documented())
async def deny(caller: CallerDep, approval: ApprovalPath, body: protocol.Deny) -> protocol.ApprovalInfo:
    """Say no, with a reason that the sandbox is told; or take back a yes that still stands."""
    approvals = caller.engine.approvals
    answered = await approvals.deny(caller.tenant, approval, reason=body.reason, by=_by(caller, body.by))
    return shapes.approval_info(answered)


@router.get("/webhook/key", responses=documented())
async def get_webhook_key(caller: CallerDep) -> protocol.WebhookKey:
    """The key that signs calls of the webhook. The operator's only."""
    caller.check_operator("reading the webhook's key")
    return protocol.WebhookKey(key=(await caller.engine.webhook_key()).reveal())


def _by(caller: Caller, said: str) -> str:
    """Who answers: what the client says of itself, and how it came."""
    key = caller.identity.key
    way = "the unix socket" if key is None else f"key {key.id} of tenant {caller.tenant}"
    return f"{said}, by {way}" if said else way

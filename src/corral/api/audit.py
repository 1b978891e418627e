"""Routes of the audit log and of receipts."""

from typing import Annotated

from fastapi import APIRouter, Query

from corral.api import records
from corral.api.context import CallerDep, RefPath
from corral.api.failures import documented
from corral.protocol import audit as protocol
from corral.protocol.base import MAX_REF, Time

router = APIRouter(prefix="/v1", tags=["audit"])


@router.get("/audit", responses=documented())
async def read_audit(
    caller: CallerDep,
    sandbox: Annotated[
        str | None, Query(max_length=MAX_REF, description="Only records of this sandbox: its name or id.")
    ] = None,
    since: Annotated[Time | None, Query(description="Only records from this time on.")] = None,
    after: Annotated[int, Query(ge=0, description="Only records with larger numbers.")] = 0,
) -> protocol.AuditPage:
    """Up to 1,000 of the tenant's records, in order."""
    found = await caller.engine.audit.page(caller.tenant, sandbox, since=since, after=after)
    return protocol.AuditPage(entries=[records.audit_entry(item) for item in found])


@router.get("/audit/check", responses=documented())
async def check_audit(caller: CallerDep) -> protocol.AuditCheck:
    """Check the chain of all records of this host, and the seal on the last one. The operator's only."""
    caller.check_operator("checking the audit log")
    found = await caller.engine.audit.check()
    return protocol.AuditCheck(records=found.records, fault=found.fault, absent=found.absent)


@router.get("/sandboxes/{ref}/receipt", responses=documented())
async def get_receipt(caller: CallerDep, ref: RefPath) -> protocol.Receipt:
    """What a sandbox did, until now or until it was removed."""
    return records.receipt(await caller.engine.audit.receipt(caller.tenant, ref))

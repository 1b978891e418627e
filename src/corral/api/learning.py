"""Routes of learning what a sandbox wants to reach."""

from fastapi import APIRouter

from corral.api.context import CallerDep, RefPath
from corral.api.failures import documented
from corral.model.egress import EgressPolicy
from corral.policy.learning import is_learning
from corral.policy.rules import rule_text
from corral.protocol import learning as protocol

router = APIRouter(prefix="/v1", tags=["egress"])


@router.post("/sandboxes/{ref}/egress/learn", responses=documented())
async def learn_egress(caller: CallerDep, ref: RefPath) -> protocol.LearnedPolicy:
    """Let a sandbox reach any public name, and record which, until it is locked."""
    return _shape(await caller.engine.learning.begin(caller.tenant, ref))


@router.post("/sandboxes/{ref}/egress/lock", responses=documented())
async def lock_egress(
    caller: CallerDep, ref: RefPath, body: protocol.Lock | None = None
) -> protocol.LearnedPolicy:
    """End learning: its policy lists what it has reached. With `dry_run` only say so."""
    learning = caller.engine.learning
    if body is not None and body.dry_run:
        return _shape(await learning.proposal(caller.tenant, ref))
    return _shape(await learning.lock(caller.tenant, ref))


def _shape(policy: EgressPolicy) -> protocol.LearnedPolicy:
    return protocol.LearnedPolicy(
        learning=is_learning(policy),
        rules=[
            protocol.LearnedRule(rule=rule_text(rule), deny=rule.deny, origin=rule.origin)
            for rule in policy.rules
        ],
    )

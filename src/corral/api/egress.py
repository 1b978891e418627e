"""Routes of what sandboxes may reach."""

from fastapi import APIRouter

from corral.api.context import CallerDep, RefPath
from corral.api.failures import documented
from corral.api.sandboxes import check_private
from corral.model.egress import EgressPolicy, HostRule
from corral.policy.presets import PRESETS
from corral.policy.rules import rule_text
from corral.protocol import egress as protocol

router = APIRouter(prefix="/v1", tags=["egress"])


def _rule(rule: HostRule) -> protocol.EgressRule:
    return protocol.EgressRule(rule=rule_text(rule), deny=rule.deny, origin=rule.origin)


def _rules(policy: EgressPolicy) -> protocol.EgressRules:
    return protocol.EgressRules(rules=[_rule(rule) for rule in policy.rules])


@router.get("/sandboxes/{ref}/egress", responses=documented())
async def get_egress(caller: CallerDep, ref: RefPath) -> protocol.EgressRules:
    """All that decides what a sandbox may reach, each rule with its origin."""
    return _rules(caller.engine.egress.show(caller.tenant, ref))


@router.post("/sandboxes/{ref}/egress", responses=documented())
async def change_egress(caller: CallerDep, ref: RefPath, body: protocol.ChangeEgress) -> protocol.EgressRules:
    """Add rules, and take own ones back. It holds at once; connections that may no longer be open are cut."""
    check_private(caller, body.allow)
    changed = await caller.engine.egress.change(
        caller.tenant, ref, tuple(body.allow), tuple(body.deny), tuple(body.remove)
    )
    return _rules(changed)


@router.post("/sandboxes/{ref}/egress/test", responses=documented())
async def check_egress(caller: CallerDep, ref: RefPath, body: protocol.AskEgress) -> protocol.EgressVerdict:
    """Whether a request would be allowed, which is not made."""
    found = await caller.engine.egress.test(caller.tenant, ref, body.method, body.url)
    return protocol.EgressVerdict(
        allowed=found.allowed,
        host=found.host,
        port=found.port,
        rule=None if found.rule is None else _rule(found.rule),
        reason=found.reason,
        why=found.why,
        hint=found.hint,
        inspected=found.inspected,
        secrets=list(found.secrets),
    )


@router.get("/egress/presets", responses=documented())
async def list_presets(caller: CallerDep) -> protocol.PresetList:
    """Lists of hosts that rules can name, each host with its purpose."""
    return protocol.PresetList(
        presets=[
            protocol.Preset(
                name=f"@{name}",
                title=preset.title,
                hosts=[protocol.PresetHost(rules=list(e.rules), purpose=e.purpose) for e in preset.entries],
            )
            for name, preset in PRESETS.items()
        ]
    )

"""Grants, as the audit log is told of them: names, never values."""

from collections.abc import Mapping, Sequence

from corral.model.audit import AuditItem
from corral.model.budget import Window
from corral.model.egress import EgressPolicy
from corral.model.git import RepoGrant
from corral.model.grants import Grant, ModelRules
from corral.model.ids import SandboxId, TenantId
from corral.model.sandbox import SandboxSpec
from corral.policy.rules import rule_text

MOST = 2_000
"""Characters of a list that are told; what a record leaves out, the sandbox's own pages show."""


def told(grant: Grant) -> dict[str, str]:
    """What a token may be used for."""
    detail = {"secrets": ",".join(grant.secrets), **told_models(grant.models)}
    if grant.expires_at is not None:
        detail["expires_at"] = grant.expires_at.isoformat(timespec="seconds")
    if grant.revoked_at is not None:
        detail["revoked"] = "true"
    return detail


def told_models(rules: ModelRules) -> dict[str, str]:
    """Which models may be used."""
    detail = {"models": ",".join(rules.allow)}
    if rules.aliases:
        detail["aliases"] = ",".join(f"{alias.asked}={alias.sent}" for alias in rules.aliases)
    return detail


def given(spec: SandboxSpec, grant: Grant) -> AuditItem | None:
    """What a new sandbox may use and reach; None where that is nothing, or where it is nobody's yet."""
    lists = {
        "allow": [rule_text(rule) for rule in spec.egress.allowing],
        "repos": [_repo(repo) for repo in spec.repos],
    }
    if spec.spare or not (grant.secrets or any(lists.values())):
        return None
    return AuditItem(spec.tenant, spec.id, "grant.create", {**told(grant), **_texts(lists)})


def regiven(spec: SandboxSpec, policy: EgressPolicy, *, rerouted: bool) -> AuditItem:
    """What else a sandbox may reach, and what no more."""
    before, after = spec.egress.rules, policy.rules
    new = [rule for rule in after if rule not in before]
    lists = {
        "allow": [rule_text(rule) for rule in new if not rule.deny],
        "deny": [rule_text(rule) for rule in new if rule.deny],
        "remove": [rule_text(rule) for rule in before if rule not in after],
        "route": ["set"] if rerouted else [],
    }
    return AuditItem(spec.tenant, spec.id, "egress.changed", _texts(lists))


def capped(tenant: TenantId, sandbox: SandboxId | None, window: Window, cap: int | str | None) -> AuditItem:
    """What a sandbox or a tenant may spend, in millionths of a US dollar."""
    told = "none" if cap is None else str(cap)
    return AuditItem(tenant, sandbox, "budget.set", {"window": window.value, "cap": told})


def _texts(lists: Mapping[str, Sequence[str]]) -> dict[str, str]:
    return {name: " ".join(items)[:MOST] for name, items in lists.items() if items}


def _repo(repo: RepoGrant) -> str:
    return f"{repo.name}:{repo.access.value}"

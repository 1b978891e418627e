"""Learning what a sandbox wants to reach, and making a tight policy of it. Pure.

While a sandbox learns, a rule for all names is in its policy, marked by its origin: it is as specific as can be least, so
every other rule and every denial goes before it; metadata services, model APIs, addresses and private networks stay shut.
A secret is put only where it was bound to, so a host that is open by learning alone gets none (G-317).
"""

from collections.abc import Iterable
from dataclasses import replace

from corral.model.audit import AuditEntry
from corral.model.egress import EgressPolicy, HostRule
from corral.policy.egress import canonical_host, literal

ORIGIN = "learning"
LEARNED = "learned"
BEGAN = "egress.learn"
"""The kind of the audit record with which learning begins."""
MAX_LEARNED = 256

_EVERYTHING = HostRule("*", origin=ORIGIN)


def is_learning(policy: EgressPolicy) -> bool:
    """Whether a policy learns."""
    return any(rule.origin == ORIGIN for rule in policy.rules)


def begin(policy: EgressPolicy) -> EgressPolicy:
    """The policy, learning from now on."""
    return policy if is_learning(policy) else replace(policy, rules=(*policy.rules, _EVERYTHING))


def wanted(entries: Iterable[AuditEntry], former: dict[str, set[int]] | None = None) -> dict[str, set[int]]:
    """The hosts and ports that were reached by learning alone, of audit records in order; what was before the last
    beginning does not count. `former` is what earlier records gave."""
    found = dict(former or {})
    for entry in entries:
        if entry.kind == BEGAN:
            found = {}
        elif entry.detail.get("rule") == ORIGIN and entry.detail.get("decision") == "allowed":
            host, port = entry.detail.get("host", ""), entry.detail.get("port", "")
            if host in found or len(found) < MAX_LEARNED:
                found.setdefault(host, set()).add(int(port))
    return found


def lock(policy: EgressPolicy, hosts: dict[str, set[int]]) -> EgressPolicy:
    """The policy without learning, with a rule for each host that was wanted."""
    kept = tuple(rule for rule in policy.rules if rule.origin != ORIGIN)
    learned = tuple(
        HostRule(canonical_host(host), tuple(sorted(ports)), origin=LEARNED)
        for host, ports in sorted(hosts.items())
        if literal(host) is None
    )
    return replace(policy, rules=kept + tuple(rule for rule in learned if rule not in kept))

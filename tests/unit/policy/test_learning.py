"""What a sandbox wanted becomes a tight policy."""

from datetime import UTC, datetime

from corral.model.audit import AuditEntry
from corral.model.egress import EgressPolicy, HostRule
from corral.model.ids import SandboxId, TenantId
from corral.policy.egress import Allowed, Denied, Reason, RuleBook
from corral.policy.learning import BEGAN, LEARNED, MAX_LEARNED, ORIGIN, begin, is_learning, lock, wanted

OWN = EgressPolicy((HostRule("own.com", (443,)), HostRule("evil.com", deny=True)), ("10.0.0.0/8",))


def entry(host: str, port: int = 443, *, kind: str = "gateway.tls", **detail: str) -> AuditEntry:
    given = {"decision": "allowed", "rule": ORIGIN, "host": host, "port": str(port), **detail}
    return AuditEntry(
        1, datetime(2026, 1, 1, tzinfo=UTC), TenantId("t"), SandboxId("0" * 16), kind, given, ""
    )


def test_learning_opens_names_and_nothing_that_must_stay_shut() -> None:
    """G-64, G-185, G-305, G-317."""
    book = RuleBook(begin(OWN))
    found = book.decide("new.com", 443)
    assert isinstance(found, Allowed)
    assert found.rule.origin == ORIGIN
    assert book.name_allowed("new.com")
    assert isinstance(own := book.decide("own.com", 443), Allowed)
    assert own.rule.origin == ""
    for host, reason in (
        ("evil.com", Reason.DENIED),
        ("metadata.google.internal", Reason.METADATA),
        ("api.anthropic.com", Reason.MODEL_API),
        ("93.184.215.14", Reason.LITERAL),
    ):
        denied = book.decide(host, 443)
        assert isinstance(denied, Denied), host
        assert denied.reason is reason
    assert isinstance(book.decide("new.com", 22), Denied)


def test_beginning_twice_is_beginning_once() -> None:
    assert begin(begin(OWN)) == begin(OWN)
    assert is_learning(begin(OWN))
    assert not is_learning(OWN)


def test_what_was_reached_by_learning_alone_is_wanted() -> None:
    records = [
        entry("before.com"),
        entry("", kind=BEGAN, decision=""),
        entry("a.com"),
        entry("a.com", 80, kind="gateway.http"),
        entry("own.com", rule="own.com"),
        entry("refused.com", decision="denied"),
    ]
    assert wanted(records) == {"a.com": {443, 80}}
    assert wanted([entry("b.com")], wanted(records)) == {"a.com": {443, 80}, "b.com": {443}}
    assert len(wanted(entry(f"h{n}.com") for n in range(1000))) == MAX_LEARNED


def test_locking_lists_exactly_what_was_wanted() -> None:
    locked = lock(begin(OWN), {"b.com": {443}, "a.com": {80, 443}, "1.2.3.4": {443}})
    assert not is_learning(locked)
    assert locked.networks == OWN.networks
    assert locked.rules == (
        *OWN.rules,
        HostRule("a.com", (80, 443), origin=LEARNED),
        HostRule("b.com", (443,), origin=LEARNED),
    )
    assert isinstance(RuleBook(locked).decide("new.com", 443), Denied)
    assert lock(lock(begin(OWN), {}), {}) == OWN

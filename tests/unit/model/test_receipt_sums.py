"""Audit records summed up."""

from datetime import UTC, datetime, timedelta

from corral.model.audit import AuditEntry
from corral.model.ids import SandboxId, TenantId
from corral.model.receipt import MAX_DENIED, MAX_PUSHES, Sums

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def entry(kind: str, number: int = 0, **detail: str) -> AuditEntry:
    at = NOW + timedelta(seconds=number)
    return AuditEntry(number, at, TenantId("t"), SandboxId("0" * 16), kind, detail, "")


def test_refusals_are_counted_with_those_that_were_left_out() -> None:
    sums = Sums()
    sums.add(
        [
            entry("gateway.dns", 1, decision="denied", host="a", reason="r"),
            entry("gateway.dns", 2, decision="denied", host="a", reason="r", suppressed="40"),
            entry("gateway.tls", 3, decision="denied", host="b", reason="r"),
            entry("gateway.tls", 4, decision="allowed", host="c"),
            entry("budget.set", 5, cap="1"),
        ]
    )
    first, second = sums.denials()
    assert (first.host, first.count, first.last) == ("a", 42, NOW + timedelta(seconds=2))
    assert (second.kind, second.host, second.count) == ("tls", "b", 1)
    assert (sums.denied, sums.requests) == (43, {"tls": 1})


def test_a_sandbox_cannot_make_a_receipt_of_any_size() -> None:
    sums = Sums()
    sums.add(
        entry("gateway.git", n, decision="denied", method="push", host=f"h{n}", reason="r")
        for n in range(MAX_PUSHES + 500)
    )
    assert (len(sums.pushes), len(sums.denials())) == (MAX_PUSHES, MAX_DENIED)
    assert sums.denied == MAX_PUSHES + 500

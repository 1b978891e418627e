"""Records of decisions at a bounded rate."""

from datetime import UTC, datetime

from corral.gateway.audit import BURST, AuditTrail, TokenBucket
from corral.model.ids import SandboxId, TenantId
from corral.wire.link import AuditRecord


def record(host: str, decision: str = "denied") -> AuditRecord:
    return AuditRecord(
        datetime(2026, 1, 1, tzinfo=UTC), TenantId("t"), SandboxId("s"), "dns", decision, host=host
    )


def test_a_flood_is_counted_and_the_first_of_each_host_is_kept() -> None:
    """G-296, G-330."""
    sent: list[AuditRecord] = []
    trail = AuditTrail(sent.append)
    for _ in range(BURST + 500):
        trail.record(record("a.com"), 100.0)
    assert len(sent) == BURST
    trail.record(record("new.com"), 100.0)
    assert (sent[-1].host, sent[-1].suppressed) == ("new.com", 500)
    trail.record(record("a.com"), 101.0)
    assert (sent[-1].host, sent[-1].suppressed) == ("a.com", 0)


def test_a_bucket_refills_and_a_clock_that_stands_gives_nothing() -> None:
    bucket = TokenBucket(1.0, 2)
    assert [bucket.take(10.0) for _ in range(3)] == [True, True, False]
    assert bucket.take(11.0)
    assert not bucket.take(5.0)

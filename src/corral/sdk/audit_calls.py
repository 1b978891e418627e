"""Requests about what was done and decided."""

from datetime import datetime

from corral.protocol import audit
from corral.sdk.operations import Call, Request, parse, reply
from corral.sdk.requests import get, url


def read_audit(
    ref: str | None = None, *, since: datetime | None = None, after: int = 0
) -> Call[list[audit.AuditEntry]]:
    """Up to 1,000 records of decisions, in order: all, or of one sandbox, from a time on, with numbers above `after`.
    Ask again with the last one's number until none come.
    """
    path = url("audit", sandbox=ref, since=since.isoformat() if since else None, after=after)
    return Call(get(path), lambda body: parse(audit.AuditPage, body).entries)


def check_audit() -> Call[audit.AuditCheck]:
    """Whether any record of this host was altered or removed. Operator only."""
    return Call(Request("GET", url("audit", "check"), timeout=None), reply(audit.AuditCheck))


def receipt(ref: str) -> Call[audit.Receipt]:
    """What a sandbox did, until now or until it was removed: by name or id. Raises NotFound."""
    return Call(get(url("sandboxes", ref, "receipt")), reply(audit.Receipt))

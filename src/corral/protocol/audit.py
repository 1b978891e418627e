"""Shapes of the audit log and of receipts."""

from pydantic import Field

from corral.protocol.approvals import ApprovalInfo
from corral.protocol.base import Reply, Time
from corral.protocol.sandboxes import UsageTotal


class AuditEntry(Reply):
    """A record. What stands in `detail` may be a sandbox's words; it never holds a secret."""

    sequence: int = Field(description="Counts all records of this host; those of others are left out.")
    at: Time
    sandbox: str | None = Field(
        default=None, description="Id of the sandbox that it is about; it may be gone."
    )
    kind: str = Field(examples=["gateway.tls", "approval.allowed", "budget.set"])
    detail: dict[str, str]
    hash: str = Field(description="Covers this record and the one before it.")


class AuditPage(Reply):
    """Records in order. Ask again with `after` set to the last one's number, until none come."""

    entries: list[AuditEntry]


class AuditCheck(Reply):
    """What a check of the whole log found."""

    records: int = Field(description="Records that are sound, from the first one on that is here.")
    fault: str = Field(description="What is wrong after them; empty if nothing is.")
    absent: int = Field(default=0, description="Records that were moved into files which are not here.")


class ChangedFile(Reply):
    """A changed file; lines are null for a binary one."""

    path: str
    added: int | None
    deleted: int | None


class MadeCommit(Reply):
    """A commit that was made in the sandbox."""

    id: str
    author: str
    subject: str


class Work(Reply):
    """What was in the sandbox's repository at a time; all of it is the sandbox's word."""

    taken_at: Time
    files: list[ChangedFile] = Field(description="The first ones.")
    commits: list[MadeCommit] = Field(description="The latest ones.")
    file_count: int
    commit_count: int


class DeniedSum(Reply):
    """Refusals of one kind, to one place, for one reason."""

    kind: str
    host: str
    reason: str
    count: int
    last: Time


class Pushed(Reply):
    """A push that was tried."""

    at: Time
    decision: str
    detail: dict[str, str]


class Receipt(Reply):
    """What one sandbox did, until now or until it was removed."""

    sandbox: str
    name: str
    created_at: Time
    ended_at: Time | None = Field(default=None, description="When it was removed; null while it is there.")
    isolation: str
    runtime: str
    agent: str | None = None
    repo: str | None = None
    branch: str | None = None
    labels: dict[str, str]
    secrets: list[str] = Field(description="Names of the secrets that it could use.")
    work: Work | None = Field(default=None, description="Null without a repository.")
    usage: list[UsageTotal]
    cost: int = Field(description="Of all model calls, in millionths of a US dollar.")
    approvals: list[ApprovalInfo]
    pushes: list[Pushed]
    denied: int = Field(description="All refusals.")
    denials: list[DeniedSum] = Field(description="The same summed up, the most frequent first.")
    requests: dict[str, int] = Field(description="What was let through and recorded, by kind.")

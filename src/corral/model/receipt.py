"""What one sandbox did: the sum of its records, kept when it is gone."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from corral.model.approval import Approval
from corral.model.audit import AuditEntry
from corral.model.ids import SandboxId, TenantId
from corral.model.sandbox import SandboxSpec
from corral.model.usage import UsageTotal

MAX_FILES = 500
MAX_COMMITS = 200
MAX_DENIED = 200
MAX_PUSHES = 500


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """A file that differs from what the sandbox started with; lines are None for a binary file."""

    path: str
    added: int | None
    deleted: int | None


@dataclass(frozen=True, slots=True)
class MadeCommit:
    """A commit that the sandbox's branch has and its start had not."""

    id: str
    author: str
    subject: str


@dataclass(frozen=True, slots=True)
class Work:
    """What was in the sandbox's repository at a time: all of it the sandbox's word. `files` and `commits` are the first
    ones of `file_count` and `commit_count`.
    """

    taken_at: datetime
    files: tuple[ChangedFile, ...] = ()
    commits: tuple[MadeCommit, ...] = ()
    file_count: int = 0
    commit_count: int = 0


@dataclass(frozen=True, slots=True)
class Past:
    """A sandbox as it is remembered. `ended_at` is None while it is there."""

    id: SandboxId
    tenant: TenantId
    name: str
    created_at: datetime
    ended_at: datetime | None
    isolation: str
    runtime: str
    agent: str | None = None
    repo: str | None = None
    branch: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    work: Work | None = None


@dataclass(frozen=True, slots=True)
class DeniedSum:
    """Refusals of one kind, to one place, for one reason."""

    kind: str
    host: str
    reason: str
    count: int
    last: datetime


@dataclass(frozen=True, slots=True)
class Pushed:
    """A push that was tried: what the record of it says."""

    at: datetime
    decision: str
    detail: dict[str, str]


@dataclass(frozen=True, slots=True)
class Receipt:
    """All that is known of what a sandbox did. `requests` counts what its gateway let through and recorded, by kind."""

    sandbox: Past
    usage: tuple[UsageTotal, ...]
    approvals: tuple[Approval, ...]
    pushes: tuple[Pushed, ...]
    denials: tuple[DeniedSum, ...]
    denied: int
    requests: dict[str, int]

    @property
    def cost(self) -> int:
        """Of its model calls, in millionths of a US dollar."""
        return sum(item.cost for item in self.usage)


class Sums:
    """Audit records of one sandbox, summed up as they are read."""

    def __init__(self) -> None:
        self.pushes: list[Pushed] = []
        self.requests: dict[str, int] = {}
        self.denied = 0
        self._denials: dict[tuple[str, str, str], DeniedSum] = {}

    def add(self, entries: Iterable[AuditEntry]) -> None:
        """Count records in."""
        for entry in entries:
            service = entry.kind.removeprefix("gateway.")
            if service == entry.kind:
                continue
            # Records that the gateway left out, since they were too many, are counted by the next one.
            count = 1 + int(entry.detail.get("suppressed", "0") or 0)
            decision = entry.detail.get("decision", "")
            if service == "git" and entry.detail.get("method") == "push":
                self._push(entry, decision)
            if decision == "denied":
                self.denied += count
                self._deny(service, entry, count)
            elif decision == "allowed":
                self.requests[service] = self.requests.get(service, 0) + 1

    def _push(self, entry: AuditEntry, decision: str) -> None:
        if len(self.pushes) < MAX_PUSHES:
            said = ("decision", "method", "suppressed")
            detail = {name: text for name, text in entry.detail.items() if name not in said}
            self.pushes.append(Pushed(entry.at, decision, detail))

    def _deny(self, service: str, entry: AuditEntry, count: int) -> None:
        key = (service, entry.detail.get("host", ""), entry.detail.get("reason", ""))
        former = self._denials.get(key)
        if former is not None or len(self._denials) < MAX_DENIED:
            total = count + (former.count if former else 0)
            self._denials[key] = DeniedSum(*key, total, entry.at)

    def denials(self) -> tuple[DeniedSum, ...]:
        """The most frequent ones first."""
        return tuple(sorted(self._denials.values(), key=lambda item: (-item.count, item.host)))


def past_of(spec: SandboxSpec, work: Work | None = None, ended_at: datetime | None = None) -> Past:
    """What is remembered of a sandbox."""
    return Past(
        id=spec.id,
        tenant=spec.tenant,
        name=spec.name,
        created_at=spec.created_at,
        ended_at=ended_at,
        isolation=spec.isolation.value,
        runtime=spec.runtime,
        agent=spec.agent,
        repo=spec.repo,
        branch=spec.branch,
        labels=spec.labels,
        secrets=spec.secrets,
        work=work,
    )

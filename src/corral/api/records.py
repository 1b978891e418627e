"""From what is on record to the protocol's shapes."""

from corral.api import shapes
from corral.model import audit
from corral.model import receipt as model
from corral.protocol import audit as protocol


def audit_entry(value: audit.AuditEntry) -> protocol.AuditEntry:
    """A record of the audit log."""
    return protocol.AuditEntry(
        sequence=value.sequence,
        at=value.at,
        sandbox=value.sandbox,
        kind=value.kind,
        detail=value.detail,
        hash=value.hash,
    )


def receipt(value: model.Receipt) -> protocol.Receipt:
    """What a sandbox did."""
    past = value.sandbox
    usage = shapes.usage_report(list(value.usage))
    return protocol.Receipt(
        sandbox=past.id,
        name=past.name,
        created_at=past.created_at,
        ended_at=past.ended_at,
        isolation=past.isolation,
        runtime=past.runtime,
        agent=past.agent,
        repo=past.repo,
        branch=past.branch,
        labels=past.labels,
        secrets=list(past.secrets),
        work=None if past.work is None else _work(past.work),
        usage=usage.models,
        cost=usage.cost,
        approvals=[shapes.approval_info(item) for item in value.approvals],
        pushes=[
            protocol.Pushed(at=item.at, decision=item.decision, detail=item.detail) for item in value.pushes
        ],
        denied=value.denied,
        denials=[
            protocol.DeniedSum(
                kind=item.kind, host=item.host, reason=item.reason, count=item.count, last=item.last
            )
            for item in value.denials
        ],
        requests=value.requests,
    )


def _work(value: model.Work) -> protocol.Work:
    return protocol.Work(
        taken_at=value.taken_at,
        files=[
            protocol.ChangedFile(path=item.path, added=item.added, deleted=item.deleted)
            for item in value.files
        ],
        commits=[
            protocol.MadeCommit(id=item.id, author=item.author, subject=item.subject)
            for item in value.commits
        ],
        file_count=value.file_count,
        commit_count=value.commit_count,
    )

"""Queries on approvals and on what they still allow.

A question and its end are written in one transaction with their audit records, and a yes with what it allows: a crash
leaves all of it or nothing.
"""

import hashlib
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, bindparam, delete, desc, insert, select, update

from corral.errors import NotFound
from corral.model.approval import Approval, ApprovalId, Field, Kind, Permission, Question, Scope, Status
from corral.model.budget import Window
from corral.model.ids import SandboxId, TenantId
from corral.store import audit, budgets, schema
from corral.store.instances import own
from corral.store.keys import Keys

SHOWN_IN_AUDIT = 3000
"""Characters of a question's fields as JSON that its audit record repeats; the digest covers all."""
_TEXT_IN_AUDIT = 400

_table, _permissions = schema.approvals, schema.permissions
_ADD = insert(_table)
_SETTLE = (
    update(_table)
    .where(_table.c.id == bindparam("of_id"))
    .values(
        status=bindparam("status"),
        scope=bindparam("scope"),
        reason=bindparam("reason"),
        answered_by=bindparam("answered_by"),
        answered_at=bindparam("answered_at"),
    )
)
_ADD_PERMISSION = insert(_permissions)
_DROP_PERMISSION = delete(_permissions).where(_permissions.c.approval == bindparam("of_id"))
_OWN_PERMISSIONS = (
    select(_permissions)
    .join(_table, _table.c.id == _permissions.c.approval)
    .where(_table.c.instance == bindparam("own"))
    .order_by(_permissions.c.approval)
)
_DROP_OF = delete(_permissions).where(_permissions.c.sandbox == bindparam("sandbox_id"))


def add(db: Connection, keys: Keys, at: datetime, approval: Approval) -> None:
    """Insert a question."""
    question = approval.question
    fields = [[field.name, field.text] for field in question.detail]
    row = {
        "id": approval.id,
        "instance": own(db),
        "tenant": approval.tenant,
        "sandbox": approval.sandbox,
        "name": approval.name,
        "kind": question.kind.value,
        "summary": question.summary,
        "detail": fields,
        "seconds": question.seconds,
        "asked_at": approval.asked_at,
        "deadline": approval.deadline,
        **_answer(approval),
    }
    db.execute(_ADD, row)
    shown = {
        "approval": approval.id,
        "kind": question.kind.value,
        "summary": question.summary,
        "shown": json.dumps(fields)[:SHOWN_IN_AUDIT],
        "sha256": hashlib.sha256(json.dumps(fields).encode()).hexdigest(),
        "deadline": approval.deadline.isoformat(),
    }
    audit.append(db, keys, at, approval.tenant, approval.sandbox, "approval.asked", shown)


def settle(
    db: Connection,
    keys: Keys,
    at: datetime,
    approval: Approval,
    permission: Permission | None,
    cap: int | None,
) -> None:
    """Update how it ended, and replace what it allows."""
    changed = db.execute(_SETTLE, {"of_id": approval.id, **_answer(approval)})
    if changed.rowcount == 0:
        raise NotFound(f"there is no approval {approval.id}", "list them: `corral approvals`")
    db.execute(_DROP_PERMISSION, {"of_id": approval.id})
    detail = {
        "approval": approval.id,
        "kind": approval.question.kind.value,
        "scope": approval.scope.value if approval.scope else "",
        "reason": approval.reason[:_TEXT_IN_AUDIT],
        "by": approval.by,
    }
    if permission is not None:
        db.execute(_ADD_PERMISSION, _permission_values(permission))
        detail["allows"] = permission.subject[:_TEXT_IN_AUDIT]
        detail["until"] = permission.until.isoformat() if permission.until else ""
    if cap is not None:
        budgets.set_cap(db, approval.tenant, approval.sandbox, Window.TOTAL, cap)
        detail["cap"] = str(cap)
    given = {name: text for name, text in detail.items() if text}
    audit.append(db, keys, at, approval.tenant, approval.sandbox, f"approval.{approval.status}", given)


def forget(db: Connection, gone: Sequence[str]) -> None:
    """Forget the questions of sandboxes that are gone, but for those whose answer still holds for others."""
    holding = select(_permissions.c.approval)
    db.execute(delete(_table).where(_table.c.sandbox.in_(gone), _table.c.id.not_in(holding)))


def _answer(approval: Approval) -> dict[str, Any]:
    return {
        "status": approval.status.value,
        "scope": approval.scope.value if approval.scope else None,
        "reason": approval.reason,
        "answered_by": approval.by,
        "answered_at": approval.answered_at,
    }


def _permission_values(permission: Permission) -> dict[str, Any]:
    return {
        "approval": permission.approval,
        "tenant": permission.tenant,
        "sandbox": permission.sandbox,
        "kind": permission.kind.value,
        "subject": permission.subject,
        "until": permission.until,
    }


def get(db: Connection, tenant: TenantId, approval: ApprovalId) -> Approval:
    """One of a tenant's."""
    row = db.execute(select(_table).where(_table.c.id == approval, _table.c.tenant == tenant)).first()
    if row is None:
        raise NotFound(f"there is no approval {str(approval)[:40]!r}", "list them: `corral approvals`")
    return _approval(row)


def select_latest(
    db: Connection, tenant: TenantId | None, sandbox: SandboxId | None, status: Status | None, limit: int
) -> list[Approval]:
    """The latest ones, oldest first."""
    query = select(_table).where(_table.c.instance == own(db))
    if tenant is not None:
        query = query.where(_table.c.tenant == tenant)
    if sandbox is not None:
        query = query.where(_table.c.sandbox == sandbox)
    if status is not None:
        query = query.where(_table.c.status == status.value)
    rows = db.execute(query.order_by(desc(_table.c.asked_at), desc(_table.c.id)).limit(limit)).all()
    return [_approval(row) for row in reversed(rows)]


def permissions(db: Connection) -> list[Permission]:
    """All, in order of approvals."""
    return [
        Permission(
            ApprovalId(row.approval),
            TenantId(row.tenant),
            None if row.sandbox is None else SandboxId(row.sandbox),
            Kind(row.kind),
            row.subject,
            row.until,
        )
        for row in db.execute(_OWN_PERMISSIONS, {"own": own(db)})
    ]


def drop_permissions(db: Connection, sandbox: SandboxId) -> None:
    """Forget what was allowed to a sandbox alone."""
    db.execute(_DROP_OF, {"sandbox_id": sandbox})


def _approval(row: Row[Any]) -> Approval:
    fields = tuple(Field(name, text) for name, text in row.detail)
    return Approval(
        id=ApprovalId(row.id),
        tenant=TenantId(row.tenant),
        sandbox=SandboxId(row.sandbox),
        name=row.name,
        question=Question(Kind(row.kind), row.summary, fields, row.seconds),
        asked_at=row.asked_at,
        deadline=row.deadline,
        status=Status(row.status),
        scope=None if row.scope is None else Scope(row.scope),
        reason=row.reason,
        by=row.answered_by,
        answered_at=row.answered_at,
    )

"""Queries on tenants, sandboxes and their grants."""

from typing import Any

from sqlalchemy import Connection, Row, delete, func, insert, select, update

from corral.engine.ports import Tenant
from corral.errors import Conflict, NoCapacity, NotFound
from corral.model.grants import Grant
from corral.model.ids import GrantId, SandboxId, TenantId
from corral.model.lifecycle import State
from corral.model.sandbox import Sandbox, SandboxSpec
from corral.store import schema, templates
from corral.store.codec import decode, encode

UID_START = 100_000
UIDS = 65_536
"""Host uids of one tenant."""
_UID_END = 2**32 - 1  # the last uid is not one: it means "no user"

_tenants, _sandboxes, _grants = schema.tenants, schema.sandboxes, schema.grants


def tenant(db: Connection, tenant: TenantId, uid_start: int) -> Tenant:
    """The tenant; on first use with the range above all that were ever given out."""
    base = db.scalar(select(_tenants.c.uid_base).where(_tenants.c.tenant == tenant))
    if base is None:
        highest = db.scalar(select(func.max(_tenants.c.uid_base)))
        base = uid_start if highest is None else max(uid_start, highest + UIDS)
        if base + UIDS > _UID_END:
            raise NoCapacity(
                "no range of user ids is left for another tenant", "set a lower first uid, or another host"
            )
        db.execute(insert(_tenants).values(tenant=tenant, uid_base=base))
    return Tenant(tenant, base)


def find_tenant(db: Connection, tenant: TenantId) -> Tenant | None:
    """The tenant, if it has been used."""
    base = db.scalar(select(_tenants.c.uid_base).where(_tenants.c.tenant == tenant))
    return None if base is None else Tenant(tenant, base)


def add(db: Connection, sandbox: Sandbox, grant: Grant) -> None:
    """Insert a sandbox and its grant."""
    spec = sandbox.spec
    holder = db.scalar(
        select(_sandboxes.c.id).where(_sandboxes.c.tenant == spec.tenant, _sandboxes.c.name == spec.name)
    )
    if holder is not None:
        raise Conflict(
            f"the name {spec.name!r} is taken by sandbox {holder}",
            f"choose another, or remove it: corral rm {spec.name}",
        )
    if not templates.exists(db, spec.template):
        raise NotFound(f"there is no template {spec.template}", "list what exists: `corral template ls`")
    db.execute(
        insert(_sandboxes).values(
            id=spec.id,
            tenant=spec.tenant,
            name=spec.name,
            template=spec.template,
            state=sandbox.state.value,
            reason=sandbox.reason,
            exit_code=sandbox.exit_code,
            created_at=spec.created_at,
            changed_at=sandbox.changed_at,
            spec=encode(spec),
        )
    )
    db.execute(
        insert(_grants).values(
            id=grant.id,
            tenant=grant.tenant,
            sandbox=grant.sandbox,
            token_hash=grant.token_hash,
            secrets=list(grant.secrets),
            created_at=grant.created_at,
        )
    )


def set_state(db: Connection, sandbox: Sandbox) -> None:
    """Update what changes in a sandbox's life."""
    changed = db.execute(
        update(_sandboxes)
        .where(_sandboxes.c.id == sandbox.id)
        .values(
            state=sandbox.state.value,
            reason=sandbox.reason,
            exit_code=sandbox.exit_code,
            changed_at=sandbox.changed_at,
        )
    )
    _found(changed.rowcount, sandbox.spec)


def set_spec(db: Connection, spec: SandboxSpec) -> None:
    """Replace the specification; what the other columns repeat of it does not change."""
    changed = db.execute(update(_sandboxes).where(_sandboxes.c.id == spec.id).values(spec=encode(spec)))
    _found(changed.rowcount, spec)


def _found(rows: int, spec: SandboxSpec) -> None:
    if rows == 0:
        raise NotFound(f"there is no sandbox {spec.name!r}")


def remove(db: Connection, sandbox: SandboxId) -> None:
    """Remove a sandbox with its grant, and its template if that was kept for it alone."""
    template = db.scalar(select(_sandboxes.c.template).where(_sandboxes.c.id == sandbox))
    db.execute(delete(_grants).where(_grants.c.sandbox == sandbox))
    db.execute(delete(_sandboxes).where(_sandboxes.c.id == sandbox))
    if template is not None:
        templates.forget_unused(db, template)


def select_all(db: Connection, tenant: TenantId | None) -> list[Sandbox]:
    """All, oldest first, of one tenant or of all."""
    query = select(_sandboxes).order_by(_sandboxes.c.created_at, _sandboxes.c.id)
    if tenant is not None:
        query = query.where(_sandboxes.c.tenant == tenant)
    return [_sandbox(row) for row in db.execute(query)]


def _sandbox(row: Row[Any]) -> Sandbox:
    return Sandbox(
        spec=decode(SandboxSpec, row.spec),
        state=decode(State, row.state),
        changed_at=row.changed_at,
        reason=row.reason,
        exit_code=row.exit_code,
    )


def grant_of(db: Connection, sandbox: SandboxId) -> Grant:
    """The sandbox's grant."""
    row = db.execute(select(_grants).where(_grants.c.sandbox == sandbox)).first()
    if row is None:
        raise NotFound(f"sandbox {sandbox} has no grant")
    return Grant(
        id=GrantId(row.id),
        tenant=TenantId(row.tenant),
        sandbox=SandboxId(row.sandbox),
        token_hash=row.token_hash,
        secrets=tuple(row.secrets),
        created_at=row.created_at,
    )

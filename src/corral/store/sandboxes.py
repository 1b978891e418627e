"""Queries on tenants, sandboxes and their grants.

Statements are made once: building and hashing one costs more than SQLite needs to run it.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, bindparam, delete, func, insert, select, update

from corral.engine.ports import Tenant
from corral.errors import Conflict, NoCapacity, NotFound
from corral.model.grants import Grant, ModelRules
from corral.model.ids import GrantId, SandboxId, TenantId
from corral.model.lifecycle import State
from corral.model.receipt import past_of
from corral.model.sandbox import Sandbox, SandboxSpec
from corral.store import approvals, budgets, past, schema, templates
from corral.store.codec import decode
from corral.store.instances import own
from corral.wire.codec import encode

UID_START = 100_000
UIDS = 65_536
"""Host uids of one tenant."""
_UID_END = 2**32 - 1  # the last uid is not one: it means "no user"

_tenants, _sandboxes, _grants = schema.tenants, schema.sandboxes, schema.grants
_this = _sandboxes.c.id == bindparam("sandbox_id")

_FIND_TENANT = select(_tenants.c.uid_base).where(_tenants.c.tenant == bindparam("tenant"))
_HIGHEST_BASE = select(func.max(_tenants.c.uid_base))
_ADD_TENANT = insert(_tenants)
_HOLDER = select(_sandboxes.c.id, _sandboxes.c.instance).where(
    _sandboxes.c.tenant == bindparam("tenant"), _sandboxes.c.name == bindparam("name")
)
_ADD = insert(_sandboxes)
_ADD_GRANT = insert(_grants)
_SET_GRANT = (
    update(_grants)
    .where(_grants.c.sandbox == bindparam("of_sandbox"))
    .values(
        {
            column: bindparam(column)
            for column in (
                "id",
                "token_hash",
                "secrets",
                "models",
                "expires_at",
                "revoked_at",
                "former_hash",
                "former_until",
            )
        }
    )
)
_GRANTS_OF_TENANT = select(_grants).where(_grants.c.tenant == bindparam("tenant"))
_GRANT_OF = select(_grants).where(_grants.c.sandbox == bindparam("sandbox"))
_SET_STATE = (
    update(_sandboxes)
    .where(_this)
    .values({column: bindparam(column) for column in ("state", "reason", "exit_code", "changed_at")})
)
_SET_SPEC = update(_sandboxes).where(_this).values(spec=bindparam("spec"))
_CLAIMED = ("name", "created_at", "spec", "state", "reason", "exit_code", "changed_at")
_CLAIM = update(_sandboxes).where(_this).values({column: bindparam(column) for column in _CLAIMED})
_ONE = select(_sandboxes).where(_this)
_REMOVE = delete(_sandboxes).where(_this)
_REMOVE_GRANT = delete(_grants).where(_grants.c.sandbox == bindparam("sandbox_id"))
_ALL = (
    select(_sandboxes)
    .where(_sandboxes.c.instance == bindparam("own"))
    .order_by(_sandboxes.c.created_at, _sandboxes.c.id)
)
_ALL_OF = _ALL.where(_sandboxes.c.tenant == bindparam("tenant"))


def tenant(db: Connection, tenant: TenantId, uid_start: int) -> Tenant:
    """The tenant; on first use with the range above all that were ever given out."""
    if found := find_tenant(db, tenant):
        return found
    highest = db.scalar(_HIGHEST_BASE)
    base = uid_start if highest is None else max(uid_start, highest + UIDS)
    if base + UIDS > _UID_END:
        raise NoCapacity(
            "no range of user ids is left for another tenant", "set a lower first uid, or use another host"
        )
    db.execute(_ADD_TENANT, {"tenant": tenant, "uid_base": base})
    return Tenant(tenant, base)


def find_tenant(db: Connection, tenant: TenantId) -> Tenant | None:
    """The tenant, if it has been used."""
    base = db.scalar(_FIND_TENANT, {"tenant": tenant})
    return None if base is None else Tenant(tenant, base)


def add(db: Connection, sandbox: Sandbox, grant: Grant) -> None:
    """Insert a sandbox and its grant."""
    spec = sandbox.spec
    _require_free_name(db, spec)
    if not templates.exists(db, spec.template):
        raise NotFound(f"there is no template {spec.template}", "list what exists: `corral template ls`")
    db.execute(_ADD, {"instance": own(db), **_sandbox_values(sandbox)})
    db.execute(_ADD_GRANT, _grant_values(grant))


def _require_free_name(db: Connection, spec: SandboxSpec) -> None:
    holder = db.execute(_HOLDER, {"tenant": spec.tenant, "name": spec.name}).first()
    if holder is None:
        return
    if holder.instance != own(db):
        raise Conflict(
            f"the name {spec.name!r} is taken by sandbox {holder.id} of another host",
            "choose another, or remove that one there: names are unique over all hosts on one database",
        )
    raise Conflict(
        f"the name {spec.name!r} is taken by sandbox {holder.id}",
        f"choose another, or remove it: corral rm {spec.name}",
    )


def is_free(db: Connection, tenant: TenantId, name: str) -> bool:
    """Whether no sandbox of the tenant has that name, on whatever host."""
    return db.execute(_HOLDER, {"tenant": tenant, "name": name}).first() is None


def claim(db: Connection, sandbox: Sandbox, grant: Grant) -> None:
    """Replace what is said of a sandbox, but for its id and its template, and replace its grant."""
    _require_free_name(db, sandbox.spec)
    values = _sandbox_values(sandbox)
    db.execute(_REMOVE_GRANT, {"sandbox_id": sandbox.id})
    changed = db.execute(_CLAIM, {"sandbox_id": sandbox.id, **{key: values[key] for key in _CLAIMED}})
    _found(changed.rowcount, sandbox.spec)
    db.execute(_ADD_GRANT, _grant_values(grant))


def _sandbox_values(sandbox: Sandbox) -> dict[str, Any]:
    spec = sandbox.spec
    return {
        "id": spec.id,
        "tenant": spec.tenant,
        "name": spec.name,
        "template": spec.template,
        "created_at": spec.created_at,
        "spec": encode(spec),
        **_state_values(sandbox),
    }


def _state_values(sandbox: Sandbox) -> dict[str, Any]:
    return {
        "state": sandbox.state.value,
        "reason": sandbox.reason,
        "exit_code": sandbox.exit_code,
        "changed_at": sandbox.changed_at,
    }


def _grant_values(grant: Grant) -> dict[str, Any]:
    return {
        "id": grant.id,
        "tenant": grant.tenant,
        "sandbox": grant.sandbox,
        "token_hash": grant.token_hash,
        "secrets": list(grant.secrets),
        "created_at": grant.created_at,
        "models": encode(grant.models),
        "expires_at": grant.expires_at,
        "revoked_at": grant.revoked_at,
        "former_hash": grant.former_hash,
        "former_until": grant.former_until,
    }


def set_state(db: Connection, sandbox: Sandbox) -> None:
    """Update what changes in a sandbox's life."""
    changed = db.execute(_SET_STATE, {"sandbox_id": sandbox.id, **_state_values(sandbox)})
    _found(changed.rowcount, sandbox.spec)


def set_spec(db: Connection, spec: SandboxSpec) -> None:
    """Replace the specification; what the other columns repeat of it does not change."""
    changed = db.execute(_SET_SPEC, {"sandbox_id": spec.id, "spec": encode(spec)})
    _found(changed.rowcount, spec)


def _found(rows: int, spec: SandboxSpec) -> None:
    if rows == 0:
        raise NotFound(f"there is no sandbox {spec.name!r}")


def remove(db: Connection, sandbox: SandboxId, now: datetime) -> bool:
    """Remove a sandbox with its grant, its caps and what it was allowed, and its template if that was kept for it alone:
    whether it was."""
    which = {"sandbox_id": sandbox}
    row = db.execute(_ONE, which).first()
    if row is None:
        return False
    if row.state != State.CREATING.value:  # a create that failed leaves nothing
        past.end(db, past_of(decode(SandboxSpec, row.spec)), now)
    template = row.template
    db.execute(_REMOVE_GRANT, which)
    budgets.drop_caps(db, sandbox)
    approvals.drop_permissions(db, sandbox)
    db.execute(_REMOVE, which)
    return templates.forget_unused(db, template)


def select_all(db: Connection, tenant: TenantId | None) -> list[Sandbox]:
    """All, oldest first, of one tenant or of all."""
    mine = {"own": own(db)}
    rows = db.execute(_ALL, mine) if tenant is None else db.execute(_ALL_OF, {**mine, "tenant": tenant})
    return [_sandbox(row) for row in rows]


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
    row = db.execute(_GRANT_OF, {"sandbox": sandbox}).first()
    if row is None:
        raise NotFound(f"sandbox {sandbox} has no grant")
    return _grant(row)


def grants(db: Connection, tenant: TenantId) -> list[Grant]:
    """Those of all of a tenant's sandboxes."""
    return [_grant(row) for row in db.execute(_GRANTS_OF_TENANT, {"tenant": tenant})]


def set_grant(db: Connection, grant: Grant) -> None:
    """Replace a sandbox's grant."""
    values = _grant_values(grant)
    for column in ("tenant", "sandbox", "created_at"):
        del values[column]
    if db.execute(_SET_GRANT, {"of_sandbox": grant.sandbox, **values}).rowcount == 0:
        raise NotFound(f"sandbox {grant.sandbox} has no grant")


def _grant(row: Row[Any]) -> Grant:
    return Grant(
        id=GrantId(row.id),
        tenant=TenantId(row.tenant),
        sandbox=SandboxId(row.sandbox),
        token_hash=row.token_hash,
        secrets=tuple(row.secrets),
        created_at=row.created_at,
        models=decode(ModelRules, row.models),
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        former_hash=row.former_hash,
        former_until=row.former_until,
    )

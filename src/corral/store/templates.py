"""Queries on templates. One that is no longer offered stays as long as a sandbox was made from it."""

from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    bindparam,
    delete,
    func,
    insert,
    not_,
    or_,
    select,
    update,
)
from sqlalchemy import (
    exists as sql_exists,
)

from corral.engine.fingerprint import fingerprint
from corral.errors import NotFound
from corral.model.ids import LayerDigest, TemplateId, TenantId
from corral.model.template import Assignment, Template
from corral.store import schema
from corral.store.codec import decode
from corral.store.instances import own
from corral.wire.codec import encode

KEPT_ASSIGNMENTS = 100
"""Of each name: the last ones, that of now among them."""

_templates, _sandboxes, _assignments = schema.templates, schema.sandboxes, schema.assignments
_this = _templates.c.id == bindparam("template")
_in_use = sql_exists().where(_sandboxes.c.template == _templates.c.id)

_EXISTS = select(_templates.c.id).where(_this)
_DOCUMENT = select(_templates.c.document).where(_this)
_FORGET = delete(_templates).where(_this, not_(_templates.c.current), not_(_in_use))
_own = _templates.c.instance == bindparam("own")
_LAYERS = select(_templates.c.layers).where(_own, or_(_templates.c.current, _in_use))


def add(db: Connection, *templates: Template, shortened: TemplateId | None = None) -> None:
    """Insert them; the current ones of the same tenants and names are replaced. `shortened`: the one that it is with fewer
    layers.
    """
    for template in templates:
        same = (_templates.c.tenant == template.tenant, _templates.c.name == template.name)
        _retire(db, and_(_templates.c.instance == own(db), *same))
        _insert(db, template, current=True)
        if shortened is None:
            _assign(db, template)
        else:
            changed = {"template": template.id, "build": fingerprint(template)}
            db.execute(update(_assignments).where(_assignments.c.template == shortened).values(changed))


def _assign(db: Connection, template: Template) -> None:
    """Note what the name of a template stands for from now on, and forget what it stood for long ago."""
    build, own_tenant = fingerprint(template), _assignments.c.tenant == template.tenant
    mine = and_(_assignments.c.instance == own(db), own_tenant)
    first = db.scalar(select(func.min(_assignments.c.built_at)).where(mine, _assignments.c.build == build))
    db.execute(
        insert(_assignments).values(
            template=template.id,
            instance=own(db),
            tenant=template.tenant,
            name=template.name,
            build=build,
            built_at=first or template.created_at,
            at=template.created_at,
        )
    )
    named = and_(mine, _assignments.c.name == template.name, _assignments.c.template != template.id)
    newest = _assignments.c.at.desc(), _assignments.c.template.desc()
    former = select(_assignments.c.template).where(named).order_by(*newest)
    long_ago = list(db.scalars(former.offset(KEPT_ASSIGNMENTS - 1)))
    if long_ago:
        db.execute(delete(_assignments).where(_assignments.c.template.in_(long_ago)))


def assignments(db: Connection, tenant: TenantId, name: str) -> list[Assignment]:
    """Of a name and all that are that name with a tag, oldest first."""
    named = or_(_assignments.c.name == name, _assignments.c.name.startswith(f"{name}:", autoescape=True))
    rows = db.execute(
        select(_assignments)
        .where(_assignments.c.instance == own(db), _assignments.c.tenant == tenant, named)
        .order_by(_assignments.c.at, _assignments.c.template)
    )
    return [
        Assignment(TemplateId(row.template), row.name, row.build, built_at=row.built_at, at=row.at)
        for row in rows
    ]


def add_hidden(db: Connection, template: Template) -> None:
    """Insert one that is not offered."""
    _insert(db, template, current=False)


def forget_all_unused(db: Connection) -> None:
    """Delete all that are neither offered nor used."""
    unused = (not_(_templates.c.current), not_(_in_use))
    db.execute(delete(_templates).where(_templates.c.instance == own(db), *unused))


def _insert(db: Connection, template: Template, *, current: bool) -> None:
    db.execute(
        insert(_templates).values(
            id=template.id,
            instance=own(db),
            tenant=template.tenant,
            name=template.name,
            current=current,
            created_at=template.created_at,
            layers=list(template.layers),
            document=encode(template),
        )
    )


def remove(db: Connection, *templates: TemplateId) -> None:
    """No longer offer them, and forget what their names stood for."""
    names = select(_templates.c.instance, _templates.c.tenant, _templates.c.name)
    for row in db.execute(names.where(_templates.c.id.in_(templates), _templates.c.current)).all():
        same = (_assignments.c.tenant == row.tenant, _assignments.c.name == row.name)
        db.execute(delete(_assignments).where(_assignments.c.instance == row.instance, *same))
    _retire(db, _templates.c.id.in_(templates))


def _retire(db: Connection, which: ColumnElement[bool]) -> None:
    db.execute(update(_templates).where(which).values(current=False))
    db.execute(delete(_templates).where(which, not_(_in_use)))


def forget_unused(db: Connection, template: TemplateId) -> bool:
    """Delete it if it is neither offered nor used: whether it was."""
    return db.execute(_FORGET, {"template": template}).rowcount > 0


def exists(db: Connection, template: TemplateId) -> bool:
    """Whether it is there, offered or not."""
    return db.scalar(_EXISTS, {"template": template}) is not None


def select_current(db: Connection, tenant: TenantId | None) -> list[Template]:
    """All that are offered, oldest first."""
    query = select(_templates.c.document).where(_templates.c.instance == own(db), _templates.c.current)
    if tenant is not None:
        query = query.where(_templates.c.tenant == tenant)
    rows = db.scalars(query.order_by(_templates.c.created_at, _templates.c.id))
    return [decode(Template, document) for document in rows]


def get(db: Connection, template: TemplateId) -> Template:
    """By id, offered or not."""
    document = db.scalar(_DOCUMENT, {"template": template})
    if document is None:
        raise NotFound(f"there is no template {template}", "list what exists: `corral template ls`")
    return decode(Template, document)


def layers(db: Connection) -> set[LayerDigest]:
    """Layers of all that are offered or used."""
    return {LayerDigest(layer) for row in db.scalars(_LAYERS, {"own": own(db)}) for layer in row}

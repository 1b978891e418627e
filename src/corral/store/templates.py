"""Queries on templates. One that is no longer offered stays as long as a sandbox was made from it."""

from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    bindparam,
    delete,
    insert,
    not_,
    or_,
    select,
    update,
)
from sqlalchemy import (
    exists as sql_exists,
)

from corral.errors import NotFound
from corral.model.ids import LayerDigest, TemplateId, TenantId
from corral.model.template import Template
from corral.store import schema
from corral.store.codec import decode
from corral.store.instances import own
from corral.wire.codec import encode

_templates, _sandboxes = schema.templates, schema.sandboxes
_this = _templates.c.id == bindparam("template")
_in_use = sql_exists().where(_sandboxes.c.template == _templates.c.id)

_EXISTS = select(_templates.c.id).where(_this)
_DOCUMENT = select(_templates.c.document).where(_this)
_FORGET = delete(_templates).where(_this, not_(_templates.c.current), not_(_in_use))
_own = _templates.c.instance == bindparam("own")
_LAYERS = select(_templates.c.layers).where(_own, or_(_templates.c.current, _in_use))


def add(db: Connection, template: Template) -> None:
    """Insert; the current one of the same tenant and name is replaced."""
    same = (_templates.c.tenant == template.tenant, _templates.c.name == template.name)
    _retire(db, and_(_templates.c.instance == own(db), *same))
    _insert(db, template, current=True)


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


def remove(db: Connection, template: TemplateId) -> None:
    """No longer offer it."""
    _retire(db, _templates.c.id == template)


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

"""Snapshots of sandboxes, which are templates."""

import secrets as randomness

from starlette.responses import JSONResponse, Response

from corral.api.e2b.calls import Call
from corral.api.e2b.failures import Refusal, not_there
from corral.api.e2b.listing import page_of
from corral.api.e2b.names import DEFAULT_TAG, alias_of, checked_tag, parse_reference, tag_of, template_id
from corral.api.e2b.references import next_token
from corral.errors import NotFound, UserError
from corral.model.lifecycle import State
from corral.model.template import Template
from corral.protocol.e2b.sandboxes import Snapshot, SnapshotInfo

_CHECKPOINT = "checkpoint:"
_UNNAMED = "snap-"


async def create_snapshot(call: Call) -> Response:
    """A template of the sandbox's files as they are now."""
    sandbox = call.sandbox()
    body = await call.body(Snapshot, optional=True)
    name = f"{_UNNAMED}{sandbox.id}-{randomness.token_hex(4)}"
    if body.name:
        reference = parse_reference(call.tenant, body.name, new=True)
        checked_tag(reference.tag)
        name = reference.name
    try:
        memory = body.memory is not False and call.engine.saves_memory(sandbox)
        memory = memory and sandbox.state in (State.RUNNING, State.PAUSED)
        template = await call.engine.checkpoint(call.tenant, sandbox.id, name, memory=memory)
    except NotFound:
        raise not_there(sandbox.id) from None
    except UserError as error:
        raise Refusal(409 if error.status == 409 else 400, error.message) from None
    return JSONResponse(_shape(template).to_dict(), 201)


def _shape(template: Template) -> SnapshotInfo:
    alias = alias_of(template)
    if (
        alias.startswith(_UNNAMED)
        and tag_of(template) == DEFAULT_TAG
        and len(alias) == len(_UNNAMED) + 16 + 9
    ):
        return SnapshotInfo(snapshot_id=f"{template_id(template.tenant, alias)}:{DEFAULT_TAG}", names=[])
    path = f"{template.tenant}/{alias}"
    return SnapshotInfo(snapshot_id=f"{path}:{tag_of(template)}", names=[path])


async def list_snapshots(call: Call) -> Response:
    """Templates that were made from sandboxes."""
    query = call.request.query_params
    source = query.get("sandboxID")
    found = [
        item
        for item in await call.engine.templates.list(call.tenant)
        if item.source.startswith(_CHECKPOINT)
        and (source is None or (item.origin is not None and item.origin.sandbox_id == source))
    ]
    if name := query.get("name"):
        found = _named(call, found, name)
    page = page_of(found, [(item.created_at, item.id) for item in found], query)
    shown = [_shape(item).to_dict() for item in page.items]
    return JSONResponse(shown, headers=next_token(page.next))


def _named(call: Call, found: list[Template], text: str) -> list[Template]:
    try:
        wanted = parse_reference(call.tenant, text)
    except Refusal as refusal:
        if refusal.status != 404:
            raise
        return []
    return [
        item
        for item in found
        if wanted.alias in (alias_of(item), template_id(item.tenant, alias_of(item)))
        and (":" not in text or tag_of(item) == wanted.tag)
    ]

"""Templates and snapshots of the control plane. Both are Corral's templates; a build is what a template is now."""

import re
import secrets as randomness
import uuid
from typing import Any

from starlette.responses import JSONResponse, Response

from corral.api.e2b.calls import Call
from corral.api.e2b.failures import Refusal, not_supported
from corral.api.e2b.listing import page_of
from corral.errors import CorralError, NotFound, UserError
from corral.model.ids import TenantId
from corral.model.sandbox import MIB, Limits
from corral.model.template import Template
from corral.protocol.e2b.base import ENVD_VERSION
from corral.protocol.e2b.sandboxes import Snapshot, SnapshotInfo

DEFAULT_TAG = "default"
_PART = re.compile(r"[a-z0-9_-]+")
_TAG = re.compile(r"[a-z0-9._-]+")
_CHECKPOINT = "checkpoint:"
_UNNAMED = "snap-"


def template_name(tenant: TenantId, text: str) -> str:
    """The template's name or id in a reference `[namespace/]alias[:tag]`. Raises Refusal."""
    reference = text.strip().lower()
    path, colon, tag = reference.partition(":")
    space, slash, alias = path.rpartition("/")
    bad = not _PART.fullmatch(alias) or (slash and not _PART.fullmatch(space))
    if bad or (colon and not _TAG.fullmatch(tag)):
        raise Refusal(400, f"Invalid template reference: {text[:100]}")
    if slash and space != tenant:
        raise Refusal(404, f"template '{text[:100]}' not found")
    if colon and tag != DEFAULT_TAG:
        raise Refusal(404, f"tag '{tag}' does not exist for template '{path}'")
    return alias


async def find_template(call: Call, text: str) -> Template:
    """The template of a reference. Raises Refusal."""
    try:
        return await call.engine.templates.get(call.tenant, template_name(call.tenant, text))
    except NotFound:
        raise Refusal(404, f"template '{text[:100]}' not found") from None


def _build_id(template: Template) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, template.id))


def _shape(template: Template) -> dict[str, Any]:
    made, limits = template.created_at.isoformat(), Limits()
    return {
        "templateID": template.id,
        "buildID": _build_id(template),
        "cpuCount": int(limits.cpus),
        "memoryMB": limits.memory // MIB,
        "diskSizeMB": limits.disk // MIB,
        "public": False,
        "aliases": [template.name],
        "names": [template.name],
        "createdAt": made,
        "updatedAt": made,
        "createdBy": None,
        "lastSpawnedAt": None,
        "spawnCount": 0,
        "buildCount": 1,
        "envdVersion": ENVD_VERSION,
        "buildStatus": "ready",
    }


async def list_templates(call: Call) -> Response:
    """All templates at once, as the first version of the call."""
    return JSONResponse([_shape(item) for item in await call.engine.templates.list(call.tenant)])


async def page_templates(call: Call) -> Response:
    """Templates in pages, newest first."""
    found = await call.engine.templates.list(call.tenant)
    page = page_of(found, [(item.created_at, item.id) for item in found], call.request.query_params)
    return JSONResponse([_shape(item) for item in page.items], headers=next_token(page.next))


async def get_template(call: Call) -> Response:
    """A template with its one build."""
    template = await find_template(call, call.parameter("id"))
    shape = _shape(template)
    build = {
        key: shape[key]
        for key in ("buildID", "createdAt", "updatedAt", "cpuCount", "memoryMB", "diskSizeMB", "envdVersion")
    }
    builds = [{**build, "status": "ready", "finishedAt": shape["createdAt"]}]
    return JSONResponse({**shape, "builds": builds})


async def get_alias(call: Call) -> Response:
    """Whether there is a template of that name."""
    template = await find_template(call, call.parameter("alias"))
    return JSONResponse({"templateID": template.id, "public": False})


async def list_tags(call: Call) -> Response:
    """A template has the tag `default` and no other."""
    template = await find_template(call, call.parameter("id"))
    made = template.created_at.isoformat()
    return JSONResponse([{"tag": DEFAULT_TAG, "buildID": _build_id(template), "createdAt": made}])


async def delete_template(call: Call) -> Response:
    """Remove a template or a snapshot."""
    template = await find_template(call, call.parameter("id"))
    if any(item.spec.template == template.id for item in call.engine.sandboxes.list(call.tenant)):
        raise Refusal(400, f"template '{template.name}' is used by sandboxes: kill them first")
    await call.engine.templates.remove(call.tenant, template.id)
    return Response(status_code=204)


async def create_snapshot(call: Call) -> Response:
    """A template of the sandbox's files as they are now."""
    sandbox = call.sandbox()
    body = await call.body(Snapshot, optional=True)
    named = template_name(call.tenant, body.name) if body.name else None
    name = named or f"{_UNNAMED}{sandbox.id}-{randomness.token_hex(4)}"
    try:
        template = await call.engine.checkpoint(call.tenant, sandbox.id, name)
    except UserError as error:
        raise Refusal(409 if error.status == 409 else 400, error.message) from None
    return JSONResponse(_snapshot(template).to_dict(), 201)


def _snapshot(template: Template) -> SnapshotInfo:
    if template.name.startswith(_UNNAMED):
        return SnapshotInfo(snapshot_id=f"{template.id}:{DEFAULT_TAG}", names=[])
    path = f"{template.tenant}/{template.name}"
    return SnapshotInfo(snapshot_id=f"{path}:{DEFAULT_TAG}", names=[path])


async def list_snapshots(call: Call) -> Response:
    """Templates that were made from sandboxes."""
    query = call.request.query_params
    prefix = f"{_UNNAMED}{query['sandboxID']}-" if "sandboxID" in query else ""
    found = [
        item
        for item in await call.engine.templates.list(call.tenant)
        if item.source.startswith(_CHECKPOINT) and item.name.startswith(prefix)
    ]
    if name := query.get("name"):
        try:
            wanted = template_name(call.tenant, name)
        except Refusal as refusal:
            if refusal.status != 404:
                raise
            found = []
        else:
            found = [item for item in found if wanted in (item.name, item.id)]
    page = page_of(found, [(item.created_at, item.id) for item in found], query)
    shown = [_snapshot(item).to_dict() for item in page.items]
    return JSONResponse(shown, headers=next_token(page.next))


async def template_ids(call: Call, text: str) -> set[str]:
    """Ids of templates that a filter names; none for an unknown one."""
    if ":" in text:
        raise Refusal(400, "validation error: a template filter has no tag")
    try:
        return {(await find_template(call, text)).id}
    except (Refusal, CorralError):
        return set()


async def no_builds(call: Call) -> Response:
    """Building is the CLI's."""
    raise not_supported("building templates over this API", "use `corral template build` on the host")


def next_token(token: str | None) -> dict[str, str]:
    """The header of a page that is not the last."""
    return {"x-next-token": token} if token else {}

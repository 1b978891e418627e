"""Templates on the control plane: looked up, listed, removed."""

from starlette.responses import JSONResponse, Response

from corral.api.e2b.calls import VISIBLE, Call
from corral.api.e2b.failures import Refusal
from corral.api.e2b.listing import page_of
from corral.api.e2b.names import DEFAULT_TAG, alias_of, build_id, parse_reference, tag_of, template_id
from corral.api.e2b.references import find_template, names_of, next_token, shape_of, templates_of
from corral.api.e2b.shapes import template_of
from corral.engine.templates import BASE
from corral.model.template import Template
from corral.protocol.e2b.templates import UpdateTemplate


async def list_templates(call: Call) -> Response:
    """All templates at once, as the first version of the call."""
    return JSONResponse([shape_of(item, siblings) for item, siblings in await _current(call)])


async def list_default_templates(call: Call) -> Response:
    """Those that are Corral's own, all at once."""
    found = [shape_of(item, siblings) for item, siblings in await _current(call)]
    return JSONResponse([shape for shape in found if shape.get("isDefault")])


async def page_templates(call: Call) -> Response:
    """Templates in pages, newest first."""
    found = await _current(call)
    keys = [(item.created_at, item.id) for item, _ in found]
    page = page_of(found, keys, call.request.query_params)
    shown = [shape_of(item, siblings) for item, siblings in page.items]
    return JSONResponse(shown, headers=next_token(page.next))


async def _current(call: Call) -> list[tuple[Template, list[Template]]]:
    """One build of each alias, the default one, else its newest; and all builds of that alias."""
    found: dict[str, list[Template]] = {}
    for item in await call.engine.templates.list(call.tenant):
        found.setdefault(alias_of(item), []).append(item)
    return [(_default(siblings), siblings) for siblings in found.values()]


def _default(siblings: list[Template]) -> Template:
    return next((item for item in siblings if tag_of(item) == DEFAULT_TAG), siblings[-1])


async def get_template(call: Call) -> Response:
    """A template with its builds in pages, newest first."""
    _, found = await templates_of(call, call.parameter("id"))
    every = list({build_id(item, found): item for item in found}.values())
    page = page_of(every, [(item.created_at, item.id) for item in every], call.request.query_params)
    parts = ("buildID", "createdAt", "updatedAt", "cpuCount", "memoryMB", "diskSizeMB", "envdVersion")
    shapes = [shape_of(item, found) for item in page.items]
    told = [
        {**{key: shape[key] for key in parts}, "status": "ready", "finishedAt": shape["createdAt"]}
        for shape in shapes
    ]
    return JSONResponse({**shape_of(_default(found), found), "builds": told}, headers=next_token(page.next))


async def get_alias(call: Call) -> Response:
    """Whether there is a template of that name."""
    alias = await _alias(call, call.parameter("alias"))
    return JSONResponse({"templateID": template_id(call.tenant, alias), "public": False})


async def update_template_v1(call: Call) -> Response:
    """The same for old clients, which are told nothing."""
    await update_template(call)
    return JSONResponse(None)


async def update_template(call: Call) -> Response:
    """Templates belong to their tenant: they cannot be made public."""
    alias = await _alias(call, call.parameter("id"))
    if (await call.body(UpdateTemplate, optional=True)).public:
        raise Refusal(400, "templates of Corral belong to one tenant: they cannot be public")
    return JSONResponse({"names": [alias]})


async def _alias(call: Call, text: str) -> str:
    """The alias of the template that a client names; a tag must be one of its own. Raises Refusal."""
    if parse_reference(call.tenant, text).name == BASE:
        return BASE  # it is built by the first create from it
    if ":" in text:
        return alias_of(await find_template(call, text))
    return alias_of((await templates_of(call, text))[1][0])


async def delete_template(call: Call) -> Response:
    """Remove a template with all its tags, or the one tag that is named."""
    text = call.parameter("id")
    reference, found = await templates_of(call, text)
    names = names_of(call.tenant, found)
    if ":" in text and reference.tag != DEFAULT_TAG:
        found = [await find_template(call, text)]
        names = {found[0].id}
    sandboxes = [item for item in call.engine.sandboxes.list(call.tenant) if item.state in VISIBLE]
    if any(item.spec.template in names or template_of(item) in names for item in sandboxes):
        raise Refusal(400, f"template '{reference.alias}' is used by sandboxes: kill them first")
    await call.engine.templates.remove(call.tenant, *(item.id for item in found))
    return Response(status_code=204)

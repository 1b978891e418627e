"""Tags of templates on the control plane: which there are, what they point to, and what they pointed to before."""

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from starlette.responses import JSONResponse, Response

from corral.api.e2b.calls import Call
from corral.api.e2b.failures import Refusal
from corral.api.e2b.listing import page_by, page_size
from corral.api.e2b.names import (
    DEFAULT_TAG,
    Reference,
    alias_of,
    build_id,
    checked_tag,
    computed_build_id,
    is_build,
    parse_reference,
    tag_in,
    tag_of,
)
from corral.api.e2b.references import find_template, templates_of
from corral.model.ids import TenantId
from corral.model.template import Assignment, Template
from corral.protocol.e2b.templates import AssignTags, DeleteTags

_SORTS = ("latest_asc", "latest_desc", "name_asc", "name_desc")


async def list_tags(call: Call) -> Response:
    """What tags a template has."""
    _, found = await templates_of(call, call.parameter("id"))
    return JSONResponse(
        [
            {"tag": tag_of(item), "buildID": build_id(item, found), "createdAt": item.created_at.isoformat()}
            for item in _tagged(found)
        ]
    )


async def count_tags(call: Call) -> Response:
    """How many."""
    _, found = await templates_of(call, call.parameter("id"))
    return JSONResponse({"total": len(_tagged(found))})


async def has_tag(call: Call) -> Response:
    """Whether a template has one."""
    _, found = await templates_of(call, call.parameter("id"))
    tag = checked_tag(call.request.query_params.get("tag", ""))
    return JSONResponse({"exists": tag in map(tag_of, found), "normalizedTag": tag})


def _tagged(siblings: list[Template]) -> list[Template]:
    """Those that clients gave a tag; a build alone has none."""
    return [item for item in siblings if not is_build(tag_of(item))]


async def assign_tags(call: Call) -> Response:
    """Let tags point to a build."""
    body = await call.body(AssignTags)
    if not body.tags:
        raise Refusal(400, "validation error: tags: at least one is needed")
    tags = [checked_tag(tag) for tag in body.tags]
    template = await find_template(call, body.target)
    names = [Reference(alias_of(template), tag).name for tag in tags]
    await call.engine.templates.tag(call.tenant, template.id, *names)
    _, found = await templates_of(call, alias_of(template))
    return JSONResponse({"tags": tags, "buildID": build_id(template, found)}, 201)


async def delete_tags(call: Call) -> Response:
    """Take tags away from a template."""
    body = await call.body(DeleteTags)
    if ":" in body.name or not body.tags:
        raise Refusal(400, "validation error: the name has no tag, and tags has at least one")
    tags = {checked_tag(tag) for tag in body.tags}
    if DEFAULT_TAG in tags:
        raise Refusal(400, f"the tag '{DEFAULT_TAG}' cannot be removed")
    parse_reference(call.tenant, body.name)
    _, found = await templates_of(call, body.name)
    for missing in tags - {tag_of(item) for item in found}:
        raise Refusal(404, f"tag '{missing}' does not exist for template '{body.name[:100]}'")
    await call.engine.templates.remove(call.tenant, *(item.id for item in found if tag_of(item) in tags))
    return Response(status_code=204)


# -- what they pointed to -------------------------------------------------------------------------------------------


async def tag_groups(call: Call) -> Response:
    """Tags in pages, each with the builds that it was given last."""
    query = call.request.query_params
    sort = query.get("sort", "latest_desc")
    if sort not in _SORTS:
        raise Refusal(400, f"validation error: sort is one of {', '.join(_SORTS)}")
    search = query.get("search", "").strip().lower()
    most = page_size(query, "assignmentLimit")
    history = await _History.of(call)
    keys = {
        tag: (tag,) if sort.startswith("name") else (_written(given[0].at), tag)
        for tag, given in history.by_tag.items()
        if search in tag
    }
    page = page_by(keys, sort, page_size(query, "tagsLimit"), query.get("tagsCursor"))
    told = []
    for tag in page.items:
        given = history.by_tag[tag]
        shapes = [history.shape(item) for item in given[:most]]
        told.append({"tag": tag, "assignments": shapes, "hasMore": len(given) > most})
    return JSONResponse({"tags": told, "nextCursor": page.next})


async def tag_assignments(call: Call) -> Response:
    """The builds that a tag was given, in pages, the last one first."""
    query, tag = call.request.query_params, checked_tag(call.parameter("tag"))
    history = await _History.of(call)
    if tag not in history.by_tag:
        raise Refusal(404, f"tag '{tag}' does not exist for template '{call.parameter('id')[:100]}'")
    given = {str(item.template): item for item in history.by_tag[tag]}
    keys = {name: (_written(item.at), name) for name, item in given.items()}
    page = page_by(keys, "latest_desc", page_size(query, "limit"), query.get("cursor"))
    shown = [history.shape(given[name]) for name in page.items]
    return JSONResponse({"data": shown, "nextCursor": page.next})


class _History:
    """What the tags of a template pointed to, the last first. A build's id is a tag of it too, but none to show."""

    def __init__(self, alias: str, tenant: TenantId, assignments: Sequence[Assignment]) -> None:
        self._alias = alias
        self._tenant = tenant
        self.by_tag: dict[str, list[Assignment]] = {}
        self._builds: dict[str, str] = {}
        for item in assignments:
            tag = tag_in(item.name)
            if is_build(tag):
                self._builds[item.build] = tag
            else:
                self.by_tag.setdefault(tag, []).insert(0, item)

    @classmethod
    async def of(cls, call: Call) -> "_History":
        """Of the template that the path names. Raises Refusal."""
        _, found = await templates_of(call, call.parameter("id"))
        alias = alias_of(found[0])
        return cls(alias, call.tenant, await call.engine.templates.history(call.tenant, alias))

    def shape(self, item: Assignment) -> dict[str, Any]:
        """An assignment as clients are told of it."""
        build = self._builds.get(item.build) or computed_build_id(self._tenant, self._alias, item.build)
        return {
            "assignmentId": str(uuid.uuid5(uuid.NAMESPACE_OID, item.template)),
            "buildId": build,
            "assignedAt": item.at.isoformat(),
            "buildCreatedAt": item.built_at.isoformat(),
            "buildFinishedAt": item.built_at.isoformat(),
        }


def _written(moment: datetime) -> str:
    """In the order of time."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")

"""Templates as E2B's clients name them, and what they are told of them."""

from collections.abc import Sequence
from typing import Any

from corral.api.e2b.calls import Call
from corral.api.e2b.failures import Refusal
from corral.api.e2b.names import Reference, alias_of, build_id, is_named, parse_reference, tag_of, template_id
from corral.model.sandbox import MIB, Limits
from corral.model.template import Template
from corral.protocol.e2b.base import ENVD_VERSION


async def templates_of(call: Call, text: str) -> tuple[Reference, list[Template]]:
    """All builds of the template that a client names by alias or id. Raises Refusal."""
    reference = parse_reference(call.tenant, text)
    every = await call.engine.templates.list(call.tenant)
    found = [item for item in every if is_named(item, reference.alias)]
    if not found:
        raise Refusal(404, f"template '{text[:100]}' not found")
    return reference, found


async def find_template(call: Call, text: str) -> Template:
    """The build that a client names. Raises Refusal."""
    reference, found = await templates_of(call, text)
    for template in found:
        if tag_of(template) == reference.tag or template.id == reference.alias:
            return template
    raise Refusal(404, f"tag '{reference.tag}' does not exist for template '{reference.alias}'")


async def template_ids(call: Call, text: str) -> set[str]:
    """Ids, in Corral, of the builds that a filter names; none for an unknown one. Raises Refusal."""
    if ":" in text:
        raise Refusal(400, "validation error: a template filter has no tag")
    try:
        return {item.id for item in (await templates_of(call, text))[1]}
    except Refusal as refusal:
        if refusal.status != 404:
            raise
        return set()


def shape_of(template: Template, siblings: Sequence[Template]) -> dict[str, Any]:
    """A template as clients are told of it."""
    made, alias = template.created_at.isoformat(), alias_of(template)
    limits = template.config.limits or Limits()
    return {
        "templateID": template_id(template.tenant, alias),
        "buildID": build_id(template, siblings),
        "cpuCount": int(limits.cpus),
        "memoryMB": limits.memory // MIB,
        "diskSizeMB": limits.disk // MIB,
        "public": False,
        "aliases": [alias],
        "names": [alias],
        "createdAt": made,
        "updatedAt": made,
        "createdBy": None,
        "lastSpawnedAt": None,
        "spawnCount": 0,
        "buildCount": len({build_id(item, siblings) for item in siblings}),
        "envdVersion": ENVD_VERSION,
        "buildStatus": "ready",
    }


def next_token(token: str | None) -> dict[str, str]:
    """The header of a page that is not the last."""
    return {"x-next-token": token} if token else {}

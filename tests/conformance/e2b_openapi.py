"""E2B's control plane as an OpenAPI document, of Corral's own shapes: what requests may hold, and what answers must.

E2B has one of its own, which is not ours to publish. This one is for programs that try the daemon with what it describes.
"""

import re
from collections.abc import Iterable
from typing import Any

from corral.api.e2b.app import _ROUTES, _build_routes
from corral.protocol.e2b import sandboxes, templates, volumes
from corral.protocol.e2b.base import Wire

Schema = dict[str, Any]
_REFUSALS = ("400", "401", "403", "404", "405", "409", "413", "429", "501", "503", "507")
_ERROR: Schema = {
    "type": "object",
    "required": ["code", "message"],
    "properties": {"code": {"type": "integer"}, "message": {"type": "string"}},
}


def _object(*required: str) -> Schema:
    return {"type": "object", "required": list(required)}


def _list(of: Schema) -> Schema:
    return {"type": "array", "items": of}


def _map(name: str) -> Schema:
    return {"type": "object", "required": [name], "properties": {name: {"type": "object"}}}


def _query(**schemas: Schema) -> list[Schema]:
    return [{"name": name, "in": "query", "schema": schema} for name, schema in schemas.items()]


_LIMIT: Schema = {"type": "integer", "minimum": 1, "maximum": 100}
_MOMENT: Schema = {"type": "integer", "minimum": 0, "maximum": 10**12}
_TEXT: Schema = {"type": "string"}
_LEVEL: Schema = {"enum": ["debug", "info", "warn", "error"]}
_DIRECTION: Schema = {"enum": ["forward", "backward"]}
_LISTED = (
    "templateID", "sandboxID", "clientID", "startedAt", "endAt", "cpuCount", "memoryMB", "diskSizeMB", "state", "envdVersion",
)  # fmt: skip
_TEMPLATE = (
    "templateID", "buildID", "cpuCount", "memoryMB", "diskSizeMB", "public", "aliases", "names", "createdAt", "updatedAt",
    "createdBy", "lastSpawnedAt", "spawnCount", "buildCount", "envdVersion", "buildStatus",
)  # fmt: skip
_REGISTERED = ("templateID", "buildID", "public", "names", "tags", "aliases")
_LEGACY = tuple(name for name in _TEMPLATE if name not in ("names", "buildStatus"))
_LOGS = {
    "type": "object",
    "required": ["logs"],
    "properties": {"logs": _list(_object("timestamp", "message", "level"))},
}
_OLD_LOGS = _object("logs", "logEntries")
_BUILD = _object("templateID", "buildID", "status", "logs", "logEntries")
_EITHER = {"oneOf": [_object("sandbox"), _object("error")]}
_METRIC = _object(
    "timestamp",
    "timestampUnix",
    "cpuCount",
    "cpuUsedPct",
    "memUsed",
    "memTotal",
    "memCache",
    "diskUsed",
    "diskTotal",
)
_SANDBOX = _object("templateID", "sandboxID", "clientID", "envdVersion")
_NAMED = _object("templateID", "public")
_ASSIGNMENT = _object("assignmentId", "buildId", "assignedAt", "buildCreatedAt", "buildFinishedAt")
_GROUPS = {
    "type": "object",
    "required": ["tags", "nextCursor"],
    "properties": {
        "tags": _list(
            {
                "type": "object",
                "required": ["tag", "assignments", "hasMore"],
                "properties": {"assignments": _list(_ASSIGNMENT)},
            }
        )
    },
}
_ASSIGNMENTS = {
    "type": "object",
    "required": ["data", "nextCursor"],
    "properties": {"data": _list(_ASSIGNMENT)},
}
_FILTERS = _query(
    metadata=_TEXT,
    state={"type": "array", "items": {"enum": ["running", "paused"]}},
    order={"enum": ["asc", "desc"]},
    limit=_LIMIT,
    nextToken=_TEXT,
    template=_TEXT,
    startedAfter={"type": "string", "format": "date-time"},
)
_LIFE: Schema = {"type": "integer", "minimum": 600, "maximum": 86_400}
"""Seconds that what is tried lives at least, once it is asked for a timeout."""

DESCRIBED: dict[tuple[str, str], tuple[type[Wire] | None, dict[int, Schema | None], list[Schema]]] = {
    ("POST", "/sandboxes"): (sandboxes.NewSandbox, {201: _SANDBOX}, []),
    ("POST", "/v2/sandboxes"): (sandboxes.NewSandbox, {201: _SANDBOX}, []),
    ("GET", "/sandboxes"): (None, {200: _list(_object(*_LISTED))}, _query(metadata=_TEXT)),
    ("GET", "/v2/sandboxes"): (None, {200: _list(_object(*_LISTED))}, _FILTERS),
    ("GET", "/sandboxes/metrics"): (None, {200: _map("sandboxes")}, _query(sandbox_ids=_TEXT)),
    ("GET", "/sandboxes/{sandboxID}"): (None, {200: _object(*_LISTED)}, []),
    ("POST", "/sandboxes/{sandboxID}/refreshes"): (sandboxes.Refresh, {204: None}, []),
    ("GET", "/sandboxes/{sandboxID}/metrics"): (
        None,
        {200: _list(_METRIC)},
        _query(start=_MOMENT, end=_MOMENT),
    ),
    ("GET", "/sandboxes/{sandboxID}/logs"): (None, {200: _OLD_LOGS}, _query(start=_MOMENT, limit=_LIMIT)),
    ("GET", "/v2/sandboxes/{sandboxID}/logs"): (
        None,
        {200: _LOGS},
        _query(cursor=_MOMENT, limit=_LIMIT, direction=_DIRECTION, level=_LEVEL, search=_TEXT),
    ),
    ("PUT", "/sandboxes/{sandboxID}/network"): (sandboxes.NetworkUpdate, {204: None}, []),
    ("POST", "/sandboxes/{sandboxID}/connect"): (sandboxes.Connect, {200: _SANDBOX, 201: _SANDBOX}, []),
    ("POST", "/v2/sandboxes/{sandboxID}/connect"): (sandboxes.Connect, {200: _SANDBOX, 201: _SANDBOX}, []),
    ("POST", "/sandboxes/{sandboxID}/pause"): (sandboxes.Pause, {204: None}, []),
    ("POST", "/sandboxes/{sandboxID}/fork"): (sandboxes.Fork, {201: _list(_EITHER)}, []),
    ("POST", "/sandboxes/{sandboxID}/snapshots"): (
        sandboxes.Snapshot,
        {201: _object("snapshotID", "names")},
        [],
    ),
    ("GET", "/snapshots"): (
        None,
        {200: _list(_object("snapshotID", "names"))},
        _query(sandboxID=_TEXT, name=_TEXT, limit=_LIMIT, nextToken=_TEXT),
    ),
    ("POST", "/volumes"): (volumes.NewVolume, {201: _object("volumeID", "name", "token")}, []),
    ("GET", "/volumes"): (None, {200: _list(_object("volumeID", "name"))}, []),
    ("GET", "/volumes/{volumeID}"): (None, {200: _object("volumeID", "name", "token")}, []),
    ("DELETE", "/volumes/{volumeID}"): (None, {204: None}, []),
    ("GET", "/templates"): (None, {200: _list(_object(*_TEMPLATE))}, _query(teamID=_TEXT)),
    ("GET", "/default-templates"): (None, {200: _list(_object(*_TEMPLATE))}, []),
    ("GET", "/v2/templates"): (
        None,
        {200: _list(_object(*_TEMPLATE))},
        _query(limit=_LIMIT, nextToken=_TEXT),
    ),
    ("GET", "/templates/aliases/{alias}"): (None, {200: _NAMED}, []),
    ("POST", "/templates/tags"): (templates.AssignTags, {201: _object("tags", "buildID")}, []),
    ("DELETE", "/templates/tags"): (templates.DeleteTags, {204: None}, []),
    ("GET", "/templates/{templateID}"): (
        None,
        {200: _object(*_TEMPLATE, "builds")},
        _query(limit=_LIMIT, nextToken=_TEXT),
    ),
    ("PATCH", "/v2/templates/{templateID}"): (templates.UpdateTemplate, {200: _object("names")}, []),
    ("PATCH", "/templates/{templateID}"): (templates.UpdateTemplate, {200: {"type": "null"}}, []),
    ("GET", "/templates/{templateID}/tags"): (None, {200: _list(_object("tag", "buildID", "createdAt"))}, []),
    ("GET", "/templates/{templateID}/tags/count"): (None, {200: _object("total")}, []),
    ("GET", "/templates/{templateID}/tags/exists"): (
        None,
        {200: _object("exists", "normalizedTag")},
        _query(tag=_TEXT),
    ),
    ("GET", "/templates/{templateID}/tags/groups"): (
        None,
        {200: _GROUPS},
        _query(
            assignmentLimit=_LIMIT,
            tagsLimit=_LIMIT,
            tagsCursor=_TEXT,
            search=_TEXT,
            sort={"enum": ["latest_asc", "latest_desc", "name_asc", "name_desc"]},
        ),
    ),
    ("GET", "/templates/{templateID}/tags/{tag}/assignments"): (
        None,
        {200: _ASSIGNMENTS},
        _query(cursor=_TEXT, limit=_LIMIT),
    ),
    ("POST", "/v2/templates"): (templates.NewTemplate, {202: _object(*_LEGACY)}, []),
    ("POST", "/v3/templates"): (templates.NewTemplate, {202: _object(*_REGISTERED)}, []),
    ("GET", "/templates/{templateID}/files/{hash}"): (None, {201: _object("present", "url")}, []),
    ("GET", "/templates/{built}/builds/{buildID}/status"): (
        None,
        {200: _BUILD},
        _query(logsOffset=_MOMENT, limit=_LIMIT, level=_LEVEL),
    ),
    ("GET", "/templates/{built}/builds/{buildID}/logs"): (
        None,
        {200: _LOGS},
        _query(cursor=_MOMENT, limit=_LIMIT, direction=_DIRECTION, level=_LEVEL, source=_TEXT),
    ),
}
"""By method and path: the request's shape, what answers of each status hold at least, and what a query may say."""
LEFT_OUT = {
    "end what is tried": [
        ("DELETE", "/sandboxes/{id}"),
        ("POST", "/sandboxes/{id}/timeout"),
        ("POST", "/sandboxes/{id}/resume"),
        ("DELETE", "/templates/{id}"),
    ],
    "builds for minutes": [("POST", "/v2/templates/{id}/builds/{build}")],
    "only refuse": [
        ("POST", "/templates"),
        ("POST", "/templates/{id}"),
        ("POST", "/templates/{id}/builds/{build}"),
    ],
}


def routes() -> set[tuple[str, str]]:
    """All that the control plane serves, without what parameters are called."""
    own: Iterable[tuple[str, str, Any]] = (*_ROUTES, *_build_routes(_Anything()))  # type: ignore[arg-type]
    return {(method, plain(path)) for method, path, _ in own}


def plain(path: str) -> str:
    """A path without the names of its parameters."""
    return re.sub(r"\{\w+\}", "{}", path)


class _Anything:
    def __getattr__(self, name: str) -> str:
        return name


def document(known: dict[str, str]) -> Schema:
    """The document. `known`: what the parameters of paths are, by name; others may be anything."""
    shapes: Schema = {}
    paths: dict[str, Schema] = {}
    for (method, path), (request, answers, query) in DESCRIBED.items():
        named = re.findall(r"\{(\w+)\}", path)
        parameters = [
            {
                "name": name,
                "in": "path",
                "required": True,
                "schema": {"enum": [known[name]]} if name in known else {"type": "string", "minLength": 1},
            }
            for name in named
        ]
        refused = {status: {"description": "a refusal", "content": _json(_ERROR)} for status in _REFUSALS}
        done = {
            str(status): {"description": "done", **({"content": _json(schema)} if schema is not None else {})}
            for status, schema in answers.items()
        }
        operation: Schema = {
            "operationId": f"{method} {path}",
            "parameters": [*parameters, *query],
            "responses": {**done, **refused},
        }
        if request is not None:
            operation["requestBody"] = {"required": True, "content": _json(_shape(request, shapes))}
        paths.setdefault(path, {})[method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "E2B's control plane, as Corral serves it", "version": "1"},
        "paths": paths,
        "components": {"schemas": shapes},
    }


def _json(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}


def _shape(model: type[Wire], shapes: Schema) -> Schema:
    """A reference to a model's schema, which is put into `shapes` with all that it refers to."""
    made = model.model_json_schema(by_alias=True, ref_template="#/components/schemas/{model}")
    shapes.update(made.pop("$defs", {}))
    if "timeout" in made["properties"]:
        made["properties"]["timeout"] = _LIFE
    shapes[model.__name__] = made
    return {"$ref": f"#/components/schemas/{model.__name__}"}

"""The log of a sandbox: which processes were started in it, and what the audit log holds about it, such as what the gateway
refused. What processes print goes to those who run them.
"""

import contextlib
import json
import shlex
from datetime import UTC, datetime, timedelta
from typing import Any

from starlette.responses import JSONResponse, Response

from corral.api.e2b.calls import Call, digits
from corral.api.e2b.failures import Refusal
from corral.engine.audit import PAGE
from corral.errors import Conflict, NotFound
from corral.model.audit import AuditEntry
from corral.model.process import ProcessInfo
from corral.model.sandbox import Sandbox
from corral.protocol.e2b.sandboxes import LogEntry

MAX_LIMIT = 1000
MAX_PAGES = 20
"""Pages of the audit log that are read for one answer."""
MAX_SEARCH = 256
LEVELS = ("debug", "info", "warn", "error")


async def logs_v1(call: Call) -> Response:
    """From a moment on, oldest first, each entry also as a line of JSON."""
    entries = await _entries(call, call.sandbox(), moment_of(call, "start"))
    shown = entries[: limit_of(call, MAX_LIMIT)]
    lines = [{"timestamp": entry.to_dict()["timestamp"], "line": _line(entry)} for entry in shown]
    return JSONResponse({"logs": lines, "logEntries": [entry.to_dict() for entry in shown]})


async def logs_v2(call: Call) -> Response:
    """From a moment on in either direction, of some level and above, with some text in them."""
    backward, levels = is_backward(call), levels_of(call)
    search = call.request.query_params.get("search", "")
    if len(search) > MAX_SEARCH:
        raise Refusal(400, f"validation error: search has more than {MAX_SEARCH} characters")
    limit, cursor, sandbox = limit_of(call, MAX_LIMIT), moment_of(call, "cursor"), call.sandbox()
    entries = await _entries(call, sandbox, None if backward else cursor)
    if backward:
        entries = [entry for entry in reversed(entries) if cursor is None or entry.timestamp <= cursor]
    found = [entry for entry in entries if entry.level in levels and search in entry.message]
    return JSONResponse({"logs": [entry.to_dict() for entry in found[:limit]]})


async def _entries(call: Call, sandbox: Sandbox, since: datetime | None) -> list[LogEntry]:
    """All from a moment on, oldest first."""
    found = [_audited(entry) for entry in await _audit(call, sandbox, since)]
    with contextlib.suppress(Conflict, NotFound):  # it is not up
        found += [_started(info) for info in call.engine.processes.list(call.tenant, sandbox.id)]
    return sorted(
        (entry for entry in found if since is None or entry.timestamp >= since),
        key=lambda entry: entry.timestamp,
    )


async def _audit(call: Call, sandbox: Sandbox, since: datetime | None) -> list[AuditEntry]:
    found: list[AuditEntry] = []
    for _ in range(MAX_PAGES):
        after = found[-1].sequence if found else 0
        page = await call.engine.audit.page(call.tenant, sandbox.id, since=since, after=after)
        found += page
        if len(page) < PAGE:
            break
    return found


def _started(info: ProcessInfo) -> LogEntry:
    fields = {"logger": "process", "user": info.spec.user, "cwd": info.spec.cwd, "process": str(info.id)}
    command = shlex.join(info.spec.argv)[:MAX_LIMIT]
    return LogEntry(timestamp=info.started_at, message=f"started {command}", level="info", fields=fields)


def _audited(entry: AuditEntry) -> LogEntry:
    detail = entry.detail
    decision = detail.get("decision", "")
    place = ":".join(detail[name] for name in ("host", "port") if name in detail)
    message = " ".join(part for part in (entry.kind, decision, place, detail.get("reason", "")) if part)
    level = "warn" if decision in ("denied", "failed") else "info"
    fields = {"logger": entry.kind.partition(".")[0], **detail}
    return LogEntry(timestamp=entry.at, message=message, level=level, fields=fields)


def _line(entry: LogEntry) -> str:
    told: dict[str, Any] = {**entry.fields, "level": entry.level, "message": entry.message}
    return json.dumps(told)


def is_backward(call: Call) -> bool:
    """Whether the newest entries are asked for first. Raises Refusal."""
    direction = call.request.query_params.get("direction", "forward")
    if direction not in ("forward", "backward"):
        raise Refusal(400, "validation error: direction is forward or backward")
    return direction == "backward"


def levels_of(call: Call) -> tuple[str, ...]:
    """The level that is asked for, and those above. Raises Refusal."""
    level = call.request.query_params.get("level", LEVELS[0])
    if level not in LEVELS:
        raise Refusal(400, f"validation error: level is one of {', '.join(LEVELS)}")
    return LEVELS[LEVELS.index(level) :]


def moment_of(call: Call, name: str) -> datetime | None:
    """A time that is given in milliseconds. Raises Refusal."""
    text = call.request.query_params.get(name)
    if text is None:
        return None
    if (found := digits(text, 14)) is None:
        raise Refusal(400, f"validation error: {name} is not a time in milliseconds")
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=found)


def limit_of(call: Call, most: int) -> int:
    """How many entries are asked for. Raises Refusal."""
    found = digits(call.request.query_params.get("limit", str(most)), 4)
    if found is None or not 1 <= found <= most:
        raise Refusal(400, f"validation error: limit is 1 to {most}")
    return found

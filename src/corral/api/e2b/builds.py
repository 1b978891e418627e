"""Builds of templates by E2B's builder: registered, given files, started, followed.

A registered build waits here for its recipe; once started it is a build of the engine. What was uploaded is a context of
the engine; which hash of a client's it is, is known here. Both are forgotten with the daemon, as builds are: clients then
upload again.
"""

import contextlib
import hashlib
import hmac
import re
import secrets as randomness
import time
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from corral.api.e2b.calls import Call, digits
from corral.api.e2b.failures import Refusal, not_supported
from corral.api.e2b.logs import is_backward, levels_of, limit_of, moment_of
from corral.api.e2b.names import Reference, checked_tag, parse_reference, template_id
from corral.api.e2b.recipes import Base, base_of_image, base_of_template, login_of, recipe_of
from corral.api.e2b.references import find_template, templates_of
from corral.engine.engine import Engine
from corral.engine.templates import check_free_name
from corral.errors import InvalidInput, NotFound
from corral.model.build import Build, BuildLine, BuildRequest, BuildStatus
from corral.model.ids import TenantId
from corral.model.sandbox import MIB, Limits
from corral.protocol.e2b.templates import NewTemplate, StartBuild

MAX_REGISTERED = 1_000
MAX_UPLOADS = 10_000
UPLOAD_SECONDS = 3600
SETTLE_SECONDS = 20.0
PAGE = 100
_SOURCES = ("temporary", "persistent")
_HASH = re.compile(r"[0-9a-f]{64}")
_EXIT = re.compile(r"failed with exit code (-?\d+)")
_STATES = {
    BuildStatus.WAITING: "building",
    BuildStatus.BUILDING: "building",
    BuildStatus.READY: "ready",
    BuildStatus.FAILED: "error",
    BuildStatus.CANCELLED: "error",
}


@dataclass
class Registered:
    """A build that a client asked for. `build` is the engine's, once it is started; the first `skipped` of its steps are none of
    the client's, and `numbers` tells which of the client's each one belongs to, 0 for none."""

    id: str
    tenant: TenantId
    alias: str
    tags: tuple[str, ...]
    limits: Limits
    body: StartBuild | None = None
    build: str | None = None
    skipped: int = 0
    numbers: tuple[int, ...] = ()


class Builds:
    """The builds and uploads of all tenants."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._registered: OrderedDict[str, Registered] = OrderedDict()
        self._uploads: OrderedDict[tuple[TenantId, str], str] = OrderedDict()
        self._key = randomness.token_bytes(32)

    # -- registering ------------------------------------------------------------------------------------------------

    async def register_v3(self, call: Call) -> Response:
        """A build of a template, new or not."""
        made = self._register(call, await call.body(NewTemplate))
        return JSONResponse(
            {
                "templateID": template_id(made.tenant, made.alias),
                "buildID": made.id,
                "public": False,
                "names": [made.alias],
                "aliases": [made.alias],
                "tags": list(made.tags),
            },
            202,
        )

    async def register_v2(self, call: Call) -> Response:
        """The same in the former version's shape."""
        made = self._register(call, await call.body(NewTemplate))
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        told = {
            "templateID": template_id(made.tenant, made.alias),
            "buildID": made.id,
            "cpuCount": int(made.limits.cpus),
            "memoryMB": made.limits.memory // MIB,
            "diskSizeMB": made.limits.disk // MIB,
            "aliases": [made.alias],
            "public": False,
            "createdAt": now,
            "updatedAt": now,
            "createdBy": None,
            "lastSpawnedAt": None,
            "spawnCount": 0,
            "buildCount": 1,
            "envdVersion": "",
        }
        return JSONResponse(told, 202)

    async def too_old(self, call: Call) -> Response:
        """Clients that build images themselves and push them."""
        raise not_supported("building by pushing an image", "update the CLI: `npm i -g @e2b/cli`")

    def _register(self, call: Call, body: NewTemplate) -> Registered:
        named = body.name or body.alias
        if not named:
            raise Refusal(400, "validation error: name: Field required")
        reference = parse_reference(call.tenant, named, new=True)
        tags = [checked_tag(tag) for tag in body.tags or []]
        if ":" in named or not tags:
            tags.insert(0, checked_tag(reference.tag))
        for tag in tags:
            check_free_name(Reference(reference.alias, tag).name)
        made = Registered(
            id=str(uuid.uuid4()),
            tenant=call.tenant,
            alias=reference.alias,
            tags=tuple(dict.fromkeys(tags)),
            limits=limits_of(body),
        )
        self._registered[made.id] = made
        while len(self._registered) > MAX_REGISTERED:
            self._registered.popitem(last=False)
        return made

    # -- files ------------------------------------------------------------------------------------------------------

    async def file(self, call: Call) -> Response:
        """Whether files of that hash are here, else where to send them."""
        name = call.parameter("hash")
        if not _HASH.fullmatch(name):
            raise Refusal(400, "validation error: the hash is not one of SHA-256")
        wanted = call.parameter("id")
        if not any(_is_of(made, call.tenant, wanted) for made in self._registered.values()):
            await templates_of(call, wanted)
        present = await self._present(call.tenant, name)
        end = int(time.time()) + UPLOAD_SECONDS
        signature = self._signature(call.tenant, name, end)
        base = str(call.request.base_url).rstrip("/")
        url = f"{base}/e2b-uploads/{call.tenant}/{name}?end={end}&signature={signature}"
        return JSONResponse({"present": present, "url": url}, 201)

    async def _present(self, tenant: TenantId, name: str) -> bool:
        context = self._uploads.get((tenant, name))
        return context is not None and await self._engine.builds.uploaded(tenant, context)

    async def receive(self, request: Request) -> Response:
        """An upload, by its signed address alone."""
        tenant, name = TenantId(request.path_params["tenant"]), request.path_params["hash"]
        end, given = (
            digits(request.query_params.get("end", ""), 11),
            request.query_params.get("signature", ""),
        )
        if end is None or end < time.time():
            raise Refusal(403, "the address of the upload is not valid any more")
        if not hmac.compare_digest(
            self._signature(tenant, name, end).encode(), given.encode("utf-8", "surrogateescape")
        ):
            raise Refusal(403, "the signature of the upload is not valid")
        saved = await self._engine.builds.upload(tenant, _body(request))
        self._uploads[tenant, name] = saved.id
        while len(self._uploads) > MAX_UPLOADS:
            self._uploads.popitem(last=False)
        return Response(status_code=200)

    def _signature(self, tenant: TenantId, name: str, end: int) -> str:
        return hmac.new(self._key, f"{tenant} {name} {end}".encode(), hashlib.sha256).hexdigest()

    # -- building ---------------------------------------------------------------------------------------------------

    async def start(self, call: Call) -> Response:
        """Begin to build; an earlier build of the same template that shares a tag is given up."""
        made = self._find(call)
        body = await call.body(StartBuild)
        if made.build is not None:
            raise Refusal(400, "build is not in waiting state")
        login = login_of(body)
        base = await self._base(call, body)
        for other in list(self._registered.values()):
            same = (other.tenant, other.alias) == (made.tenant, made.alias)
            if same and other.build is not None and not set(made.tags).isdisjoint(other.tags):
                with contextlib.suppress(NotFound):  # it has ended, so long ago that it is forgotten
                    await self._engine.builds.cancel(made.tenant, other.build)
        contexts = {name: id for (tenant, name), id in self._uploads.items() if tenant == call.tenant}
        made.body = body.model_copy(update={"from_image_registry": None})
        made.skipped = len(base.before)
        first, *others = made.tags
        recipe = recipe_of(body, contexts, base)
        made.numbers = tuple(line.number for line in recipe.stages[0].lines)
        request = BuildRequest(
            name=Reference(made.alias, first).name,
            recipe=recipe,
            # As in E2B, whose builds reach the internet: through the gateway, which refuses private addresses.
            allow=("*",),
            limits=made.limits,
            sandbox_limits=made.limits,
            login=login,
            settle=SETTLE_SECONDS,
            fresh=body.force or any(step.force for step in body.steps),
            # The build's own id is a tag of it too, by which clients start sandboxes from this very build.
            tags=tuple(Reference(made.alias, tag).name for tag in (*others, made.id)),
        )
        made.build = (await self._engine.builds.start(call.tenant, request)).id
        return Response(status_code=202)

    async def _base(self, call: Call, body: StartBuild) -> Base:
        if body.from_image:
            return base_of_image(body.from_image)
        reference = parse_reference(call.tenant, body.from_template or "")
        if reference.name == "base":
            template = await self._engine.templates.build_base(call.tenant)
        else:
            template = await find_template(call, body.from_template or "")
        return base_of_template(template.name, template.config.user)

    async def status(self, call: Call) -> Response:
        """How a build stands, with its log from a number on."""
        made = self._find(call)
        after = _number(call.request.query_params.get("logsOffset"), 0)
        limit, levels = limit_of(call, PAGE), levels_of(call)
        told: dict[str, Any] = {
            "templateID": template_id(made.tenant, made.alias),
            "buildID": made.id,
            "status": "waiting",
            "logs": [],
            "logEntries": [],
        }
        if made.build is not None:
            build = self._engine.builds.get(made.tenant, made.build)
            lines = self._engine.builds.lines(made.tenant, made.build)
            entries = [_entry(line, made, build) for line in lines]
            told["status"] = _STATES[build.status]
            told["logEntries"] = [item for item in entries if item["level"] in levels][after : after + limit]
            if told["status"] == "error":
                failures = [entry for entry in entries if entry["level"] == "error"]
                told["reason"] = {**_reason(made, build), "logEntries": failures}
        return JSONResponse(told)

    async def logs(self, call: Call) -> Response:
        """A build's log from a moment on in either direction, of some level and above."""
        made = self._find(call)
        if call.request.query_params.get("source", _SOURCES[0]) not in _SOURCES:
            raise Refusal(400, f"validation error: source is one of {', '.join(_SOURCES)}")
        backward, levels, limit = is_backward(call), levels_of(call), limit_of(call, PAGE)
        cursor = moment_of(call, "cursor")
        if made.build is None:
            return JSONResponse({"logs": []})
        lines = self._engine.builds.lines(made.tenant, made.build)
        if cursor is not None:
            lines = [line for line in lines if (line.at <= cursor if backward else line.at >= cursor)]
        build = self._engine.builds.get(made.tenant, made.build)
        entries = [_entry(line, made, build) for line in (reversed(lines) if backward else lines)]
        return JSONResponse({"logs": [item for item in entries if item["level"] in levels][:limit]})

    def _find(self, call: Call) -> Registered:
        found = self._registered.get(call.parameter("build"))
        if found is None or not _is_of(found, call.tenant, call.parameter("id")):
            raise Refusal(404, f"there is no build {call.parameter('build')[:40]!r} of that template")
        return found


def _is_of(made: Registered, tenant: TenantId, template: str) -> bool:
    """Whether it is a build of the template that a client names."""
    return made.tenant == tenant and template in (template_id(tenant, made.alias), made.alias)


def limits_of(body: NewTemplate) -> Limits:
    """Of the sandboxes of a template, those of its build included. Raises Refusal."""
    cpus = 2 if body.cpu_count is None else body.cpu_count
    memory = 1024 if body.memory_mb is None else body.memory_mb
    if cpus < 1:
        raise Refusal(400, "CPU count must be at least 1")
    if cpus > 32:
        raise Refusal(400, "CPU count must be at most 32")
    if cpus != 1 and cpus % 2:
        raise Refusal(400, "CPU count must be 1 or even")
    if memory < 128:
        raise Refusal(400, "Memory must be at least 128 MiB")
    if memory % 2:
        raise Refusal(400, "Memory must be divisible by 2")
    try:
        # A sandbox's disk is what it may write beside the template's files.
        disk = max(Limits().disk, (body.min_free_disk_mb or 0) * MIB)
        return Limits(cpus=cpus, memory=memory * MIB, disk=disk, pids=4096).checked()
    except InvalidInput as error:
        raise Refusal(400, error.message) from None


def _entry(line: BuildLine, made: Registered, build: Build) -> dict[str, Any]:
    """A line of the log; the one that says why the build failed in the words of its reason."""
    told = {"message": line.text, "level": "info", "step": _step(made, line.step)}
    if line.failure:
        told |= {"level": "error", **_reason(made, build)}
    return {"timestamp": line.at.isoformat(), **told}


def _step(made: Registered, step: int) -> str:
    """What clients call the part of a build that one of its steps belongs to."""
    if step <= made.skipped:
        return "base"
    number = made.numbers[step - 1]
    return str(number) if number else "finalize"


def _reason(made: Registered, build: Build) -> dict[str, str]:
    """Why a build failed, in the words that clients know."""
    if build.status is BuildStatus.CANCELLED:
        return {"message": "the build was cancelled", "step": _step(made, build.step)}
    message = re.sub(r"^line \d+: ", "", build.error.get("message", "the build failed"))
    found = re.match(r"line (\d+): ", build.error.get("message", ""))
    number = int(found[1]) if found else 0
    steps = made.body.steps if made.body else []
    if 1 <= number <= len(steps) and steps[number - 1].type == "RUN":
        step = steps[number - 1]
        command = step.args[0]
        if code := _EXIT.search(message):
            message = f"failed to run command '{command}': exit status {code[1]}"
        elif len(step.args) > 1 and build.error.get("code") == "invalid_input":
            why = f"unauthenticated: invalid username: '{step.args[1]}'"
            message = f"failed to run command '{command}': command failed: {why}"
    where = str(number) if number else ("base" if build.step <= made.skipped else "finalize")
    return {"message": message, "step": where}


def _number(text: str | None, default: int) -> int:
    if text is None:
        return default
    if (found := digits(text, 9)) is None:
        raise Refusal(400, f"validation error: {text[:40]!r} is not a number")
    return found


async def _body(request: Request) -> AsyncIterator[bytes]:
    try:
        async for chunk in request.stream():
            if chunk:
                yield chunk
    except ClientDisconnect:
        raise Refusal(400, "the upload broke off") from None

"""Sandboxes on the control plane: made, looked at, listed, ended."""

import json
from datetime import UTC, datetime

from starlette.responses import JSONResponse, Response

from corral.api.context import opened_networks
from corral.api.e2b import idempotency, shapes
from corral.api.e2b.calls import VISIBLE, Call
from corral.api.e2b.failures import Refusal, not_supported, not_there
from corral.api.e2b.listing import chosen_states, key_of, matching, page_of
from corral.api.e2b.names import alias_of, parse_reference
from corral.api.e2b.network import check_ingress, egress_of, route_of
from corral.api.e2b.references import find_template, next_token, template_ids
from corral.engine.plan import MAX_TTL, CreateRequest, egress_policy
from corral.engine.templates import BASE
from corral.errors import NotFound
from corral.model.lifecycle import State
from corral.model.sandbox import Expiry, Isolation, Sandbox
from corral.model.template import Template
from corral.model.volume import VolumeWish
from corral.protocol.e2b import sandboxes as wire

DEFAULT_TIMEOUT = {1: 15, 2: 300}
"""Seconds, by version of the call."""
LEAST_REFRESH = 15
_keys = idempotency.Keys()
MCP_GATEWAY = "mcp-gateway"


def checked_timeout(seconds: int) -> int:
    """A timeout that may be asked for. Raises Refusal."""
    if seconds <= 0:
        raise Refusal(400, "Timeout must be greater than 0")
    if seconds > MAX_TTL:
        raise Refusal(400, f"Timeout cannot be greater than {MAX_TTL // 3600} hours")
    return seconds


async def create_v1(call: Call) -> Response:
    """Create, as clients up to 2.49 do."""
    return await _create(call, 1)


async def create_v2(call: Call) -> Response:
    """Create, as clients from 2.51 on do."""
    return await _create(call, 2)


async def _wanted_template(call: Call, text: str) -> Template | None:
    """The template of a create; None for the one that Corral builds itself where it is missing."""
    if parse_reference(call.tenant, text).name == BASE:
        return None
    if text == MCP_GATEWAY:
        raise not_supported(f"the template '{MCP_GATEWAY}'", "run MCP servers as processes of a sandbox")
    return await find_template(call, text)


async def _create(call: Call, version: int) -> Response:
    key = idempotency.key_of(call)
    body = await call.body(wire.NewSandbox)
    noted = idempotency.note(key, body)
    if body.network is not None:
        check_ingress(body.network, secured=version == 2 or bool(body.secure))
    with _keys.holding(call.tenant, key):
        sandbox = await idempotency.former(call, noted) or await _create_new(
            call, body, DEFAULT_TIMEOUT[version], noted
        )
    return JSONResponse((await shapes.reply(call.engine, sandbox, call.domain)).to_dict(), 201)


async def _create_new(
    call: Call, body: wire.NewSandbox, default_timeout: int, noted: dict[str, str]
) -> Sandbox:
    timeout = checked_timeout(default_timeout if body.timeout is None else body.timeout)
    _check_options(body)
    template = await _wanted_template(call, body.template_id)
    egress = egress_of(body.allow_internet_access, body.network)
    request = CreateRequest(
        template=BASE if template is None else template.id,
        env=body.env_vars or {},
        labels=body.metadata or {},
        ttl=timeout,
        allow=egress.allow,
        deny=egress.deny,
        route=route_of(body.network, opened_networks(call.engine)),
        expiry=_expiry(body),
        isolation=_isolation(call),
        volumes=tuple(VolumeWish(one.name, one.path) for one in body.volume_mounts or ()),
        attributes={**_noted(body, BASE if template is None else alias_of(template), timeout), **noted},
    )
    return await call.engine.sandboxes.create(call.tenant, request)


def _check_options(body: wire.NewSandbox) -> None:
    if body.auto_pause_memory is False:
        if not body.auto_pause:
            raise Refusal(400, "autoPauseMemory requires autoPause")
        if body.auto_resume is not None and body.auto_resume.enabled:
            raise Refusal(400, "autoPauseMemory=false cannot be combined with autoResume")
    if body.iam and body.iam.get("tokens"):
        raise not_supported("iam")


def _isolation(call: Call) -> Isolation | None:
    """What the operator chose for sandboxes of this API; None for the host's default."""
    chosen = str(call.engine.config_get().get("e2b.isolation") or "")
    return Isolation(chosen) if chosen else None


def _expiry(body: wire.NewSandbox) -> Expiry:
    if not body.auto_pause:
        return Expiry.REMOVE
    return Expiry.STOP if body.auto_pause_memory is False else Expiry.PAUSE


def _noted(body: wire.NewSandbox, alias: str, timeout: int) -> dict[str, str]:
    noted = {shapes.ALIAS: alias, shapes.TIMEOUT: str(timeout)}
    if body.auto_resume is not None and body.auto_resume.enabled:
        noted[shapes.AUTO_RESUME] = "true"
    noted[shapes.INTERNET] = json.dumps(body.allow_internet_access)
    if body.network is not None:
        noted[shapes.NETWORK] = body.network.to_json().decode()
    return noted


async def get(call: Call) -> Response:
    """All of one sandbox."""
    return JSONResponse((await shapes.detail(call.engine, call.sandbox(), call.domain)).to_dict())


async def list_v1(call: Call) -> Response:
    """Running sandboxes, newest first, all at once."""
    query = call.request.query_params
    found = matching(_visible(call), query, None)
    running = [item for item in found if shapes.state_of(item) == "running"]
    ordered = sorted(running, key=key_of, reverse=True)
    return JSONResponse([shapes.listed(item).to_dict() for item in ordered])


async def list_v2(call: Call) -> Response:
    """Running and paused sandboxes in pages."""
    query = call.request.query_params
    templates = await template_ids(call, query["template"]) if query.get("template") else None
    found = matching(_visible(call), query, templates)
    page = page_of(found, [key_of(item) for item in found], query)
    running = sum(1 for item in found if shapes.state_of(item) == "running")
    headers = next_token(page.next)
    if "running" in chosen_states(query):
        headers["x-total-running"] = str(running)
    return JSONResponse([shapes.listed(item).to_dict() for item in page.items], headers=headers)


def _visible(call: Call) -> list[Sandbox]:
    return [item for item in call.engine.sandboxes.list(call.tenant) if item.state in VISIBLE]


async def kill(call: Call) -> Response:
    """End a sandbox, running or paused, with all that it holds."""
    sandbox = call.sandbox()
    try:
        await call.engine.sandboxes.begin_removal(call.tenant, sandbox.id)
    except NotFound:
        raise not_there(sandbox.id) from None
    return Response(status_code=204)


async def set_timeout(call: Call) -> Response:
    """End a running sandbox so many seconds from now; 0 ends it at once."""
    sandbox = call.sandbox()
    seconds = max((await call.body(wire.Timeout)).timeout, 0)
    if sandbox.state is not State.RUNNING:
        raise Refusal(409, f'Sandbox "{sandbox.id}" is {shapes.state_of(sandbox)}')
    if seconds == 0:
        await call.engine.sandboxes.expire(call.tenant, sandbox.id)
    else:
        await call.engine.sandboxes.set_ttl(call.tenant, sandbox.id, checked_timeout(seconds))
    return Response(status_code=204)


async def refresh(call: Call) -> Response:
    """Let a running sandbox live for at least so many seconds."""
    sandbox = call.sandbox()
    body = await call.body(wire.Refresh, optional=True)
    if sandbox.state is not State.RUNNING:
        raise not_there(sandbox.id)
    await extend(call, sandbox, max(body.duration or 0, LEAST_REFRESH))
    return Response(status_code=204)


async def extend(call: Call, sandbox: Sandbox, seconds: int) -> None:
    """Put off the end of a sandbox, never bring it nearer."""
    left = (shapes.end_at(sandbox) - datetime.now(UTC)).total_seconds()
    if seconds > left:
        await call.engine.sandboxes.set_ttl(call.tenant, sandbox.id, seconds)


async def set_network(call: Call) -> Response:
    """Replace what a sandbox may reach."""
    sandbox = call.sandbox()
    body = await call.body(wire.NetworkUpdate)
    egress = egress_of(body.allow_internet_access, body)
    policy = egress_policy(egress.allow, egress.deny)
    if sandbox.state is not State.RUNNING:
        raise Refusal(409, f'Sandbox "{sandbox.id}" is {shapes.state_of(sandbox)}')
    route, notes = route_of(body, opened_networks(call.engine)), shapes.noted_network(sandbox, body)
    await call.engine.sandboxes.set_egress(call.tenant, sandbox.id, policy, route, notes)
    return Response(status_code=204)

"""Pausing, waking and forking sandboxes.

A pause with memory is the engine's pause: processes stand still where they are, on disk where the runtime can write them
there. A pause of the files only is its stop. A fork is the engine's where processes go on in it; else it has the files.
"""

import asyncio
import secrets as randomness
from dataclasses import replace
from typing import Any

from starlette.responses import JSONResponse, Response

from corral.api.e2b import idempotency, shapes
from corral.api.e2b.calls import Call
from corral.api.e2b.failures import Refusal, not_supported, not_there, response_of
from corral.api.e2b.sandboxes import DEFAULT_TIMEOUT, checked_timeout, extend
from corral.api.e2b.states import WITH_MEMORY
from corral.api.e2b.wake import wake
from corral.engine.plan import CreateRequest
from corral.errors import Conflict, CorralError, NotFound
from corral.model.lifecycle import State
from corral.model.sandbox import Expiry, Sandbox
from corral.model.volume import VolumeWish
from corral.policy.rules import rule_text
from corral.protocol.e2b import sandboxes as wire


async def pause(call: Call) -> Response:
    """Pause a running sandbox."""
    body = await call.body(wire.Pause, optional=True)
    sandbox = call.sandbox()
    if shapes.state_of(sandbox) == "paused":
        raise _paused_already(sandbox)
    try:
        if body.memory:
            to_disk = call.engine.saves_memory(sandbox)
            await call.engine.sandboxes.pause(call.tenant, sandbox.id, memory=to_disk)
        else:
            # Its time stands still from here on; the engine's does so for paused sandboxes only.
            await call.engine.sandboxes.stop(call.tenant, sandbox.id, 0, endless=True)
    except NotFound:
        raise not_there(sandbox.id) from None
    except Conflict:
        sandbox = call.sandbox()
        if shapes.state_of(sandbox) == "paused":
            raise _paused_already(sandbox) from None
        raise Refusal(
            409, f"Sandbox '{sandbox.id}' cannot be paused while in '{sandbox.state}' state"
        ) from None
    return Response(status_code=204)


def _paused_already(sandbox: Sandbox) -> Refusal:
    return Refusal(409, f"Error pausing sandbox - sandbox '{sandbox.id}' is already paused")


async def connect_v1(call: Call) -> Response:
    """Connect, as clients up to 2.49 do."""
    return await _connect(call, None)


async def connect_v2(call: Call) -> Response:
    """Connect, as clients from 2.51 on do."""
    return await _connect(call, DEFAULT_TIMEOUT[2])


async def _connect(call: Call, default: int | None) -> Response:
    body = await call.body(wire.Connect, optional=default is not None)
    wanted = default if body.timeout is None else body.timeout
    if wanted is None:
        raise Refusal(400, "validation error: timeout: Field required")
    timeout = checked_timeout(wanted)
    sandbox = await _forgotten(call, call.sandbox()) if body.memory is False else call.sandbox()
    sandbox, woken = await wake(call.engine, sandbox, timeout)
    if not woken:
        await extend(call, sandbox, timeout)
    return JSONResponse(
        (await shapes.reply(call.engine, sandbox, call.domain)).to_dict(), 201 if woken else 200
    )


async def _forgotten(call: Call, sandbox: Sandbox) -> Sandbox:
    """A paused sandbox without the memory that it was paused with: its files are what it starts anew from. Nothing is done
    to one that runs."""
    if sandbox.state in (State.STARTING, State.RESUMING):
        message = f"Sandbox '{sandbox.id}' is being started already"
        raise Refusal(409, message, "sandbox_start_in_flight")
    if sandbox.state not in WITH_MEMORY:
        return sandbox
    # As in a pause of the files: time does not run for it until it is woken.
    return await call.engine.sandboxes.stop(
        call.tenant, sandbox.id, 0, only_if=lambda: call.sandbox().state in WITH_MEMORY, endless=True
    )


async def resume(call: Call) -> Response:
    """Wake a paused sandbox, as old clients do."""
    body = await call.body(wire.Resume, optional=True)
    sandbox = call.sandbox()
    if sandbox.state is State.RUNNING:
        raise Refusal(409, f"Sandbox {sandbox.id} is already running")
    timeout = checked_timeout(body.timeout)
    if body.auto_pause is not None and body.auto_pause != (sandbox.spec.expiry is not Expiry.REMOVE):
        expiry = Expiry.PAUSE if body.auto_pause else Expiry.REMOVE
        await call.engine.sandboxes.set_expiry(call.tenant, sandbox.id, expiry)
    if body.memory is False:
        sandbox = await _forgotten(call, sandbox)
    sandbox, _ = await wake(call.engine, sandbox, timeout)
    return JSONResponse((await shapes.reply(call.engine, sandbox, call.domain)).to_dict(), 201)


async def fork(call: Call) -> Response:
    """Children of a running sandbox, as it is now: with its processes where they can be saved. Else, with any, it is
    refused: dropping them in silence would be worse."""
    body = await call.body(wire.Fork, optional=True)
    sandbox = call.sandbox()
    timeout = checked_timeout(body.timeout)
    if shapes.state_of(sandbox) == "paused":
        raise Refusal(409, f"Sandbox '{sandbox.id}' is paused and cannot be forked; resume it first")
    most = call.engine.sandboxes.admission.tenant_bound
    if most is not None and body.count >= most:
        raise Refusal(400, f"{body.count} children are too many: at most {most} sandboxes run at once")
    if call.engine.saves_memory(sandbox):
        return await _fork_all(call, sandbox, body.count, timeout)
    processes = call.engine.processes.list(call.tenant, sandbox.id)
    if any(item.exit is None for item in processes):
        raise not_supported("forking a sandbox with running processes", "end them, or start children anew")
    template = await call.engine.checkpoint(
        call.tenant, sandbox.id, f"fork-{sandbox.id}-{randomness.token_hex(4)}"
    )
    try:
        async with asyncio.TaskGroup() as group:
            route = await call.engine.sandboxes.route(call.tenant, sandbox.id)
            request = replace(_child_request(sandbox, template.id, timeout), route=route)
            children = [group.create_task(_child(call, request)) for _ in range(body.count)]
    finally:
        await call.engine.templates.remove(call.tenant, template.id)
    return JSONResponse([child.result() for child in children], 201)


async def _fork_all(call: Call, sandbox: Sandbox, count: int, ttl: int) -> Response:
    try:
        forked = await call.engine.checkpoints.fork(
            call.tenant, sandbox.id, count, ttl=ttl, attributes=_noted(sandbox, ttl)
        )
    except CorralError as error:
        failed = {"error": {"code": response_of(error).status_code, "message": error.message}}
        return JSONResponse([failed] * count, 201)
    children = [await shapes.reply(call.engine, child, call.domain) for child in forked.sandboxes]
    return JSONResponse([{"sandbox": child.to_dict()} for child in children], 201)


def _child_request(sandbox: Sandbox, template: str, timeout: int) -> CreateRequest:
    spec = sandbox.spec
    return CreateRequest(
        template=template,
        isolation=spec.isolation,
        runtime=spec.runtime,
        limits=spec.limits,
        env=spec.env,
        labels=spec.labels,
        user=spec.user,
        workdir=spec.workdir,
        ttl=timeout,
        allow=tuple(rule_text(rule) for rule in spec.egress.allowing),
        deny=tuple(rule_text(rule) for rule in spec.egress.denying),
        secrets=spec.secrets,
        expiry=spec.expiry,
        volumes=tuple(VolumeWish(one.id, one.path, one.read_only) for one in spec.volumes),
        attributes=_noted(sandbox, timeout),
    )


def _noted(sandbox: Sandbox, timeout: int) -> dict[str, str]:
    """What is noted in a child: it is not what the key of its parent's create made."""
    return {**idempotency.without_key(sandbox.spec.attributes), shapes.TIMEOUT: str(timeout)}


async def _child(call: Call, request: CreateRequest) -> dict[str, Any]:
    try:
        child = await call.engine.sandboxes.create(call.tenant, request)
    except CorralError as error:
        refused = response_of(error)
        return {"error": {"code": refused.status_code, "message": error.message}}
    return {"sandbox": (await shapes.reply(call.engine, child, call.domain)).to_dict()}

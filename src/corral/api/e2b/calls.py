"""What every route of the control plane needs: who calls, what for, and the body."""

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar
from urllib.parse import unquote

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from corral.api.context import Authenticate
from corral.api.e2b.failures import Refusal, not_there, response_of
from corral.api.e2b.states import PAUSED_STATES
from corral.engine.acting import act_for
from corral.engine.engine import Engine
from corral.errors import NotFound, Unauthenticated
from corral.model.ids import TenantId
from corral.model.lifecycle import State
from corral.model.sandbox import Sandbox
from corral.protocol.base import MAX_JSON_BODY
from corral.protocol.e2b.base import Wire

_ID = re.compile(r"[a-z0-9]{1,64}")
VISIBLE = (State.RUNNING, State.STARTING, *PAUSED_STATES)
"""States of sandboxes that clients see."""
M = TypeVar("M", bound=Wire)


class Call:
    """An authenticated request of the control plane."""

    def __init__(self, request: Request, engine: Engine, tenant: TenantId, domain: str | None) -> None:
        """`domain`: what clients append to a sandbox's label to name its ports, if anything."""
        self.request = request
        self.engine = engine
        self.tenant = tenant
        self.domain = domain

    def parameter(self, name: str) -> str:
        """A part of the path, decoded once."""
        return unquote(self.request.path_params[name], errors="replace")

    async def body(self, model: type[M], *, optional: bool = False) -> M:
        """The request's body. Raises Refusal; ValidationError for a body of another shape."""
        raw = await read_body(self.request, MAX_JSON_BODY)
        if not raw and optional:
            return model()
        try:
            value = json.loads(raw)
        except (ValueError, RecursionError):
            raise Refusal(400, "Error when parsing request: the body is not JSON") from None
        return model.model_validate(value)

    def sandbox(self) -> Sandbox:
        """The sandbox that the path names."""
        return self.find(sandbox_id(self.parameter("id")))

    def find(self, name: str) -> Sandbox:
        """The tenant's sandbox of that id, as it stands now."""
        try:
            found = self.engine.sandboxes.get(self.tenant, name)
        except NotFound:
            raise not_there(name) from None
        if found.id != name or found.state not in VISIBLE:
            raise not_there(name)
        return found


Handler = Callable[[Call], Awaitable[Response]]


def route(
    path: str,
    handlers: Mapping[str, Handler],
    engine: Engine,
    authenticate: Authenticate,
    domain: str | None,
) -> Route:
    """A route of the control plane, by method (`*` for all others), that answers errors in its own form."""

    async def endpoint(request: Request) -> Response:
        try:
            try:
                identity = await authenticate(request)
            except Unauthenticated as error:
                raise Refusal(401, f"{error.message}: {error.hint}") from None
            act_for(identity.who)
            handler = handlers.get(request.method, handlers.get("*"))
            if handler is None:
                raise Refusal(405, f"this path does not know the method {request.method[:20]}")
            return await handler(Call(request, engine, identity.tenant, domain))
        except Exception as error:  # noqa: BLE001  the boundary: told to the client and logged
            return response_of(error)

    made = Route(path, endpoint)
    made.methods = None  # all of them: the endpoint tells
    return made


def refusing(handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """A handler that answers errors in the form that clients know."""

    async def endpoint(request: Request) -> Response:
        try:
            return await handler(request)
        except Exception as error:  # noqa: BLE001  the boundary: told to the client and logged
            return response_of(error)

    return endpoint


def sandbox_id(text: str) -> str:
    """A sandbox's id, without the suffix that old clients append. Raises Refusal."""
    name, dash, client = text.partition("-")
    if not _ID.fullmatch(name) or (dash and not _ID.fullmatch(client)):
        raise Refusal(400, "Invalid sandbox ID")
    return name


def digits(text: str, most: int) -> int | None:
    """A number that is written in so many digits at most; None for anything else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= most else None


async def read_body(request: Request, limit: int) -> bytes:
    """A whole body. Raises Refusal for one over `limit` bytes, or one that breaks off."""
    kept = bytearray()
    try:
        async for chunk in request.stream():
            kept += chunk
            if len(kept) > limit:
                raise Refusal(413, f"the request body is over {limit} bytes")
    except ClientDisconnect:
        raise Refusal(400, "Error when parsing request: the body broke off") from None
    return bytes(kept)

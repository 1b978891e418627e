"""The REST API as an ASGI application."""

from collections.abc import Collection
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from corral.api import (
    approvals,
    audit,
    builds,
    catalog,
    disk,
    egress,
    files,
    grants,
    learning,
    models,
    pools,
    processes,
    rates,
    sandboxes,
    volumes,
)
from corral.api.context import Authenticate
from corral.api.e2b.app import E2bApi
from corral.api.e2b.dataplane import DataPlane
from corral.api.failures import handle
from corral.api.front import Front
from corral.api.guard import Guard
from corral.api.listing import Shown
from corral.api.preview.hosts import Addresses
from corral.api.preview.proxy import Previews
from corral.api.preview.tunnel import Tunnel
from corral.api.preview.where import Where
from corral.engine.engine import Engine
from corral.errors import CorralError
from corral.protocol.base import MAX_JSON_BODY

DESCRIPTION = """\
Run coding agents in isolated sandboxes. Objects belong to the tenant of the caller's key.

Every error has the same body: a stable `code`, a `message`, and a `hint` that says what to do next. Unknown fields of a
request are refused. Streams are server-sent events; comments are sent while they are idle.
"""
TAGS: list[dict[str, Any]] = [
    {"name": "sandboxes", "description": "Make, look at, stop and remove sandboxes."},
    {"name": "processes", "description": "Run commands in sandboxes; follow, feed and signal them."},
    {"name": "files", "description": "Read and change sandboxes' files."},
    {"name": "agents", "description": "Coding agents in sandboxes."},
    {"name": "repos", "description": "What an agent did in its repository."},
    {"name": "templates", "description": "What sandboxes start from."},
    {"name": "pools", "description": "Sandboxes that are ready before they are asked for."},
    {"name": "volumes", "description": "Directories that sandboxes mount, and that outlive them."},
    {"name": "builds", "description": "Making templates: from a Dockerfile or from steps."},
    {"name": "secrets", "description": "Credentials, used by the gateway on behalf of sandboxes."},
    {"name": "grants", "description": "What sandboxes' tokens may be used for."},
    {"name": "prices", "description": "What models cost, where the price library does not know."},
    {"name": "budgets", "description": "What model calls may cost."},
    {"name": "egress", "description": "What sandboxes may reach."},
    {"name": "approvals", "description": "Questions of sandboxes to a person."},
    {"name": "audit", "description": "What was decided, and what sandboxes did."},
    {"name": "events", "description": "Changes of sandboxes' states, and approvals."},
    {"name": "daemon", "description": "The daemon itself."},
]


def create_app(
    engine: Engine,
    *,
    authenticate: Authenticate,
    names: Collection[str] = (),
    addresses: Addresses = Addresses(),  # noqa: B008  frozen
) -> FastAPI:
    """The API over `engine`.

    `authenticate` gives the tenant of a request or raises Unauthenticated. `names` are the host names and addresses,
    beside loopback's, under which the TCP interface may be called; `addresses` those of sandboxes' ports. Raises nothing;
    holds no state but the engine's.
    """
    app = FastAPI(
        title="Corral",
        version=version("corral"),
        description=DESCRIPTION,
        openapi_tags=TAGS,
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=_operation_id,
    )
    app.state.engine = engine
    app.state.shown = Shown()
    app.state.authenticate = authenticate
    for module in (
        processes,
        sandboxes,
        files,
        catalog,
        grants,
        models,
        rates,
        egress,
        learning,
        approvals,
        audit,
        pools,
        disk,
        builds,
        volumes,
    ):
        app.include_router(module.router, max_body_size=MAX_JSON_BODY)
    for kind in (CorralError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, handle)
    where, previews, data = Where(addresses, names), Previews(engine), DataPlane(engine)
    app.state.addresses = addresses
    app.state.tunnel = lambda config, server_state, app_state: Tunnel(
        where, previews, server_state.connections
    )
    app.add_middleware(
        E2bApi, engine=engine, authenticate=authenticate, data=data, domain=addresses.authority
    )
    app.add_middleware(Guard, names=where.own_names)
    app.add_middleware(Front, where=where, previews=previews, data=data)
    return app


def _operation_id(route: APIRoute) -> str:
    return route.name

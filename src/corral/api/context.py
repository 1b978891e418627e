"""What every route needs: who calls, and the engine."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import parse_qsl

from fastapi import Depends, Path, Query
from starlette.requests import Request

from corral.api.guard import over_unix_socket
from corral.engine.acting import act_for
from corral.engine.engine import Engine
from corral.errors import Forbidden, InvalidInput
from corral.model.ids import DEFAULT_TENANT, ProcessId, TenantId, check_guest_path
from corral.model.secrets import Identity
from corral.policy.addresses import Network, parse_networks
from corral.protocol.base import MAX_REF
from corral.protocol.processes import MAX_PROCESS_ID

Authenticate = Callable[[Request], Awaitable[Identity]]
"""Whose request it is, or Unauthenticated."""


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated request's sender, and the engine that serves it. `local`: it came over the unix socket, so its
    sender may read and write this host's files anyway."""

    identity: Identity
    engine: Engine
    local: bool

    @property
    def tenant(self) -> TenantId:
        """Whose things it may use."""
        return self.identity.tenant

    def check_host_path(self, what: str, hint: str) -> None:
        """Raise Forbidden unless the caller may name files of this host. The daemon reads and writes them as root."""
        if not self.local:
            raise Forbidden(f"{what} may be named over the daemon's unix socket only", hint)

    def check_operator(self, what: str) -> None:
        """Raise Forbidden unless the caller is the operator of this host, whose choices bind all tenants."""
        if self.tenant != DEFAULT_TENANT:
            raise Forbidden(f"{what} is for the operator of this host only")


def opened_networks(engine: Engine) -> tuple[Network, ...]:
    """Private networks that the operator lets sandboxes reach."""
    return parse_networks(tuple(map(str, engine.config_get().get("egress.networks") or ())))


async def _caller(request: Request) -> Caller:
    authenticate: Authenticate = request.app.state.authenticate
    identity = await authenticate(request)
    caller = Caller(identity, request.app.state.engine, over_unix_socket(request.scope))
    act_for(identity.who)
    return caller


CallerDep = Annotated[Caller, Depends(_caller)]
RefPath = Annotated[str, Path(max_length=MAX_REF, description="Name or id.")]
ProcessPath = Annotated[
    ProcessId, Path(ge=1, le=MAX_PROCESS_ID, description="The process's id in its sandbox.")
]


def query_path(request: Request, key: str) -> str:
    """A path of the query, exactly: bytes that are not UTF-8 become surrogates, as the operating system's names do."""
    pairs = parse_qsl(
        request.scope["query_string"].decode("latin-1"), errors="surrogateescape", max_num_fields=100
    )
    found = [value for name, value in pairs if name == key]
    if len(found) != 1:
        raise InvalidInput(f"give `{key}` once", "as a percent-encoded absolute path in the query")
    return check_guest_path(found[0])


_DESCRIPTION = "Absolute path in the sandbox; percent-encoded bytes, UTF-8 or not."


async def _path(request: Request, path: Annotated[str, Query(description=_DESCRIPTION)]) -> str:
    return query_path(request, "path")


async def _source(request: Request, source: Annotated[str, Query(description=_DESCRIPTION)]) -> str:
    return query_path(request, "source")


async def _target(request: Request, target: Annotated[str, Query(description=_DESCRIPTION)]) -> str:
    return query_path(request, "target")


PathQuery = Annotated[str, Depends(_path)]
SourceQuery = Annotated[str, Depends(_source)]
TargetQuery = Annotated[str, Depends(_target)]

"""The gateway as a whole: the sandboxes that it serves, the secrets and prices it serves them with.

It is told what to do by calls of the engine (`handle`) and answers each once it has taken effect.
"""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import assert_never

from aiohttp import web

from corral.errors import CorralError, InvalidInput
from corral.gateway import asking, forge, pages
from corral.gateway.apptokens import AppTokens
from corral.gateway.asking import AskService
from corral.gateway.authority import Authority
from corral.gateway.box import Box, how_to_renew
from corral.gateway.desk import Desk
from corral.gateway.dial import Dialer
from corral.gateway.dns import Resolver, TcpResolver, serve_udp
from corral.gateway.forward import Forwarder
from corral.gateway.front import Front
from corral.gateway.git import GitService
from corral.gateway.journal import Journal
from corral.gateway.llm import LARGE_AT_ONCE, ModelService
from corral.gateway.outbox import Outbox
from corral.gateway.pricing import PriceBook
from corral.gateway.raising import Raising
from corral.gateway.replies import closing, plain
from corral.gateway.requests import Limits
from corral.gateway.reservations import Reservations
from corral.gateway.spools import Spools
from corral.gateway.tls import TlsClient
from corral.gateway.vault import Credential, Vault
from corral.model.ids import SandboxId
from corral.model.listeners import ListenerKind
from corral.policy.addresses import parse_networks
from corral.policy.repos import PREFIX
from corral.policy.routes import checked_route
from corral.policy.rules import checked_policy
from corral.wire import link
from corral.wire.forges import ForgeAnswer

_BACKLOG = 1024


@dataclass(eq=False, slots=True)
class _Served:
    """A sandbox's services."""

    box: Box
    forwarder: Forwarder
    models: ModelService
    git: GitService
    asking: AskService

    async def renew(self) -> None:
        """Close connections to other hosts, also those that wait for a next request: a new one might not lead there."""
        await self.forwarder.renew()
        await self.git.renew()


class Service:
    """Serves sandboxes. The outbox takes records of decisions."""

    def __init__(
        self,
        dialer: Dialer,
        outbox: Outbox,
        reservations: Reservations,
        desk: Desk,
        spools: Spools,
    ) -> None:
        self._spools = spools
        self._desk = desk
        self._dialer = dialer
        self._bypass: frozenset[str] = frozenset()
        self._outbox = outbox
        self._reservations = reservations
        self._limits = Limits()
        self._large = asyncio.Semaphore(LARGE_AT_ONCE)
        self._served: dict[SandboxId, _Served] = {}
        self._vault = Vault()
        self._tokens = AppTokens(dialer)
        self._prices = PriceBook()
        self._authority: Authority | None = None

    async def handle(self, request: link.Order, fds: list[int]) -> None:
        """Do what the engine asks. The descriptors are the callee's. Raises CorralError, having changed
        nothing.
        """
        match request:
            case link.Attach():
                await self._attach(request, [socket.socket(fileno=fd) for fd in fds])
            case link.Detach():
                await self._detach(request.sandbox)
            case link.SetPolicy():
                await self._set_policy(request, [socket.socket(fileno=fd) for fd in fds])
            case link.Regrant():
                self._regrant(request.sandbox, request.grant)
            case link.SetSecrets():
                self._vault = Vault(request.secrets)
                self._tokens.forget({(one.tenant, one.name, one.value.reveal()) for one in request.secrets})
                for served in self._served.values():
                    self._bind(served.box)
                    served.box.cut_uncovered(self._granted(served.box))
            case link.SetAuthority():
                self._authority = Authority(request.certificate, request.key)
            case link.SetPrices():
                self._prices = PriceBook(request.prices)
            case link.SetConfig():
                await self._configure(request)
            case link.SetModels():
                self._limits = replace(
                    self._limits, of_tenants={item.tenant: item.rules for item in request.tenants}
                )
            case link.SetJournal():
                (fd,) = fds
                try:
                    self._reservations.leases.use(Journal(fd))
                finally:
                    os.close(fd)
            case link.Recall():
                self._reservations.leases.recall(request.sandbox)
            case link.Ping():
                return
            case _:
                assert_never(request)

    async def call_forge(self, request: link.CallForge) -> ForgeAnswer:
        """Call a forge's API for a person on the host. Raises CorralError."""
        return await forge.call(request, self._vault, self._tokens, self._dialer)

    async def close(self) -> None:
        """Stop serving everybody."""
        for sandbox in list(self._served):
            await self._detach(sandbox)

    async def _configure(self, config: link.SetConfig) -> None:
        narrower = self._dialer.set_networks(config.networks)
        self._bypass = frozenset(config.bypass)
        self._limits = replace(
            self._limits,
            model_calls=config.model_calls,
            output=config.output,
            asking=frozenset(config.asking),
            models=config.models,
        )
        for served in list(self._served.values()):
            served.box.judge_again(narrower=narrower)
            if narrower:
                await served.renew()

    def _regrant(self, sandbox: SandboxId, grant: link.GrantSpec) -> None:
        served = self._served.get(sandbox)
        if served is not None:
            served.box.set_grant(grant)
            self._bind(served.box)
            served.box.cut_uncovered(self._granted(served.box))

    async def _attach(self, attach: link.Attach, sockets: list[socket.socket]) -> None:
        kinds = _checked(attach, sockets)
        await self._detach(attach.sandbox)
        served = self._make(attach)
        self._served[attach.sandbox] = served
        for kind, spec, sock in zip(kinds, attach.listeners, sockets, strict=True):
            await self._listen(served, kind, spec.port, sock)

    async def _set_policy(self, change: link.SetPolicy, sockets: list[socket.socket]) -> None:
        kinds = _checked(change, sockets)
        served = self._served.get(change.sandbox)
        if served is None:
            for sock in sockets:
                sock.close()
            return
        narrower = served.box.set_policy(change.egress)
        if change.route != served.box.route:
            served.box.set_route(change.route)
            self._bind(served.box)
            narrower = True
        if narrower:
            await served.renew()
        for kind, spec, sock in zip(kinds, change.listeners, sockets, strict=True):
            await self._listen(served, kind, spec.port, sock)

    def _make(self, attach: link.Attach) -> _Served:
        box = Box(
            attach,
            self._outbox.audit,
            lambda ruled: self._vault.model_hosts(attach.tenant, ruled),
            lambda: self._bypass,
        )
        self._bind(box)
        models = ModelService(
            box,
            self._dialer,
            self._granted,
            lambda: self._prices,
            lambda: self._limits,
            Raising(box, self._reservations, self._desk, lambda: self._limits),
            self._large,
        )
        git = GitService(
            box, self._dialer, self._granted, self._tokens, self._desk, self._spools, self._outbox
        )
        return _Served(box, Forwarder(box, self._dialer), models, git, AskService(box, self._desk))

    def _bind(self, box: Box) -> None:
        vault = self._vault
        box.set_bound(vault.bound(box), vault.values(box.tenant), vault.spellings(box.tenant))

    def _granted(self, box: Box) -> Mapping[str, Credential]:
        return self._vault.granted(box)

    async def _listen(self, served: _Served, kind: ListenerKind, port: int, sock: socket.socket) -> None:
        box = served.box
        loop = asyncio.get_running_loop()
        sock.settimeout(0)
        resolver = Resolver(box)
        entrance = Front(box, _own_pages(served, self._granted), served.forwarder)
        front = entrance.server(port)
        match kind:
            case ListenerKind.DNS_UDP:
                serve_udp(box, resolver, sock)
                return
            case ListenerKind.DNS_TCP:
                server = await loop.create_server(
                    lambda: TcpResolver(box, resolver), sock=sock, backlog=_BACKLOG
                )
            case ListenerKind.HTTP:
                server = await loop.create_server(front, sock=sock, backlog=_BACKLOG)
            case ListenerKind.TLS:
                server = await loop.create_server(
                    lambda: TlsClient(box, port, self._dialer, entrance, lambda: self._authority),
                    sock=sock,
                    backlog=_BACKLOG,
                )
            case _:
                assert_never(kind)
        box.on_close(server.close)

    async def _detach(self, sandbox: SandboxId) -> None:
        served = self._served.pop(sandbox, None)
        if served is None:
            return
        served.box.close()
        self._reservations.leases.drop(sandbox)
        await served.forwarder.close()
        await served.models.close()
        await served.git.close()


def _own_pages(
    served: _Served, granted: Callable[[Box], Mapping[str, Credential]]
) -> Callable[[web.BaseRequest, str, int], Awaitable[web.StreamResponse]]:
    """What the gateway's own name serves."""

    async def serve(request: web.BaseRequest, _address: str, _port: int) -> web.StreamResponse:
        path, _, query = request.raw_path.partition("?")
        if path.startswith(("/s/", PREFIX)) and (over := served.box.grant_over()):
            return _over(served.box, over, request.method, path)
        if path.startswith("/s/"):
            return await served.models.serve(request, path, query)
        if path.startswith(PREFIX):
            return await served.git.serve(request, path, query)
        if path.startswith(asking.PATH):
            return await served.asking.serve(request, path)
        if request.method not in ("GET", "HEAD"):
            return closing(plain(405, "Only GET is served here.", reason="method"))
        return pages.serve(served.box, path, granted(served.box))

    return serve


def _checked(request: link.Attach | link.SetPolicy, sockets: list[socket.socket]) -> list[ListenerKind]:
    """What the request's sockets serve. Raises CorralError, the sockets closed, for what cannot be served."""
    try:
        kinds = [ListenerKind(spec.kind) for spec in request.listeners]
        checked_policy(request.egress)
        checked_route(request.route)
        parse_networks(request.egress.networks)
    except (ValueError, CorralError) as error:
        for sock in sockets:
            sock.close()
        raise error if isinstance(error, CorralError) else _unknown_kind() from None
    return kinds


def _over(box: Box, over: str, method: str, path: str) -> web.StreamResponse:
    """The refusal of all that a grant would cover."""
    box.note("grant", "denied", method=method, path=path, reason=f"grant-{over}")
    text = f"This sandbox's grant is {over}. To go on, {how_to_renew(box.name)}"
    return closing(plain(403, text, reason=f"grant-{over}"))


def _unknown_kind() -> InvalidInput:
    return InvalidInput(
        "a listener is of an unknown kind", "engine and gateway must be of one version: restart"
    )

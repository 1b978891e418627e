"""The engine's side of the gateway.

The gateway process can die at any time. `GatewayClient` therefore keeps all that it was told, with duplicates
of the listening sockets (which is why guests' connections wait in their backlogs meanwhile), and says it
again to the next process: its owner starts one and calls `reattach`. What the dead process had sent is still
read to its end, so no usage record is lost; what it had reserved and not settled by then, the ledger settles.
"""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Self, TypedDict, Unpack

from corral.engine.ports import Attachment, Inspector, Ledger, Listener, ModelPrice, OpenedSecret
from corral.errors import Conflict, CorralError, InvalidInput, UpstreamFailed
from corral.gateway.accounts import Accounts, until_taken
from corral.gateway.calls import CALL_TIMEOUT, Calls, LinkLostError
from corral.gateway.channel import Channel
from corral.gateway.journal import Journals
from corral.gateway.kept import Kept, grant_spec, too_many
from corral.gateway.pushchecks import PushChecks
from corral.gateway.questions import OnAsk, Questions, refuse_all
from corral.model.budget import DEFAULT_MODEL_CALLS, DEFAULT_OUTPUT
from corral.model.egress import EgressPolicy
from corral.model.grants import Grant, ModelRules, TenantModels
from corral.model.ids import SandboxId, TenantId
from corral.model.route import Route
from corral.model.secrets import Secret
from corral.wire import link
from corral.wire.forges import ForgeAnswer, ForgeCall

_log = logging.getLogger(__name__)

READY_TIMEOUT = 30.0
"""Seconds that a new gateway process may take to say that it is ready."""
_LAST_RECORDS = 10.0
_MAX_WAITING = 10_000
_MAX_RECORDS = 256
_GATHER_SECONDS = 0.01


class Settings(TypedDict, total=False):
    """The operator's configuration: private ranges (CIDR) that allowed names may resolve to, hosts that are not looked into,
    model calls of one sandbox at a time, tokens of output for a call that sets no limit, whose model calls wait for more
    money (`*`, `TENANT`, `TENANT/SANDBOX`), and models for all sandboxes.
    """

    networks: tuple[str, ...]
    bypass: tuple[str, ...]
    model_calls: int
    output: int
    asking: tuple[str, ...]
    models: ModelRules


_USUAL = link.SetConfig(0, (), (), DEFAULT_MODEL_CALLS, DEFAULT_OUTPUT, (), ModelRules())


@dataclass(frozen=True, slots=True)
class _Flush:
    """A wish to be told once all records before it are kept."""

    channel: Channel
    number: int

    def done(self) -> None:
        self.channel.send(link.Flushed(self.number))


class GatewayClient:
    """`ports.Gateway` over a link to the gateway process.

    Use: `async with GatewayClient(sock, ledger=…, on_audit=…) as client`, where `sock` is one end of a unix
    stream socket pair whose other end the process got as its `--control-fd`. Entering waits until the process
    is ready. `await client.lost()` returns when the link has ended; then start another process and `await
    client.reattach(sock)`.

    The ledger and `on_audit` are called for one batch at a time, in order; nothing but pushes waits for an audit
    record. What ends in a CorralError is offered again until it is taken, but for reservations, which are refused.
    `on_ask` is called for each question of a sandbox and is cancelled when nobody waits for its answer. `inspector` gives
    what reads pushes; without one no push is let through. Without `journals` each model call waits for the ledger.
    """

    def __init__(
        self,
        sock: socket.socket | None = None,
        *,
        ledger: Ledger,
        on_audit: Callable[[Sequence[link.AuditRecord]], Awaitable[None]],
        on_ask: OnAsk = refuse_all,
        inspector: Callable[[], Inspector | None] = lambda: None,
        journals: Journals | None = None,
    ) -> None:
        self._first_sock = sock
        self._on_audit = on_audit
        self._kept: dict[SandboxId, Kept] = {}
        self._secrets = link.SetSecrets(0, ())
        self._prices = link.SetPrices(0, ())
        self._config = _USUAL
        self._models = link.SetModels(0, ())
        self._authority: link.SetAuthority | None = None
        self._channel: Channel | None = None
        self._ready = asyncio.Event()
        self._lost = asyncio.Event()
        self._calls = Calls()
        self._records: asyncio.Queue[link.AuditRecord | _Flush] = asyncio.Queue()
        self._accounts = Accounts(ledger, self._tenant_of, self._go_on, journals)
        self._tasks = asyncio.TaskGroup()
        self._questions = Questions(on_ask, self._tenant_of, self._tasks)
        self._pushes = PushChecks(inspector, self._tenant_of, self._tasks)
        self._paused = False
        self._closing = False

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._deliverers = (
            self._tasks.create_task(self._deliver(), name="gateway audit"),
            self._tasks.create_task(self._accounts.run(), name="gateway ledger"),
        )
        try:
            sock, self._first_sock = self._first_sock, None
            if sock is not None:
                await self.reattach(sock)
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the link, which ends the gateway process; records that have arrived are still delivered."""
        self._closing = True
        if self._channel is not None:
            self._channel.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_RECORDS):
                await self._accounts.done()
                await self._records.join()
        self._questions.close()
        self._pushes.close()
        for deliverer in self._deliverers:
            deliverer.cancel()
        for kept in self._kept.values():
            kept.close()
        self._kept.clear()
        # Not told of an error of the body, which it would wrap in a group.
        await self._tasks.__aexit__(None, None, None)

    async def lost(self) -> None:
        """Return when the link to the current process has ended and all that it sent has been read."""
        await self._lost.wait()

    @property
    def is_up(self) -> bool:
        """Whether a process is connected and ready."""
        return self._ready.is_set()

    @property
    def load(self) -> int:
        """How many sandboxes it serves."""
        return len(self._kept)

    async def reattach(self, sock: socket.socket) -> None:
        """Use a new gateway process: wait until it is ready, then tell it all that is kept. Raises
        UpstreamFailed if it does not come up.
        """
        await self._drain()
        self._ready.clear()
        self._lost.clear()
        channel = self._channel = Channel(
            sock,
            limit=link.MAX_GATEWAY_FRAME,
            accept_fds=False,
            on_message=lambda message, _fds: self._take(channel, message),
            on_closed=lambda error: self._ended(channel, error),
        )
        journal = self._accounts.begin(channel)
        try:
            await self._restore(channel, journal)
        except LinkLostError:
            raise UpstreamFailed(
                "the gateway process ended while it was starting", "see `corral daemon logs`"
            ) from None
        finally:
            if journal is not None:
                os.close(journal)

    async def _drain(self) -> None:
        """Read what a process that is dead has sent, then close the link to it; one that lives is cut off."""
        if self._channel is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_RECORDS):
                await self._lost.wait()
        self._channel.close()

    async def _restore(self, channel: Channel, journal: int | None) -> None:
        await self._wait_ready(READY_TIMEOUT)
        if journal is not None:
            await self._calls.make(channel, link.SetJournal(0), [journal])
        authority = (self._authority,) if self._authority is not None else ()
        for message in (self._config, self._models, *authority, self._secrets, self._prices):
            await self._say_again(type(message).__name__, self._calls.make(channel, message))
        for kept in list(self._kept.values()):
            await self._say_again(kept.attachment.sandbox, self._serve(kept, channel))

    async def _say_again(self, what: object, work: Awaitable[None]) -> None:
        """What the new process does not take must not keep it from serving the rest."""
        try:
            await work
        except CorralError as error:
            _log.error("a restarted gateway did not take %s: %s", what, error)

    async def attach(self, attachment: Attachment, listeners: Sequence[Listener] | None) -> None:
        """Serve a sandbox on these sockets, of which duplicates are kept. See `ports.Gateway`."""
        if listeners is None:
            former = self._kept.get(attachment.sandbox)
            if former is None:
                raise Conflict("the gateway serves no such sandbox", "start the sandbox again")
            listeners = former.listeners
        if len(listeners) > link.MAX_LISTENERS:
            raise too_many(len(listeners))
        own = tuple(replace(listener, sock=listener.sock.dup()) for listener in listeners)
        kept = Kept(attachment, own)
        if (former := self._kept.pop(attachment.sandbox, None)) is not None:
            former.close()
        self._kept[attachment.sandbox] = kept
        try:
            await self._until_served(kept)
        except BaseException:
            if self._kept.get(attachment.sandbox) is kept:
                del self._kept[attachment.sandbox]
                kept.close()
            raise

    async def detach(self, sandbox: SandboxId) -> None:
        """Stop serving a sandbox. Idempotent; a gateway that is down serves nobody."""
        if (kept := self._kept.pop(sandbox, None)) is not None:
            kept.close()
        await self._tell(link.Detach(0, sandbox))

    def ports(self, sandbox: SandboxId) -> frozenset[int]:
        """The ports on which a sandbox is served."""
        kept = self._kept.get(sandbox)
        return frozenset() if kept is None else frozenset(listener.port for listener in kept.listeners)

    async def set_policy(
        self,
        sandbox: SandboxId,
        egress: EgressPolicy,
        listeners: Sequence[Listener],
        route: Route | None = None,
    ) -> None:
        """Change what a served sandbox may reach, and serve it on further sockets too. See `ports.Gateway`."""
        kept = self._kept.get(sandbox)
        if kept is None:
            return
        if len(kept.listeners) + len(listeners) > link.MAX_LISTENERS:
            raise too_many(len(kept.listeners) + len(listeners))
        specs = tuple(link.ListenerSpec(listener.kind.value, listener.port) for listener in listeners)
        own = tuple(replace(listener, sock=listener.sock.dup()) for listener in listeners)
        route = kept.attachment.route if route is None else route
        kept.attachment = replace(kept.attachment, egress=egress, route=route)
        kept.listeners += own
        channel = self._channel
        if channel is None or not self._ready.is_set() or kept.served_by is not channel:
            return  # it is told with the attachment
        with contextlib.suppress(LinkLostError):
            message = link.SetPolicy(0, sandbox, egress, route, specs)
            await self._calls.make(channel, message, [listener.sock.fileno() for listener in own])

    async def regrant(self, grant: Grant) -> None:
        """Replace a sandbox's grant. See `ports.Gateway`; one that is not served gets it when it is."""
        kept = self._kept.get(grant.sandbox)
        if kept is None:
            return
        kept.attachment = replace(kept.attachment, grant=grant)
        await self._tell(link.Regrant(0, grant.sandbox, grant_spec(grant)))

    async def recall(self, sandbox: SandboxId | None) -> None:
        """Take back what is leased to a sandbox, or (None) to all. See `ports.Gateway`."""
        await self._tell(link.Recall(0, sandbox))

    async def set_secrets(self, secrets: Sequence[OpenedSecret]) -> None:
        """Replace all secrets; a gateway that is down gets them when it is back. Raises InvalidInput for a
        base URL that is none, having changed nothing.
        """
        specs = tuple(
            link.SecretSpec(s.tenant, s.name, s.provider, s.base_url, s.value, s.binding, s.account, s.form)
            for s in secrets
        )
        former, self._secrets = self._secrets, link.SetSecrets(0, specs)
        try:
            await self._tell(self._secrets)
        except InvalidInput:
            self._secrets = former
            raise

    async def set_prices(self, prices: Sequence[ModelPrice]) -> None:
        """Replace all operator's prices; a gateway that is down gets them when it is back."""
        specs = tuple(
            link.PriceSpec(p.secret, p.model, p.input, p.output, p.cache_read, p.cache_write) for p in prices
        )
        self._prices = link.SetPrices(0, specs)
        await self._tell(self._prices)

    async def set_models(self, tenants: Sequence[TenantModels]) -> None:
        """Replace all tenants' rules for models; a gateway that is down gets them when it is back."""
        self._models = link.SetModels(0, tuple(tenants))
        await self._tell(self._models)

    async def set_config(self, **settings: Unpack[Settings]) -> None:
        """Replace the operator's configuration; what is left out is as usual. Raises InvalidInput."""
        former, self._config = self._config, replace(_USUAL, **settings)
        try:
            await self._tell(self._config)
        except InvalidInput:
            self._config = former
            raise

    async def set_authority(self, certificate: str, key: Secret) -> None:
        """Replace the authority, in PEM, by which TLS is ended; without one, requests that must be looked into are
        refused. Raises InvalidInput.
        """
        former, self._authority = self._authority, link.SetAuthority(0, certificate, key)
        try:
            await self._tell(self._authority)
        except InvalidInput:
            self._authority = former
            raise

    async def ping(self) -> None:
        """Return if the gateway answers. Raises UpstreamFailed."""
        try:
            if self._channel is None or not self._ready.is_set():
                raise LinkLostError
            await self._calls.make(self._channel, link.Ping(0))
        except LinkLostError:
            raise UpstreamFailed("the gateway is down", "it is restarted by the daemon; try again") from None

    async def _until_served(self, kept: Kept) -> None:
        """Return when the current gateway serves it, across restarts meanwhile."""
        while True:
            await self._wait_ready(CALL_TIMEOUT)
            channel = self._channel
            if channel is None or kept.served_by is channel:
                return
            try:
                await self._serve(kept, channel)
            except LinkLostError:
                continue
            return

    async def _serve(self, kept: Kept, channel: Channel) -> None:
        if kept.served_by is channel:
            return
        fds = [listener.sock.fileno() for listener in kept.listeners]
        if self._kept.get(kept.attachment.sandbox) is not kept:
            return
        await self._calls.make(channel, kept.message(0), fds)
        kept.served_by = channel

    async def _wait_ready(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._ready.wait()
        except TimeoutError:
            raise UpstreamFailed("the gateway is down", "see `corral daemon logs`, then try again") from None
        if self._closing:
            raise UpstreamFailed("the gateway is shutting down", "start the daemon again")

    async def _tell(self, message: link.Order) -> None:
        """Say what a later gateway will be told anyway."""
        if self._channel is None or not self._ready.is_set():
            return
        try:
            await self._calls.make(self._channel, message)
        except LinkLostError:
            return

    async def call_forge(self, tenant: TenantId, secret: str, call: ForgeCall) -> ForgeAnswer:
        """Call a forge's API with a tenant's secret. See `ports.Gateway`."""
        await self._wait_ready(CALL_TIMEOUT)
        channel = self._channel
        if channel is None or channel.closed:
            raise UpstreamFailed("the gateway is down", "try again")
        return await self._calls.forge(channel, tenant, secret, call)

    def _take(self, channel: Channel, message: link.Message) -> None:
        match message:
            case link.Ready(version=link.VERSION):
                self._ready.set()
            case link.Done() | link.Failed() | link.Forged() if self._calls.answered(message):
                return
            case link.Reserve() | link.UsageRecord() | link.Release() | link.Return():
                self._accounts.take(channel, message)
                self._hold_back(channel)
            case link.Ask() | link.Withdraw():
                self._questions.take(channel, message)
            case link.OpenSpool() | link.Inspect() | link.CloseSpool():
                self._pushes.take(channel, message)
            case link.AuditRecord():
                self._records.put_nowait(message)
                self._hold_back(channel)
            case link.Flush():
                self._records.put_nowait(_Flush(channel, message.number))
            case _:
                raise InvalidInput(
                    f"the gateway sent an unexpected {type(message).__name__}", "restart the daemon"
                )

    def _ended(self, channel: Channel, error: CorralError | None) -> None:
        if error is not None:
            _log.error("the gateway's link was cut: %s", error)
        self._accounts.ended(channel)
        self._questions.ended(channel)
        self._pushes.ended(channel)
        if channel is not self._channel:
            return
        self._ready.clear()
        self._calls.ended()
        self._lost.set()

    async def _deliver(self) -> None:
        while True:
            taken = [await self._records.get()]
            # Hardly anybody waits for these, and calls that wait for the ledger must not wait behind each of them.
            await asyncio.sleep(_GATHER_SECONDS)
            while len(taken) < _MAX_RECORDS and not self._records.empty():
                taken.append(self._records.get_nowait())
            records = [item for item in taken if isinstance(item, link.AuditRecord)]
            try:
                if records:
                    await until_taken(partial(self._on_audit, records))
                for item in taken:
                    if isinstance(item, _Flush):
                        item.done()
            finally:
                for _ in taken:
                    self._records.task_done()
            self._go_on()

    def _hold_back(self, channel: Channel) -> None:
        """Read no more of a gateway that says more than can be written."""
        if self._records.qsize() + self._accounts.waiting >= _MAX_WAITING and not self._paused:
            self._paused = True
            channel.pause()

    def _go_on(self) -> None:
        waiting = self._records.qsize() + self._accounts.waiting
        if self._paused and self._channel is not None and waiting < _MAX_WAITING // 2:
            self._paused = False
            self._channel.resume()

    def _tenant_of(self, sandbox: SandboxId) -> TenantId | None:
        kept = self._kept.get(sandbox)
        return None if kept is None else kept.attachment.tenant

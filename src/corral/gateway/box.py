"""One sandbox as the gateway knows it: what it may do, what it has open, what it was refused.

Every service takes a `Box` and asks nothing else about who is calling: the listening socket that a connection
came in on belongs to one box, and that is its identity (G-10, G-19).
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Container, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from aiohttp import web

from corral.errors import NoCapacity
from corral.gateway.audit import AuditTrail, Denial, TokenBucket
from corral.gateway.exchange import NOTHING, Moved, request_id
from corral.gateway.inject import Bound
from corral.gateway.names import NameTable
from corral.gateway.redact import Forms
from corral.gateway.underway import Ongoing, Way, always
from corral.model.egress import EgressPolicy
from corral.model.ids import SandboxId, TenantId
from corral.model.route import Route
from corral.policy.egress import Allowed, Decision, Denied, Reason, RuleBook, names, narrows
from corral.policy.forms import distinct
from corral.policy.learning import ORIGIN
from corral.policy.routes import credentials_in, rule_at
from corral.policy.tokens import token_matches
from corral.wire.link import Attach, AuditRecord, GrantSpec

_log = logging.getLogger(__name__)

MAX_CONNECTIONS = 1024
MAX_BUFFERED = 256 * 1024 * 1024
"""Bytes of request bodies held at a time."""
_BAD_TOKEN_RATE, _BAD_TOKEN_BURST = 0.5, 20
_LOOKUPS = 8
_LOOK_AGAIN = 1.0
_HANDSHAKE_RATE, _HANDSHAKE_BURST = 50.0, 200
"""TLS handshakes that the gateway does for one box: each costs as much as some hundred requests."""
_LEAF_RATE, _LEAF_BURST = 5.0, 100


@dataclass(frozen=True, slots=True)
class _Use:
    """A request that a service of this kind is answering by this secret."""

    kind: str
    secret: str
    request: web.BaseRequest


class Box:
    """A sandbox that is being served. `close` cuts all that it has open."""

    def __init__(
        self,
        attach: Attach,
        send: Callable[[AuditRecord], None],
        model_hosts: Callable[[frozenset[str]], frozenset[str]],
        bypass: Callable[[], frozenset[str]],
    ) -> None:
        """`model_hosts` tells the hosts that only the metered service reaches, given those that rules name; `bypass` the
        operator's hosts whose TLS is not ended here.
        """
        self.id: SandboxId = attach.sandbox
        self.tenant: TenantId = attach.tenant
        self.name = attach.name
        self.policy: EgressPolicy = attach.egress
        self.repos = attach.repos
        self.push = attach.push
        self.rules = RuleBook(attach.egress)
        self.seed = attach.seed
        self.bound: tuple[Bound, ...] = ()
        self.tenants_secrets: Forms | None = None
        self.tenants_spellings: Forms | None = None
        self.names = NameTable(attach.egress)
        self.audit = AuditTrail(send)
        self.bad_tokens = TokenBucket(_BAD_TOKEN_RATE, _BAD_TOKEN_BURST)
        self.handshakes = TokenBucket(_HANDSHAKE_RATE, _HANDSHAKE_BURST)
        self.leaves = TokenBucket(_LEAF_RATE, _LEAF_BURST)
        self.lookups = asyncio.Semaphore(_LOOKUPS)
        self.model_calls = 0
        self.buffered = 0
        self.large = asyncio.Semaphore(1)
        self.closed = asyncio.Event()
        self._model_hosts = model_hosts
        self._bypass = bypass
        self._ruled = _hosts(attach.egress)
        self._expiry: asyncio.TimerHandle | None = None
        self._transports: set[asyncio.BaseTransport] = set()
        self._bound: dict[asyncio.BaseTransport, Way] = {}
        self._ongoing: set[Ongoing] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._on_close: list[Callable[[], None]] = []
        self._uses: dict[int, _Use] = {}
        self.set_grant(attach.grant)
        self.route = Route()
        self._written: dict[str, tuple[Bound, ...]] = {}
        self.set_route(attach.route)

    @property
    def secrets(self) -> frozenset[str]:
        """What its grant covers; nothing once that is over."""
        return frozenset() if self.grant_over() else frozenset(self.grant.secrets)

    def set_grant(self, grant: GrantSpec) -> None:
        """Go by another grant from now on. One that is over cuts all that the sandbox has open (G-18, G-333)."""
        self.grant = grant
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if self.grant_over():
            self._cut()
        elif grant.expires_at is not None:
            left = (grant.expires_at - datetime.now(UTC)).total_seconds()
            # A clock that was set meanwhile must not put the end off by more than this.
            self._expiry = asyncio.get_running_loop().call_later(
                min(left, _LOOK_AGAIN), self.set_grant, grant
            )

    def grant_over(self) -> str:
        """Why the grant covers nothing: `revoked` or `expired`; empty while it holds."""
        if self.grant.revoked:
            return "revoked"
        ends = self.grant.expires_at
        return "expired" if ends is not None and datetime.now(UTC) >= ends else ""

    def has_token(self, token: str) -> bool:
        """Whether `token` is the one of this sandbox's grant, compared in constant time (G-16, G-19).

        The one before it is good for the time of overlap (G-21).
        """
        if token_matches(token, self.grant.token_hash):
            return True
        until = self.grant.former_until
        overlaps = until is not None and datetime.now(UTC) < until
        return overlaps and token_matches(token, self.grant.former_hash)

    def decide(self, host: str, port: int) -> Decision:
        """What the policy says to a canonical host and port."""
        if over := self.grant_over():
            return Denied(
                host, port, Reason.GRANT, f"this sandbox's grant is {over}", how_to_renew(self.name)
            )
        return self.rules.decide(host, port, self._model_hosts(self._ruled))

    def set_bound(
        self, bound: tuple[Bound, ...], tenants_secrets: Forms | None, tenants_spellings: Forms | None
    ) -> None:
        """Replace the secrets that go to hosts, from the next request on, and what must stand in none (G-42)."""
        own = {
            text: f"header {field.name}"
            for rule in self.route.headers
            for field in rule.fields
            for text in credentials_in(field)
            if distinct(text.encode())
        }
        plain = Forms.of({text.encode(): name for text, name in own.items()}) if own else None
        spelled = Forms.joined(Forms(text, name) for text, name in own.items()) if own else None
        self.bound = bound
        self.tenants_secrets = _both(tenants_secrets, plain)
        self.tenants_spellings = _both(tenants_spellings, spelled)

    def bound_at(self, host: str, port: int, *, tls: bool) -> tuple[Bound, ...]:
        """The secrets that go to a canonical host at a port, and after them the header fields that are set there."""
        granted = self.secrets
        rule = rule_at(self.route, host) if tls else None
        return (
            *(one for one in self.bound if one.name in granted and one.binding.covers(host, port, tls=tls)),
            *(self._written[rule.host] if rule is not None else ()),
        )

    def bypasses(self, host: str) -> bool:
        """Whether TLS to a canonical host is never ended here (G-132)."""
        return names(self._bypass(), host)

    def admit(self, transport: asyncio.BaseTransport) -> bool:
        """Count a connection in, or refuse it because the sandbox has too many (G-339)."""
        if self.closed.is_set() or len(self._transports) >= MAX_CONNECTIONS:
            return False
        self._transports.add(transport)
        return True

    def release(self, transport: asyncio.BaseTransport) -> None:
        """Count a connection out."""
        self._transports.discard(transport)
        self._bound.pop(transport, None)

    def bind(
        self, transport: asyncio.BaseTransport, host: str, port: int, holds: Callable[[], bool] = always
    ) -> None:
        """Note where an admitted connection leads, so that it is cut once that is no longer allowed, or does not hold as it
        is (G-308).
        """
        if transport in self._transports:
            self._bound[transport] = Way(host, port, holds)

    @contextmanager
    def ongoing(self, request: Ongoing) -> Iterator[None]:
        """While it is entered, the request is cut once it could not be made any more (G-308, G-333)."""
        self._ongoing.add(request)
        try:
            yield
        finally:
            self._ongoing.discard(request)

    def set_policy(self, policy: EgressPolicy) -> bool:
        """Change what the sandbox may reach, from its next request on; what it may no longer have open is cut. Whether fewer
        addresses may be dialled than before."""
        narrower = narrows(self.policy, policy)
        self.policy = policy
        self.rules = RuleBook(policy)
        self._ruled = _hosts(policy)
        for host in sorted(host for host in self._ruled if not host.startswith("*")):
            with contextlib.suppress(NoCapacity):  # then it gets none when it is asked for either
                self.names.address(host)
        self.judge_again(narrower=narrower)
        return narrower

    def judge_again(self, *, narrower: bool = False) -> None:
        """Cut what is open and could not be opened any more (G-308). Where a connection led is not known by its address:
        if fewer may be dialled than before (`narrower`), all to other hosts are cut.
        """
        for transport, way in list(self._bound.items()):
            if narrower or isinstance(self.decide(way.host, way.port), Denied) or not way.holds():
                cast(asyncio.Transport, transport).abort()
        for one in list(self._ongoing):
            decision = self.decide(one.allowed.host, one.allowed.port)
            if isinstance(decision, Allowed):
                decision = self.rules.decide_request(decision, one.method, one.path)
            if isinstance(decision, Denied):
                one.cut()

    def set_route(self, route: Route) -> None:
        """Let what the sandbox sends go out another way, and cut what has gone out by the former. `set_bound` comes after."""
        if route != self.route:
            self._cut()
        self.route = route
        self._written = {
            rule.host: tuple(Bound.written(rule.host, field, self.seed) for field in rule.fields)
            for rule in route.headers
        }

    @asynccontextmanager
    async def using(self, kind: str, secret: str, request: web.BaseRequest) -> AsyncIterator[None]:
        """While it is entered, the request's connection is cut once the secret is not covered any more (G-333). `kind` is
        the service's, for the record of that.
        """
        self._uses[id(request)] = _Use(kind, secret, request)
        try:
            yield
        finally:
            del self._uses[id(request)]

    def cut_uncovered(self, covered: Container[str]) -> None:
        """Cut what uses a secret that is not among those covered, or is bound to its host no more; and what passes unread
        where a secret goes now.
        """
        for use in list(self._uses.values()):
            transport = use.request.transport
            if use.secret not in covered and transport is not None:
                self.note(use.kind, "cut", secret=use.secret, reason="secret-revoked")
                transport.abort()
        for one in list(self._ongoing):
            host, port = one.allowed.host, one.allowed.port
            gone = one.secrets - {bound.name for bound in self.bound_at(host, port, tls=one.tls)}
            for name in sorted(gone):
                kind = "https" if one.tls else "http"
                self.note(kind, "cut", host=host, port=port, secret=name, reason="secret-revoked")
            if gone:
                one.cut()
        self.judge_again()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work that ends with the box at the latest; an error in it is logged and harms nothing else."""
        task = asyncio.get_running_loop().create_task(_logged(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the box is closed."""
        self._on_close.append(callback)

    def close(self) -> None:
        """Stop listening, cut connections, cancel work. Idempotent."""
        self.closed.set()
        if self._expiry is not None:
            self._expiry.cancel()
        for callback in self._on_close:
            callback()
        self._on_close.clear()
        self._cut()

    def _cut(self) -> None:
        for transport in list(self._transports):
            cast(asyncio.Transport, transport).abort()
        for task in list(self._tasks):
            task.cancel()

    def refuse(self, kind: str, denied: Denied, *, method: str = "", path: str = "") -> None:
        """Record a denial: in the audit log, and where the sandbox can read it again (G-315)."""
        now = datetime.now(UTC)
        text = denied.message
        self.audit.denials.append(
            Denial(now, kind, denied.host, denied.port, denied.reason.value, text, denied.how_to_allow)
        )
        self.note(
            kind,
            "denied",
            host=denied.host,
            port=denied.port,
            reason=denied.reason.value,
            method=method,
            path=path,
        )

    def allow(
        self,
        kind: str,
        allowed: Allowed,
        *,
        method: str = "",
        path: str = "",
        status: int = 0,
        ended: bool = False,
        moved: Moved = NOTHING,
        ms: int = 0,
    ) -> None:
        """Record what was let through, or (`ended`) that it is over."""
        learned = ORIGIN if allowed.rule.origin == ORIGIN else ""
        self.note(
            kind, "ended" if ended else "allowed", host=allowed.host, port=allowed.port, rule=learned or allowed.rule.host,
            method=method, path=path, status=status, moved=moved, ms=ms,
        )  # fmt: skip

    def secret_in(self, text: bytes) -> str | None:
        """The name of a secret of the tenant's that stands in a short text, as it is or in a common spelling (G-44)."""
        for forms in (self.tenants_secrets, self.tenants_spellings):
            if forms is not None and (name := forms.first_in(text)) is not None:
                return name
        return None

    def leak(self, what: str, secret: str, host: str, port: int = 0) -> None:
        """Record that something holds a secret itself, which is an alarm (G-44)."""
        self.note("leak", "denied", host=host, port=port, secret=secret, reason=Reason.SECRET.value)
        _log.warning("%s of %s holds a secret itself", what, self.id)

    def note(
        self,
        kind: str,
        decision: str,
        *,
        host: str = "",
        port: int = 0,
        method: str = "",
        path: str = "",
        rule: str = "",
        reason: str = "",
        secret: str = "",
        status: int = 0,
        refs: str = "",
        moved: Moved = NOTHING,
        ms: int = 0,
        provider_id: str = "",
    ) -> None:
        """Write an audit record about this box; one that names refs is never left out. A refused path or ref may hold a
        secret, which is not written down (G-323).
        """
        named = bool(refs)
        if decision == "denied":
            path, refs = (
                "" if text and self.secret_in(text.encode("utf-8", "replace")) is not None else text
                for text in (path, refs)
            )
        record = AuditRecord(
            at=datetime.now(UTC), tenant=self.tenant, sandbox=self.id, kind=kind, decision=decision, host=host[:253],
            port=port, method=method[:32], path=path[:512], rule=rule, reason=reason, secret=secret, status=status,
            refs=refs[:8192], request_id=request_id(), bytes_sent=moved.sent, bytes_received=moved.received, duration_ms=ms,
            provider_request_id=provider_id,
        )  # fmt: skip
        self.audit.record(record, asyncio.get_running_loop().time(), always=named)


def _both(some: Forms | None, more: Forms | None) -> Forms | None:
    found = [forms for forms in (some, more) if forms is not None]
    return Forms.joined(found) if len(found) > 1 else next(iter(found), None)


def _hosts(policy: EgressPolicy) -> frozenset[str]:
    """The hosts that rules name."""
    return frozenset(rule.host for rule in policy.rules)


def how_to_renew(name: str) -> str:
    """What a person can do about a grant that is over."""
    return f"on the host, renew it: `corral grant renew {name}`"


async def _logged(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except Exception:  # noqa: BLE001 (a defect in one sandbox's work must not end the others')
        _log.exception("work for a sandbox failed")

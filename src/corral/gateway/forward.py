"""Requests to allowed hosts: one in, the same one out with the secrets that belong there, the answer back as it comes.

Plain HTTP and requests inside of TLS that the gateway ended take the same way; they differ in how it is known which host is
meant, and in that secrets go over TLS only.
"""

import logging
import secrets
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from urllib.parse import unquote_plus

import aiohttp
from aiohttp import hdrs, web
from multidict import CIMultiDict
from yarl import URL

from corral.errors import Forbidden, InvalidInput
from corral.gateway import aws, framing, websocket
from corral.gateway.box import Box
from corral.gateway.dial import Dialer, proxy_refusal
from corral.gateway.inject import Bound, Injected, Rejected, inject
from corral.gateway.redact import Forms, Redactor
from corral.gateway.replies import Relayed, closing, denial
from corral.gateway.rewrite import Guard, Incoming, LeakError, Outgoing, coding_of, readable_codings
from corral.gateway.upstream import RefusedError, body_of, session
from corral.policy.egress import Allowed, Decision, Denied, Reason, literal, split_authority
from corral.policy.paths import OVERRIDES, unsafe

_BODILESS = frozenset({204, 304})
_NO_RANGES = frozenset({"range", "if-range"})

_log = logging.getLogger(__name__)


class _StopError(Exception):
    """Ends a request with a refusal."""

    def __init__(self, refusal: Denied, status: int = 403) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal
        self.status = status


@dataclass(frozen=True, slots=True)
class _Call:
    """A request that may be made: as it is to be sent, and what must be taken out of its answer."""

    allowed: Allowed
    tls: bool
    injected: Injected
    bound: tuple[Bound, ...]
    guard: Guard | None
    path: str
    upgrade: bool

    @property
    def forms(self) -> Forms | None:
        """What is looked for in the answer."""
        return Forms.joined(one.forms for one in self.bound) if self.bound else None


class Forwarder:
    """Sends one box's requests on. Its connections are used for no other box (G-57)."""

    def __init__(self, box: Box, dialer: Dialer) -> None:
        self._box = box
        self._dialer = dialer
        self._session = session(box, dialer)

    async def close(self) -> None:
        """Close its connections."""
        await self._session.close()

    def decide(self, host_field: str, address: str, port: int) -> Decision:
        """Where a request goes, from its Host field, the address connected to and the listener's port (G-47)."""
        try:
            host, named_port = split_authority(host_field, port)
        except InvalidInput as error:
            return Denied("", port, Reason.BAD_HOST, error.message, error.hint)
        decision = self._box.decide(host, port)
        if isinstance(decision, Denied):
            return decision
        if named_port != port or not self._names_match(host, address):
            return Denied(
                host, port, Reason.MISMATCH, f"the connection was made to another host than {host}",
                "connect to the host and port that the request names",
            )  # fmt: skip
        return decision

    def _names_match(self, host: str, address: str) -> bool:
        if literal(host) is not None:
            return host == address
        return self._box.names.stands_for(address, host)

    async def serve(self, request: web.BaseRequest, address: str, port: int) -> web.StreamResponse:
        """Answer a plain request that came in on an address and port."""
        decision = self.decide(request.headers[hdrs.HOST], address, port)
        if isinstance(decision, Denied):
            return self.refuse(request, decision, 421 if decision.reason is Reason.MISMATCH else 403)
        if request.transport is not None:
            self._box.bind(request.transport, decision.host, port)
        return await self._serve(request, decision, tls=False)

    async def serve_inside(self, request: web.BaseRequest, allowed: Allowed) -> web.StreamResponse:
        """Answer a request on a connection to an allowed host whose TLS was ended here. The policy is asked again: it may
        have changed since the connection was made (G-49).
        """
        decision = self._box.decide(allowed.host, allowed.port)
        if isinstance(decision, Denied):
            return self.refuse(request, decision, 403)
        return await self._serve(request, decision, tls=True)

    async def _serve(self, request: web.BaseRequest, allowed: Allowed, *, tls: bool) -> web.StreamResponse:
        try:
            call = self._prepare(request, allowed, tls=tls)
            return await self._send(request, call)
        except _StopError as stop:
            return self.refuse(request, stop.refusal, stop.status)

    # -- before anything is sent ----------------------------------------------------------------------------------

    def _prepare(self, request: web.BaseRequest, allowed: Allowed, *, tls: bool) -> _Call:
        """The request as it is to be sent. Raises _StopError."""
        path = request.raw_path.partition("?")[0]
        bound = self._box.bound_at(allowed.host, allowed.port, tls=tls)
        self._check_readings(request, allowed, path, guarded=bool(bound))
        decision = self._box.rules.decide_request(allowed, request.method, path)
        if isinstance(decision, Denied):
            raise _StopError(decision)
        upgrade = framing.wants_upgrade(request.raw_headers)
        if upgrade and not (tls and websocket.is_handshake(request)):
            raise _StopError(
                _bad(
                    decision,
                    "connections cannot change their protocol here",
                    "use WebSockets over TLS (wss://)",
                )
            )
        try:
            fields = framing.end_to_end(request.raw_headers)
        except UnicodeDecodeError:
            raise _StopError(
                _bad(decision, "a header field is not UTF-8", "send ASCII fields"), 400
            ) from None
        guard = self._checked_for_leaks(decision, request.raw_path, fields)
        injected = inject(bound, request.method, request.raw_path, fields, upgrade=upgrade)
        if isinstance(injected, Rejected):
            raise _StopError(
                Denied(decision.host, decision.port, Reason.NO_PLACEHOLDER, injected.message, injected.hint)
            )
        self._note_strays(decision, request.raw_path, fields, bound)
        return _Call(decision, tls, injected, bound, guard, path, upgrade)

    def _check_readings(
        self, request: web.BaseRequest, allowed: Allowed, path: str, *, guarded: bool
    ) -> None:
        """Refuse what a server may read as another request than the one that is decided on (G-60, G-77)."""
        inside = self._box.rules.looks_inside(allowed.host, allowed.port)
        if (guarded or inside) and (why := unsafe(path)) is not None:
            raise _StopError(
                _bad(allowed, f"the path could be read in two ways: {why}", "write it plainly"), 400
            )
        if inside and _overrides_method(request):
            raise _StopError(
                _bad(allowed, "the request asks the server to take another method", "send the method itself")
            )

    def _checked_for_leaks(
        self, allowed: Allowed, target: str, fields: list[tuple[str, str]]
    ) -> Guard | None:
        """What looks for secrets in the request, its head being free of them (G-44)."""
        if self._box.tenants_secrets is None:
            return None
        guard = Guard(self._box.tenants_secrets)
        try:
            guard.check("\n".join([target, *(value for _, value in fields)]).encode())
        except LeakError as leak:
            raise _StopError(self._leaked(allowed, leak.name)) from None
        return guard

    def _leaked(self, allowed: Allowed, name: str) -> Denied:
        self._box.note(
            "leak", "denied", host=allowed.host, port=allowed.port, secret=name, reason="secret-in-request"
        )
        _log.warning("a request of %s holds a secret itself", self._box.id)
        return Denied(
            allowed.host,
            allowed.port,
            Reason.SECRET,
            "the request holds a secret of this host, which no sandbox is given",
            "send the placeholder from this sandbox's environment; on the host, replace the secret: it has leaked",
        )

    def _note_strays(
        self, allowed: Allowed, target: str, fields: list[tuple[str, str]], bound: tuple[Bound, ...]
    ) -> None:
        """Record placeholders that stay as they are, since their secret does not go here (G-32, G-348)."""
        for one in self._box.bound:
            if one not in bound and any(
                stand in target or any(stand in value for _, value in fields) for stand, _ in one.pairs
            ):
                self._box.note("secret", "kept", host=allowed.host, port=allowed.port, secret=one.name,
                               reason="not-bound-to-host")  # fmt: skip

    # -- there and back -------------------------------------------------------------------------------------------

    async def _send(self, request: web.BaseRequest, call: _Call) -> web.StreamResponse:
        allowed, scheme = call.allowed, "https" if call.tls else "http"
        proxy = self._dialer.proxies.find(scheme, allowed.host, allowed.port)
        await self._check_way(allowed, proxied=proxy is not None)
        headers = CIMultiDict(call.injected.fields)
        if call.bound:
            _ask_readably(headers)
        if call.upgrade:
            websocket.offer(headers, inspected=bool(call.bound))
        for_proxy, for_tunnel = proxy.credentials(scheme) if proxy is not None else ({}, {})
        headers.update(for_proxy)
        await continue_if_asked(request, headers)
        try:
            data = await self._data(request, call, headers)
            used = set(call.injected.used)
            if (one := aws.signer(call.bound, call.injected.target, headers)) is not None:
                data = await aws.sign(one, request.method, call.injected.target, allowed.host, headers, data)
                used.add(one.name)
            host = f"[{allowed.host}]" if ":" in allowed.host else allowed.host
            sent = self._session.request(
                request.method,
                URL(f"{scheme}://{host}:{allowed.port}{call.injected.target}", encoded=True),
                headers=headers,
                data=data,
                chunked=True if data is not None and _is_endless(data, headers) else None,
                allow_redirects=False,
                proxy=proxy.url if proxy is not None else None,
                proxy_headers=for_tunnel,
            )
            async with sent as upstream:
                self._allow(request, call, upstream.status, used)
                return await self._relay(request, upstream, call)
        except _StopError:
            raise
        except InvalidInput as error:
            raise _StopError(_bad(allowed, error.message, error.hint), 415) from None
        except Forbidden as error:
            raise _StopError(_bad(allowed, error.message, error.hint)) from None
        except LeakError as leak:
            raise _StopError(self._leaked(allowed, leak.name)) from None
        except aiohttp.ClientConnectorCertificateError as error:
            raise _StopError(_distrusted(allowed, error), 502) from None
        except aiohttp.ClientConnectorError as error:
            raise self._unreached(allowed, error) from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if call.guard is not None and call.guard.leaked is not None:
                raise _StopError(self._leaked(allowed, call.guard.leaked)) from None
            _log.info("upstream of %s failed: %s", self._box.id, type(error).__name__)
            raise _StopError(_failed(allowed, "answer this request"), 502) from None

    async def _check_way(self, allowed: Allowed, *, proxied: bool) -> None:
        if proxied:
            if (refusal := proxy_refusal(self._box, allowed)) is not None:
                raise _StopError(refusal)
        elif literal(allowed.host) is not None:
            # The connector dials addresses without asking its resolver.
            found = await self._dialer.addresses(self._box, allowed)
            if isinstance(found, Denied):
                raise _StopError(found)

    @staticmethod
    async def _data(
        request: web.BaseRequest, call: _Call, headers: CIMultiDict[str]
    ) -> bytes | AsyncIterator[bytes] | None:
        if not request.body_exists:
            return None
        outgoing = Outgoing(
            call.guard,
            call.injected.exchange,
            coding_of(request.headers.getall(hdrs.CONTENT_ENCODING, [])),
            request.headers.get(hdrs.CONTENT_TYPE, ""),
        )
        return await outgoing.framed(body_of(request), headers)

    def _allow(self, request: web.BaseRequest, call: _Call, status: int, used: set[str]) -> None:
        kind = "https" if call.tls else "http"
        self._box.allow(kind, call.allowed, method=request.method, path=call.path, status=status)
        for name in sorted(used):
            self._box.note("secret", "used", host=call.allowed.host, port=call.allowed.port, method=request.method,
                           path=call.path, secret=name, status=status)  # fmt: skip

    async def _relay(
        self, request: web.BaseRequest, upstream: aiohttp.ClientResponse, call: _Call
    ) -> web.StreamResponse:
        bad = framing.check_response(upstream.raw_headers)
        if bad is not None:
            upstream.close()
            raise _StopError(_bad(call.allowed, bad.message, "this server cannot be used"), bad.status)
        fields = [(name, value) for name, value in _fields(upstream) if name.lower() != "alt-svc"]
        forms = call.forms
        if upstream.status == 101:
            return await self._talk(request, upstream, call, fields)
        if forms is None:
            response = Relayed(upstream, CIMultiDict(fields))
            await response.prepare(request)
            await pump(upstream.content.iter_any(), response, request)
            return response
        return await self._redacted(request, upstream, call, forms, fields)

    async def _talk(
        self,
        request: web.BaseRequest,
        upstream: aiohttp.ClientResponse,
        call: _Call,
        fields: list[tuple[str, str]],
    ) -> web.StreamResponse:
        """Pass a WebSocket on until it ends."""
        if not call.upgrade:
            raise _StopError(
                _bad(call.allowed, "the server changes the protocol unasked", "it cannot be used"), 502
            )
        try:
            redactor = await websocket.relay(request, upstream, fields, call.forms)
        except InvalidInput as error:
            raise _StopError(_bad(call.allowed, error.message, error.hint), 502) from None
        self._note_hits(call, redactor)
        # Nobody is there any more to get it.
        return closing(web.Response(status=200))

    def _note_hits(self, call: _Call, redactor: Redactor | None) -> None:
        for name, count in redactor.found.items() if redactor is not None else ():
            self._box.note("redaction", "redacted", host=call.allowed.host, port=call.allowed.port, secret=name,
                           reason=f"{count} hits")  # fmt: skip

    async def _redacted(
        self,
        request: web.BaseRequest,
        upstream: aiohttp.ClientResponse,
        call: _Call,
        forms: Forms,
        fields: list[tuple[str, str]],
    ) -> web.StreamResponse:
        """Pass an answer on without the secrets that went to its server (G-137 to G-141)."""
        coding = coding_of(upstream.headers.getall(hdrs.CONTENT_ENCODING, []))
        bodiless = request.method == "HEAD" or upstream.status in _BODILESS
        try:
            incoming = Incoming(forms, "" if bodiless else coding)
        except InvalidInput as error:
            upstream.close()
            raise _StopError(
                _bad(call.allowed, error.message, "this server cannot be used with a secret"), 502
            ) from None
        dropped = (
            {"content-encoding", "content-length"}
            if coding not in ("", "identity") and not bodiless
            else set()
        )
        headers = CIMultiDict(
            (name, incoming.redactor.text(value)) for name, value in fields if name.lower() not in dropped
        )
        response = Relayed(upstream, headers)
        await response.prepare(request)
        try:
            await pump(incoming.stream(upstream.content.iter_any()), response, request)
        finally:
            self._note_hits(call, incoming.redactor)
        return response

    @staticmethod
    def _unreached(allowed: Allowed, error: aiohttp.ClientConnectorError) -> _StopError:
        cause = error.os_error
        if isinstance(cause, RefusedError):
            return _StopError(cause.refusal)
        return _StopError(_failed(allowed, "be reached"), 502)

    def refuse(self, request: web.BaseRequest, refusal: Denied, status: int) -> web.Response:
        """Refuse a request."""
        path = request.raw_path.partition("?")[0]
        self._box.refuse("http", refusal, method=request.method, path=path)
        return denial(
            refusal,
            status=status,
            request_id=secrets.token_hex(8),
            accept=request.headers.get(hdrs.ACCEPT, ""),
            method=request.method,
            path=path,
        )


def _overrides_method(request: web.BaseRequest) -> bool:
    named: Mapping[bytes, list[bytes]] = framing.by_name(request.raw_headers)
    if any(name.encode() in named for name in OVERRIDES):
        return True
    query = request.raw_path.partition("?")[2]
    return any(unquote_plus(part.partition("=")[0]).lower() == "_method" for part in query.split("&"))


def _ask_readably(headers: CIMultiDict[str]) -> None:
    """Ask for an answer that can be searched for secrets (G-94, G-142)."""
    headers[hdrs.ACCEPT_ENCODING] = readable_codings(headers.popall(hdrs.ACCEPT_ENCODING, []))
    for name in _NO_RANGES:
        headers.popall(name, None)


def _is_endless(data: bytes | AsyncIterator[bytes], headers: CIMultiDict[str]) -> bool:
    return not isinstance(data, bytes) and hdrs.CONTENT_LENGTH not in headers


def _fields(upstream: aiohttp.ClientResponse) -> list[tuple[str, str]]:
    fields = [(name, value.decode("utf-8", "replace").encode()) for name, value in upstream.raw_headers]
    return framing.end_to_end(fields)


async def continue_if_asked(request: web.BaseRequest, headers: CIMultiDict[str]) -> None:
    """Say 100 Continue to a client that waits for it, the request being allowed (G-84)."""
    if headers.popall(hdrs.EXPECT, None) is not None:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        # What was written does not belong to the response.
        request.writer.output_size = 0


async def pump(source: AsyncIterator[bytes], response: web.StreamResponse, request: web.BaseRequest) -> None:
    """Write a body as it comes. If it breaks off, so does the client's connection: it must not look complete
    (G-102, G-143).
    """
    try:
        async for chunk in source:
            await response.write(chunk)
    except (aiohttp.ClientError, TimeoutError, InvalidInput):
        cut(request)
        return
    await response.write_eof()


def cut(request: web.BaseRequest) -> None:
    """End a client's connection without the end of its response."""
    if request.transport is not None:
        request.transport.abort()


def _bad(allowed: Allowed, message: str, hint: str) -> Denied:
    return Denied(allowed.host, allowed.port, Reason.BAD_REQUEST, message, hint)


def _failed(allowed: Allowed, what: str) -> Denied:
    return Denied(
        allowed.host,
        allowed.port,
        Reason.UNREACHABLE,
        f"{allowed.host} could not {what}",
        "it is allowed; try again later",
    )


def _distrusted(allowed: Allowed, error: aiohttp.ClientConnectorCertificateError) -> Denied:
    """The server's certificate is not good: told inside of a connection that is (G-136)."""
    why = getattr(error.certificate_error, "verify_message", "") or "it is not valid"
    return Denied(
        allowed.host,
        allowed.port,
        Reason.UNREADABLE,
        f"the certificate of {allowed.host} is not accepted: {why}",
        "the host's own trust decides; its operator can add a company's authority there",
    )

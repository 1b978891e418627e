"""Requests to allowed hosts: one in, the same one out with the secrets that belong there, the answer back as it comes.

Plain HTTP and requests inside of TLS that the gateway ended take the same way; they differ in how it is known which host is
meant, and in that secrets go over TLS only.
"""

import logging
from collections.abc import AsyncIterator
from functools import partial

import aiohttp
from aiohttp import hdrs, web
from multidict import CIMultiDict
from yarl import URL

from corral.errors import Forbidden, InvalidInput
from corral.gateway import aws, framing, websocket
from corral.gateway.box import Box
from corral.gateway.buffered import Buffered, TooManyBytesError
from corral.gateway.clientcerts import ClientCertificates, shown
from corral.gateway.dial import Dialer, proxy_refusal
from corral.gateway.exchange import Moved
from corral.gateway.multiplex import Multiplexed
from corral.gateway.outbound import (
    Call,
    Head,
    Outbound,
    StopError,
    bad_request,
    distrusted,
    too_many_bytes,
    unanswered,
)
from corral.gateway.overrides import refusal as overriding
from corral.gateway.redact import Forms
from corral.gateway.replies import Relayed, closing, denial
from corral.gateway.rewrite import Incoming, LeakError, coding_of
from corral.gateway.upstream import RefusedError, body_of, session
from corral.policy.egress import Allowed, Decision, Denied, Reason, literal, split_authority

_log = logging.getLogger(__name__)


class Forwarder:
    """Sends one box's requests on. Its connections are used for no other box (G-57)."""

    def __init__(self, box: Box, dialer: Dialer) -> None:
        self._box = box
        self._dialer = dialer
        self._session = session(box, dialer)
        self._outbound = Outbound(box)
        self._certificates = ClientCertificates(dialer.tls)

    async def renew(self) -> None:
        """Close its connections, and make new ones from now on."""
        former, self._session = self._session, session(self._box, self._dialer)
        await former.close()

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
        if request.transport is not None:
            self._box.bind(request.transport, decision.host, decision.port)
        return await self._serve(request, decision, tls=True)

    async def _serve(self, request: web.BaseRequest, allowed: Allowed, *, tls: bool) -> web.StreamResponse:
        try:
            head = Head(
                request.method,
                request.raw_path,
                request.raw_headers,
                websocket=tls and websocket.is_handshake(request),
            )
            call = self._outbound.prepare(head, allowed, tls=tls)
            with self._box.ongoing(call.ongoing(head.method, partial(cut, request))):
                return await self._send(request, head, call)
        except StopError as stop:
            return self.refuse(request, stop.refusal, stop.status)

    # -- there and back -------------------------------------------------------------------------------------------

    async def _send(self, request: web.BaseRequest, head: Head, call: Call) -> web.StreamResponse:
        allowed, scheme = call.allowed, "https" if call.tls else "http"
        proxy = self._dialer.parent(self._box, scheme, allowed)
        await self._check_way(allowed, proxied=proxy is not None)
        headers = call.headers()
        if call.upgrade:
            websocket.offer(headers, inspected=bool(call.bound or call.guard))
        for_proxy, for_tunnel = proxy.credentials(scheme) if proxy is not None else ({}, {})
        headers.update(for_proxy)
        await continue_if_asked(request, headers)
        try:
            with Buffered(self._box) as buffered:
                body = body_of(request) if request.body_exists else None
                ready = await call.ready(head, body, headers, buffered)
                host = f"[{allowed.host}]" if ":" in allowed.host else allowed.host
                sent = self._session.request(
                    request.method,
                    URL(f"{scheme}://{host}:{allowed.port}{call.injected.target}", encoded=True),
                    headers=headers,
                    data=ready.data,
                    chunked=True if _is_endless(ready.data, headers) else None,
                    allow_redirects=False,
                    proxy=proxy.url if proxy is not None else None,
                    proxy_headers=for_tunnel,
                    ssl=self._certificates.context(call.bound),
                )
                async with sent as upstream:
                    used = ready.used | shown(call.bound)
                    talk = websocket.Talk()
                    count = partial(moved, request, talk)
                    with self._outbound.sent(head, call, upstream.status, used, count):
                        return await self._relay(request, upstream, call, talk)
        except TooManyBytesError:
            raise too_many_bytes(allowed) from None
        except StopError:
            raise
        except InvalidInput as error:
            raise StopError(bad_request(allowed, error.message, error.hint), 415) from None
        except Forbidden as error:
            raise StopError(bad_request(allowed, error.message, error.hint)) from None
        except LeakError as leak:
            raise StopError(self._outbound.leaked(allowed, leak.name)) from None
        except aiohttp.ClientConnectorCertificateError as error:
            raise StopError(distrusted(allowed, _verify_message(error)), 502) from None
        except aiohttp.ClientConnectorError as error:
            raise self._unreached(allowed, error) from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if call.guard is not None and call.guard.leaked is not None:
                raise StopError(self._outbound.leaked(allowed, call.guard.leaked)) from None
            if call.overrides is not None and call.overrides.found:
                why = overriding()
                raise StopError(bad_request(allowed, why.message, why.hint)) from None
            _log.info("upstream of %s failed: %s", self._box.id, type(error).__name__)
            raise StopError(unanswered(allowed, "answer this request"), 502) from None

    async def _check_way(self, allowed: Allowed, *, proxied: bool) -> None:
        if proxied:
            if (refusal := proxy_refusal(self._box, allowed)) is not None:
                raise StopError(refusal)
        elif literal(allowed.host) is not None:
            # The connector dials addresses without asking its resolver.
            found = await self._dialer.addresses(self._box, allowed)
            if isinstance(found, Denied):
                raise StopError(found)

    async def _relay(
        self, request: web.BaseRequest, upstream: aiohttp.ClientResponse, call: Call, talk: websocket.Talk
    ) -> web.StreamResponse:
        bad = framing.check_response(upstream.raw_headers)
        if bad is not None:
            upstream.close()
            raise StopError(bad_request(call.allowed, bad.message, "this server cannot be used"), bad.status)
        fields = [(name, value) for name, value in _fields(upstream) if name.lower() != "alt-svc"]
        forms = call.forms
        if upstream.status == 101:
            return await self._talk(request, upstream, call, fields, talk)
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
        call: Call,
        fields: list[tuple[str, str]],
        talk: websocket.Talk,
    ) -> web.StreamResponse:
        """Pass a WebSocket on until it ends."""
        if not call.upgrade:
            raise StopError(
                bad_request(call.allowed, "the server changes the protocol unasked", "it cannot be used"), 502
            )
        try:
            redactor = await websocket.relay(request, upstream, fields, call.forms, call.guard, talk)
        except InvalidInput as error:
            raise StopError(bad_request(call.allowed, error.message, error.hint), 502) from None
        if redactor is not None:
            self._outbound.hits(call, redactor.found)
        if call.guard is not None and call.guard.leaked is not None:
            raise StopError(self._outbound.leaked(call.allowed, call.guard.leaked))
        # Nobody is there any more to get it.
        return closing(web.Response(status=200))

    async def _redacted(
        self,
        request: web.BaseRequest,
        upstream: aiohttp.ClientResponse,
        call: Call,
        forms: Forms,
        fields: list[tuple[str, str]],
    ) -> web.StreamResponse:
        """Pass an answer on without the secrets that went to its server (G-137 to G-141)."""
        coding = coding_of(upstream.headers.getall(hdrs.CONTENT_ENCODING, []))
        bodiless = framing.is_bodiless(request.method, upstream.status)
        try:
            incoming = Incoming(forms, "" if bodiless else coding)
        except InvalidInput as error:
            upstream.close()
            raise StopError(
                bad_request(call.allowed, error.message, "this server cannot be used with a secret"), 502
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
            self._outbound.hits(call, incoming.redactor.found)
        return response

    @staticmethod
    def _unreached(allowed: Allowed, error: aiohttp.ClientConnectorError) -> StopError:
        cause = error.os_error
        if isinstance(cause, RefusedError):
            return StopError(cause.refusal)
        return StopError(unanswered(allowed, "be reached"), 502)

    def multiplexed(self, decision: Decision) -> Multiplexed:
        """Serves a connection of HTTP/2 whose TLS was ended here."""
        return Multiplexed(self._box, self._dialer, decision)

    def refuse(self, request: web.BaseRequest, refusal: Denied, status: int) -> web.Response:
        """Refuse a request."""
        path = request.raw_path.partition("?")[0]
        self._box.refuse("http", refusal, method=request.method, path=path)
        return denial(
            refusal,
            status=status,
            accept=request.headers.get(hdrs.ACCEPT, ""),
            method=request.method,
            path=path,
        )


def _is_endless(data: aws.Data, headers: CIMultiDict[str]) -> bool:
    return data is not None and not isinstance(data, bytes) and hdrs.CONTENT_LENGTH not in headers


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


def moved(request: web.BaseRequest, talk: websocket.Talk | None = None) -> Moved:
    """What a request and its answer have moved, and what a WebSocket did after them."""
    said, told = (talk.said, talk.told) if talk is not None else (0, 0)
    return Moved(request.content.total_bytes + said, request.writer.output_size + told)


def cut(request: web.BaseRequest) -> None:
    """End a client's connection without the end of its response."""
    if request.transport is not None:
        request.transport.abort()


def _verify_message(error: aiohttp.ClientConnectorCertificateError) -> str:
    return getattr(error.certificate_error, "verify_message", "")

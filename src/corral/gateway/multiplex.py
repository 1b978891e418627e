"""Requests over HTTP/2 to a host whose TLS the gateway has ended: one connection in, one out, a stream for each request.

Only clients that speak nothing else get here, which those of gRPC do: whoever can speak HTTP/1.1 is answered in that. So
nothing is translated between the two. Each request is decided on by itself, as everywhere (G-49, G-108 to G-110).
"""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from functools import partial

from aiohttp import hdrs
from h2.errors import ErrorCodes

from corral.errors import CorralError, Forbidden, InvalidInput, first_of
from corral.gateway import exchange, framing
from corral.gateway.box import Box
from corral.gateway.buffered import Buffered, TooManyBytesError
from corral.gateway.clientcerts import ClientCertificates, shown
from corral.gateway.dial import CONNECT_TIMEOUT, Dialer
from corral.gateway.exchange import Moved
from corral.gateway.http2 import Connection, Stream, StreamError
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
from corral.gateway.redact import Redactor
from corral.gateway.relay import Side
from corral.gateway.replies import DECISION, REQUEST, denial
from corral.gateway.rewrite import Incoming, LeakError, coding_of
from corral.policy.egress import Allowed, Decision, Denied, Reason, split_authority
from corral.wire import http2

_NOT_SPOKEN = "be reached over HTTP/2, and this client speaks nothing else"

_log = logging.getLogger(__name__)


class Multiplexed(Connection):
    """A sandbox's connection. `decision` is about the host that it was made to, and asked again for each request."""

    def __init__(self, box: Box, dialer: Dialer, decision: Decision) -> None:
        super().__init__(client=False)
        self._box = box
        self._dialer = dialer
        self._decision = decision
        self._outbound = Outbound(box)
        self._certificates = ClientCertificates(dialer.http2, (http2.ALPN,))
        self._by: ssl.SSLContext | None = None
        self._upstream: Connection | None = None
        self._dialling = asyncio.Lock()
        self._admitted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._admitted = self._box.admit(transport)
        if not self._admitted:
            self.shut("too many connections")
            return
        self._box.bind(transport, self._decision.host, self._decision.port)
        self._box.spawn(self._serve())

    def connection_lost(self, exc: Exception | None) -> None:
        if self._admitted and self.transport is not None:
            self._box.release(self.transport)
        super().connection_lost(exc)

    async def _serve(self) -> None:
        running: set[asyncio.Task[None]] = set()
        try:
            async with asyncio.TaskGroup() as group:
                async for stream in self.requests():
                    stream.task = group.create_task(self._answer(stream))
                    running.add(stream.task)
                    stream.task.add_done_callback(running.discard)
                for task in running:
                    task.cancel()
        finally:
            if self._upstream is not None:
                self._upstream.shut()
            self.shut()

    async def _answer(self, stream: Stream) -> None:
        """Answer one request, whatever happens."""
        code = ErrorCodes.NO_ERROR
        try:
            if not stream.failure:
                await self._decide(stream)
        except StreamError:
            code = ErrorCodes.CANCEL
        except Exception:  # noqa: BLE001 (a defect in one request's work must not end the others')
            _log.exception("answering a request failed")
            code = ErrorCodes.INTERNAL_ERROR
        finally:
            stream.close(code)

    # -- before anything is sent ----------------------------------------------------------------------------------

    async def _decide(self, stream: Stream) -> None:
        exchange.begin()
        try:
            request = http2.request(stream.head)
        except InvalidInput as error:
            request = http2.Request("", "/", ())
            await self._refuse(stream, request, self._malformed(error.message), 400)
            return
        try:
            allowed = self._allowed(request)
            await self._send(stream, request, allowed)
        except StopError as stop:
            await self._refuse(stream, request, stop.refusal, stop.status)

    def _allowed(self, request: http2.Request) -> Allowed:
        """Where a request may go. Raises StopError."""
        found = framing.check(request.method, request.target, (1, 1), request.fields)
        if found is not None:
            raise StopError(self._malformed(found.message), found.status)
        if isinstance(self._decision, Denied):
            raise StopError(self._decision)
        decision = self._box.decide(self._decision.host, self._decision.port)
        if isinstance(decision, Denied):
            raise StopError(decision)
        if not _is_for(request, decision):
            raise StopError(
                Denied(
                    decision.host, decision.port, Reason.MISMATCH,
                    "the request names another host than the TLS connection", "make one connection for each host",
                ),
                421,
            )  # fmt: skip
        return decision

    def _malformed(self, message: str) -> Denied:
        return Denied(
            self._decision.host, self._decision.port, Reason.BAD_REQUEST, message, "send a valid request"
        )

    async def _refuse(self, stream: Stream, request: http2.Request, refusal: Denied, status: int) -> None:
        """Say no, in the form that the client reads; an answer that has begun is broken off."""
        head = Head(request.method, request.target, request.fields)
        self._box.refuse("http", refusal, method=head.method, path=head.path)
        if stream.answered:
            stream.close(ErrorCodes.INTERNAL_ERROR)
            return
        marked = [(DECISION.lower().encode(), f"denied; reason={refusal.reason.value}".encode()),
                  (REQUEST.lower().encode(), exchange.request_id().encode())]  # fmt: skip
        if request.grpc:
            text = f"Denied by the sandbox's gateway: {refusal.message}. What to do: {refusal.how_to_allow}."
            stream.answer([*http2.grpc_refusal(status, text), *marked], end=True)
            return
        told = denial(
            refusal,
            status=status,
            accept=next(iter(head.all(hdrs.ACCEPT)), ""),
            method=head.method,
            path=head.path,
        )
        body = told.body if isinstance(told.body, bytes) else b""
        fields = [(b":status", str(status).encode()), (b"content-type", told.content_type.encode()), *marked]
        stream.answer([*fields, (b"content-length", str(len(body)).encode())])
        stream.answered = True
        if head.method != "HEAD":
            await stream.send(body)
        stream.end()

    # -- there and back -------------------------------------------------------------------------------------------

    async def _send(self, stream: Stream, request: http2.Request, allowed: Allowed) -> None:
        """Raises StopError, StreamError."""
        head = Head(request.method, request.target, request.fields)
        call = self._outbound.prepare(head, allowed, tls=True)
        if request.grpc:
            _check_lengths(call)
        try:
            ongoing = call.ongoing(head.method, partial(_cut, stream))
            with self._box.ongoing(ongoing), Buffered(self._box) as buffered:
                async with asyncio.TaskGroup() as group:
                    await self._exchange(group, stream, head, call, buffered)
        except ExceptionGroup as failures:
            raise self._stopped(first_of(failures, LeakError), allowed) from None

    async def _exchange(
        self, group: asyncio.TaskGroup, stream: Stream, head: Head, call: Call, buffered: Buffered
    ) -> None:
        headers = call.headers()
        if call.bound and headers.popall("grpc-accept-encoding", None) is not None:
            headers["grpc-accept-encoding"] = "identity"
        if headers.popall(hdrs.EXPECT, None) is not None:
            stream.answer([(b":status", b"100")])
        ready = await call.ready(head, None if stream.bodiless else stream.body(), headers, buffered)
        authority = headers.popall(hdrs.HOST)[0]
        fields = http2.request_fields(
            head.method,
            authority,
            call.injected.target,
            headers.items(),
            trailers="trailers" in head.all("te"),
        )
        upstream = await self._connected(call)
        out = await upstream.open(fields, end=ready.data is None)
        try:
            upload = group.create_task(_upload(ready.data, stream, out, call))
            sent = await out.started()
            status, fields = http2.response(sent)
            used = ready.used | shown(call.bound)
            with self._outbound.sent(head, call, status, used, lambda: Moved(stream.read, stream.written)):
                await self._relay(stream, out, head, call, status, fields)
            upload.cancel()
        finally:
            out.close()

    async def _relay(
        self,
        stream: Stream,
        out: Stream,
        head: Head,
        call: Call,
        status: int,
        fields: list[tuple[bytes, bytes]],
    ) -> None:
        """Pass an answer on, without the secrets that went to its server."""
        found = framing.check_response(fields)
        if found is not None:
            raise StopError(bad_request(call.allowed, found.message, "this server cannot be used"), 502)
        named = framing.by_name(fields)
        bodiless = framing.is_bodiless(head.method, status)
        redactor: Redactor | None = None
        chunks = out.body()
        dropped = {b"alt-svc"}
        if call.forms is not None:
            coding = (
                ""
                if bodiless
                else coding_of([v.decode("latin-1") for v in named.get(b"content-encoding", [])])
            )
            if {value.strip().lower() for value in named.get(b"grpc-encoding", [])} - {b"identity"}:
                raise InvalidInput("the server compresses its messages unasked", "")
            incoming = Incoming(call.forms, coding)
            redactor, chunks = incoming.redactor, incoming.stream(out.body())
            if coding not in ("", "identity"):
                dropped |= {b"content-encoding", b"content-length"}
        kept = _redacted([item for item in fields if item[0] not in dropped], redactor)
        whole = out.bodiless
        stream.answer([(b":status", str(status).encode()), *kept], end=whole)
        stream.answered = True
        try:
            if not whole:
                async for chunk in chunks:
                    await stream.send(chunk)
                stream.end(_redacted(_checked(out.trailers), redactor))
        finally:
            if redactor is not None:
                self._outbound.hits(call, redactor.found)

    def _stopped(self, error: Exception, allowed: Allowed) -> Exception:
        """What a failure is to the one who asked."""
        match error:
            case LeakError():
                return StopError(self._outbound.leaked(allowed, error.name))
            case TooManyBytesError():
                return too_many_bytes(allowed)
            case Forbidden():
                return StopError(bad_request(allowed, error.message, error.hint))
            case CorralError():
                hint = error.hint or "this server cannot be used with a secret"
                return StopError(bad_request(allowed, error.message, hint), 415)
            case StreamError() | OSError() | TimeoutError():
                return StopError(unanswered(allowed, "answer this request"), 502)
            case _:
                return error

    async def _connected(self, call: Call) -> Connection:
        """The connection to the server, made where there is none that takes requests, or it was made by another certificate.
        Raises StopError.
        """
        context = self._certificates.context(call.bound)
        async with self._dialling:
            if self._upstream is not None and self._by is not context:
                self._upstream.shut()
            if self._upstream is None or not self._upstream.usable:
                self._upstream, self._by = await self._dial(call.allowed, context), context
            return self._upstream

    async def _dial(self, allowed: Allowed, context: ssl.SSLContext) -> Connection:
        side, made = Side(waits=True), Connection(client=True)
        refusal = await self._dialer.connect(self._box, allowed, side)
        if refusal is not None:
            raise StopError(refusal, 502 if refusal.reason is Reason.UNREACHABLE else 403)
        if side.transport is None:
            raise StopError(unanswered(allowed, "be reached"), 502)
        try:
            tls = await asyncio.get_running_loop().start_tls(
                side.transport,
                made,
                context,
                server_hostname=allowed.host,
                ssl_handshake_timeout=CONNECT_TIMEOUT,
            )
        except ssl.SSLCertVerificationError as error:
            raise StopError(distrusted(allowed, error.verify_message), 502) from None
        except OSError:
            raise StopError(unanswered(allowed, _NOT_SPOKEN), 502) from None
        if tls is None or tls.get_extra_info("ssl_object").selected_alpn_protocol() != http2.ALPN:
            side.transport.abort()
            raise StopError(unanswered(allowed, _NOT_SPOKEN), 502)
        made.connection_made(tls)
        return made


async def _upload(data: bytes | AsyncIterator[bytes] | None, stream: Stream, out: Stream, call: Call) -> None:
    """Pass a request's body on. Raises LeakError and what reading it raises."""
    if data is None:
        return
    try:
        if isinstance(data, bytes):
            await out.send(data)
        else:
            async for chunk in data:
                await out.send(chunk)
        last = _checked(stream.trailers)
        if call.guard is not None:
            call.guard.check(b"\n".join(value for _, value in last))
        out.end(last)
    except StreamError:
        # The server has answered without reading all of it, or is gone: its answer tells.
        if not out.failure and stream.failure:
            raise


def _cut(stream: Stream) -> None:
    """End a request in the middle, so that its answer does not look complete."""
    stream.close(ErrorCodes.CANCEL)
    stream.fail("it may not be made any more")


def _checked(fields: http2.Fields) -> list[tuple[bytes, bytes]]:
    """Trailers that may be passed on. Raises InvalidInput for such that hold what none may (G-75)."""
    kept = http2.trailers(fields)
    if framing.check_response(kept) is not None:
        raise InvalidInput("a trailer holds a control character", "")
    return kept


def _redacted(fields: list[tuple[bytes, bytes]], redactor: Redactor | None) -> list[tuple[bytes, bytes]]:
    if redactor is None:
        return fields
    return [(name, redactor.text(value.decode("utf-8", "replace")).encode()) for name, value in fields]


def _check_lengths(call: Call) -> None:
    """A message of gRPC says how long its parts are: nothing of another length can be put in. Raises StopError."""
    if any(len(stand) != len(secret.encode()) for stand, secret in call.injected.exchange):
        raise StopError(
            bad_request(
                call.allowed,
                "a secret cannot be put into the messages of gRPC",
                "bind it to header fields, which are the call's metadata",
            )
        )


def _is_for(request: http2.Request, allowed: Allowed) -> bool:
    try:
        authority = request.fields[0][1].decode("ascii")
        return split_authority(authority, allowed.port) == (allowed.host, allowed.port)
    except (InvalidInput, UnicodeDecodeError):
        return False

"""The model service: http://gateway.corral/s/NAME, a stand-in for a provider's API.

The path of a call: whose sandbox (the socket), its token, the secret that its grant covers, the endpoint, the
body and the price of its model; the most that it can cost is set aside in all budgets that count it; then the call goes
upstream with the real key, and the answer comes back as it is made, with the key taken out and the usage read on the
way. However it ends, what was used is in the ledger, and the rest is given back.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

import aiohttp
from aiohttp import hdrs, web
from multidict import CIMultiDict
from yarl import URL

from corral.errors import CorralError, Forbidden, InvalidInput, TooLarge
from corral.gateway import body, framing
from corral.gateway.access import tokens, upstream_fields
from corral.gateway.answer import Answer
from corral.gateway.box import Box
from corral.gateway.buffered import HINT, MESSAGE, Buffered, TooManyBytesError
from corral.gateway.dial import CONNECT_TIMEOUT, Dialer
from corral.gateway.endpoints import Endpoint, endpoint, open_endpoints, refusal, upstream_url
from corral.gateway.forward import continue_if_asked
from corral.gateway.metering import Call
from corral.gateway.pricing import PriceBook
from corral.gateway.raising import Raising
from corral.gateway.redact import Forms
from corral.gateway.replies import closing, model_error, plain
from corral.gateway.requests import Limits, Prepared, Terms, prepare
from corral.gateway.reservations import Request
from corral.gateway.vault import Credential
from corral.model.budget import RateRefusal, Refusal
from corral.policy.budget import explain
from corral.policy.egress import GATEWAY_HOST, Reason
from corral.policy.rates import explain as explain_rate
from corral.wire.link import SecretSpec

ANSWER_IDLE = 900.0
"""Seconds without a byte from a provider: models think for minutes before they answer."""
LARGE_AT_ONCE = 2
"""Large request bodies that a process parses at a time, each of which may take some hundred MiB meanwhile."""
_POOL = 256
_SLICE = 256 * 1024

_T = TypeVar("_T")

_log = logging.getLogger(__name__)


class _RefusedError(Exception):
    """Ends a call with an answer of the gateway's own."""

    def __init__(
        self, status: int, message: str, hint: str, reason: str, retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.hint = hint
        self.reason = reason
        self.retry_after = retry_after


class ModelService:
    """Serves one box's model calls."""

    def __init__(
        self,
        box: Box,
        dialer: Dialer,
        granted: Callable[[Box], Mapping[str, Credential]],
        prices: Callable[[], PriceBook],
        limits: Callable[[], Limits],
        reservations: Raising,
        large: asyncio.Semaphore,
    ) -> None:
        """`large` is this process's turn to work on a large body: it has LARGE_AT_ONCE."""
        self._box = box
        self._large = large
        self._dialer = dialer
        self._granted = granted
        self._prices = prices
        self._limits = limits
        self._reservations = reservations
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=_POOL, ssl=dialer.tls),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT, sock_read=ANSWER_IDLE),
            max_line_size=framing.MAX_LINE,
            max_field_size=framing.MAX_FIELD,
        )

    async def close(self) -> None:
        """Close its connections."""
        await self._session.close()

    async def serve(self, request: web.BaseRequest, path: str, query: str) -> web.StreamResponse:
        """Answer a request to `/s/…`."""
        name, _, rest = path.removeprefix("/s/").partition("/")
        credential = self._granted(self._box).get(name)
        if credential is None or not credential.spec.provider.is_model:
            self._box.note(
                "llm", "denied", host=name, method=request.method, path=path, reason="no-such-secret"
            )
            text = f"This sandbox has no secret {name[:63]!r}. See http://{GATEWAY_HOST}/policy"
            return closing(plain(403, text, reason="no-such-secret"))
        spec = credential.spec
        try:
            async with self._in_flight(), self._box.using("llm", name, request):
                return await self._call(request, credential, rest, query)
        except _RefusedError as refused:
            self._box.note(
                "llm", "denied", host=_host(spec), method=request.method, path=path, reason=refused.reason,
                secret=name, status=refused.status,
            )  # fmt: skip
            answer = model_error(
                spec.provider, refused.status, refused.message, refused.hint,
                reason=refused.reason, retry_after=refused.retry_after,
            )  # fmt: skip
            return closing(answer)

    @asynccontextmanager
    async def _in_flight(self) -> AsyncIterator[None]:
        most = self._limits().model_calls
        if self._box.model_calls >= most:
            raise _RefusedError(
                429,
                f"{most} model calls of this sandbox are in flight",
                "try again",
                "too-many-calls",
                1,
            )
        self._box.model_calls += 1
        try:
            yield
        finally:
            self._box.model_calls -= 1

    async def _call(
        self, request: web.BaseRequest, credential: Credential, rest: str, query: str
    ) -> web.StreamResponse:
        spec = credential.spec
        self._authenticate(request, query)
        if framing.wants_upgrade(request.raw_headers):
            raise _RefusedError(426, "WebSockets are not served here", "use HTTP", "no-websocket")
        if not rest and request.method in ("GET", "HEAD"):
            return plain(
                200,
                f"This is the {spec.provider} API of secret {spec.name!r}: {open_endpoints(spec.provider)}",
            )
        wanted = endpoint(spec.provider, request.method, rest)
        if wanted is None:
            raise _RefusedError(
                403, refusal(spec.provider, request.method, rest), open_endpoints(spec.provider), "endpoint-not-allowed",
            )  # fmt: skip
        with Buffered(self._box) as buffered:
            judged = await self._judged(request, spec, wanted, buffered)
            headers = _headers(request, spec, wanted)
            self._refuse_leak(spec, judged.leaked)
            prepared = judged.prepared
            number = 0 if prepared.call is None else await self._reserve(prepared.call)
            return await self._send(request, credential, query, prepared, headers, number)

    def _authenticate(self, request: web.BaseRequest, query: str) -> None:
        """The token of this sandbox, and nothing that contradicts it (G-19, G-24, G-176, G-177)."""
        found = tokens(request.raw_headers, query)
        if len(found) == 1 and self._box.has_token(next(iter(found))):
            return
        hint = "use the value that this sandbox's environment holds in the place of an API key"
        if not self._box.bad_tokens.take(asyncio.get_running_loop().time()):
            raise _RefusedError(429, "too many requests with wrong tokens", hint, "bad-token-rate", 2)
        message = "the token is not this sandbox's" if found else "the request carries no token"
        raise _RefusedError(401, message, hint, "bad-token" if found else "no-token")

    async def _judged(
        self, request: web.BaseRequest, spec: SecretSpec, wanted: Endpoint, buffered: Buffered
    ) -> "_Judged":
        if not wanted.has_body:
            return _Judged(Prepared(wanted, b""), _leak_in(self._box.tenants_secrets, _head(request)))
        try:
            coding = _coding(request)
            await continue_if_asked(request, CIMultiDict(request.headers))
            raw = await body.read(request.content, buffered.add)
            small = body.decode_small(raw, coding)
            if small is not None:
                buffered.add(len(small) - len(raw))
                return self._judge(request, spec, wanted)(small)
            async with self._box.large, self._large:
                judge = self._judge(request, spec, wanted)
                return await _judged_apart(raw, coding, buffered, judge)
        except TooManyBytesError:
            raise _RefusedError(429, MESSAGE, HINT, "too-many-bytes", 2) from None
        except TooLarge as error:
            raise _RefusedError(413, error.message, error.hint, "body-too-large") from None
        except InvalidInput as error:
            raise _RefusedError(400, error.message, error.hint, "bad-body") from None
        except Forbidden as error:
            raise _RefusedError(403, error.message, error.hint, "not-metered") from None
        except web.RequestPayloadError:
            hint = "send it whole"
            raise _RefusedError(400, "the request body is cut or badly framed", hint, "bad-body") from None
        except TimeoutError:
            raise _RefusedError(
                408, "the request body did not come", "send it at once", "body-timeout"
            ) from None

    def _judge(
        self, request: web.BaseRequest, spec: SecretSpec, wanted: Endpoint
    ) -> Callable[[bytes], "_Judged"]:
        """What judges a body by all that is in force now, in whatever thread."""
        terms, forms, head = self._terms(request, spec), self._box.tenants_secrets, _head(request)

        def judge(data: bytes) -> _Judged:
            prepared = prepare(terms, wanted, data, body.parse(data))
            return _Judged(prepared, _leak_in(forms, head, prepared.data))

        return judge

    def _terms(self, request: web.BaseRequest, spec: SecretSpec) -> Terms:
        betas = ",".join(request.headers.getall("anthropic-beta", []))
        return Terms(self._box, spec, self._prices(), self._limits(), betas, datetime.now(UTC))

    def _refuse_leak(self, spec: SecretSpec, found: str | None) -> None:
        """No secret itself goes to a model (G-44)."""
        if found is None:
            return
        self._box.leak("a model call", found, _host(spec))
        raise _RefusedError(
            403,
            "the request holds a secret of this host, which no sandbox is given",
            "take it out of the conversation; on the host, replace the secret: it has leaked",
            Reason.SECRET.value,
        )

    async def _reserve(self, call: Call) -> int:
        """Set aside what the call can cost (G-211); its number."""
        spec = call.secret
        wanted = Request(self._box.id, call.reserved, spec.name, spec.provider.value, call.model, call.path)
        try:
            answer = await self._reservations.reserve(wanted)
        except CorralError as error:
            raise _RefusedError(503, error.message, error.hint, "no-ledger", 2) from None
        if isinstance(answer, RateRefusal):
            message, hint = explain_rate(answer, self._box.name)
            raise _RefusedError(429, message, hint, "rate", answer.retry_after)
        if isinstance(answer, Refusal):
            message, hint = explain(answer, self._box.name)
            raise _RefusedError(402, message, hint, "budget", 5 if answer.passing else None)
        return answer

    async def _send(
        self,
        request: web.BaseRequest,
        credential: Credential,
        query: str,
        prepared: Prepared,
        headers: CIMultiDict[str],
        number: int,
    ) -> web.StreamResponse:
        """Make the call and pass its answer on. It is settled under `number`, however that ends."""
        spec = credential.spec
        answer = Answer(
            self._box,
            credential,
            prepared.call,
            prepared.wanted,
            streamed=prepared.streamed,
            strip_usage=prepared.strip_usage,
        )
        try:
            return await self._exchange(request, answer, spec, query, prepared, headers)
        finally:
            usage = answer.settle(self._prices())
            if usage is not None:
                self._reservations.settle(number, usage)
            elif number:
                self._reservations.release(number)

    async def _exchange(
        self,
        request: web.BaseRequest,
        answer: Answer,
        spec: SecretSpec,
        query: str,
        prepared: Prepared,
        headers: CIMultiDict[str],
    ) -> web.StreamResponse:
        wanted, data = prepared.wanted, prepared.data
        url = URL(upstream_url(spec.provider, spec.base_url, wanted, query), encoded=True)
        proxy = self._dialer.proxies.find(url.scheme, url.host or "", url.port or 0)
        for_proxy, for_tunnel = proxy.credentials(url.scheme) if proxy is not None else ({}, {})
        headers.update(for_proxy)
        try:
            async with self._session.request(
                request.method,
                url,
                headers=headers,
                data=_sendable(data, headers) if wanted.has_body else None,
                allow_redirects=False,
                proxy=proxy.url if proxy is not None else None,
                proxy_headers=for_tunnel,
            ) as upstream:
                return await answer.relay(request, upstream)
        except (aiohttp.ClientConnectorError, aiohttp.InvalidURL) as error:
            answer.never_sent()
            _log.warning("the model API of secret %s cannot be reached: %s", spec.name, type(error).__name__)
            raise _unreachable(spec) from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if answer.begun:
                raise
            _log.warning("the model API of secret %s failed: %s", spec.name, type(error).__name__)
            raise _unreachable(spec) from None


def _headers(request: web.BaseRequest, spec: SecretSpec, wanted: Endpoint) -> CIMultiDict[str]:
    """The header fields of the call upstream."""
    try:
        fields = framing.end_to_end(request.raw_headers)
    except UnicodeDecodeError:
        raise _RefusedError(400, "a header field is not UTF-8", "send ASCII fields", "bad-request") from None
    return CIMultiDict(
        upstream_fields(
            fields, spec.provider, spec.value.reveal(), body=wanted.has_body, account=spec.account
        )
    )


def _coding(request: web.BaseRequest) -> str:
    """The Content-Encoding, the media type being right (G-181, G-182)."""
    if request.content_type != "application/json":
        raise _RefusedError(415, "the request body is not application/json", "send JSON", "bad-content-type")
    coding = request.headers.get(hdrs.CONTENT_ENCODING, "identity").strip().lower()
    if coding not in body.CODINGS or len(request.headers.getall(hdrs.CONTENT_ENCODING, [])) > 1:
        raise _RefusedError(
            415,
            f"Content-Encoding {coding[:40]!r} is not supported",
            f"use one of {', '.join(body.CODINGS)}",
            "bad-coding",
        )
    length = request.content_length
    if length is not None and length > body.MAX_BODY:
        raise body.too_large()
    return coding


@dataclass(frozen=True, slots=True)
class _Judged:
    """A request that may be sent, and the name of the secret that stands in it, if one does."""

    prepared: Prepared
    leaked: str | None


def _leak_in(forms: Forms | None, *texts: bytes) -> str | None:
    if forms is None:
        return None
    return next((name for text in texts if (name := forms.plainly_in(text)) is not None), None)


def _head(request: web.BaseRequest) -> bytes:
    """What may hold a secret beside the body."""
    return "\n".join((request.raw_path, *request.headers.values())).encode("utf-8", "replace")


async def _judged_apart(
    raw: bytes, coding: str, buffered: Buffered, judge: Callable[[bytes], _Judged]
) -> _Judged:
    """Judge a large body in a thread, where it holds up nobody. The caller has its turn: one of a sandbox's at a time, and
    few of all, since a body takes many times its bytes while it is parsed (G-340).
    """
    most = body.most_decoded(len(raw), coding)
    buffered.add(most - len(raw))
    data, judged = await _off_loop(lambda: _decoded_and(raw, coding, judge))
    buffered.add(len(data) - most)
    return judged


def _decoded_and(raw: bytes, coding: str, judge: Callable[[bytes], _Judged]) -> tuple[bytes, _Judged]:
    data = body.decode(raw, coding)
    return data, judge(data)


async def _off_loop(work: Callable[[], _T]) -> _T:
    """Work in a thread. It returns once that is over, also if it is cancelled: only then is its memory free."""
    future = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(future)
    finally:
        if not future.done():
            await asyncio.wait([future])


def _sendable(data: bytes, headers: CIMultiDict[str]) -> bytes | AsyncIterator[bytes]:
    """A body as aiohttp sends it: a large one in slices, as upstream takes them."""
    if len(data) <= _SLICE:
        return data
    headers[hdrs.CONTENT_LENGTH] = str(len(data))
    return _slices(data)


async def _slices(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), _SLICE):
        yield data[start : start + _SLICE]


def _unreachable(spec: SecretSpec) -> _RefusedError:
    return _RefusedError(
        502, f"the model API behind secret {spec.name!r} cannot be reached", "try again later; on the host, check its base URL",
        "upstream-failed", 2,
    )  # fmt: skip


def _host(spec: SecretSpec) -> str:
    return URL(spec.base_url).host or ""

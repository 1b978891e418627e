"""The way back of a model call: relayed as it comes, the key taken out, the usage read, settled exactly once."""

import asyncio
import re
from dataclasses import replace

import aiohttp
from aiohttp import hdrs, web
from multidict import CIMultiDict
from yarl import URL

from corral.gateway import framing
from corral.gateway.box import Box
from corral.gateway.endpoints import Endpoint
from corral.gateway.exchange import NOTHING
from corral.gateway.forward import cut, moved
from corral.gateway.metering import Call, Outcome, passed, settle, text_limit
from corral.gateway.pricing import PriceBook
from corral.gateway.redact import Redactor
from corral.gateway.replies import Relayed, closing, error_event, model_error
from corral.gateway.vault import Credential
from corral.model.usage import Usage
from corral.policy.money import dollars
from corral.wire.usage import Api, Counts, UsageChunkFilter, UsageMeter

_DECODED = frozenset({"", "identity", "gzip", "deflate"})
"""Content-Encodings that aiohttp has taken off when it gives the bytes."""
_DROPPED = frozenset({"set-cookie", "alt-svc", "content-encoding"})
_REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


class Answer:
    """One answer. `settle` must be called when it is over, however it ended."""

    def __init__(
        self,
        box: Box,
        credential: Credential,
        call: Call | None,
        wanted: Endpoint,
        *,
        streamed: bool,
        strip_usage: bool,
    ) -> None:
        self._box = box
        self._spec = credential.spec
        self._call = call
        self._meter = self._new_meter(wanted.api, streamed=streamed) if wanted.api is not None else None
        self._strip = UsageChunkFilter() if strip_usage else None
        self._events = streamed
        self._in_pieces = wanted.streams
        self._redactor = Redactor(credential.forms, credential.spec.name)
        self._path = wanted.path
        self._method = ""
        self._started = asyncio.get_running_loop().time()
        self._status = 0
        self._request_id = ""
        self._complete = False
        self._counted = Counts()
        self._request: web.BaseRequest | None = None
        self.begun = False

    def _new_meter(self, api: Api, *, streamed: bool) -> UsageMeter:
        output = self._call.output if self._call is not None else None
        return UsageMeter(api, streamed, None if output is None else text_limit(output))

    def never_sent(self) -> None:
        """No connection was made, so there is nothing to settle."""
        self._call = None

    async def relay(self, request: web.BaseRequest, upstream: aiohttp.ClientResponse) -> web.StreamResponse:
        """Pass the answer on. Raises aiohttp's errors if it breaks before it has begun."""
        self._status = upstream.status
        self._method, self._request = request.method, request
        self._request_id = self._id_of(upstream)
        coding = upstream.headers.get(hdrs.CONTENT_ENCODING, "").strip().lower()
        bad = framing.check_response(upstream.raw_headers)
        if bad is not None or coding not in _DECODED:
            upstream.close()
            hint = "on the host, check its base URL"
            message = "the model API's answer cannot be read safely"
            return closing(model_error(self._spec.provider, 502, message, hint, reason="bad-answer"))
        streamed = self._set_form(upstream)
        response = Relayed(upstream, self._headers(upstream, coding), at_once=streamed)
        self.begun = True
        await response.prepare(request)
        try:
            async for chunk in upstream.content.iter_any():
                if data := self._pass(chunk):
                    await response.write(data)
                if streamed and self._passed():
                    upstream.close()
                    await response.write(self._end())
                    if not self._events:
                        cut(request)
                        return response
                    await response.write_eof()
                    return response
            if data := self._last():
                await response.write(data)
        except (aiohttp.ClientError, TimeoutError):
            cut(request)
            return response
        self._complete = True
        await response.write_eof()
        return response

    def _set_form(self, upstream: aiohttp.ClientResponse) -> bool:
        """Read the answer as what it says it is: an error to a streamed call is not a stream, and some
        servers do not stream though asked.
        """
        events = upstream.content_type == "text/event-stream"
        if self._call is not None and self._meter is not None and events != self._events:
            self._meter = self._new_meter(self._meter.api, streamed=events)
        self._events = events
        if not events:
            self._strip = None
        # What the path makes a stream comes piece by piece, also as an array.
        return events or (self._in_pieces and upstream.status == 200)

    def _headers(self, upstream: aiohttp.ClientResponse, coding: str) -> CIMultiDict[str]:
        dropped = _DROPPED | ({"content-length"} if coding or self._strip is not None else set())
        fields = framing.end_to_end(
            [(name, value.decode("utf-8", "replace").encode()) for name, value in upstream.raw_headers]
        )
        return CIMultiDict(
            (name, self._redactor.text(value)) for name, value in fields if name.lower() not in dropped
        )

    def _pass(self, chunk: bytes) -> bytes:
        if self._meter is not None:
            self._meter.feed(chunk)
        if self._strip is not None:
            chunk = self._strip.feed(chunk)
        return self._redactor.feed(chunk)

    def _last(self) -> bytes:
        left = self._redactor.feed(self._strip.finish()) if self._strip is not None else b""
        return left + self._redactor.finish()

    def _passed(self) -> bool:
        """Whether the answer costs more than was set aside for it."""
        if self._call is None or self._meter is None or self._meter.reading.complete:
            return False
        reading = self._meter.reading
        if reading.counts is self._counted and not self._meter.text:
            return False
        self._counted = reading.counts
        return passed(self._call, reading, self._meter.text)

    def _end(self) -> bytes:
        """The end of a stream that is cut: what was held back, and why there is no more (G-214)."""
        if self._call is None or self._meter is None:
            return self._last()
        self._box.note("llm", "cut", host=URL(self._spec.base_url).host or "", secret=self._spec.name,
                       path=self._path, reason="reservation-passed")  # fmt: skip
        message = (
            f"this answer was cut because it passed the {dollars(self._call.reserved)} that were set aside for it, "
            "although the provider was told its limit"
        )
        hint = "ask for less at a time, or report the provider's server"
        if not self._events:
            # Of an array there is no end that a client takes for an error but the end of its connection.
            return self._last()
        return self._last() + error_event(self._meter.api, message, hint, reason="budget")

    def settle(self, prices: PriceBook) -> Usage | None:
        """Write the call's audit record; its usage, or None if there is nothing to settle."""
        host, name = URL(self._spec.base_url).host or "", self._spec.name
        if self._redactor.hits:
            self._box.note(
                "redaction", "redacted", host=host, secret=name, reason=f"{self._redactor.hits} hits"
            )
        if self._status:
            self._box.note(
                "llm",
                "allowed",
                host=host,
                method=self._method,
                path=self._path,
                secret=name,
                status=self._status,
                moved=moved(self._request) if self._request is not None else NOTHING,
                ms=self._duration(),
                provider_id=self._request_id,
            )
        call, self._call = self._call, None
        if call is None or self._meter is None:
            return None
        reading = self._meter.finish()
        if self._redactor.text(reading.model) != reading.model:
            reading = replace(reading, model="")  # no model's name, but the key (G-323)
        outcome = Outcome(self._status, reading, not self._complete, self._duration(), self._request_id)
        return settle(call, outcome, prices)

    def _id_of(self, upstream: aiohttp.ClientResponse) -> str:
        """What the provider calls the request, for the record; nothing where it is more than that (G-323)."""
        found = upstream.headers.get("request-id") or upstream.headers.get("x-request-id") or ""
        return found if _REQUEST_ID.fullmatch(found) and self._redactor.text(found) == found else ""

    def _duration(self) -> int:
        """Milliseconds since it was asked for."""
        return round((asyncio.get_running_loop().time() - self._started) * 1000)

"""What the client of a push is told: signs of life and words on git's side band while it waits, then a report.

A refusal is a report as git's own servers give it: `! [remote rejected]` for every ref, with the reason (G-255).
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from typing import TypeVar

from aiohttp import web

from corral.gateway.gitupstream import GitRefusedError
from corral.gateway.redact import Redactor
from corral.wire.gitpush import PushHead, band, report, shown
from corral.wire.pktline import FLUSH, encode

RESULT = "application/x-git-receive-pack-result"
_HEADERS = {"Server": "corral", "Cache-Control": "no-cache"}
_ALIVE = encode(b"\x01")
"""An empty line of the side band: git shows nothing of it, and writing it fails once nobody reads."""
_KEEP_ALIVE = 5.0
"""Seconds between signs of life while the client waits."""

_T = TypeVar("_T")


class DeniedError(Exception):
    """Ends a push with a reason for each ref."""

    def __init__(
        self, reasons: dict[str, str], message: str, hint: str = "", *, reason: str = "rule"
    ) -> None:
        super().__init__(message)
        self.reasons = reasons
        self.message = message
        self.hint = hint
        self.reason = reason

    @classmethod
    def whole(cls, head: PushHead, message: str, hint: str, reason: str) -> "DeniedError":
        """The same reason for each ref."""
        short = " ".join(message.split())[:200]
        return cls({one.ref: short for one in head.commands}, message, hint, reason=reason)


def empty() -> web.Response:
    """For a client that asks whether it may send before it sends much."""
    return web.Response(body=b"", content_type=RESULT, headers=_HEADERS)


class PushAnswer:
    """The answer to one push, which may begin long before it is known."""

    def __init__(self, request: web.BaseRequest, head: PushHead) -> None:
        self._request = request
        self._head = head
        self._response: web.StreamResponse | None = None

    async def begin(self) -> None:
        """From here on the client can be told what is waited for, if it has a side band."""
        if self._head.band is not None:
            await self._begun()

    async def _begun(self) -> web.StreamResponse:
        if self._response is None:
            response = web.StreamResponse(headers=_HEADERS)
            response.content_type = RESULT
            await response.prepare(self._request)
            self._response = response
        return self._response

    async def say(self, text: str) -> None:
        """Show lines, once it has begun."""
        if self._response is not None:
            await self._response.write(shown(self._head, f"corral: {text}"))

    async def say_if_heard(self, text: str) -> None:
        """The same for a client that may be gone."""
        with contextlib.suppress(ConnectionError):
            await self.say(text)

    async def waiting_for(self, work: Awaitable[_T]) -> _T:
        """The result of what takes long, with a sign of life to the client meanwhile. Its going away ends the work."""
        task = asyncio.ensure_future(work)
        try:
            while True:
                done, _ = await asyncio.wait((task,), timeout=_KEEP_ALIVE)
                if done:
                    return task.result()
                if self._response is not None:
                    await self._response.write(_ALIVE)
        finally:
            task.cancel()

    async def refuse(self, denied: DeniedError, *, body_ended: bool) -> web.StreamResponse:
        """End it with a no. Raises GitRefusedError for a client that can be told in a status only."""
        hint = f"\n{denied.hint[:1].upper()}{denied.hint[1:]}" if denied.hint else ""
        data = shown(self._head, f"corral: {denied.message}{hint}") + self._ending(denied)
        if not data:
            raise GitRefusedError(403, denied.message, denied.hint or "push otherwise", denied.reason)
        if self._response is None:
            response = web.Response(body=data, headers=_HEADERS, content_type=RESULT)
            if not body_ended:
                response.force_close()
            return response
        await self._response.write(data)
        await self._response.write_eof()
        return self._response

    def _ending(self, denied: DeniedError) -> bytes:
        """The end of the answer: a report, or for a client that reads none the side band's error."""
        if self._head.reports:
            return report(self._head, denied.reasons)
        return b"" if self._head.band is None else band(self._head, 3, denied.message.encode()) + FLUSH

    async def relay(self, data: AsyncIterator[bytes], redactor: Redactor | None) -> web.StreamResponse:
        """End it with the server's report, the credential taken out."""
        response = await self._begun()
        async for chunk in data:
            await response.write(redactor.feed(chunk) if redactor else chunk)
        if redactor:
            await response.write(redactor.finish())
        await response.write_eof()
        return response

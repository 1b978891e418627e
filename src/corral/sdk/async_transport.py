"""The asynchronous transport: aiohttp over the unix socket or TCP, errors mapped, the daemon started where it may be."""

import asyncio
import ssl
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import cast

import aiohttp
from yarl import URL

from corral.errors import DaemonUnreachable, Timeout
from corral.sdk import autostart
from corral.sdk.operations import Content, Event, Request, failure
from corral.sdk.settings import Settings
from corral.sdk.target import CONNECT_SECONDS, KEPT_SECONDS, MAX_EVENT, RETRY_PAUSES, Target
from corral.wire.sse import Decoder

_READ_BUFFER = 512 * 1024
_NOT_CONNECTED = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)


class AsyncTransport:
    """Belongs to the event loop that first uses it."""

    def __init__(self, where: Settings) -> None:
        self._made: aiohttp.ClientSession | None = None
        self._target = Target(where)

    def __del__(self) -> None:
        """Close what nobody closed, with Python's own warning of it, in place of aiohttp's log."""
        session = self._made
        if session is not None and (connector := session.connector) is not None:
            warnings.warn("an asynchronous client was not closed", ResourceWarning, stacklevel=2, source=self)
            session.detach()
            connector.close()

    async def close(self) -> None:
        """Close its connections."""
        if self._made is not None:
            await self._made.close()

    async def fetch(self, request: Request) -> bytes:
        """The body of a successful answer."""
        async with self._answer(request) as response:
            return await response.read()

    async def events(self, request: Request) -> AsyncGenerator[Event, None]:
        """The events of a successful answer. Silence is a broken connection, since the daemon beats."""
        decoder = Decoder(MAX_EVENT)
        try:
            async with self._answer(request) as response:
                async for chunk in response.content.iter_any():
                    for event in decoder.feed(chunk):
                        yield Event(event.event, event.data)
        except Timeout as error:
            raise DaemonUnreachable(error.message, error.hint) from error

    async def chunks(self, request: Request) -> AsyncIterator[bytes]:
        """The body of a successful answer, as it comes."""
        async with self._answer(request) as response:
            async for chunk in response.content.iter_any():
                yield chunk

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    @property
    def _session(self) -> aiohttp.ClientSession:
        if self._made is None:
            self._made = aiohttp.ClientSession(
                connector=self._connector(),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=self._target.trust_env,
                read_bufsize=_READ_BUFFER,
            )
        return self._made

    def _connector(self) -> aiohttp.BaseConnector:
        where = self._target.where
        if where.local:
            return aiohttp.UnixConnector(str(where.socket), limit=0, keepalive_timeout=KEPT_SECONDS)
        # aiohttp's own is of the time when it was loaded: with other authorities, it may be.
        trust = ssl.create_default_context() if where.url.startswith("https:") else True
        return aiohttp.TCPConnector(limit=0, keepalive_timeout=KEPT_SECONDS, ssl=trust)

    @asynccontextmanager
    async def _answer(self, request: Request) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            async with await self._send(request) as response:
                if not 200 <= response.status < 300:
                    raise failure(response.status, await response.read())
                yield response
        except _NOT_CONNECTED as error:
            raise self._target.not_connected(error) from error
        except aiohttp.ServerTimeoutError as error:
            raise self._target.silent() from error
        except aiohttp.ClientError as error:
            raise self._target.broken() from error

    async def _send(self, request: Request) -> aiohttp.ClientResponse:
        pauses = list(RETRY_PAUSES) if request.repeatable else []
        started = False
        while True:
            try:
                return await self._session.request(
                    request.method,
                    URL(self._target.base + request.path, encoded=True),
                    data=_content(request.body),
                    headers=self._target.headers_of(request),
                    timeout=aiohttp.ClientTimeout(
                        total=None, sock_connect=CONNECT_SECONDS, sock_read=request.timeout
                    ),
                    allow_redirects=False,
                )
            except aiohttp.ClientError as error:
                unheard = isinstance(error, aiohttp.ClientConnectorError)
                if not started and unheard and self._target.may_start(error):
                    started = True
                    await asyncio.to_thread(autostart.ensure, self._target.where)
                elif pauses and not isinstance(error, aiohttp.ServerTimeoutError):
                    await asyncio.sleep(pauses.pop(0))
                else:
                    raise


def _content(body: Content | None) -> bytes | AsyncIterator[bytes] | None:
    if body is None or isinstance(body, bytes):
        return body
    if hasattr(body, "__aiter__"):
        return cast(AsyncIterator[bytes], body)
    return _spread(body)


async def _spread(chunks: Iterable[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk

"""The two thin transports: httpx2 over the unix socket or TCP, errors mapped, the daemon started where it may be."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from urllib.parse import urlsplit

import httpx2

from corral.errors import CorralError, DaemonUnreachable, Forbidden, Timeout
from corral.sdk import autostart
from corral.sdk.operations import Content, Event, Request, failure
from corral.sdk.settings import LOCAL_URL, Settings

CONNECT_SECONDS = 10.0
RETRY_PAUSES = (0.05, 0.3)
"""Seconds before a GET that broke off is sent again."""
_REMOTE_HINT = (
    "check CORRAL_URL, and on its host that the daemon runs and listens there: `corral config get api.listen`"
)
MAX_EVENT = 8 * 1024 * 1024
_LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=32, keepalive_expiry=4.0)


class _Target:
    """What both transports know of their daemon."""

    def __init__(self, where: Settings) -> None:
        self.where = where
        self.base = LOCAL_URL if where.local else where.url
        self.headers = {"authorization": f"Bearer {where.key}"} if where.key else {}
        host = urlsplit(self.base).hostname or ""
        self.trust_env = not (where.local or host == "localhost" or host.startswith("127.") or host == "::1")

    def headers_of(self, request: Request) -> dict[str, str]:
        headers = {**self.headers, "accept": request.accept}
        if request.json:
            headers["content-type"] = "application/json"
        elif request.body is not None:
            headers["content-type"] = "application/octet-stream"
        return headers

    def may_start(self, error: Exception) -> bool:
        """Whether starting the daemon can help: nothing listens on this host's socket."""
        return (
            self.where.local
            and self.where.autostart
            and isinstance(error, httpx2.ConnectError)
            and _absent(error)
        )

    def public(self, error: httpx2.TransportError) -> CorralError:
        """The public error for a failed connection."""
        where = str(self.where.socket) if self.where.local else self.where.url
        if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
            if _cause(error, PermissionError):
                return Forbidden(
                    f"the socket {where} may not be used by this user", "run the command as root: sudo"
                )
            return DaemonUnreachable(
                f"no daemon answers at {where}", None if self.where.local else _REMOTE_HINT
            )
        if isinstance(error, httpx2.ReadTimeout):
            return Timeout(f"the daemon at {where} did not answer in time", "look at `corral daemon logs`")
        return DaemonUnreachable(f"the connection to the daemon at {where} broke off")


def _absent(error: BaseException) -> bool:
    return _cause(error, FileNotFoundError) or _cause(error, ConnectionRefusedError)


def _cause(error: BaseException | None, kind: type[OSError]) -> bool:
    while error is not None:
        if isinstance(error, kind):
            return True
        error = error.__cause__ or error.__context__
    return False


def _timeout(request: Request) -> httpx2.Timeout:
    return httpx2.Timeout(connect=CONNECT_SECONDS, read=request.timeout, write=60.0, pool=None)


class Transport:
    """The synchronous one. Threads may share it."""

    def __init__(self, where: Settings, transport: httpx2.BaseTransport | None = None) -> None:
        self._target = target = _Target(where)
        if transport is None and where.local:
            transport = httpx2.HTTPTransport(uds=str(where.socket), limits=_LIMITS)
        self._http = httpx2.Client(
            base_url=target.base, transport=transport, limits=_LIMITS, trust_env=target.trust_env
        )

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def fetch(self, request: Request) -> bytes:
        """The body of a successful answer."""
        with self._answer(request) as response:
            return response.read()

    def events(self, request: Request) -> Generator[Event, None, None]:
        """The events of a successful answer. Silence is a broken connection, since the daemon beats."""
        try:
            with self._answer(request) as response:
                for event in httpx2.EventSource(response, MAX_EVENT):
                    yield Event(event.event, event.data)
        except Timeout as error:
            raise DaemonUnreachable(error.message, error.hint) from error

    def chunks(self, request: Request) -> Iterator[bytes]:
        """The body of a successful answer, as it comes."""
        with self._answer(request) as response:
            yield from response.iter_bytes()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    @contextmanager
    def _answer(self, request: Request) -> Iterator[httpx2.Response]:
        try:
            response = self._send(request)
            try:
                if not response.is_success:
                    raise failure(response.status_code, response.read())
                yield response
            finally:
                response.close()
        except httpx2.TransportError as error:
            raise self._target.public(error) from error

    def _send(self, request: Request) -> httpx2.Response:
        prepared = self._http.build_request(
            request.method,
            request.path,
            content=_sync_content(request.body),
            headers=self._target.headers_of(request),
            timeout=_timeout(request),
        )
        pauses = list(RETRY_PAUSES) if request.repeatable else []
        started = False
        while True:
            try:
                return self._http.send(prepared, stream=True)
            except httpx2.TransportError as error:
                if not started and self._target.may_start(error):
                    started = True
                    autostart.ensure(self._target.where)
                elif pauses and not isinstance(error, httpx2.TimeoutException):
                    time.sleep(pauses.pop(0))
                else:
                    raise


class AsyncTransport:
    """The asynchronous one."""

    def __init__(self, where: Settings, transport: httpx2.AsyncBaseTransport | None = None) -> None:
        self._target = target = _Target(where)
        if transport is None and where.local:
            transport = httpx2.AsyncHTTPTransport(uds=str(where.socket), limits=_LIMITS)
        self._http = httpx2.AsyncClient(
            base_url=target.base, transport=transport, limits=_LIMITS, trust_env=target.trust_env
        )

    async def close(self) -> None:
        """Close its connections."""
        await self._http.aclose()

    async def fetch(self, request: Request) -> bytes:
        """The body of a successful answer."""
        async with self._answer(request) as response:
            return await response.aread()

    async def events(self, request: Request) -> AsyncGenerator[Event, None]:
        """The events of a successful answer. Silence is a broken connection, since the daemon beats."""
        try:
            async with self._answer(request) as response:
                async for event in httpx2.EventSource(response, MAX_EVENT):
                    yield Event(event.event, event.data)
        except Timeout as error:
            raise DaemonUnreachable(error.message, error.hint) from error

    async def chunks(self, request: Request) -> AsyncIterator[bytes]:
        """The body of a successful answer, as it comes."""
        async with self._answer(request) as response:
            async for chunk in response.aiter_bytes():
                yield chunk

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    @asynccontextmanager
    async def _answer(self, request: Request) -> AsyncIterator[httpx2.Response]:
        try:
            response = await self._send(request)
            try:
                if not response.is_success:
                    raise failure(response.status_code, await response.aread())
                yield response
            finally:
                await response.aclose()
        except httpx2.TransportError as error:
            raise self._target.public(error) from error

    async def _send(self, request: Request) -> httpx2.Response:
        prepared = self._http.build_request(
            request.method,
            request.path,
            content=_async_content(request.body),
            headers=self._target.headers_of(request),
            timeout=_timeout(request),
        )
        pauses = list(RETRY_PAUSES) if request.repeatable else []
        started = False
        while True:
            try:
                return await self._http.send(prepared, stream=True)
            except httpx2.TransportError as error:
                if not started and self._target.may_start(error):
                    started = True
                    await asyncio.to_thread(autostart.ensure, self._target.where)
                elif pauses and not isinstance(error, httpx2.TimeoutException):
                    await asyncio.sleep(pauses.pop(0))
                else:
                    raise


def _sync_content(body: Content | None) -> Content | None:
    return body


def _async_content(body: Content | None) -> Content | None:
    if body is None or isinstance(body, bytes) or hasattr(body, "__aiter__"):
        return body
    return _spread(body)  # type: ignore[arg-type]  # what is left is an Iterable


async def _spread(chunks: "Iterator[bytes]") -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk

"""The synchronous transport: urllib3 over the unix socket or TCP, errors mapped, the daemon started where it may be."""

import socket
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast
from urllib.parse import unquote, urlsplit

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    NewConnectionError,
    ProxyError,
    ReadTimeoutError,
    SSLError,
    TimeoutError,
)
from urllib3.util import parse_url

from corral.errors import DaemonUnreachable, InvalidInput, Timeout
from corral.sdk import autostart
from corral.sdk.operations import Event, Request, failure
from corral.sdk.settings import Settings
from corral.sdk.target import CONNECT_SECONDS, KEPT_SECONDS, MAX_EVENT, RETRY_PAUSES, Target
from corral.wire.sse import Decoder

_KEPT = 32
_WRITE_SECONDS = 60.0
_CHUNK = 256 * 1024
_NOT_CONNECTED = (NewConnectionError, ConnectTimeoutError, ProxyError, SSLError)


class _Aging(HTTPConnection):
    """A connection that is made anew where nobody used it for long."""

    _used = 0.0

    @property
    def is_connected(self) -> bool:
        """Whether it may be used as it is."""
        return time.monotonic() - self._used < KEPT_SECONDS and super().is_connected

    def connect(self) -> None:
        """Connect it; what is sent may wait longer than that."""
        super().connect()
        self.sock.settimeout(_WRITE_SECONDS)

    def getresponse(self) -> Any:
        """The answer to the last request."""
        response = super().getresponse()
        self._used = time.monotonic()
        return response


class _AgingTls(_Aging, HTTPSConnection):
    pass


class _Unix(_Aging):
    def __init__(self, *args: Any, path: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self._path = path

    def _new_conn(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(CONNECT_SECONDS)
            connection.connect(self._path)
        except OSError as error:
            connection.close()
            raise NewConnectionError(self, str(error)) from error
        return connection


class _Pool(urllib3.HTTPConnectionPool):
    """Ends the connections that it does not keep without a word, which urllib3 would say to the user of many threads."""

    ConnectionCls: Any = _Aging

    def _put_conn(self, conn: Any) -> None:
        if conn is not None and self.pool is not None and self.pool.full():
            conn.close()
        else:
            super()._put_conn(conn)


class _TlsPool(_Pool, urllib3.HTTPSConnectionPool):
    ConnectionCls = _AgingTls


class _UnixPool(_Pool):
    ConnectionCls = _Unix


class _Body:
    """What is sent in pieces. `failed`: what its source raised, which urllib3 would take for the connection's."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = pieces
        self.failed: OSError | None = None

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._pieces
        except OSError as error:
            self.failed = error
            raise


class Transport:
    """Threads may share it."""

    def __init__(self, where: Settings) -> None:
        self._target = Target(where)
        self._urlopen: Callable[..., urllib3.BaseHTTPResponse]
        self._close: Callable[[], None]
        if where.local:
            pool = _UnixPool("localhost", maxsize=_KEPT, path=str(where.socket))
            self._urlopen, self._close, self._at = pool.urlopen, pool.close, ""
        else:
            remote = _remote(self._target)
            self._urlopen, self._close, self._at = remote.urlopen, remote.clear, self._target.base

    def close(self) -> None:
        """Close its connections."""
        self._close()

    def fetch(self, request: Request) -> bytes:
        """The body of a successful answer."""
        with self._answer(request) as response:
            return response.read()

    def events(self, request: Request) -> Generator[Event, None, None]:
        """The events of a successful answer. Silence is a broken connection, since the daemon beats."""
        decoder = Decoder(MAX_EVENT)
        try:
            with self._answer(request) as response:
                for chunk in response.stream():
                    for event in decoder.feed(chunk):
                        yield Event(event.event, event.data)
        except Timeout as error:
            raise DaemonUnreachable(error.message, error.hint) from error

    def chunks(self, request: Request) -> Iterator[bytes]:
        """The body of a successful answer, as it comes."""
        with self._answer(request) as response:
            yield from response.stream(_CHUNK)

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    @contextmanager
    def _answer(self, request: Request) -> Iterator[urllib3.BaseHTTPResponse]:
        try:
            response = self._send(request)
            try:
                if not 200 <= response.status < 300:
                    raise failure(response.status, response.read())
                yield response
            finally:
                response.close()
        except _NOT_CONNECTED as error:
            raise self._target.not_connected(error) from error
        except ReadTimeoutError as error:
            raise self._target.silent() from error
        except HTTPError as error:
            raise self._target.broken() from error

    def _send(self, request: Request) -> urllib3.BaseHTTPResponse:
        pauses = list(RETRY_PAUSES) if request.repeatable else []
        started = False
        body = request.body
        pieces = None if body is None or isinstance(body, bytes) else _Body(cast(Iterable[bytes], body))
        while True:
            try:
                return self._urlopen(
                    request.method,
                    self._at + request.path,
                    body=pieces or body,
                    headers=self._target.headers_of(request),
                    timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=request.timeout),
                    retries=False,
                    redirect=False,
                    preload_content=False,
                )
            except HTTPError as error:
                if pieces is not None and pieces.failed is not None:
                    raise pieces.failed from None
                if not started and isinstance(error, NewConnectionError) and self._target.may_start(error):
                    started = True
                    autostart.ensure(self._target.where)
                elif pauses and not isinstance(error, TimeoutError):
                    time.sleep(pauses.pop(0))
                else:
                    raise


def _remote(target: Target) -> urllib3.PoolManager:
    proxy = _proxy(target.base) if target.trust_env else None
    if proxy is None:
        manager = urllib3.PoolManager(maxsize=_KEPT)
    else:
        auth = parse_url(proxy).auth
        headers = urllib3.make_headers(proxy_basic_auth=unquote(auth)) if auth else None
        manager = urllib3.ProxyManager(proxy, proxy_headers=headers, maxsize=_KEPT)
    manager.pool_classes_by_scheme = {"http": _Pool, "https": _TlsPool}
    return manager


def _proxy(base: str) -> str | None:
    """The proxy that the environment names for an address. Raises InvalidInput for one that cannot be used."""
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(base)
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(parts.netloc):
        return None
    if "://" not in proxy:
        proxy = f"http://{proxy}"
    if urlsplit(proxy).scheme not in ("http", "https"):
        raise InvalidInput(
            f"the environment's proxy for {base} is none of HTTP",
            f"set {parts.scheme}_proxy to one, or no_proxy={parts.hostname}",
        )
    return proxy

"""What the API listens on: the unix socket, TCP, TLS, and the names that lead there."""

import argparse
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import uvicorn
from fastapi import FastAPI

from corral.api.preview.hosts import Addresses
from corral.api.server import ApiProtocol
from corral.daemon.certificates import Certificate, certificate_for, given_certificate
from corral.daemon.config import Config
from corral.daemon.places import Places
from corral.daemon.trust import write_bundle
from corral.errors import InvalidInput

BACKLOG = 1024
_ANY = ("0.0.0.0", "::", "")  # noqa: S104  compared, not bound


class Server(uvicorn.Server):
    """Serves until told; signals are the daemon's, not the server's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """None are."""
        yield


@dataclass(frozen=True, slots=True)
class Listening:
    """Addresses `host:port`, empty for none; `domain` below which sandboxes' ports have names."""

    plain: str
    tls: str
    domain: str
    certificate: Certificate | None

    @property
    def names(self) -> list[str]:
        """Hosts that the API is called by."""
        return [host_and_port(item)[0] for item in (self.plain, self.tls) if item]

    @property
    def addresses(self) -> Addresses:
        """How sandboxes' ports are reached."""
        tls, plain = (host_and_port(item)[1] if item else None for item in (self.tls, self.plain))
        return Addresses(self.domain, tls, plain)


def host_and_port(address: str) -> tuple[str, int]:
    """Of `host:port`. Raises InvalidInput."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise InvalidInput(f"{address[:80]!r} is not HOST:PORT", "give it as 127.0.0.1:7070")
    return host.strip("[]"), int(port)


def listening(config: Config, places: Places, given: argparse.Namespace) -> Listening:
    """What to listen on: what the command line says, else the settings. Raises InvalidInput."""
    plain, tls = given.listen or config.listen, given.tls_listen or config.tls_listen
    domain, chain = given.domain or config.domain, given.tls_cert or config.tls_cert
    key = given.tls_key or config.tls_key
    certificate = None
    if tls:
        if bool(chain) != bool(key):
            raise InvalidInput("a certificate and its key go together", "give both, or neither")
        if chain:
            certificate = given_certificate(chain, key)
        elif domain:
            certificate = certificate_for(places.tls, domain, datetime.now(UTC))
            write_bundle(places.tls_bundle, places.tls / "ca.pem")
        else:
            raise InvalidInput(
                "TLS needs a domain or a certificate", "give --domain, or --tls-cert and --tls-key"
            )
    return Listening(plain, tls, domain, certificate)


def servers(app: FastAPI, places: Places, what: Listening) -> list[tuple[Server, list[socket.socket]]]:
    """Servers and the sockets that each serves, listening already. Raises InvalidInput."""
    plain = [unix_socket(places), *([tcp_socket(what.plain)] if what.plain else [])]
    made = [(_server(app, None), plain)]
    if what.tls:
        made.append((_server(app, what.certificate), [tcp_socket(what.tls)]))
    return made


@contextlib.asynccontextmanager
async def name_server(config: Config, what: Listening) -> AsyncIterator[None]:
    """The name server of the domain, where one is set."""
    if not config.dns or not what.domain:
        yield
        return
    from corral.daemon import names  # loads a library that few need

    host = host_and_port(what.tls or what.plain or "127.0.0.1:0")[0]
    async with names.serving(config.dns, what.domain, "127.0.0.1" if host in _ANY else host):
        yield


def _server(app: FastAPI, certificate: Certificate | None) -> Server:
    return Server(
        uvicorn.Config(
            app,
            http=ApiProtocol,
            ws=app.state.tunnel,
            loop="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=2,
            timeout_keep_alive=75,
            ssl_certfile=certificate.chain if certificate else None,
            ssl_keyfile=str(certificate.key) if certificate else None,
        )
    )


def unix_socket(places: Places) -> socket.socket:
    """A new socket that only root can open; what a former daemon left is replaced, since this one holds the lock."""
    places.socket.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX)
    mask = os.umask(0o177)
    try:
        sock.bind(str(places.socket))
    finally:
        os.umask(mask)
    sock.listen(BACKLOG)
    return sock


def tcp_socket(address: str) -> socket.socket:
    """A listening socket. Raises InvalidInput."""
    host, port = host_and_port(address)
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, ValueError) as error:
        raise InvalidInput(f"cannot listen on {address}: {error}", "give another HOST:PORT") from error

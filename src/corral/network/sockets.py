"""The sockets at the gateway's side of a sandbox's network.

They are made inside the gateway namespace and stay usable from anywhere: by the daemon that made them, and
by the gateway process that they are passed to.
"""

import contextlib
import socket
from collections.abc import Iterable, Sequence

from corral.engine.ports import Listener
from corral.errors import InvalidInput
from corral.host import namespaces
from corral.model.listeners import ListenerKind

DNS_PORT = 53
HTTP_PORT = 80
TLS_PORT = 443

_BACKLOG = 1024
_ANY = "0.0.0.0"  # noqa: S104 - all addresses of a namespace that only its sandbox reaches
# Python 3.11 does not name it.
_IP_PKTINFO = 8


def open_listeners(gateway: int, tls_ports: Iterable[int]) -> tuple[Listener, ...]:
    """DNS by UDP and TCP, HTTP, TLS on 443 and on `tls_ports`, in a gateway namespace; the caller owns them.

    All are non-blocking. DNS by UDP has IP_PKTINFO set, so that an answer can leave from the address that
    was asked. Raises OSError, InvalidInput for a port that serves another purpose.
    """
    return _listeners(
        gateway,
        [
            (ListenerKind.DNS_UDP, DNS_PORT),
            (ListenerKind.DNS_TCP, DNS_PORT),
            (ListenerKind.HTTP, HTTP_PORT),
            *((ListenerKind.TLS, port) for port in _tls_ports({TLS_PORT, *tls_ports} - {HTTP_PORT})),
        ],
    )


def open_ports(gateway: int, tls_ports: Iterable[int]) -> tuple[Listener, ...]:
    """TLS on further ports. As `open_listeners`."""
    return _listeners(gateway, [(ListenerKind.TLS, port) for port in _tls_ports(tls_ports)])


def _listeners(gateway: int, wanted: Sequence[tuple[ListenerKind, int]]) -> tuple[Listener, ...]:
    def work() -> tuple[Listener, ...]:
        with contextlib.ExitStack() as stack:
            made = [Listener(kind, port, stack.enter_context(_open(kind, port))) for kind, port in wanted]
            stack.pop_all()
            return tuple(made)

    return namespaces.run_in_netns(gateway, work)


def _tls_ports(ports: Iterable[int]) -> list[int]:
    wanted = sorted(set(ports))
    for port in wanted:
        if not 1 <= port <= 65535 or port == DNS_PORT:
            raise InvalidInput(f"port {port} cannot be opened for a sandbox", "use 1 to 65535, but not 53")
    return wanted


def _open(kind: ListenerKind, port: int) -> socket.socket:
    datagrams = kind is ListenerKind.DNS_UDP
    kind_of_socket = socket.SOCK_DGRAM if datagrams else socket.SOCK_STREAM
    sock = socket.socket(socket.AF_INET, kind_of_socket | socket.SOCK_NONBLOCK)
    try:
        if datagrams:
            sock.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
        else:
            # Accepted sockets inherit it. A former listener's connections must not keep the port.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((_ANY, port))
        if not datagrams:
            sock.listen(_BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def open_socket(netns: int) -> socket.socket:
    """A non-blocking stream socket of a network namespace, not connected; the caller owns it."""
    return namespaces.run_in_netns(
        netns, lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    )

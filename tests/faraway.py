"""A host at public addresses, for tests: a network namespace behind a pair of interfaces. What runs there is asked by the
gateway as a server anywhere is.
"""

import contextlib
import os
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from ipaddress import IPv4Interface, ip_address

import dns.message
import dns.rrset
from tests.conftest import LANE
from tests.traces import wait_for

from corral.host import namespaces, netlink

# Tests that run side by side have networks of their own.
NEAR = IPv4Interface(f"45.45.{45 + LANE}.1/24")
PROXY, SERVER, RESOLVER = (f"45.45.{45 + LANE}.{host}" for host in (2, 3, 4))
"""Addresses there."""
PRIVATE = f"10.45.{45 + LANE}.2"
"""A private one there."""
LOOPBACK = f"127.45.{45 + LANE}.1"
"""One of this host's own."""
_NAME, _INDEX, _LOOPBACK, _PEER = f"corral-far{LANE}", 9045 + LANE, 1, 2


@dataclass
class Far:
    """The namespace; one that is this process's own is near."""

    fd: int

    def listen(self, address: str, port: int = 0) -> socket.socket:
        """A listening socket there."""
        return namespaces.run_in_netns(self.fd, lambda: socket.create_server((address, port)))

    def datagrams(self, address: str, port: int) -> socket.socket:
        """A UDP socket there."""

        def opened() -> socket.socket:
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            sock.bind((address, port))
            return sock

        return namespaces.run_in_netns(self.fd, opened)

    def connect(self, address: str, port: int) -> socket.socket:
        """A connection from there."""
        return namespaces.run_in_netns(self.fd, lambda: socket.create_connection((address, port), timeout=10))


@contextlib.contextmanager
def far_host() -> Iterator[Far]:
    """The host at its addresses, which are gone with it."""
    fd = namespaces.run_in_new_netns(namespaces.own_netns_fd)
    try:
        with netlink.open_socket() as here:
            netlink.transact(
                here,
                [
                    netlink.add_veth(_NAME, _INDEX, "eth0", _PEER, fd),
                    netlink.put_address(_INDEX, NEAR),
                    netlink.put_address(_INDEX, IPv4Interface(f"10.45.{45 + LANE}.1/24")),
                    netlink.set_up(_INDEX),
                ],
            )
        namespaces.run_in_netns(fd, _set_up)
        yield Far(fd)
    finally:
        os.close(fd)
        wait_for(lambda: _NAME not in [name for _, name in socket.if_nameindex()], "the end of the namespace")


def _set_up() -> None:
    addresses = [
        netlink.put_address(_PEER, IPv4Interface(f"{address}/24"))
        for address in (PROXY, SERVER, RESOLVER, PRIVATE)
    ]
    with netlink.open_socket() as there:
        netlink.transact(there, [*addresses, netlink.set_up(_LOOPBACK), netlink.set_up(_PEER)])


@contextlib.contextmanager
def _serving(sock: socket.socket, serve: Callable[[], None]) -> Iterator[None]:
    """Call `serve` whenever there is something at a socket."""
    ended, wake = socket.socketpair()

    def loop() -> None:
        while ended not in (ready := select.select([sock, ended], [], [])[0]):
            if ready:
                serve()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        wake.close()
        thread.join()
        ended.close()
        sock.close()


@dataclass
class Resolver:
    """A DNS server there: `answers` are addresses by name, one question after the other; `asked` what was asked."""

    answers: dict[str, list[str]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def running(self, far: Far, address: str = RESOLVER) -> Iterator["Resolver"]:
        """Serve meanwhile."""
        sock = far.datagrams(address, 53)
        with _serving(sock, lambda: self._answer(sock)):
            yield self

    def _answer(self, sock: socket.socket) -> None:
        data, sender = sock.recvfrom(4096)
        query = dns.message.from_wire(data)
        question = query.question[0]
        name = str(question.name).rstrip(".").lower()
        self.asked.append(f"{name} {question.rdtype.name}")
        reply = dns.message.make_response(query)
        known = self.answers.get(name, [])
        wanted = [
            text for text in known if question.rdtype.name == ("A", "AAAA")[ip_address(text).version == 6]
        ]
        if wanted:
            reply.answer.append(dns.rrset.from_text(question.name, 1, "IN", question.rdtype, *wanted))
        elif not known:
            reply.set_rcode(dns.rcode.NXDOMAIN)
        sock.sendto(reply.to_wire(), sender)


@dataclass
class SocksProxy:
    """A SOCKS5 proxy there. `login` is what it wants, `asked` what it was asked for."""

    login: tuple[str, str] | None = None
    asked: list[tuple[str, int]] = field(default_factory=list)
    logins: list[tuple[str, str]] = field(default_factory=list)
    port: int = 0

    @contextlib.contextmanager
    def running(self, far: Far, address: str = PROXY) -> Iterator["SocksProxy"]:
        """Serve meanwhile."""
        sock = far.listen(address)
        self.port = sock.getsockname()[1]
        threads: list[threading.Thread] = []

        def accept() -> None:
            client, _ = sock.accept()
            threads.append(threading.Thread(target=self._serve, args=(far, client)))
            threads[-1].start()

        with _serving(sock, accept):
            yield self
        for thread in threads:
            thread.join(20)

    def _serve(self, far: Far, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError, EOFError, struct.error):
            client.settimeout(20)
            methods = _exactly(client, _exactly(client, 2)[1])
            method = 0 if self.login is None else 2
            client.sendall(bytes((5, method if method in methods else 0xFF)))
            if self.login is not None and not self._admits(client):
                return
            _, _, _, kind = _exactly(client, 4)
            size = {1: 4, 4: 16}.get(kind) or _exactly(client, 1)[0]
            raw = _exactly(client, size)
            host = raw.decode() if kind == 3 else str(ip_address(raw))
            port = int.from_bytes(_exactly(client, 2), "big")
            self.asked.append((host, port))
            try:
                server = far.connect(host, port)
            except OSError:
                client.sendall(b"\x05\x05\x00\x01" + bytes(6))
                return
            with server:
                client.sendall(b"\x05\x00\x00\x01" + bytes(6))
                _relay(client, server)

    def _admits(self, client: socket.socket) -> bool:
        _, size = _exactly(client, 2)
        user = _exactly(client, size).decode()
        word = _exactly(client, _exactly(client, 1)[0]).decode()
        self.logins.append((user, word))
        client.sendall(bytes((1, (user, word) != self.login)))
        return (user, word) == self.login


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        if not (piece := sock.recv(size - len(data))):
            raise EOFError
        data += piece
    return data


def _relay(one: socket.socket, other: socket.socket) -> None:
    while ready := select.select([one, other], [], [], 20)[0]:
        for sock in ready:
            if not (data := sock.recv(65536)):
                return
            (other if sock is one else one).sendall(data)

"""Which kinds of sockets can be had, and what can be done with the network's set-up."""

import contextlib
import socket
import struct
from pathlib import Path

from .kit import outcome, report

KINDS = {"stream": 1, "dgram": 2, "raw": 3, "rdm": 4, "seqpacket": 5, "dccp": 6, "packet": 10}
PROTOCOLS = {"icmp": 1, "tcp": 6, "udp": 17, "dccp": 33, "gre": 47, "icmp6": 58, "l2tp": 115, "sctp": 132, "udplite": 136,
             "raw": 255}  # fmt: skip
OPEN = (53, 80, 443)
"""Ports at which a gateway listens."""
DEVICE = 2
RTM_NEWADDR, RTM_NEWROUTE = 20, 24
ACK_CREATE = 0x1 | 0x4 | 0x400  # request, ack, create


def opened(family: int, kind: int, protocol: int) -> bool:
    """Whether the kernel gives such a socket."""
    return outcome(lambda: socket.socket(family, kind, protocol).close()) == "ok"


def families() -> list[int]:
    """Families of which any socket can be had."""
    return [family for family in range(46) if any(opened(family, kind, 0) for kind in KINDS.values())]


def pairs() -> list[int]:
    """Families of which the kernel makes a pair of sockets, or says anything but that it may not be asked."""

    def make(family: int, kind: int) -> None:
        for one in socket.socketpair(family, kind):
            one.close()

    refused = {"EPERM", "EAFNOSUPPORT"}
    return [
        family for family in range(46) if {outcome(make, family, kind) for kind in KINDS.values()} - refused
    ]


def internet() -> list[str]:
    """Internet sockets with a protocol of one's own choice."""
    return [
        f"{kind} {protocol}"
        for kind, kind_number in KINDS.items()
        for protocol, number in PROTOCOLS.items()
        if opened(socket.AF_INET, kind_number, number)
    ]


def netlink(kind: int, body: bytes) -> int:
    """Send a routing message; the error number that the kernel acknowledges it with."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as link:
        link.bind((0, 0))
        link.send(struct.pack("=IHHII", 16 + len(body), kind, ACK_CREATE, 1, 0) + body)
        answer = link.recv(4096)
        return -int(struct.unpack_from("=i", answer, 16)[0])


def changes() -> dict[str, int]:
    """Attempts to give oneself an address and a route."""
    address = struct.pack("=BBBBI", 2, 32, 0, 0, 2) + struct.pack("=HH4s", 8, 2, bytes([192, 168, 77, 7]))
    route = struct.pack("=8BI", 2, 0, 0, 0, 254, 3, 0, 1, 0) + struct.pack("=HHI", 8, 4, 2)
    return {"address": netlink(RTM_NEWADDR, address), "route": netlink(RTM_NEWROUTE, route)}


def ipv6() -> dict[str, str]:
    """IPv6, to anybody, also to whoever is at the other end of the wire."""
    targets = {"::1": OPEN, "2001:4860:4860::8888": OPEN, "fe80::1": OPEN, "::ffff:8.8.8.8": (8443,)}
    targets |= dict.fromkeys(neighbours(), OPEN)

    def connect(target: str, port: int) -> None:
        with socket.socket(socket.AF_INET6) as connection:
            connection.settimeout(1)
            connection.connect((target, port, 0, DEVICE if target.startswith("fe80:") else 0))

    return {
        f"{target} {port}": outcome(connect, target, port)
        for target, ports in targets.items()
        for port in ports
    }


def neighbours() -> list[str]:
    """The addresses that those on the wire would have, by their hardware's."""
    outcome(socket.create_connection, ("10.200.0.1", 80), 1)
    found = []
    with contextlib.suppress(FileNotFoundError):
        for line in Path("/proc/net/arp").read_text().splitlines()[1:]:
            mac = bytes.fromhex(line.split()[3].replace(":", ""))
            words = (bytes([mac[0] ^ 2]) + mac[1:3] + b"\xff\xfe" + mac[3:]).hex(":", 2)
            found.append(f"fe80::{words}")
    return found


if __name__ == "__main__":
    report(
        {
            "families": families(),
            "pairs": pairs(),
            "internet": internet(),
            "changes": changes(),
            "ipv6": ipv6(),
        }
    )

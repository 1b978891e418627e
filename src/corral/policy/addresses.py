"""Which addresses the gateway may dial, once a name has been allowed.

The policy speaks of names, and whoever owns a name chooses its addresses: this check keeps an allowed name
from leading to the host's own services, to another sandbox or to a cloud's metadata. Its answer names a class
and never the address, so that a sandbox cannot use refusals to map the host's network (G-68).
"""

import ipaddress
from collections.abc import Sequence, Set
from functools import lru_cache

from corral.errors import InvalidInput

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@lru_cache(maxsize=256)
def parse_networks(texts: tuple[str, ...]) -> tuple[Network, ...]:
    """CIDR blocks. Raises InvalidInput."""
    try:
        return tuple(ipaddress.ip_network(text) for text in texts)
    except ValueError as error:
        raise InvalidInput(
            f"a network is not valid: {error}", "write it as CIDR, such as 10.1.0.0/16"
        ) from None


EVERYTHING = parse_networks(("0.0.0.0/0", "::/0"))


def _networks(texts: str) -> tuple[Network, ...]:
    return tuple(ipaddress.ip_network(text) for text in texts.split())


_METADATA = _networks(
    "169.254.169.254/32 169.254.170.2/32 169.254.170.23/32 100.100.100.200/32 168.63.129.16/32 192.0.0.192/32"
    " fd00:ec2::/32 fd20:ce::254/128 fd00:c1::a9fe:a9fe/128 fd00:42::42/128 fd00:a9fe:a9fe::1/128"
    " fd00:100::100:200/128"
)
_NEVER: tuple[tuple[str, tuple[Network, ...]], ...] = (
    ("a metadata service", _METADATA),
    ("a loopback address", _networks("127.0.0.0/8 ::1/128")),
    ("an unspecified address", _networks("0.0.0.0/8 ::/128")),
    ("a link-local address", _networks("169.254.0.0/16 fe80::/10")),
    ("a multicast or broadcast address", _networks("224.0.0.0/4 ff00::/8 255.255.255.255/32")),
    # The gateway's own stand-ins for names (G-284): dialling one would be dialling itself.
    ("an address of the gateway", _networks("198.18.0.0/15")),
)
_PRIVATE = _networks(
    "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 100.64.0.0/10 192.0.0.0/24 192.0.2.0/24 198.51.100.0/24"
    " 203.0.113.0/24 240.0.0.0/4 fc00::/7 fec0::/10 2001:db8::/32 100::/64"
)


def refused_class(address: Address, opened: Sequence[Network], own: Set[Address]) -> str | None:
    """The class for which `address` must not be dialled, or None if it may be (G-63 to G-66).

    `opened` are the private ranges that the operator allows; `own` are the addresses of this host's
    interfaces now. An IPv4 address inside an IPv6 one can only add a refusal: `opened` does not apply to it.
    """
    for name, networks in _NEVER:
        if any(address in net for net in networks):
            return name
    if address in own:
        return "an address of this host"
    if any(address in net for net in _PRIVATE) and not any(address in net for net in opened):
        return "a private or special address"
    if isinstance(address, ipaddress.IPv6Address):
        for inner in embedded(address):
            found = refused_class(inner, (), own)
            if found is not None:
                return found
    return None


def embedded(address: ipaddress.IPv6Address) -> list[ipaddress.IPv4Address]:
    """Every IPv4 address that some translation or tunnel would read out of an IPv6 one (G-66)."""
    value = int(address)
    last = value & 0xFFFFFFFF
    found: list[int] = []
    if value >> 32 in (0xFFFF, 0, 0x0064FF9B << 64) and value > 1:
        found.append(last)
    if value >> 80 == 0x0064FF9B0001:
        found += [last, ((value >> 64 & 0xFFFF) << 16) | (value >> 40 & 0xFFFF)]
    if value >> 112 == 0x2002:
        found.append(value >> 80 & 0xFFFFFFFF)
    if value >> 96 == 0x20010000:
        found += [value >> 64 & 0xFFFFFFFF, last ^ 0xFFFFFFFF]
    if value >> 32 & 0xFDFFFFFF == 0x00005EFE:
        found.append(last)
    return [ipaddress.IPv4Address(number) for number in found]

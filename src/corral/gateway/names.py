"""Stand-in addresses for the names that a sandbox may reach.

A sandbox is never told where a name really is: it gets an address of 198.18.0.0/15 that stands for the name,
connects there, and the gateway, which owns every address in the sandbox's namespace, knows from it which name
was meant. Names are not looked up before they are connected to, so a lookup carries nothing out of the host
(G-283).

A name's address follows from its hash, so it is the same after a restart of the gateway, when guests still
hold old answers; two names of one hash are told apart by order, exact rules first.
"""

import hashlib
from ipaddress import IPv4Address, IPv4Network

from corral.errors import NoCapacity
from corral.model.egress import EgressPolicy
from corral.policy.egress import GATEWAY_HOST

SYNTHETIC = IPv4Network("198.18.0.0/15")
GATEWAY = IPv4Address("10.200.0.1")
MAX_NAMES = 32_768
"""Names that one sandbox may have addresses for: a quarter of the range, so that free ones are found at once."""

_FIRST = int(SYNTHETIC.network_address) + 1
_SIZE = SYNTHETIC.num_addresses - 2


class NameTable:
    """One sandbox's names and their addresses, one to one (G-284)."""

    def __init__(self, policy: EgressPolicy) -> None:
        self._by_name: dict[str, IPv4Address] = {}
        self._by_address: dict[IPv4Address, str] = {}
        for host in sorted(
            rule.host for rule in policy.rules if not rule.host.startswith("*") and not rule.is_range
        ):
            self.address(host)

    def address(self, name: str) -> IPv4Address:
        """The address that stands for a canonical name. Raises NoCapacity once too many names were asked for."""
        found = self._by_name.get(name)
        if found is not None:
            return found
        if len(self._by_name) >= MAX_NAMES:
            raise NoCapacity("this sandbox has asked for too many names", "use fewer different host names")
        slot = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % _SIZE
        while (address := IPv4Address(_FIRST + slot)) in self._by_address:
            slot = (slot + 1) % _SIZE
        self._by_name[name] = address
        self._by_address[address] = name
        return address

    def named(self, address: str) -> str:
        """The name that an address stands for; the address itself if it stands for none."""
        try:
            return self._by_address.get(IPv4Address(address), address)
        except ValueError:
            return address

    def stands_for(self, address: str, name: str) -> bool:
        """Whether a connection to `address` may be one to `name`: always, unless the address stands for
        another (G-47).

        An address that stands for nothing yet is one given out before a restart: the name is put back in its
        place.
        """
        try:
            wanted = IPv4Address(address)
        except ValueError:
            return True
        if name == GATEWAY_HOST:
            return wanted not in SYNTHETIC
        if wanted not in SYNTHETIC:
            return wanted != GATEWAY
        return wanted == self.address(name)

"""Names looked up by DNS servers that a sandbox's creator chose.

They say what they like: addresses are taken from them as from any resolver, and checked by who asked. What they are asked is
the whole name as a rule and a connection of the sandbox have it, nothing is searched for and nothing is kept.
"""

from collections.abc import Sequence
from ipaddress import ip_address

import dns.asyncbackend
import dns.asyncresolver
import dns.name
import dns.rdtypes.ANY.CNAME
import dns.rdtypes.ANY.OPT
import dns.rdtypes.ANY.SOA
import dns.rdtypes.IN.A
import dns.rdtypes.IN.AAAA
from dns.exception import DNSException
from dns.rdatatype import RdataType

from corral.policy.addresses import Address

PRELOADED = (dns.rdtypes.ANY, dns.rdtypes.IN, dns.asyncbackend.get_backend("asyncio"))
"""What dnspython loads only when it first needs it, which after giving up root may be too late."""
_SECONDS = 5.0


async def lookup(host: str, servers: Sequence[str]) -> list[Address]:
    """The addresses of a canonical name by the first server that answers, IPv6 only where there is no IPv4. Raises
    OSError.
    """
    if not servers:
        raise OSError("no DNS server may be asked")
    resolver = dns.asyncresolver.Resolver(configure=False)
    resolver.nameservers = list(servers)
    resolver.lifetime = _SECONDS
    for kind in (RdataType.A, RdataType.AAAA):
        try:
            answer = await resolver.resolve(
                dns.name.from_text(host),
                kind,
                raise_on_no_answer=False,
                search=False,
                backend=dns.asyncbackend.get_backend("asyncio"),
            )
        except (DNSException, ValueError) as error:
            raise OSError(f"the name cannot be looked up: {type(error).__name__}") from None
        if answer.rrset is not None:
            return [ip_address(item.address) for item in answer.rrset]
    return []

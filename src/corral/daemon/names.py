"""A name server for a domain that is served from this host alone: development, and tests.

It answers one question: every name at or below the domain is at the one address. Anything else is refused, and a resolver
that knows another server asks that.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rrset

from corral.errors import InvalidInput

PORT = 53
_TTL = 5


def answer(question: bytes, domain: str, address: str) -> bytes | None:
    """The answer to a DNS message; None for what is no question. Pure."""
    try:
        query = dns.message.from_wire(question)
        if query.flags & dns.flags.QR or len(query.question) != 1:
            return None
        response = dns.message.make_response(query)
        asked = query.question[0]
        if not asked.name.is_subdomain(dns.name.from_text(domain)):
            response.set_rcode(dns.rcode.REFUSED)
        elif asked.rdtype == dns.rdatatype.A:
            response.flags |= dns.flags.AA
            response.answer.append(dns.rrset.from_text(asked.name, _TTL, dns.rdataclass.IN, "A", address))
        return response.to_wire()
    except (dns.exception.DNSException, ValueError):
        return None


class _Server(asyncio.DatagramProtocol):
    def __init__(self, domain: str, address: str) -> None:
        self._domain = domain
        self._address = address
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)  # uvloop's is none by its class

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        told = answer(data, self._domain, self._address)
        if told is not None and self._transport is not None:
            self._transport.sendto(told, addr)


@asynccontextmanager
async def serving(listen: str, domain: str, address: str) -> AsyncIterator[None]:
    """Answer on port 53 of `listen` while the block runs. Raises InvalidInput where that cannot be listened on."""
    loop = asyncio.get_running_loop()
    try:
        transport, _ = await loop.create_datagram_endpoint(
            lambda: _Server(domain, address), local_addr=(listen, PORT)
        )
    except OSError as error:
        raise InvalidInput(
            f"cannot serve names on {listen}: {error}",
            "set another address of this host: `corral config set api.dns 127.0.0.77`",
        ) from error
    try:
        yield
    finally:
        transport.close()

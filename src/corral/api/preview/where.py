"""Where a request goes: to a port of a sandbox, to a sandbox's own service, or neither."""

from collections.abc import Collection

from starlette.types import Scope

from corral.api.e2b.calls import digits
from corral.api.guard import LOOPBACK_NAMES, host_of
from corral.api.preview.hosts import MAX_PORT, Addresses, Target, target_of
from corral.protocol.e2b.base import ENVD_PORT


class Where:
    """Reads the head of a request.

    A sandbox's own host name decides alone: headers that name a sandbox are ignored there, so that one sandbox's page
    cannot send its visitors' browsers to another. On the daemon's own names the headers decide.
    """

    def __init__(self, addresses: Addresses, own_names: Collection[str]) -> None:
        self.addresses = addresses
        domain = addresses.domain
        ours = (domain, f"api.{domain}", f"sandbox.{domain}") if domain else ()
        self.own_names = frozenset({name.lower() for name in (*own_names, *ours)} | LOOPBACK_NAMES)

    def by_host(self, scope: Scope) -> Target | None:
        """What the Host names; None for the daemon's own names. Raises ValueError for a port that is none."""
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1:
            return None
        return target_of(host_of(hosts[0].decode("latin-1")).lower(), self.addresses.names)

    def by_headers(self, scope: Scope) -> Target | None:
        """What the routing headers of E2B's clients name; None unless both are there and well formed."""
        given = {
            name: value.decode("latin-1")
            for name, value in scope["headers"]
            if name in (b"e2b-sandbox-id", b"e2b-sandbox-port")
        }
        port = given.get(b"e2b-sandbox-port", "")
        number = digits(port, 5)
        if len(given) != 2 or number is None or not 1 <= number <= MAX_PORT:
            return None
        return Target(given[b"e2b-sandbox-id"].partition("-")[0], number)

    def target(self, scope: Scope) -> Target | None:
        """The port of a sandbox that a request is for; None for anything else. Raises ValueError."""
        found = self.by_host(scope) or self.by_headers(scope)
        return None if found is None or found.port == ENVD_PORT else found

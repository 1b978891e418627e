"""E2B's network options as a policy of the gateway.

E2B allows what is not denied; Corral denies what is not allowed. What both can say is translated; what only E2B can say
is refused rather than dropped, since a rule that is not kept is worse than none.
"""

import ipaddress
import re

from corral.api.e2b.failures import Refusal, not_supported
from corral.protocol.e2b.base import ENVD_PORT
from corral.protocol.e2b.sandboxes import Network

ALL = "0.0.0.0/0"
_HOST = re.compile(r"[A-Za-z0-9._\-]{1,253}(:([0-9]{1,5}|\$\{PORT\}))?")


def allowed_hosts(internet: bool | None, network: Network | None) -> tuple[str, ...]:
    """Hosts that the sandbox may reach: all, or those of `allowOut` where all others are denied. Raises Refusal."""
    options = network or Network()
    _refuse_unknown(options)
    denied = [_denied(item) for item in options.deny_out or []]
    all_denied = internet is False or ALL in denied
    named = [item for item in options.allow_out or [] if not _is_range(item)]
    if named and not all_denied:
        raise Refusal(400, f"allowOut with domains needs ALL_TRAFFIC ({ALL}) in denyOut")
    if not all_denied:
        if denied:
            raise not_supported("denying some ranges and allowing all others", f"deny {ALL}, and allow hosts")
        return ("*",)
    if ALL in (options.allow_out or []):
        return ("*",)
    return tuple(_allowed(item) for item in options.allow_out or [])


def check_ingress(network: Network, *, secured: bool) -> None:
    """Raise Refusal for options of traffic from outside that cannot be kept."""
    if network.allow_public_traffic is False and not secured:
        raise Refusal(400, "allowPublicTraffic=false needs a secured sandbox: secure=true")
    if network.mask_request_host and not _HOST.fullmatch(network.mask_request_host):
        raise Refusal(400, f"maskRequestHost {network.mask_request_host[:80]!r} is not a host")
    for port in network.https_ports or []:
        if not 1 <= port <= 65535 or port == ENVD_PORT:
            raise Refusal(400, f"httpsPorts: {port} cannot be served")


def _refuse_unknown(options: Network) -> None:
    if options.rules:
        raise not_supported("network.rules", "keep credentials in the vault: `corral secret add`")
    if options.egress_proxy:
        raise not_supported("network.egressProxy")
    if options.dns_servers:
        raise not_supported("network.dnsServers", "names are resolved by the host")


def _denied(item: str) -> str:
    try:
        return str(ipaddress.ip_network(item, strict=False))
    except ValueError:
        raise Refusal(400, f"invalid denied CIDR {item[:80]}") from None


def _is_range(item: str) -> bool:
    try:
        ipaddress.ip_network(item, strict=False)
    except ValueError:
        return False
    return True


def _allowed(item: str) -> str:
    if item in ("0.0.0.0", "::"):  # noqa: S104 - an address to refuse, not to bind
        raise Refusal(400, f"invalid allowed address {item}")
    if "/" in item:
        raise not_supported("a range of addresses in allowOut", "allow hosts by name or address")
    return item

"""E2B's network options as a policy of the gateway.

E2B allows what is not denied; Corral denies what is not allowed. What both can say is translated; what only E2B can say
is refused rather than dropped, since a rule that is not kept is worse than none.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network

from corral.api.e2b.failures import Refusal, not_supported
from corral.engine.plan import MAX_ALLOW
from corral.model.route import EgressProxy, HeaderField, HeaderRule, Route
from corral.model.secrets import Secret
from corral.policy.routes import checked_route
from corral.protocol.e2b.base import ENVD_PORT
from corral.protocol.e2b.sandboxes import Network, Proxy, Rule

Range = IPv4Network | IPv6Network
_ALL = IPv4Network("0.0.0.0/0")
_DOMAIN = re.compile(r"\*|(\*\.)?[\w\-]+(\.[\w\-]+)*\.?")
_IPV4 = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3}){3}")
_TOKEN = "${e2b.identity.tokens."  # noqa: S105 (what stands for one)
_HOST = re.compile(r"[A-Za-z0-9._\-]{1,253}(:[0-9]{1,5})?")


@dataclass(frozen=True, slots=True)
class Egress:
    """What a sandbox may reach, as rules of Corral's."""

    allow: tuple[str, ...]
    deny: tuple[str, ...] = ()


def egress_of(internet: bool | None, network: Network | None) -> Egress:
    """All but what `denyOut` holds, or only what `allowOut` holds where all else is denied. Raises Refusal."""
    options = network or Network()
    allowed = options.allow_out or []
    denied = [_denied(item) for item in options.deny_out or []]
    ranges = [_allowed(item) for item in allowed if _is_range(item)]
    names = [_name(item) for item in allowed if not _is_range(item)]
    all_denied = internet is False or _ALL in denied
    if names and not all_denied:
        raise Refusal(400, f"allowOut with domains needs ALL_TRAFFIC ({_ALL}) in denyOut")
    if _ALL in ranges:
        return Egress(("*", *_texts(ranges)))
    if all_denied:
        return Egress((*names, *_texts(ranges)))
    return Egress(("*", str(_ALL), *_texts(ranges)), _texts(_without(denied, ranges)))


def _without(denied: Sequence[Range], allowed: Sequence[Range]) -> list[Range]:
    """What is left of denied ranges: in E2B what is allowed goes first, in Corral what is denied."""
    left = list(denied)
    for one in allowed:
        left = [part for item in left for part in _minus(item, one)]
        if len(left) > MAX_ALLOW:
            raise Refusal(400, "allowOut takes too many pieces out of denyOut")
    return left


def _minus(item: Range, one: Range) -> list[Range]:
    if item.version != one.version or not item.overlaps(one):
        return [item]
    if item.prefixlen >= one.prefixlen:
        return []
    if isinstance(item, IPv4Network) and isinstance(one, IPv4Network):
        return list(item.address_exclude(one))
    if isinstance(item, IPv6Network) and isinstance(one, IPv6Network):
        return list(item.address_exclude(one))
    return [item]


def check_ingress(network: Network, *, secured: bool) -> None:
    """Raise Refusal for options of traffic from outside that cannot be kept."""
    if network.allow_public_traffic is False and not secured:
        raise Refusal(400, "allowPublicTraffic=false needs a secured sandbox: secure=true")
    if network.mask_request_host and not _HOST.fullmatch(network.mask_request_host.replace("${PORT}", "80")):
        raise Refusal(400, f"maskRequestHost {network.mask_request_host[:80]!r} is not a host")
    for port in network.https_ports or []:
        if not 1 <= port <= 65535 or port == ENVD_PORT:
            raise Refusal(400, f"httpsPorts: {port} cannot be served")


def route_of(network: Network | None, opened: Sequence[Range] = ()) -> Route:
    """How requests go out; `opened` are private networks that the operator lets sandboxes reach. Raises Refusal, and
    InvalidInput for what the engine does not take.
    """
    options = network or Network()
    headers = tuple(_header_rule(host, found) for host, found in (options.rules or {}).items())
    proxy = None if options.egress_proxy is None else _proxy(options.egress_proxy)
    return checked_route(Route(headers, proxy, _resolvers(options)), opened)


def _resolvers(options: Network) -> tuple[str, ...]:
    for item in options.dns_servers or ():
        if not _IPV4.fullmatch(item):
            raise Refusal(400, f"dnsServers: {item[:80]!r} is no IPv4 address")
    return tuple(options.dns_servers or ())


def _proxy(proxy: Proxy) -> EgressProxy:
    host, colon, port = proxy.address.rpartition(":")
    if not colon or not port.isdecimal():
        raise Refusal(400, f"egressProxy: the address {proxy.address[:80]!r} is not host:port")
    tls = proxy.tls if proxy.tls is not None and proxy.tls.enabled else None
    return EgressProxy(
        host,
        int(port[:6]),
        proxy.username or "",
        Secret(proxy.password.get_secret_value() if proxy.password is not None else ""),
        tls is not None,
        (tls.server_name if tls is not None else None) or "",
        (tls.ca_cert if tls is not None else None) or "",
    )


def _header_rule(host: str, rules: Sequence[Rule]) -> HeaderRule:
    if len(rules) > 1:
        raise Refusal(400, f"network.rules: at most one transform for {host[:80]}")
    transforms = [rule.transform for rule in rules if rule.transform is not None]
    given = [item for transform in transforms for item in transform.headers.items()]
    if any(_TOKEN in value.get_secret_value() for _, value in given):
        raise not_supported("a token of iam in network.rules")
    return HeaderRule(
        host, tuple(HeaderField(name, Secret(value.get_secret_value())) for name, value in given)
    )


def _denied(item: str) -> Range:
    try:
        return ip_network(item, strict=False)
    except ValueError:
        raise Refusal(400, f"invalid denied CIDR {item[:80]}") from None


def _is_range(item: str) -> bool:
    try:
        ip_network(item, strict=False)
    except ValueError:
        return False
    return True


def _allowed(item: str) -> Range:
    if item in ("0.0.0.0", "::"):  # noqa: S104 - an address to refuse, not to bind
        raise Refusal(400, f"invalid allowed address {item}")
    return ip_network(item, strict=False)


def _name(item: str) -> str:
    """A domain as E2B writes it: what a rule of Corral's can say beyond that is not a tenant's to say here."""
    if not _DOMAIN.fullmatch(item):
        raise Refusal(400, f"invalid allowed domain {item[:80]}")
    return item


def _texts(ranges: Sequence[Range]) -> tuple[str, ...]:
    return tuple(map(str, ranges))

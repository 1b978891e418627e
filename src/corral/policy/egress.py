"""Which destinations a sandbox may reach, decided on values alone.

`decide` answers whether a sandbox's policy lists a host and port. Whether an address that the host resolves
to may be dialled is a second question, answered by `corral.policy.addresses`; both must be answered with yes.
"""

import ipaddress
import re
from collections.abc import Set
from dataclasses import dataclass
from enum import StrEnum

import idna

from corral.errors import InvalidInput
from corral.model.egress import EgressPolicy, HostRule
from corral.policy.addresses import Address, parse_networks

MAX_HOST = 253
MAX_RULES = 1024
GATEWAY_HOST = "gateway.corral"

MODEL_HOSTS = frozenset(
    {
        "api.anthropic.com",
        "api.openai.com",
        "generativelanguage.googleapis.com",
        "openrouter.ai",
    }
)
"""Model APIs: reached through the metered service only, whatever the rules say."""

METADATA_HOSTS = frozenset({"metadata.google.internal", "metadata.goog", "metadata", "instance-data"})

_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMERIC_LABEL = re.compile(r"[0-9]+|0x[0-9a-f]*")


class Reason(StrEnum):
    """Why a destination is refused."""

    BAD_HOST = "bad-host"
    NOT_ALLOWED = "host-not-allowed"
    PORT_NOT_ALLOWED = "port-not-allowed"
    LITERAL = "address-literal"
    MODEL_API = "model-api"
    METADATA = "metadata"
    ADDRESS = "address-not-allowed"
    MISMATCH = "destination-mismatch"
    NO_SNI = "no-server-name"
    ENCRYPTED_HELLO = "encrypted-client-hello"
    NOT_TLS = "not-tls"
    UNRESOLVED = "unresolved"
    UNREACHABLE = "unreachable"
    PARENT_PROXY = "parent-proxy"
    GRANT = "grant-over"
    TOO_MANY = "too-many-connections"
    BAD_REQUEST = "bad-request"


@dataclass(frozen=True, slots=True)
class Allowed:
    """The policy lists the destination; `rule` is the one that does, `host` is canonical."""

    host: str
    port: int
    rule: HostRule


@dataclass(frozen=True, slots=True)
class Denied:
    """The destination is refused: `message` says why, `how_to_allow` what a person can do about it."""

    host: str
    port: int
    reason: Reason
    message: str
    how_to_allow: str


Decision = Allowed | Denied


def canonical_host(text: str) -> str:
    """The one spelling of a host that is compared: lower case, ASCII, no trailing dot, addresses in standard
    form.

    IPv6 literals are accepted with or without brackets and returned without. Raises InvalidInput for what no
    host may be (G-51).
    """
    host = text.removeprefix("[").removesuffix("]") if text.startswith("[") and text.endswith("]") else text
    if ":" in host:
        return _canonical_v6(host)
    host = host.lower().removesuffix(".")
    if not host.isascii():
        host = _to_ascii(host)
    if not 0 < len(host) <= MAX_HOST:
        raise _bad_host(text)
    labels = host.split(".")
    if not all(_LABEL.fullmatch(label) for label in labels):
        raise _bad_host(text)
    if _NUMERIC_LABEL.fullmatch(labels[-1]):
        return _canonical_v4(host)
    return host


def _canonical_v4(host: str) -> str:
    """Dotted decimal only: octal, hexadecimal and short forms are read differently by different parsers."""
    try:
        return str(ipaddress.IPv4Address(host))
    except ValueError:
        raise _bad_host(host) from None


def _canonical_v6(host: str) -> str:
    if "%" in host:
        raise _bad_host(host)
    try:
        return str(ipaddress.IPv6Address(host))
    except ValueError:
        raise _bad_host(host) from None


def _to_ascii(host: str) -> str:
    try:
        return idna.encode(host, uts46=True).decode("ascii")
    except (idna.IDNAError, UnicodeError):
        raise _bad_host(host) from None


def _bad_host(text: str) -> InvalidInput:
    return InvalidInput(
        f"{text[:80]!r} is not a valid host", "give a DNS name such as example.com, or an IP address"
    )


def literal(host: str) -> Address | None:
    """The address that a canonical host is, or None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def split_authority(text: str, default_port: int) -> tuple[str, int]:
    """Canonical host and port of `host`, `host:port` or `[v6]:port`. Raises InvalidInput."""
    host, port = text, ""
    if text.startswith("["):
        end = text.find("]")
        host, rest = text[: end + 1], text[end + 1 :]
        if end < 0 or (rest and not rest.startswith(":")):
            raise _bad_host(text)
        port = rest[1:]
    elif ":" in text:
        host, port = text.split(":", 1)
    if not port:
        if text.endswith(":"):
            raise _bad_host(text)
        return canonical_host(host), default_port
    return canonical_host(host), _port(port)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) <= 65535):
        raise InvalidInput(f"port {text[:20]!r} is not valid", "use 1 to 65535")
    return int(text)


def parse_rule(text: str) -> HostRule:
    """A rule from `HOST`, `HOST:PORT[,PORT…]`, where HOST is a name, `*.DOMAIN`, `*` or an address. Raises
    InvalidInput.
    """
    host, ports = text.strip(), ""
    if "/" in host:
        raise InvalidInput(
            f"{text[:80]!r} is not a host", "give HOST or HOST:PORT, without a scheme and a path"
        )
    if host.startswith("["):
        host, _, ports = host.partition("]")
        host, ports = host + "]", ports.removeprefix(":")
    elif host.count(":") == 1:
        host, ports = host.split(":")
    if not ports:
        return HostRule(_rule_host(host))
    return HostRule(_rule_host(host), tuple(sorted({_port(p.strip()) for p in ports.split(",")})))


def rule_text(rule: HostRule) -> str:
    """A rule as `parse_rule` reads it; the usual ports are not said."""
    host = f"[{rule.host}]" if ":" in rule.host else rule.host
    return host if rule == HostRule(rule.host) else f"{host}:{','.join(map(str, rule.ports))}"


def _rule_host(text: str) -> str:
    if text == "*":
        return text
    if text.startswith("*."):
        domain = canonical_host(text[2:])
        if literal(domain) is not None:
            raise _bad_host(text)
        return "*." + domain
    return canonical_host(text)


def checked_policy(policy: EgressPolicy) -> EgressPolicy:
    """The policy with canonical hosts and networks, or raise InvalidInput naming what is wrong (G-306,
    G-310).
    """
    if len(policy.rules) > MAX_RULES:
        raise InvalidInput(f"{len(policy.rules)} egress rules are too many", f"give at most {MAX_RULES}")
    rules = []
    for rule in policy.rules:
        if not rule.ports:
            raise InvalidInput(f"the rule for {rule.host} lists no port", "name at least one, such as 443")
        rules.append(HostRule(_rule_host(rule.host), tuple(_port(str(port)) for port in rule.ports)))
    return EgressPolicy(tuple(rules), tuple(str(net) for net in parse_networks(policy.networks)))


def matching_rules(policy: EgressPolicy, host: str) -> tuple[HostRule, ...]:
    """The most specific rules that match a canonical host: exact beats wildcard, longer beats shorter (G-52,
    G-53).
    """
    exact = tuple(rule for rule in policy.rules if rule.host == host)
    if exact or literal(host) is not None:
        return exact
    wild = [rule for rule in policy.rules if rule.host.startswith("*.") and host.endswith(rule.host[1:])]
    if not wild:
        return tuple(rule for rule in policy.rules if rule.host == "*")
    longest = max(len(rule.host) for rule in wild)
    return tuple(rule for rule in wild if len(rule.host) == longest)


def decide(policy: EgressPolicy, host: str, port: int, model_hosts: Set[str] = MODEL_HOSTS) -> Decision:
    """Whether `policy` lets a sandbox connect to a canonical `host` at `port` (G-52 to G-55, G-185)."""
    if host in METADATA_HOSTS:
        return Denied(host, port, Reason.METADATA, f"{host} is a metadata service", "this cannot be allowed")
    if host in model_hosts:
        return _model_api(host, port)
    rules = matching_rules(policy, host)
    for rule in rules:
        if port in rule.ports:
            return Allowed(host, port, rule)
    if rules:
        ports = ", ".join(str(p) for p in sorted({p for rule in rules for p in rule.ports}))
        message = f"{host} is allowed at port {ports} only, not at {port}"
        return Denied(host, port, Reason.PORT_NOT_ALLOWED, message, how_to_allow(host, port))
    reason = Reason.LITERAL if literal(host) is not None else Reason.NOT_ALLOWED
    message = f"{host} is not in this sandbox's list of allowed hosts"
    return Denied(host, port, reason, message, how_to_allow(host, port))


def _model_api(host: str, port: int) -> Denied:
    return Denied(
        host,
        port,
        Reason.MODEL_API,
        f"{host} is a model API, which is reached through the gateway's metered service only",
        f"use the base URL http://{GATEWAY_HOST}/s/NAME, NAME being listed at http://{GATEWAY_HOST}/policy",
    )


def how_to_allow(host: str, port: int) -> str:
    """The sentence that tells an agent whom to ask for what."""
    where = f"[{host}]:{port}" if ":" in host else host if port in (80, 443) else f"{host}:{port}"
    return (
        f'run `corral-ask host {where} "why it is needed"` to ask the person who runs this sandbox, who can also allow it '
        f"from the start: `corral create --allow {where}`"
    )


def name_allowed(policy: EgressPolicy, host: str) -> bool:
    """Whether a DNS question for a canonical name may be answered: a rule lists it at some port."""
    return host not in METADATA_HOSTS and host not in MODEL_HOSTS and bool(matching_rules(policy, host))

"""Which destinations a sandbox may reach, decided on values alone.

`decide` answers whether a sandbox's policy lists a host and port. Whether an address that the host resolves
to may be dialled is a second question, answered by `corral.policy.addresses`; both must be answered with yes.
"""

import ipaddress
import re
from collections.abc import Container, Iterator, Set
from dataclasses import dataclass
from enum import StrEnum

import idna

from corral.errors import InvalidInput
from corral.model.egress import EgressPolicy, HostRule
from corral.policy import logins
from corral.policy.addresses import Address, embedded
from corral.policy.paths import matches

MAX_HOST = 253
GATEWAY_HOST = "gateway.corral"
HOST_ALIAS = "host.corral"
"""The host itself, as a private service; each of its ports must be named."""

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
    LOGIN = "login"
    DENIED = "denied-by-rule"
    REQUEST_NOT_ALLOWED = "request-not-allowed"
    SECRET = "secret-in-request"  # noqa: S105 (a reason)
    NO_PLACEHOLDER = "no-placeholder"
    UNREADABLE = "cannot-be-read"


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
    bracketed = text.startswith("[") and text.endswith("]")
    host = text[1:-1] if bracketed else text
    if bracketed or ":" in host:
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
    return canonical_host(host), checked_port(port)


def checked_port(text: str) -> int:
    """A port as a number, or raise InvalidInput."""
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) <= 65535):
        raise InvalidInput(f"port {text[:20]!r} is not valid", "use 1 to 65535")
    return int(text)


class RuleBook:
    """A policy, indexed: a decision costs the same however many rules there are."""

    def __init__(self, policy: EgressPolicy) -> None:
        self.policy = policy
        self._allowing: dict[str, list[HostRule]] = {}
        self._denying: dict[str, list[HostRule]] = {}
        for rule in policy.rules:
            (self._denying if rule.deny else self._allowing).setdefault(rule.host, []).append(rule)
        ranges = sorted((rule for rule in policy.rules if rule.is_range), key=_bits, reverse=True)
        self._ranges = [(ipaddress.ip_network(rule.host), rule) for rule in ranges]

    def matching(self, host: str) -> tuple[HostRule, ...]:
        """The most specific rules that allow something at a canonical host: exact beats wildcard, longer beats
        shorter (G-52, G-53).
        """
        named = (tuple(found) for name in patterns(host) if (found := self._allowing.get(name)))
        return next(named, None) or self._allowing_range(literal(host))

    def _allowing_range(self, address: Address | None) -> tuple[HostRule, ...]:
        """The rules of the smallest allowed range around an address."""
        if address is None:
            return ()
        around = (rule for network, rule in self._ranges if not rule.deny and address in network)
        smallest = next(around, None)
        return () if smallest is None else tuple(self._allowing[smallest.host])

    def refusing(self, host: str, port: int) -> list[HostRule]:
        """All rules that deny something there: none of them is beaten by another (G-305)."""
        if not self._denying:
            return []
        address = literal(host)
        return [
            rule for name in patterns(host) for rule in self._denying.get(name, ()) if port in rule.ports
        ] + ([] if address is None else self.refusing_address(address, port))

    @property
    def judges_addresses(self) -> bool:
        """Whether what a name leads to may be denied."""
        return any(rule.deny for _, rule in self._ranges)

    def refusing_address(self, address: Address, port: int) -> list[HostRule]:
        """All rules that deny a range around an address, or around one that is written in it (G-66)."""
        if not self._ranges:
            return []
        inner = embedded(address) if isinstance(address, ipaddress.IPv6Address) else []
        return [
            rule
            for network, rule in self._ranges
            if rule.deny and port in rule.ports and any(one in network for one in (address, *inner))
        ]

    def name_allowed(self, host: str) -> bool:
        """Whether a DNS question for a canonical name may be answered: it may be connected to at some port, or to be told
        why not (G-172).
        """
        if host in METADATA_HOSTS or host in MODEL_HOSTS:
            return False
        if logins.has_logins(host):
            return True
        ports = {port for rule in self.matching(host) for port in rule.ports}
        return any(self._shut(host, port) is None for port in ports)

    def _shut(self, host: str, port: int) -> HostRule | None:
        return next((rule for rule in self.refusing(host, port) if not rule.inside), None)

    def decide(self, host: str, port: int, model_hosts: Set[str] = MODEL_HOSTS) -> Decision:
        """Whether a sandbox may connect to a canonical `host` at `port` (G-52 to G-55, G-185, G-305)."""
        if host in METADATA_HOSTS:
            return Denied(
                host, port, Reason.METADATA, f"{host} is a metadata service", "this cannot be allowed"
            )
        if host in model_hosts:
            return _model_api(host, port)
        if (shut := self._shut(host, port)) is not None:
            return _denied_by(shut, host, port)
        rules = self.matching(host)
        for rule in rules:
            if port in rule.ports:
                return Allowed(host, port, rule)
        if rules:
            ports = ", ".join(str(p) for p in sorted({p for rule in rules for p in rule.ports}))
            message = f"{host} is allowed at port {ports} only, not at {port}"
            return Denied(host, port, Reason.PORT_NOT_ALLOWED, message, how_to_allow(host, port))
        reason = Reason.LITERAL if literal(host) is not None else Reason.NOT_ALLOWED
        message, how = f"{host} is not in this sandbox's list of allowed hosts", how_to_allow(host, port)
        if logins.has_logins(host):
            message, how = f"{message}, and {logins.WHERE}", f"{logins.HOW}; for anything else {how}"
        return Denied(host, port, reason, message, how)

    def looks_inside(self, host: str, port: int) -> bool:
        """Whether it depends on the requests made at an allowed destination what may be done there (G-59)."""
        return (
            logins.is_read(host)
            or any(rule.inside for rule in self.refusing(host, port))
            or any(rule.inside for rule in self.matching(host) if port in rule.ports)
        )

    def needs_no_look(self, host: str, port: int) -> bool:
        """Whether what is allowed there is allowed by the connection alone, and nothing within it is denied."""
        if logins.is_read(host) or any(rule.inside for rule in self.refusing(host, port)):
            return False
        return any(not rule.inside for rule in self.matching(host) if port in rule.ports)

    def unread(self, host: str, port: int) -> bool:
        """Whether all rules for a destination pass its connections on whatever is spoken there (G-299), and none is about
        requests.
        """
        rules = [rule for rule in self.matching(host) if port in rule.ports]
        return bool(rules) and all(rule.tcp for rule in rules) and not self.looks_inside(host, port)

    def decide_request(self, allowed: Allowed, method: str, path: str) -> Decision:
        """Whether a request to an allowed destination may be made. `path` is as sent, without the query (G-49, G-59)."""
        host, port = allowed.host, allowed.port
        if logins.is_login(host, path):
            return Denied(host, port, Reason.LOGIN, logins.WHERE, logins.HOW)
        if logins.is_use(host, path):
            return _model_api(host, port)
        for rule in self.refusing(host, port):
            if _request_matches(rule, method, path):
                return _denied_by(rule, host, port)
        for rule in self.matching(host):
            if port in rule.ports and _request_matches(rule, method, path):
                return Allowed(host, port, rule)
        return Denied(
            host,
            port,
            Reason.REQUEST_NOT_ALLOWED,
            f"{host} is allowed, but not to {method[:32]} {path[:200]}",
            f"see what is allowed there: http://{GATEWAY_HOST}/policy",
        )


def _bits(rule: HostRule) -> int:
    return int(rule.host.rpartition("/")[2])


def names(hosts: Container[str], host: str) -> bool:
    """Whether one of these hosts of rules matches a canonical host."""
    return any(name in hosts for name in patterns(host))


def patterns(host: str) -> Iterator[str]:
    """The hosts of rules that match a canonical host, the most specific first."""
    yield host
    if literal(host) is not None:
        return
    at = host.find(".")
    while at >= 0:
        yield "*" + host[at:]
        at = host.find(".", at + 1)
    yield "*"


def _request_matches(rule: HostRule, method: str, path: str) -> bool:
    if rule.methods and method not in rule.methods:
        return False
    return not rule.paths or any(matches(path, pattern) for pattern in rule.paths)


def _denied_by(rule: HostRule, host: str, port: int) -> Denied:
    where = f" ({rule.origin})" if rule.origin else ""
    return Denied(
        host,
        port,
        Reason.DENIED,
        f"a rule denies {host}{where}",
        "ask the person who runs this sandbox to take the rule back",
    )


def matching_rules(policy: EgressPolicy, host: str) -> tuple[HostRule, ...]:
    """See `RuleBook.matching`."""
    return RuleBook(policy).matching(host)


def decide(policy: EgressPolicy, host: str, port: int, model_hosts: Set[str] = MODEL_HOSTS) -> Decision:
    """See `RuleBook.decide`, which is what to keep for many decisions on one policy."""
    return RuleBook(policy).decide(host, port, model_hosts)


def narrows(former: EgressPolicy, policy: EgressPolicy) -> bool:
    """Whether an address that `former` let names lead to may be one that `policy` does not (G-62 to G-65)."""
    denied, opened = _denied_ranges, _private_names
    return bool(
        denied(policy) - denied(former)
        or opened(former) - opened(policy)
        or set(former.networks) - set(policy.networks)
    )


def _denied_ranges(policy: EgressPolicy) -> set[tuple[str, int]]:
    return {(rule.host, port) for rule in policy.denying if rule.is_range for port in rule.ports}


def _private_names(policy: EgressPolicy) -> set[tuple[str, int]]:
    return {(rule.host, port) for rule in policy.allowing if rule.private for port in rule.ports}


def name_allowed(policy: EgressPolicy, host: str) -> bool:
    """See `RuleBook.name_allowed`."""
    return RuleBook(policy).name_allowed(host)


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

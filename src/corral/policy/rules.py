"""Rules of egress as people write them, and policies made of them. Pure.

HOST                      a name, `*.DOMAIN`, `*` or an address, at ports 443 and 80
HOST:PORT[,PORT…]         at these ports
HOST[:PORT]/PATH          requests for this path only; `*` for any part of a segment, `**` for any segments
METHOD[,METHOD…] RULE     requests with these methods only
ADDRESS/BITS[:PORT…]      a range of addresses: what is connected to by its address; denied, also what a name leads to
tcp:HOST:PORT[,PORT…]     connections to a name or address, whatever protocol they are of
private:HOST:PORT         a name of the host's own network; `host.corral` is the host itself; also `private:tcp:HOST:PORT`
@PRESET                   a list of hosts that Corral knows by name
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from corral.errors import InvalidInput
from corral.model.binding import Binding
from corral.model.egress import PLAIN_PORT, EgressPolicy, HostRule
from corral.policy.addresses import parse_networks
from corral.policy.egress import HOST_ALIAS, canonical_host, checked_port, literal
from corral.policy.paths import METHODS, checked_methods, checked_path
from corral.policy.presets import PRESETS

MAX_RULES = 1024
_PRIVATE = "private:"
_RANGE = re.compile(r"\[?(?P<range>[0-9a-fA-F:.]*[:.][0-9a-fA-F:.]*/[0-9]{1,3})\]?(:(?P<ports>[0-9, ]+))?")
_TCP = "tcp:"


def parse_rule(text: str) -> HostRule:
    """One rule, which allows. Raises InvalidInput."""
    return _checked(_parsed(text))


def _parsed(text: str) -> HostRule:
    methods, rest = _methods(text.strip())
    private = rest.startswith(_PRIVATE)
    rest = rest.removeprefix(_PRIVATE)
    tcp = rest.startswith(_TCP)
    rest = rest.removeprefix(_TCP)
    if "://" in rest:
        raise InvalidInput(
            f"{text[:80]!r} is not a rule", "give HOST, HOST:PORT or HOST/PATH, without a scheme"
        )
    if (found := _RANGE.fullmatch(rest)) is not None:
        host, ports, slash, path = found["range"], found["ports"] or "", "", ""
    else:
        authority, slash, path = rest.partition("/")
        host, ports = _split_ports(authority)
    rule = HostRule(
        rule_host(host),
        methods=methods,
        paths=(checked_path(slash + path),) if slash else (),
        private=private,
        tcp=tcp,
    )
    if tcp and not ports:
        raise InvalidInput(
            f"{text[:80]!r} names no port", "give `tcp:HOST:PORT`, as `tcp:db.example.com:5432`"
        )
    if ports:
        rule = replace(rule, ports=tuple(sorted({checked_port(port.strip()) for port in ports.split(",")})))
    return rule


def _methods(text: str) -> tuple[tuple[str, ...], str]:
    first, space, rest = text.partition(" ")
    named = first.upper().split(",")
    return (checked_methods(named), rest.strip()) if space and METHODS.issuperset(named) else ((), text)


def _split_ports(authority: str) -> tuple[str, str]:
    if authority.startswith("["):
        host, _, ports = authority.partition("]")
        return host + "]", ports.removeprefix(":")
    if authority.count(":") == 1:
        host, ports = authority.split(":")
        return host, ports
    return authority, ""


def rule_host(text: str) -> str:
    """The host of a rule in canonical form. Raises InvalidInput."""
    if text == "*":
        return text
    if "/" in text:
        return str(parse_networks((text,))[0])
    if text.startswith("*."):
        domain = canonical_host(text[2:])
        if literal(domain) is not None:
            raise InvalidInput(f"{text[:80]!r} is not a valid host", "an address has no names below it")
        return "*." + domain
    return canonical_host(text)


def _checked(rule: HostRule) -> HostRule:
    """The rule, or InvalidInput for one that cannot mean anything."""
    if rule.is_range and rule.inside:
        raise InvalidInput(
            "a range of addresses has no methods and paths", "give ADDRESS/BITS or ADDRESS/BITS:PORT"
        )
    if rule.private and ("*" in rule.host or rule.is_range):
        raise InvalidInput(
            "a private service must be named exactly",
            "give `private:NAME:PORT`, without a wildcard or a range",
        )
    if rule.tcp and (rule.inside or rule.is_range or "*" in rule.host or PLAIN_PORT in rule.ports):
        raise InvalidInput(
            "a rule for connections of any protocol names a host exactly, no requests, and not port 80",
            "give `tcp:NAME:PORT`, or leave `tcp:` out for HTTP",
        )
    if rule.host == HOST_ALIAS and not rule.private and not rule.deny:
        raise InvalidInput(
            f"{HOST_ALIAS} is this host itself", f"name one of its ports: `private:{HOST_ALIAS}:PORT`"
        )
    return rule


def expand(texts: Iterable[str], *, deny: bool = False, origin: str = "") -> tuple[HostRule, ...]:
    """The rules of many texts, presets among them. Rules of one host that differ in ports alone become one.

    Raises InvalidInput.
    """
    found: dict[tuple[object, ...], HostRule] = {}
    for text in texts:
        for rule in _rules_of(text.strip(), deny, origin):
            key = (rule.host, rule.methods, rule.paths, rule.private, rule.tcp, rule.origin)
            former = found.get(key)
            ports = rule.ports if former is None else tuple(sorted({*former.ports, *rule.ports}))
            found[key] = replace(rule, ports=ports)
    return tuple(found.values())


def _rules_of(text: str, deny: bool, origin: str) -> list[HostRule]:
    if not text.startswith("@"):
        return [_checked(replace(_parsed(text), deny=deny, origin=origin))]
    preset = PRESETS.get(text[1:])
    if preset is None:
        known = ", ".join(f"@{name}" for name in PRESETS)
        raise InvalidInput(f"there is no preset {text[:80]!r}", f"known: {known}")
    return [
        replace(parse_rule(rule), deny=deny, origin=origin or text)
        for entry in preset.entries
        for rule in entry.rules
    ]


def rule_text(rule: HostRule) -> str:
    """The rule as it is written, without what says that it denies."""
    ports = "" if rule.ports == HostRule("").ports else ":" + ",".join(map(str, rule.ports))
    host = f"[{rule.host}]" if ":" in rule.host and ports else rule.host
    methods = ",".join(rule.methods) + " " if rule.methods else ""
    kind = (_PRIVATE if rule.private else "") + (_TCP if rule.tcp else "")
    return f"{methods}{kind}{host}{ports}{rule.paths[0] if rule.paths else ''}"


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
        rules.append(
            _checked(
                replace(
                    rule,
                    host=rule_host(rule.host),
                    ports=tuple(checked_port(str(port)) for port in rule.ports),
                    methods=checked_methods(rule.methods),
                    paths=tuple(checked_path(path) for path in rule.paths),
                )
            )
        )
    return EgressPolicy(tuple(rules), tuple(str(net) for net in parse_networks(policy.networks)))


def with_bindings(policy: EgressPolicy, bound: Sequence[tuple[str, Binding]]) -> EgressPolicy:
    """The policy with what granted secrets add to it: the hosts that they are bound to, secrets by name.

    A rule of the policy for the same host goes first: the secret adds no way around its methods and paths.
    """
    ruled = {rule.host for rule in policy.allowing}
    added = tuple(
        HostRule(host, binding.ports, origin=f"secret {name}")
        for name, binding in bound
        for host in binding.hosts
        if host not in ruled
    )
    return replace(policy, rules=policy.rules + added)

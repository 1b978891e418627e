"""What a sandbox's creator may say of how its requests go out. Pure."""

from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import unquote, urlsplit

from cryptography.x509 import load_pem_x509_certificates

from corral.errors import InvalidInput
from corral.model.binding import Binding, Mode
from corral.model.route import MAX_RESOLVERS, EgressProxy, HeaderField, HeaderRule, Route
from corral.model.secrets import MIN_SECRET, Secret
from corral.policy.addresses import EVERYTHING, Address, Network, refused_class
from corral.policy.bindings import checked_binding
from corral.policy.egress import HOST_ALIAS, METADATA_HOSTS, canonical_host, checked_port, literal, patterns

MAX_HOSTS = 10
MAX_HOST = 128
MAX_FIELDS = 20
MAX_VALUE = 2048
MAX_TEXT = 255
"""Bytes of a proxy's user, and of its password: more SOCKS5 cannot say."""
_WITH_TLS = "socks5+tls"
_SCHEMES = ("socks5", _WITH_TLS)
MAX_PEM = 64 * 1024
_PLAIN = frozenset(
    {
        "accept",
        "accept-charset",
        "accept-encoding",
        "accept-language",
        "cache-control",
        "content-encoding",
        "content-language",
        "content-type",
        "origin",
        "pragma",
        "referer",
        "user-agent",
    }
)
"""Fields that hold no credential, and whose values stand in many an answer."""


def checked_route(route: Route, opened: Sequence[Network] = EVERYTHING) -> Route:
    """The route in canonical form, or raise InvalidInput; what it says names no value. Private addresses may be given of
    networks that are `opened` only.
    """
    if len(route.headers) > MAX_HOSTS:
        raise InvalidInput(f"rules for {len(route.headers)} hosts are too many", f"give at most {MAX_HOSTS}")
    rules = tuple(map(_checked_rule, route.headers))
    if len({rule.host for rule in rules}) < len(rules):
        raise InvalidInput("two rules are for one host", "give each host one")
    if len(route.resolvers) > MAX_RESOLVERS:
        raise InvalidInput(
            f"{len(route.resolvers)} DNS servers are too many", f"give at most {MAX_RESOLVERS}"
        )
    return Route(
        rules,
        None if route.proxy is None else _checked_proxy(route.proxy, opened),
        tuple(dict.fromkeys(_checked_resolver(text, opened) for text in route.resolvers)),
    )


def _checked_resolver(text: str, opened: Sequence[Network]) -> str:
    if (address := literal(text)) is None:
        raise InvalidInput(f"the DNS server {text[:80]!r} is no address", "give an IP address")
    _check_address("a DNS server", address, opened)
    return str(address)


def parse_proxy(text: str) -> EgressProxy:
    """A proxy as a URL: `socks5://[USER:PASSWORD@]HOST:PORT`, `socks5+tls:` for TLS. Raises InvalidInput, without the URL."""
    try:
        parts = urlsplit(text.strip())
        host, port = parts.hostname, parts.port
        bare = not (parts.path.strip("/") or parts.query or parts.fragment)
        if parts.scheme not in _SCHEMES or not host or not port or not bare:
            raise ValueError
    except ValueError:
        known = " or ".join(_SCHEMES)
        raise InvalidInput("the proxy is not valid", f"give {known}, then ://HOST:PORT") from None
    password = Secret(unquote(parts.password or ""))
    return EgressProxy(host, port, unquote(parts.username or ""), password, tls=parts.scheme == _WITH_TLS)


def _checked_proxy(proxy: EgressProxy, opened: Sequence[Network]) -> EgressProxy:
    host = canonical_host(proxy.host)
    if host in METADATA_HOSTS or host == HOST_ALIAS:
        raise InvalidInput(f"a proxy cannot be {host}", "name one outside of this host")
    if (address := literal(host)) is not None:
        _check_address("a proxy", address, opened)
    if proxy.password.reveal() and not proxy.username:
        raise InvalidInput("the proxy's password has no user", "give both, or none")
    for text in (proxy.username, proxy.password.reveal()):
        if len(text.encode()) > MAX_TEXT:
            raise InvalidInput("the proxy's user or password is too long", f"use at most {MAX_TEXT} bytes")
    if not proxy.tls and (proxy.server_name or proxy.authorities):
        raise InvalidInput("the proxy has options of TLS without TLS", "enable it")
    return replace(
        proxy,
        host=host,
        port=checked_port(str(proxy.port)),
        server_name=canonical_host(proxy.server_name) if proxy.server_name else "",
        authorities=_checked_authorities(proxy.authorities),
    )


def _checked_authorities(pem: str) -> str:
    try:
        if pem and (len(pem) > MAX_PEM or not load_pem_x509_certificates(pem.encode())):
            raise ValueError
    except ValueError:
        raise InvalidInput(
            "the proxy's certificates cannot be read", f"give PEM of at most {MAX_PEM} characters"
        ) from None
    return pem


def _check_address(what: str, address: Address, opened: Sequence[Network]) -> None:
    if (kind := refused_class(address, opened, frozenset())) is not None:
        raise InvalidInput(f"{what} cannot be at {kind}", "give a public address")


def _checked_rule(rule: HeaderRule) -> HeaderRule:
    if len(rule.fields) > MAX_FIELDS:
        raise InvalidInput(
            f"{len(rule.fields)} header fields for {rule.host[:80]} are too many",
            f"give at most {MAX_FIELDS}",
        )
    if len(rule.host) > MAX_HOST:
        raise InvalidInput(f"the host {rule.host[:80]!r} is too long", f"use at most {MAX_HOST} characters")
    host = checked_binding(binding_of(rule.host, "authorization")).hosts[0]
    if literal(host) is not None:
        raise InvalidInput(f"{host} is an address", "header fields are set for names")
    names = [checked_binding(binding_of(host, field.name)).fields[0].lower() for field in rule.fields]
    if len(set(names)) < len(names):
        raise InvalidInput(f"a header field for {host} is given twice", "give each name once")
    return HeaderRule(host, tuple(map(_checked_field, rule.fields)))


def _checked_field(field: HeaderField) -> HeaderField:
    value = field.value.reveal()
    if len(value) > MAX_VALUE or value != value.strip() or not (value.isascii() and value.isprintable()):
        raise InvalidInput(
            f"the value of the header field {field.name} is not valid",
            f"use at most {MAX_VALUE} printable ASCII characters, without spaces around them",
        )
    return field


def binding_of(host: str, name: str) -> Binding:
    """A field of a rule as what the gateway does with secrets: it is set in each request, whatever was sent."""
    return Binding((host,), mode=Mode.SET, fields=(name,), paths=("/**",), replaces=True)


def rule_at(route: Route, host: str) -> HeaderRule | None:
    """The rule for a canonical host (G-53)."""
    rules = {rule.host: rule for rule in route.headers}
    return next((rules[name] for name in patterns(host) if name in rules), None)


def credentials_in(field: HeaderField) -> tuple[str, ...]:
    """What of a field must come back to no sandbox: its value, and the credential in it that stands behind a scheme's
    name, of Basic the password too. What is too short to be told from text is not among them.
    """
    value = field.value.reveal()
    if field.name.lower() in _PLAIN:
        return ()
    scheme, _, credential = value.partition(" ")
    found = [value, credential.strip()]
    if scheme.lower() == "basic":
        found.append(_password(credential.strip()))
    return tuple(dict.fromkeys(text for text in found if len(text) >= MIN_SECRET))


def _password(credential: str) -> str:
    try:
        return b64decode(credential, validate=True).decode("ascii").partition(":")[2]
    except (NotBase64, ValueError):
        return ""

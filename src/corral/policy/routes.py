"""What a sandbox's creator may say of how its requests go out. Pure."""

from base64 import b64decode
from binascii import Error as NotBase64

from corral.errors import InvalidInput
from corral.model.binding import Binding, Mode
from corral.model.route import HeaderField, HeaderRule, Route
from corral.model.secrets import MIN_SECRET
from corral.policy.bindings import checked_binding
from corral.policy.egress import literal, patterns

MAX_HOSTS = 10
MAX_HOST = 128
MAX_FIELDS = 20
MAX_VALUE = 2048
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


def checked_route(route: Route) -> Route:
    """The route in canonical form, or raise InvalidInput; what it says names no value."""
    if len(route.headers) > MAX_HOSTS:
        raise InvalidInput(f"rules for {len(route.headers)} hosts are too many", f"give at most {MAX_HOSTS}")
    rules = tuple(map(_checked_rule, route.headers))
    if len({rule.host for rule in rules}) < len(rules):
        raise InvalidInput("two rules are for one host", "give each host one")
    return Route(rules)


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

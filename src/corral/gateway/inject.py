"""Secrets into requests: a placeholder is exchanged for what it stands for, at the hosts and in the places that the secret
is bound to and nowhere else (block C of the gateway's rules). All functions are pure.

All of a request's replacements are computed before any of it is sent (G-37). What a sandbox chose (names of header fields,
paths, values) decides at most whether its own placeholder is found, never what is put in its place.
"""

import binascii
import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self
from urllib.parse import quote, unquote_plus

from corral.gateway.redact import Forms
from corral.model.binding import AUTHENTICATION_FIELDS, Absent, Binding, Mode, Place
from corral.model.route import HeaderField
from corral.model.secrets import Secret
from corral.policy.bindings import parts_of
from corral.policy.clientcerts import pem_of
from corral.policy.paths import matches
from corral.policy.placeholder import placeholders
from corral.policy.routes import binding_of, credentials_in

Fields = list[tuple[str, str]]
_SUBPROTOCOLS = "sec-websocket-protocol"


@dataclass(frozen=True, slots=True)
class Bound:
    """A secret that goes to hosts, as one sandbox has it. `pairs`: its placeholders, each with what it stands for. `forms`
    are looked for in answers; None for what is no credential. `certificate`: what the server is shown, with its key, in PEM.
    """

    name: str
    binding: Binding
    pairs: tuple[tuple[str, Secret], ...]
    forms: Forms | None
    certificate: Secret | None = None

    @classmethod
    def of(cls, name: str, value: Secret, binding: Binding, seed: Secret) -> Self:
        """The sandbox's own view of a secret, `seed` being what its placeholders are made of."""
        parts = parts_of(value, binding.mode)
        stands = placeholders(name, binding, seed, len(parts))
        pairs = tuple(zip(stands, map(Secret, parts), strict=True))
        shown = Secret(pem_of(value.reveal())) if binding.mode is Mode.CERTIFICATE else None
        return cls(name, binding, pairs, Forms.joined(Forms(part, name) for part in parts), shown)

    @classmethod
    def written(cls, host: str, field: HeaderField, seed: Secret) -> Self:
        """A header field that the sandbox's creator has set."""
        name, binding = f"header {field.name}", binding_of(host, field.name)
        stands = placeholders(name, binding, seed, 1)
        secret = [Forms(text, name) for text in credentials_in(field)]
        return cls(name, binding, ((stands[0], field.value),), Forms.joined(secret) if secret else None)


@dataclass(frozen=True, slots=True)
class Rejected:
    """The request must not be sent: `absent` of `name`, or a field that stands in the way."""

    name: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class Injected:
    """The request as it is to be sent. `used` names secrets that went in; `exchange` are the placeholders to be exchanged
    in its body, each with the secret; `required` those that must stand there, each with the name of its secret.
    """

    target: str
    fields: Fields
    used: frozenset[str]
    exchange: tuple[tuple[str, str], ...]
    required: tuple[tuple[str, str], ...] = ()


def inject(
    bound: Sequence[Bound], method: str, target: str, fields: Fields, *, upgrade: bool
) -> Injected | Rejected:
    """A request to a host that all of `bound` cover, with their secrets in it."""
    used: set[str] = set()
    exchange: list[tuple[str, str]] = []
    required: list[tuple[str, str]] = []
    for one in bound:
        binding = one.binding
        if binding.mode is Mode.SET:
            done = _set(one, method, target, fields)
            if isinstance(done, Rejected):
                return done
            if done is not None:
                fields = done
                used.add(one.name)
            continue
        before = (target, fields)
        if binding.mode is Mode.REPLACE:
            for stand, secret in one.pairs:
                target, fields = _replace(binding, stand, secret.reveal(), target, fields, upgrade=upgrade)
                if Place.BODY in binding.places:
                    exchange.append((stand, secret.reveal()))
        if (target, fields) != before:
            used.add(one.name)
        elif binding.absent is Absent.REJECT and not _is_signed(one, target, fields):
            if Place.BODY not in binding.places or binding.mode is not Mode.REPLACE:
                return missing(one.name)
            required += [(stand, one.name) for stand, _ in one.pairs]
    return Injected(target, fields, frozenset(used), tuple(exchange), tuple(required))


def missing(name: str) -> Rejected:
    """The refusal of a request without the placeholder that it must hold (G-27)."""
    return Rejected(
        name,
        f"the request holds no placeholder of secret {name!r}, without which nothing is sent there",
        "send the value that this sandbox's environment holds, not a key of your own",
    )


def signs(one: Bound, target: str, authorization: str) -> bool:
    """Whether a request is signed by the placeholder of a key of AWS."""
    return one.binding.mode is Mode.AWS and one.pairs[0][0] in f"{authorization} {target}"


def _is_signed(one: Bound, target: str, fields: Fields) -> bool:
    """Whether a request proves itself by what is done after its head was made: a signature, or a certificate."""
    authorization = next((value for name, value in fields if name.lower() == "authorization"), "")
    return one.binding.mode is Mode.CERTIFICATE or signs(one, target, authorization)


def _set(one: Bound, method: str, target: str, fields: Fields) -> Fields | Rejected | None:
    """The fields with the secret's own; None for a request that it is not meant for (G-26, G-28)."""
    binding = one.binding
    path = target.partition("?")[0]
    if binding.methods and method not in binding.methods:
        return None
    if binding.paths and not any(matches(path, pattern) for pattern in binding.paths):
        return None
    name = binding.fields[0]
    others = [(key, value) for key, value in fields if key.lower() != name.lower()]
    if len(others) != len(fields) and not binding.replaces:
        return Rejected(
            one.name, f"the request has a field {name}, which the gateway writes itself", f"leave {name} out"
        )
    return [*others, (name, binding.form.replace("{}", one.pairs[0][1].reveal()))]


def _replace(
    binding: Binding, stand: str, secret: str, target: str, fields: Fields, *, upgrade: bool
) -> tuple[str, Fields]:
    if Place.HEADER in binding.places:
        names = {*AUTHENTICATION_FIELDS, *(name.lower() for name in binding.fields)}
        if upgrade and Place.WEBSOCKET in binding.places:
            names.add(_SUBPROTOCOLS)
        fields = [
            (name, _in_field(value, stand, secret) if name.lower() in names else value)
            for name, value in fields
        ]
    path, mark, query = target.partition("?")
    if Place.PATH in binding.places:
        path = path.replace(stand, quote(secret, safe=""))
    if Place.QUERY in binding.places:
        query = "&".join(_in_parameter(part, stand, secret, binding.parameters) for part in query.split("&"))
    return path + mark + query, fields


def _in_field(value: str, stand: str, secret: str) -> str:
    """A field's value with the secret, also inside of Basic credentials (G-34)."""
    scheme, space, rest = value.partition(" ")
    if scheme.lower() != "basic" or not space:
        return value.replace(stand, secret)
    try:
        plain = b64decode(rest.strip(), validate=True).decode("utf-8")
    except (binascii.Error, ValueError):
        return value
    if stand not in plain:
        return value
    return f"{scheme} {b64encode(plain.replace(stand, secret).encode()).decode()}"


def _in_parameter(part: str, stand: str, secret: str, only: tuple[str, ...]) -> str:
    name, equals, value = part.partition("=")
    if stand not in value or (only and unquote_plus(name) not in only):
        return part
    return name + equals + value.replace(stand, quote(secret, safe=""))


def body_form(content_type: str) -> Callable[[str], str]:
    """How a secret is written into a body of a type."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "application/x-www-form-urlencoded":
        return lambda secret: quote(secret, safe="")
    if kind == "application/json" or kind.endswith("+json"):
        return lambda secret: json.dumps(secret)[1:-1]
    return lambda secret: secret


class Exchange:
    """Exchanges placeholders in a body that comes in pieces of any size (G-35): what is held back is shorter than the
    longest placeholder.
    """

    def __init__(self, pairs: Sequence[tuple[str, str]]) -> None:
        """At least one pair of a placeholder and what to put in its place."""
        self._pairs = {stand.encode(): text.encode() for stand, text in pairs}
        self._forms = Forms.of(dict.fromkeys(self._pairs, ""))
        self._held = b""
        self.hits = 0
        self.found: set[str] = set()
        """The placeholders that were exchanged."""

    def feed(self, data: bytes) -> bytes:
        """The bytes that can be sent now."""
        data = self._held + data
        done = max((match.end() for match in self._forms.search.finditer(data)), default=0)
        tail = data[max(done, len(data) - self._forms.longest + 1) :]
        cut = len(data) - self._forms.pending(tail)
        self._held = data[cut:]
        return self._forms.search.sub(lambda match: self._take(match[0]), data[:cut])

    def finish(self) -> bytes:
        """What was held back."""
        left, self._held = self._held, b""
        return left

    def _take(self, found: bytes) -> bytes:
        self.hits += 1
        self.found.add(found.decode())
        return self._pairs[found]

"""What a secret may be bound to, checked when it is stored and again where it is used. Pure."""

import re
from dataclasses import replace

from corral.errors import InvalidInput
from corral.model.binding import Binding, Mode
from corral.model.egress import TLS_PORT
from corral.model.secrets import Secret
from corral.policy.clientcerts import mark, pem_of
from corral.policy.egress import MODEL_HOSTS, checked_port
from corral.policy.paths import checked_methods, checked_path
from corral.policy.placeholder import shape_of, variable_of
from corral.policy.rules import rule_host

MAX_HOSTS = 64
_FIELD = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_FRAMING = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer", "expect"}
)


def checked_binding(binding: Binding) -> Binding:
    """The binding in canonical form, or raise InvalidInput for one that cannot hold (G-26, G-39, G-52, G-310)."""
    if not binding.hosts:
        raise InvalidInput("the secret is bound to no host", "name one: `--host api.example.com`")
    hosts = tuple(dict.fromkeys(rule_host(host) for host in binding.hosts))
    if len(hosts) > MAX_HOSTS:
        raise InvalidInput(f"{len(hosts)} hosts are too many", f"bind a secret to at most {MAX_HOSTS}")
    for host in hosts:
        if host in MODEL_HOSTS:
            raise InvalidInput(
                f"{host} is a model API, whose keys are used by the metered service only",
                "add it with --provider",
            )
        if host == "*" or (host.startswith("*.") and host.count(".") < 2):
            raise InvalidInput(
                f"a secret cannot be bound to {host!r}", "name hosts, or `*.DOMAIN` for a domain of one owner"
            )
    ports = tuple(dict.fromkeys(checked_port(str(port)) for port in binding.ports)) or (TLS_PORT,)
    _check_fields(binding)
    if binding.variable and not _VARIABLE.fullmatch(binding.variable):
        raise InvalidInput(f"{binding.variable[:60]!r} is no name of a variable", "use letters, digits and _")
    return replace(
        binding,
        hosts=hosts,
        ports=ports,
        methods=checked_methods(binding.methods),
        paths=tuple(checked_path(path) for path in binding.paths),
    )


def _check_fields(binding: Binding) -> None:
    for name in binding.fields:
        if not _FIELD.fullmatch(name) or name.lower() in _FRAMING:
            raise InvalidInput(f"a secret cannot go into the field {name[:60]!r}", "such as Authorization")
    if binding.form.count("{}") != 1 or not binding.form.isascii() or not binding.form.isprintable():
        raise InvalidInput(f"the form {binding.form[:60]!r} does not hold `{{}}` once", "such as 'Bearer {}'")
    if binding.mode is Mode.CERTIFICATE and binding.plaintext:
        raise InvalidInput("a certificate is shown by TLS only", "leave --plaintext out")
    if binding.mode is not Mode.SET:
        return
    if len(binding.fields) != 1:
        raise InvalidInput(
            "mode `set` writes one header field", "name it: `--header 'Authorization: Bearer {}'`"
        )
    if not binding.paths:
        raise InvalidInput(
            "mode `set` authenticates every request that it is for, so it needs paths",
            "such as `--paths '/v1/**'`",
        )


def complete_binding(name: str, value: Secret, binding: Binding, former: Binding | None) -> Binding:
    """A binding ready to be stored: checked against its secret, with the form of its placeholders.

    One that replaces a `former` keeps that form, so that what running sandboxes hold stays good. Raises InvalidInput.
    """
    parts = len(parts_of(value, binding.mode))
    shapes = {Mode.AWS: ("AKIA", 20), Mode.CERTIFICATE: ("", 40)}
    prefix, length = shapes.get(binding.mode) or shape_of(value.reveal())
    if former is not None and former.mode is binding.mode:
        prefix, length = former.prefix, former.length
    variable = binding.variable or (former.variable if former is not None else "") or variable_of(name)
    return checked_binding(replace(binding, variable=variable, prefix=prefix, length=length, parts=parts))


def parts_of(value: Secret, mode: Mode) -> tuple[str, ...]:
    """The secrets in a secret: itself, or the key's id, the key and the session's token of AWS, or a line of the key of a
    certificate. Raises InvalidInput.
    """
    text = value.reveal()
    if mode is Mode.CERTIFICATE:
        return (mark(pem_of(text)),)
    if mode is not Mode.AWS:
        return (text,)
    key_id, _, rest = text.partition(":")
    key, _, token = rest.partition(":")
    if not (key_id.isalnum() and 16 <= len(key_id) <= 128 and len(key) >= 16):
        raise InvalidInput(
            "this is not a key of AWS",
            "give KEY_ID:SECRET_KEY, or KEY_ID:SECRET_KEY:SESSION_TOKEN, on one line",
        )
    return (key_id, key, token) if token else (key_id, key)

"""Who calls a model API, and in which header fields the call goes upstream. All functions are pure.

A client holds the sandbox's token where it would hold a key, so the token comes in whatever place the
client's SDK puts keys; upstream the real key goes to the one place that the provider documents.
"""

from base64 import b64decode
from collections.abc import Sequence
from urllib.parse import unquote_plus

from corral.gateway.endpoints import KEY_PARAMETERS, parameter
from corral.model.secrets import Provider

_KEY_FIELDS = frozenset({"authorization", "x-api-key", "x-goog-api-key", "api-key"})
_ACCOUNT_FIELDS = frozenset(
    {
        "openai-organization",
        "openai-project",
        "x-goog-user-project",
        "anthropic-organization-id",
        "anthropic-workspace-id",
        "anthropic-user-profile-id",
        "chatgpt-account-id",
        "cookie",
        "forwarded",
        "x-forwarded-for",
        "x-real-ip",
        # What makes a server see another request than the one that was judged (G-60), or leave the usage out.
        "x-http-method-override",
        "x-http-method",
        "x-method-override",
        "x-goog-fieldmask",
        "x-goog-request-params",
        "x-goog-iam-authorization-token",
    }
)
_OTHER_GATEWAYS = ("x-portkey-", "helicone-", "x-litellm-", "cf-aig-", "x-vertex-ai-", "azureml-")
"""Fields by which a provider that is a gateway itself runs another model, for another account or at another price."""
_OAUTH_PREFIX = "sk-ant-oat"
_OAUTH_PLACEHOLDER = "sk-ant-oat01-"
_OAUTH_BETA = "oauth-2025-04-20"


def tokens(fields: Sequence[tuple[bytes, bytes]], query: str) -> set[str]:
    """Every token in a request, from all places where SDKs put one (G-176). Exactly one is acceptable
    (G-177).
    """
    found: set[str] = set()
    for raw_name, raw_value in fields:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1").strip()
        if name == "authorization":
            found |= _authorization(value)
        elif name in _KEY_FIELDS:
            found.add(value)
        elif name == "sec-websocket-protocol":
            found |= _subprotocols(value)
    for part in query.split("&"):
        if parameter(part).lower() in KEY_PARAMETERS:
            found.add(unquote_plus(part.partition("=")[2]))
    return {_unwrapped(token) for token in found - {""}}


def _authorization(value: str) -> set[str]:
    scheme, _, rest = value.partition(" ")
    rest = rest.strip()
    if scheme.lower() != "basic":
        return {rest or value} if scheme.lower() == "bearer" or not rest else {value}
    try:
        user, _, password = b64decode(rest, validate=True).decode("latin-1").partition(":")
    except ValueError:
        return {value}
    # Clients name the user as they like when the password is the token, and the other way round.
    return {password or user}


def _unwrapped(token: str) -> str:
    """A sandbox's token as it is, out of the form of a subscription's that its login file gives it (G-175)."""
    return (
        token.removeprefix(_OAUTH_PLACEHOLDER) if token.startswith(_OAUTH_PLACEHOLDER + "sk-crl-") else token
    )


def _subprotocols(value: str) -> set[str]:
    prefixes = ("openai-insecure-api-key.", "api-key.")
    offered = [part.strip() for part in value.split(",")]
    return {part.removeprefix(prefix) for part in offered for prefix in prefixes if part.startswith(prefix)}


def upstream_fields(
    fields: Sequence[tuple[str, str]], provider: Provider, key: str, *, body: bool, account: str = ""
) -> list[tuple[str, str]]:
    """The header fields of the call upstream: the client's, without its token and without what selects
    accounts, with the real key in the provider's own place (G-177, G-183). `body`: the gateway sends the body
    decoded and whole.
    """
    dropped = (
        _KEY_FIELDS
        | _ACCOUNT_FIELDS
        | {"host", "accept-encoding", "expect", "range", "sec-websocket-protocol"}
    )
    if body:
        dropped |= {"content-encoding", "content-length"}
    kept = [
        (name, value)
        for name, value in fields
        if name.lower() not in dropped and not name.lower().startswith(_OTHER_GATEWAYS)
    ]
    if account:
        kept.append(("chatgpt-account-id", account))
    # The answer is searched for the key, so it must come readable (G-94).
    kept.append(("Accept-Encoding", "identity"))
    if provider is Provider.ANTHROPIC and key.startswith(_OAUTH_PREFIX):
        return _with_oauth_beta([*kept, ("Authorization", f"Bearer {key}")])
    if provider is Provider.ANTHROPIC:
        kept.append(("x-api-key", key))
    elif provider is Provider.GEMINI:
        kept.append(("x-goog-api-key", key))
    else:
        kept.append(("Authorization", f"Bearer {key}"))
    return kept


def _with_oauth_beta(fields: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The fields with the beta without which Anthropic takes no subscription's token, beside the client's own betas."""
    named = [value for name, value in fields if name.lower() == "anthropic-beta"]
    betas = [beta.strip() for value in named for beta in value.split(",") if beta.strip()]
    if _OAUTH_BETA not in betas:
        betas.append(_OAUTH_BETA)
    others = [(name, value) for name, value in fields if name.lower() != "anthropic-beta"]
    return [*others, ("anthropic-beta", ",".join(betas))]

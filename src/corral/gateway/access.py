"""Who calls a model API, what for, and how the call is addressed upstream. All functions are pure.

A client holds the sandbox's token where it would hold a key, so the token comes in whatever place the
client's SDK puts keys; upstream the real key goes to the one place that the provider documents.
"""

import re
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote_plus, urlsplit

from corral.model.secrets import Provider
from corral.wire.usage import Api

_KEY_FIELDS = frozenset({"authorization", "x-api-key", "x-goog-api-key", "api-key"})
_ACCOUNT_FIELDS = frozenset(
    {
        "openai-organization",
        "openai-project",
        "x-goog-user-project",
        "anthropic-organization-id",
        "anthropic-workspace-id",
        "cookie",
        "forwarded",
        "x-forwarded-for",
        "x-real-ip",
    }
)
_OAUTH_PREFIX = "sk-ant-oat"
_OAUTH_BETA = "oauth-2025-04-20"
_KEY_PARAMETERS = frozenset({"key", "api_key"})
_VERSION = re.compile(r"^(v1/)+")
_MODEL_PATH = re.compile(r"models(/[A-Za-z0-9._:@-]{1,256}(/[A-Za-z0-9._:@-]{1,256})?)?")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An endpoint that is open. `api` is how its usage is metered, or None where it is free."""

    path: str
    api: Api | None = None
    has_body: bool = False


_POST: dict[Provider, dict[str, Endpoint]] = {
    Provider.ANTHROPIC: {
        "messages": Endpoint("messages", Api.ANTHROPIC_MESSAGES, has_body=True),
        "messages/count_tokens": Endpoint("messages/count_tokens", has_body=True),
    },
    Provider.OPENAI: {
        "chat/completions": Endpoint("chat/completions", Api.OPENAI_CHAT, has_body=True),
        "responses": Endpoint("responses", Api.OPENAI_RESPONSES, has_body=True),
        "embeddings": Endpoint("embeddings", Api.OPENAI_EMBEDDINGS, has_body=True),
    },
}


def endpoint(provider: Provider, method: str, path: str) -> Endpoint | None:
    """The open endpoint that a path below a secret's base URL means, or None (G-178, G-179, G-187).

    `v1/` may be there, be doubled or be missing. Anything not spelled exactly like an endpoint is none.
    """
    rest = _VERSION.sub("", path)
    if method == "POST":
        return _POST[provider].get(rest)
    if method in ("GET", "HEAD") and _MODEL_PATH.fullmatch(rest) and ".." not in rest:
        return Endpoint(rest)
    return None


def open_endpoints(provider: Provider) -> str:
    """What is open, for a refusal's text."""
    posts = ", ".join(f"POST /v1/{path}" for path in _POST[provider])
    return f"open are {posts}, GET /v1/models"


def upstream_url(provider: Provider, base_url: str, open_endpoint: Endpoint, query: str) -> str:
    """Where a call goes. OpenAI's base URLs include the version, Anthropic's do not; both are accepted
    without.
    """
    base = base_url.rstrip("/")
    if provider is Provider.ANTHROPIC:
        base = base.removesuffix("/v1") + "/v1"
    elif not urlsplit(base).path:
        base += "/v1"
    rest = "&".join(part for part in query.split("&") if part and _parameter(part) not in _KEY_PARAMETERS)
    return f"{base}/{open_endpoint.path}" + (f"?{rest}" if rest else "")


def _parameter(part: str) -> str:
    return unquote_plus(part.partition("=")[0]).lower()


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
        if _parameter(part) in _KEY_PARAMETERS:
            found.add(unquote_plus(part.partition("=")[2]))
    return found - {""}


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


def _subprotocols(value: str) -> set[str]:
    prefixes = ("openai-insecure-api-key.", "api-key.")
    offered = [part.strip() for part in value.split(",")]
    return {part.removeprefix(prefix) for part in offered for prefix in prefixes if part.startswith(prefix)}


def upstream_fields(
    fields: Sequence[tuple[str, str]], provider: Provider, key: str, *, body: bool
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
    kept = [(name, value) for name, value in fields if name.lower() not in dropped]
    # The answer is searched for the key, so it must come readable (G-94).
    kept.append(("Accept-Encoding", "identity"))
    if provider is Provider.ANTHROPIC and key.startswith(_OAUTH_PREFIX):
        return _with_oauth_beta([*kept, ("Authorization", f"Bearer {key}")])
    if provider is Provider.ANTHROPIC:
        kept.append(("x-api-key", key))
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

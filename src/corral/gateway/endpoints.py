"""Which of a provider's endpoints are open, and where a call to one goes. All functions are pure.

Open is what is metered, and what is free and shows nothing of the account. All else is refused with its reason: it
spends outside of the metered call, or reaches what the provider keeps (G-179).
"""

import re
from dataclasses import dataclass
from urllib.parse import unquote_plus, urlsplit

from corral.model.secrets import Provider
from corral.wire.usage import Api

KEY_PARAMETERS = frozenset({"key", "api_key", "access_token", "oauth_token"})
_VERSION = re.compile(r"^(api/)?(v1/)+")
_MODEL_PATH = re.compile(r"models(/[A-Za-z0-9._:@-]{1,256}(/[A-Za-z0-9._:@-]{1,256})?)?")
_UNVERSIONED = {Provider.OPENAI: ("",), Provider.OPENROUTER: ("", "/api")}
"""Paths of base URLs to which the version is added."""
_GEMINI_VERSION = re.compile(r"^((v1|v1beta|v1alpha)/)*")
_GEMINI_CALL = re.compile(r"models/([A-Za-z0-9._-]{1,256}):([A-Za-z]{1,64})")
_GEMINI_MODELS = re.compile(r"models(/[A-Za-z0-9._-]{1,256})?")
_GEMINI_PARAMETERS = frozenset({"alt", "pageSize", "pageToken"})
"""Others are not passed on: `fields`, for one, would take the usage out of an answer."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An endpoint that is open. `api` is how its usage is metered, or None where it is free.

    `model` is the one in a path that names it. `streams`: the path alone makes the answer a stream.
    """

    path: str
    api: Api | None = None
    has_body: bool = False
    model: str = ""
    streams: bool = False


_OPENAI = {
    "chat/completions": Endpoint("chat/completions", Api.OPENAI_CHAT, has_body=True),
    "responses": Endpoint("responses", Api.OPENAI_RESPONSES, has_body=True),
    "embeddings": Endpoint("embeddings", Api.OPENAI_EMBEDDINGS, has_body=True),
}
_POST: dict[Provider, dict[str, Endpoint]] = {
    Provider.ANTHROPIC: {
        "messages": Endpoint("messages", Api.ANTHROPIC_MESSAGES, has_body=True),
        "messages/count_tokens": Endpoint("messages/count_tokens", has_body=True),
    },
    Provider.OPENAI: _OPENAI,
    Provider.OPENROUTER: {name: _OPENAI[name] for name in ("chat/completions", "embeddings")},
}
_GEMINI: dict[str, tuple[Api | None, bool]] = {
    "generateContent": (Api.GEMINI, False),
    "streamGenerateContent": (Api.GEMINI, True),
    "countTokens": (None, False),
    "embedContent": (Api.GEMINI_EMBEDDINGS, False),
    "batchEmbedContents": (Api.GEMINI_EMBEDDINGS, False),
}

_REASONS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(messages/)?batch|.*:(asyncB|b)atch"), "batches are charged for outside of the metered call"),
    (re.compile(r"(upload/|v1beta/|v1/)*files|uploads|.*:importFile"), "files stay with the provider, for everybody with its key"),
    (re.compile(r"images|.*:(predict$|editImage)"), "what pictures cost is not in the answer"),
    (re.compile(r"audio|.*:bidiGenerate"), "what audio costs is not in the answer"),
    (re.compile(r"realtime"), "a realtime session is charged for outside of a metered call"),
    (re.compile(r"fine_tuning|tunedModels"), "what training costs is not known before"),
    (re.compile(r"videos|.*:predictLongRunning"), "what videos cost is not in the answer"),
    (re.compile(r"completions|complete$"), "this is the provider's old API"),
    (re.compile(r"assistants|threads|vector_stores|conversations|containers|responses/|cachedContents|evals"),
     "it reaches what the provider keeps"),
    (re.compile(r"organi[sz]ation|projects|keys?$|keys/|credits|dashboard|auth/"), "it is about the account, which is the host's"),
)  # fmt: skip


def endpoint(provider: Provider, method: str, path: str) -> Endpoint | None:
    """The open endpoint that a path below a secret's base URL means, or None (G-178, G-179, G-187).

    The version may be there, be doubled or be missing. Anything not spelled exactly like an endpoint is none.
    """
    if provider is Provider.GEMINI:
        return _gemini(method, path)
    rest = _VERSION.sub("", path)
    if method == "POST":
        return _POST.get(provider, {}).get(rest)
    if method in ("GET", "HEAD") and _MODEL_PATH.fullmatch(rest) and ".." not in rest:
        return Endpoint(rest)
    return None


def _gemini(method: str, path: str) -> Endpoint | None:
    version = _GEMINI_VERSION.match(path)
    rest = path[version.end() :] if version is not None else path
    used = (version[2] if version is not None else None) or "v1beta"
    if method in ("GET", "HEAD") and _GEMINI_MODELS.fullmatch(rest) and ".." not in rest:
        return Endpoint(f"{used}/{rest}")
    call = _GEMINI_CALL.fullmatch(rest)
    if method != "POST" or call is None or call[2] not in _GEMINI or ".." in rest:
        return None
    api, streams = _GEMINI[call[2]]
    return Endpoint(f"{used}/{rest}", api, has_body=True, model=call[1], streams=streams)


def open_endpoints(provider: Provider) -> str:
    """What is open, for a refusal's text."""
    if provider is Provider.GEMINI:
        return f"open are POST /v1beta/models/MODEL:{{{','.join(_GEMINI)}}}, GET /v1beta/models"
    posts = ", ".join(f"POST /v1/{path}" for path in _POST.get(provider, {}))
    return f"open are {posts}, GET /v1/models"


def refusal(provider: Provider, method: str, path: str) -> str:
    """Why an endpoint is not open."""
    pattern = _GEMINI_VERSION if provider is Provider.GEMINI else _VERSION
    rest = pattern.sub("", path)
    known = next((why for form, why in _REASONS if form.match(rest)), "")
    return f"{method} {path[:200]} is not open here" + (f": {known}" if known else "")


def with_model(wanted: Endpoint, model: str) -> Endpoint:
    """The same endpoint for another model, where its path names one."""
    if not wanted.model:
        return wanted
    head, _, tail = wanted.path.rpartition(f"models/{wanted.model}:")
    return Endpoint(f"{head}models/{model}:{tail}", wanted.api, wanted.has_body, model, wanted.streams)


def upstream_url(provider: Provider, base_url: str, open_endpoint: Endpoint, query: str) -> str:
    """Where a call goes. OpenAI's base URLs include the version, Anthropic's do not; both are accepted
    without. Gemini's version is a part of the path.
    """
    base = base_url.rstrip("/")
    if provider is Provider.ANTHROPIC:
        base = base.removesuffix("/v1") + "/v1"
    elif urlsplit(base).path in _UNVERSIONED.get(provider, ()):
        base += "/v1"
    kept = [part for part in query.split("&") if part and _passes(provider, parameter(part))]
    rest = "&".join(kept)
    return f"{base}/{open_endpoint.path}" + (f"?{rest}" if rest else "")


def _passes(provider: Provider, name: str) -> bool:
    if provider is Provider.GEMINI:
        return name in _GEMINI_PARAMETERS
    return name.lower() not in KEY_PARAMETERS


def parameter(part: str) -> str:
    """The name in one part of a query, as a server reads it."""
    return unquote_plus(part.partition("=")[0])

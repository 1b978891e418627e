"""Tokens, endpoints and addresses of model calls."""

from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.gateway.access import tokens, upstream_fields
from corral.gateway.endpoints import Endpoint, endpoint, upstream_url
from corral.model.secrets import Provider

ANTHROPIC, OPENAI = Provider.ANTHROPIC, Provider.OPENAI
GEMINI, OPENROUTER = Provider.GEMINI, Provider.OPENROUTER


@pytest.mark.parametrize(
    ("provider", "method", "path", "found"),
    [
        (ANTHROPIC, "POST", "v1/messages", "messages"),
        (ANTHROPIC, "POST", "messages", "messages"),
        (ANTHROPIC, "POST", "v1/v1/messages", "messages"),
        (ANTHROPIC, "POST", "v1/messages/count_tokens", "messages/count_tokens"),
        (OPENAI, "POST", "v1/chat/completions", "chat/completions"),
        (OPENAI, "POST", "responses", "responses"),
        (OPENAI, "GET", "v1/models", "models"),
        (OPENAI, "GET", "v1/models/org/name", "models/org/name"),
        (OPENAI, "POST", "v1/messages", None),
        (ANTHROPIC, "GET", "v1/messages", None),
        (ANTHROPIC, "POST", "v1/messages/batches", None),
        (OPENAI, "POST", "v1/files", None),
        (OPENAI, "GET", "v1/responses/resp_1", None),
        (OPENAI, "DELETE", "v1/models/x", None),
        (OPENAI, "GET", "v1/models/../files", None),
        (OPENAI, "POST", "/v1/responses", None),
        (OPENAI, "POST", "V1/responses", None),
        (OPENAI, "POST", "v1/realtime", None),
        (OPENAI, "POST", "v1/images/generations", None),
        (OPENAI, "POST", "", None),
        (
            GEMINI,
            "POST",
            "v1beta/models/gemini-3-flash:generateContent",
            "v1beta/models/gemini-3-flash:generateContent",
        ),
        (GEMINI, "POST", "v1/models/gemini-3-flash:countTokens", "v1/models/gemini-3-flash:countTokens"),
        (GEMINI, "POST", "v1/v1beta/models/g:streamGenerateContent", "v1beta/models/g:streamGenerateContent"),
        (GEMINI, "POST", "models/g:embedContent", "v1beta/models/g:embedContent"),
        (GEMINI, "GET", "v1beta/models", "v1beta/models"),
        (GEMINI, "GET", "v1beta/models/g", "v1beta/models/g"),
        (GEMINI, "POST", "v1beta/tunedModels/g:generateContent", None),
        (GEMINI, "POST", "v1beta/models/g:batchGenerateContent", None),
        (GEMINI, "POST", "v1beta/models/g:generatecontent", None),
        (GEMINI, "POST", "v1beta/models/..:generateContent", None),
        (GEMINI, "POST", "upload/v1beta/files", None),
        (GEMINI, "GET", "v1beta/files", None),
        (GEMINI, "POST", "v1beta/cachedContents", None),
        (OPENROUTER, "POST", "api/v1/chat/completions", "chat/completions"),
        (OPENROUTER, "POST", "v1/chat/completions", "chat/completions"),
        (OPENROUTER, "GET", "v1/models", "models"),
        (OPENROUTER, "POST", "v1/completions", None),
        (OPENROUTER, "GET", "v1/key", None),
        (Provider.GITHUB, "POST", "v1/messages", None),
    ],
)
def test_endpoints(provider: Provider, method: str, path: str, found: str | None) -> None:
    """G-178, G-179, G-187."""
    result = endpoint(provider, method, path)
    assert (result.path if result is not None else None) == found


@pytest.mark.parametrize(
    ("provider", "base", "query", "url"),
    [
        (ANTHROPIC, "https://api.anthropic.com", "beta=true", "https://api.anthropic.com/v1/x?beta=true"),
        (ANTHROPIC, "https://h/v1/", "", "https://h/v1/x"),
        (ANTHROPIC, "https://h/llm", "key=t", "https://h/llm/v1/x"),
        (OPENAI, "https://api.openai.com/v1", "", "https://api.openai.com/v1/x"),
        (OPENAI, "https://api.openai.com", "a=1&API_KEY=t&b=%26", "https://api.openai.com/v1/x?a=1&b=%26"),
        (OPENAI, "https://h/api/paas/v4", "%6bey=t", "https://h/api/paas/v4/x"),
        (OPENAI, "https://h/openai/v1", "", "https://h/openai/v1/x"),
        (OPENROUTER, "https://openrouter.ai/api/v1", "", "https://openrouter.ai/api/v1/x"),
        (OPENROUTER, "https://openrouter.ai", "", "https://openrouter.ai/v1/x"),
        (GEMINI, "https://g", "alt=sse&key=t&fields=a&%24fields=a&quotaUser=u", "https://g/x?alt=sse"),
    ],
)
def test_upstream_urls(provider: Provider, base: str, query: str, url: str) -> None:
    """G-79, G-177, G-178."""
    assert upstream_url(provider, base, Endpoint("x"), query) == url


def basic(text: str) -> bytes:
    return b"Basic " + b64encode(text.encode())


@pytest.mark.parametrize(
    ("fields", "query"),
    [
        ([(b"Authorization", b"Bearer t")], ""),
        ([(b"AUTHORIZATION", b"bearer  t ")], ""),
        ([(b"Authorization", b"t")], ""),
        ([(b"Authorization", basic("any:t"))], ""),
        ([(b"Authorization", basic("t:"))], ""),
        ([(b"X-Api-Key", b"t")], ""),
        ([(b"x-goog-api-key", b"t")], ""),
        ([(b"api-key", b"t")], ""),
        ([], "key=t"),
        ([], "x=1&api_key=%74"),
        ([(b"Sec-WebSocket-Protocol", b"realtime, openai-insecure-api-key.t")], ""),
        ([(b"x-api-key", b"t"), (b"Authorization", b"Bearer t")], "key=t"),
    ],
)
def test_every_spelling(fields: list[tuple[bytes, bytes]], query: str) -> None:
    """G-176."""
    assert tokens(fields, query) == {"t"}


@pytest.mark.parametrize(
    ("fields", "query"),
    [
        ([], ""),
        ([(b"Authorization", b"Bearer t"), (b"x-api-key", b"u")], ""),
        ([(b"x-api-key", b"t"), (b"x-api-key", b"u")], ""),
        ([(b"x-api-key", b"t")], "key=u"),
        ([(b"Cookie", b"t")], ""),
        ([(b"Authorization", b"Digest t")], "key=u"),
    ],
)
def test_none_or_several(fields: list[tuple[bytes, bytes]], query: str) -> None:
    """G-177."""
    assert len(tokens(fields, query)) != 1


@given(
    st.lists(
        st.tuples(st.sampled_from([b"authorization", b"x-api-key", b"other"]), st.binary(max_size=30)),
        max_size=4,
    ),
    st.text(max_size=30),
)
def test_nothing_raises(fields: list[tuple[bytes, bytes]], query: str) -> None:
    """G-342."""
    tokens(fields, query)


def test_the_key_stands_in_the_providers_place_alone() -> None:
    """G-38, G-177, G-183."""
    fields = [
        ("Host", "gateway.corral"),
        ("X-API-Key", "t"),
        ("authorization", "Bearer t"),
        ("anthropic-beta", "b"),
        ("OpenAI-Project", "p"),
        ("Accept-Encoding", "br"),
        ("Content-Length", "9"),
        ("Content-Encoding", "gzip"),
        ("Cookie", "c"),
        ("User-Agent", "u"),
    ]
    assert upstream_fields(fields, ANTHROPIC, "k", body=True) == [
        ("anthropic-beta", "b"),
        ("User-Agent", "u"),
        ("Accept-Encoding", "identity"),
        ("x-api-key", "k"),
    ]
    assert upstream_fields([], OPENAI, "k", body=False) == [
        ("Accept-Encoding", "identity"),
        ("Authorization", "Bearer k"),
    ]


def test_a_subscriptions_token_goes_up_as_bearer_with_its_beta() -> None:
    """G-177: Anthropic takes `sk-ant-oat…` in no other place, and only beside the beta."""
    fields = upstream_fields(
        [("Anthropic-Beta", "a, b"), ("x-api-key", "token")],
        Provider.ANTHROPIC,
        "sk-ant-oat01-secret",
        body=True,
    )
    named = {name.lower(): value for name, value in fields}
    assert named["authorization"] == "Bearer sk-ant-oat01-secret"
    assert named["anthropic-beta"] == "a,b,oauth-2025-04-20"
    assert "x-api-key" not in named
    again = upstream_fields(
        [("anthropic-beta", "oauth-2025-04-20")], Provider.ANTHROPIC, "sk-ant-oat01-x", body=True
    )
    assert [value for name, value in again if name == "anthropic-beta"] == ["oauth-2025-04-20"]


def test_a_login_file_wraps_the_token() -> None:
    """G-175: what a subscription's login file makes of it is the sandbox's token; a real one is not."""
    assert tokens([(b"Authorization", b"Bearer sk-ant-oat01-sk-crl-abc")], "") == {"sk-crl-abc"}
    assert tokens([(b"Authorization", b"Bearer sk-ant-oat01-abc")], "") == {"sk-ant-oat01-abc"}


def test_a_subscriptions_account_is_the_hosts() -> None:
    """G-183."""
    fields = upstream_fields([("ChatGPT-Account-ID", "other")], OPENAI, "k", body=True, account="own")
    assert [value for name, value in fields if name.lower() == "chatgpt-account-id"] == ["own"]


def test_what_chooses_models_and_accounts_at_other_gateways_is_left_out() -> None:
    """G-180, G-183: a provider that is a gateway itself takes a configuration by header."""
    named = (
        "X-Portkey-Config", "Helicone-Fallbacks", "X-LiteLLM-Tags", "cf-aig-custom-cost", "X-Vertex-AI-LLM-Request-Type",
        "azureml-model-deployment", "Anthropic-User-Profile-Id",
    )  # fmt: skip
    sent = upstream_fields([(name, "x") for name in (*named, "X-Title")], ANTHROPIC, "k", body=True)
    assert [name for name, value in sent if value == "x"] == ["X-Title"]

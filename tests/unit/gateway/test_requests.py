"""What a model call's request says of its model and cost, and what is changed in it."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from corral.errors import CorralError, Forbidden, InvalidInput
from corral.gateway.body import parse
from corral.gateway.box import Box
from corral.gateway.endpoints import endpoint
from corral.gateway.pricing import PriceBook
from corral.gateway.requests import Limits, Prepared, Terms, prepare
from corral.model.egress import EgressPolicy
from corral.model.git import PushPolicy
from corral.model.grants import ModelRules
from corral.model.ids import SandboxId, TenantId
from corral.model.route import Route
from corral.model.secrets import Provider, Secret
from corral.wire.link import Attach, GrantSpec, PriceSpec, SecretSpec

NOW = datetime(2026, 11, 1, tzinfo=UTC)
TENANT = TenantId("default")
TURN = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 10}
ANTHROPIC = {"model": "claude-opus-4-8", **TURN}
ROUTED = {"model": "anthropic/claude-sonnet-4.5", **TURN}
URLS = {
    Provider.ANTHROPIC: "https://api.anthropic.com",
    Provider.OPENAI: "https://api.openai.com/v1",
    Provider.OPENROUTER: "https://openrouter.ai/api/v1",
}


def prepared(
    provider: Provider,
    request: dict[str, Any],
    *,
    path: str = "v1/chat/completions",
    rules: ModelRules | None = None,
    prices: tuple[PriceSpec, ...] = (),
    account: str = "",
) -> Prepared:
    grant = GrantSpec("00", ("key",), rules or ModelRules())
    attach = Attach(
        0, SandboxId("0" * 16), TENANT, "b", grant, EgressPolicy(), Secret("seed"), (), PushPolicy(), Route(), ()
    )  # fmt: skip
    box = Box(attach, lambda record: None, frozenset, frozenset)
    spec = SecretSpec(TENANT, "key", provider, URLS[provider], Secret("0123456789"), account=account)
    wanted = endpoint(provider, "POST", path)
    assert wanted is not None
    data = json.dumps(request).encode()
    return prepare(Terms(box, spec, PriceBook(prices), Limits(), "", NOW), wanted, data, parse(data))


def reserved(provider: Provider, request: dict[str, Any], *, path: str = "v1/chat/completions") -> int:
    call = prepared(provider, request, path=path).call
    assert call is not None
    return call.reserved


def sent(found: Prepared) -> dict[str, Any]:
    value = json.loads(found.data)
    assert isinstance(value, dict)
    return value


@pytest.mark.parametrize(
    "extra",
    [{"model": "@preset/mine"}, {"models": ["@preset/mine"]}, {"models": ["openai/gpt-5@preset/mine"]}, {"preset": "mine"}],
)  # fmt: skip
@pytest.mark.parametrize("provider", [Provider.OPENROUTER, Provider.OPENAI])
def test_a_preset_is_refused_wherever_it_is_named(provider: Provider, extra: dict[str, Any]) -> None:
    """G-180."""
    with pytest.raises(Forbidden):
        prepared(provider, {**ROUTED, **extra})


def test_each_model_that_may_run_is_checked_and_priced() -> None:
    """G-180, G-211."""
    rules = ModelRules(allow=("anthropic/*",))
    with pytest.raises(Forbidden, match="gpt-5"):
        prepared(Provider.OPENROUTER, {**ROUTED, "models": ["openai/gpt-5"]}, rules=rules)
    dear = {**ROUTED, "models": ["anthropic/claude-opus-4.1"]}
    assert reserved(Provider.OPENROUTER, dear) > 2 * reserved(Provider.OPENROUTER, ROUTED)


def test_of_those_who_sell_a_model_none_is_dearer_than_what_is_set_aside() -> None:
    """G-211: a sandbox names one, or lets one be chosen by its speed."""
    for chosen in (None, {"order": ["dear"], "sort": "throughput"}):
        found = sent(prepared(Provider.OPENROUTER, {**ROUTED, "provider": chosen}))
        limits = {"prompt": 6.0, "completion": 22.5}
        assert found["provider"] == {**(chosen or {}), "max_price": limits}
    own = {"max_price": {"prompt": 1, "completion": 99, "image": 5}}
    found = sent(prepared(Provider.OPENROUTER, {**ROUTED, "provider": own}))
    assert found["provider"]["max_price"] == {"prompt": 1, "completion": 22.5, "image": 5}
    for bad in ("dear", {"Max_Price": {"prompt": 99}}):
        with pytest.raises(InvalidInput):
            prepared(Provider.OPENROUTER, {**ROUTED, "provider": bad})
    assert "provider" not in sent(prepared(Provider.OPENAI, {"model": "gpt-5", **TURN}))
    free = (PriceSpec("key", "*", 0, 0, 0, 0),)
    assert "provider" not in sent(prepared(Provider.OPENROUTER, ROUTED, prices=free))


def test_pages_and_searches_that_are_charged_apart_are_set_aside() -> None:
    """G-204, G-211."""
    document = {"type": "file", "file": {"file_data": "data:application/pdf;base64,aa"}}
    request = {**ROUTED, "messages": [{"role": "user", "content": [document]}]}
    read = {**request, "plugins": [{"id": "file-parser", "pdf": {"engine": "native"}}]}
    assert reserved(Provider.OPENROUTER, request) > reserved(Provider.OPENROUTER, read) + 2_000_000
    searching = {**read, "plugins": [{"id": "file-parser", "pdf": {"engine": "native"}}, {"id": "web"}]}
    assert reserved(Provider.OPENROUTER, searching) >= reserved(Provider.OPENROUTER, read) + 500_000


@pytest.mark.parametrize(
    "extra",
    [{"web_search_options": {}}, {"model": "gpt-4o-search-preview"}, {"tools": [{"type": "web_search"}]}, {"plugins": ["web"]}],
)  # fmt: skip
def test_searches_that_an_answer_does_not_tell_are_refused(extra: dict[str, Any]) -> None:
    """G-204: OpenRouter states what they cost, and others do not."""
    request = {"model": "gpt-4o", **TURN, **extra}
    with pytest.raises(Forbidden, match="searches"):
        prepared(Provider.OPENAI, request)
    assert prepared(Provider.OPENROUTER, {**request, "model": "openai/gpt-4o"}).call is not None
    free = (PriceSpec("key", "*", 0, 0, 0, 0),)
    assert prepared(Provider.OPENAI, request, prices=free).call is not None


def test_dearer_tiers_and_regions_are_set_aside_or_refused() -> None:
    """G-204, G-211, G-212."""
    chat = {"model": "gpt-5", **TURN}
    usual = reserved(Provider.OPENAI, {**chat, "service_tier": "default"})
    assert reserved(Provider.OPENAI, {**chat, "service_tier": "flex"}) <= usual
    for tier in ("auto", "fast", "priority"):
        assert reserved(Provider.OPENAI, {**chat, "service_tier": tier}) >= 1.9 * usual
    messages = {"path": "v1/messages"}
    global_, fast = {**ANTHROPIC, "inference_geo": "global"}, {**ANTHROPIC, "speed": "fast"}
    here = reserved(Provider.ANTHROPIC, ANTHROPIC, **messages)
    for request, least in (
        (global_, here),
        ({**ANTHROPIC, "inference_geo": "us"}, here * 11 // 10),
        (fast, 2 * here),
    ):
        assert reserved(Provider.ANTHROPIC, request, **messages) >= least
    unknown: list[tuple[Provider, dict[str, Any], str]] = [
        (Provider.OPENAI, {**chat, "service_tier": "ultrafast"}, "v1/chat/completions"),
        (Provider.ANTHROPIC, {**fast, "model": "claude-haiku-4-5"}, "v1/messages"),
        (Provider.ANTHROPIC, {**ANTHROPIC, "speed": "faster"}, "v1/messages"),
    ]
    for provider, request, path in unknown:
        with pytest.raises(Forbidden, match="price is not known"):
            prepared(provider, request, path=path)


def test_a_subscription_is_sent_no_limits_that_it_refuses() -> None:
    request = {"model": "gpt-5", "input": "hi", "tools": [{"type": "web_search"}]}
    found = prepared(Provider.OPENAI, request, path="v1/responses", account="a")
    assert sent(found) == {"store": False, **request}
    assert found.call is not None


def test_what_is_judged_in_two_ways_is_refused() -> None:
    """G-181."""
    for name in ("Fallbacks", "PROMPT_ID", "Best_Of", "Max_Tool_Calls", "Inference_Geo"):
        with pytest.raises(CorralError):
            prepared(Provider.OPENAI, {"model": "gpt-5", **TURN, name: 1})

"""Prices: the library's, the operator's, the assumed, and the refused."""

from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import Forbidden
from corral.gateway import pricing
from corral.gateway.pricing import LibraryPrice, PriceBook, micro
from corral.model.ids import TenantId
from corral.model.secrets import Provider, Secret
from corral.wire.link import PriceSpec, SecretSpec
from corral.wire.usage import Counts

NOW = datetime(2026, 11, 1, tzinfo=UTC)
VALUE = Secret("sk-canary-0123456789")


def secret(provider: Provider, base_url: str, name: str = "key") -> SecretSpec:
    return SecretSpec(TenantId("default"), name, provider, base_url, VALUE)


ANTHROPIC = secret(Provider.ANTHROPIC, "https://api.anthropic.com")
OPENAI = secret(Provider.OPENAI, "https://api.openai.com/v1")
LOCAL = secret(Provider.OPENAI, "http://127.0.0.1:8000/v1", "local")
PROXIED = secret(Provider.ANTHROPIC, "http://llm.company.example")


def test_each_kind_of_token_has_its_rate() -> None:
    """G-196, G-204: claude-sonnet-4-5 costs 3, 15, 0.30, 3.75 and 6 dollars per million."""
    price = PriceBook().price(ANTHROPIC, "claude-sonnet-4-5-20250929")
    assert not price.assumed
    assert price.cost(Counts(input=1000), "", NOW) == 3000
    assert price.cost(Counts(output=1000), "", NOW) == 15000
    assert price.cost(Counts(cache_read=1000), "", NOW) == 300
    assert price.cost(Counts(cache_write=1000), "", NOW) == 3750
    assert price.cost(Counts(cache_write=1000, cache_write_1h=1000), "", NOW) == 6000
    assert price.cost(Counts(web_searches=5), "", NOW) == 50_000


def test_a_service_tier_has_its_rate() -> None:
    """G-204."""
    price = PriceBook().price(OPENAI, "gpt-5")
    usual = price.cost(Counts(input=1000, output=1000), "default", NOW)
    assert price.cost(Counts(input=1000, output=1000), "priority", NOW) > usual
    assert price.cost(Counts(input=1000, output=1000), "no-such-tier", NOW) == usual


@pytest.mark.parametrize("spec", [ANTHROPIC, PROXIED])
def test_an_unknown_model_costs_what_the_dearest_does(spec: SecretSpec) -> None:
    """G-203, G-205."""
    book = PriceBook()
    price = book.price(spec, "claude-nova-99")
    assert price.assumed
    counts = Counts(input=10_000, output=10_000)
    for model in ("claude-sonnet-4-5", "claude-opus-4-1", "claude-fable-5"):
        assert price.cost(counts, "", NOW) >= book.price(spec, model).cost(counts, "", NOW)


@pytest.mark.parametrize(
    ("model", "generation"),
    [("gpt-6.9-sol", "gpt-6"), ("gpt-5.99-codex", "gpt-5"), ("openai/gpt-6-new", "gpt-6")],
)
def test_a_new_model_costs_what_the_dearest_of_its_generation_does(model: str, generation: str) -> None:
    """G-203: that of its provider is a model of long ago, at thirty times the price."""
    book, counts = PriceBook(), Counts(input=10_000, output=10_000)
    cost = book.price(OPENAI, model).cost(counts, "", NOW)
    assert book.price(OPENAI, model).assumed
    known = [item.id for item in pricing._provider_by_id("openai").models if item.id.startswith(generation)]  # type: ignore[union-attr]
    costs = [book.price(OPENAI, name).cost(counts, "", NOW) for name in known if "pro" not in name.split("-")]
    assert max(costs) == cost < book.price(OPENAI, "o1-pro").cost(counts, "", NOW)


@pytest.mark.parametrize("model", ["gpt-6.9-pro", "gpt-99", "gpt-600", "o9", "gpt-oss-9"])
def test_without_a_known_generation_it_is_the_dearest_of_all(model: str) -> None:
    """G-203."""
    assert PriceBook().price(OPENAI, model).cost(Counts(1000, 1000), "", NOW) == PriceBook().price(
        OPENAI, "o1-pro"
    ).cost(Counts(1000, 1000), "", NOW)


def test_an_unknown_model_of_an_unknown_endpoint_is_refused_with_the_command() -> None:
    """G-203."""
    with pytest.raises(Forbidden) as caught:
        PriceBook().price(LOCAL, "qwen3-coder")
    assert "corral price set local --model qwen3-coder --input X --output Y" in caught.value.hint


def test_a_model_without_a_price_in_tokens_is_not_free() -> None:
    """G-203."""
    assert PriceBook().known(OPENAI, "omni-moderation-latest") is None
    assert PriceBook().price(OPENAI, "omni-moderation-latest").assumed


def test_the_operator_prices_come_first() -> None:
    """G-203, G-208."""
    book = PriceBook(
        [
            PriceSpec("local", "*", 1_000_000, 2_000_000, 500_000, 0),
            PriceSpec("local", "free", 0, 0, 0, 0),
            PriceSpec("key", "gpt-5", 7_000_000, 0, 0, 0),
        ]
    )
    assert book.price(LOCAL, "qwen3-coder").cost(Counts(1, 1, 1, 1), "", NOW) == 4
    assert book.price(LOCAL, "free").cost(Counts(1000, 1000), "", NOW) == 0
    assert book.price(OPENAI, "gpt-5").cost(Counts(1), "", NOW) == 7
    assert isinstance(book.price(OPENAI, "gpt-5-mini"), LibraryPrice)


@given(st.decimals(min_value=0, max_value=1000, places=9))
def test_money_is_rounded_up(dollars: Decimal) -> None:
    """G-208."""
    assert 0 <= micro(dollars) - dollars * 1_000_000 < 1


@given(
    st.sampled_from(
        ["claude-sonnet-4-5", "claude-opus-4-5", "claude-fable-5", "claude-3-opus-latest", "claude-2"]
    ),
    st.tuples(*[st.integers(0, 300_000)] * 3),
    st.integers(0, 5000),
    st.integers(0, 5000),
    st.sampled_from(["", "standard", "fast"]),
)
def test_the_short_way_comes_to_what_the_library_does(
    model: str, tokens: tuple[int, int, int], write: int, hour: int, tier: str
) -> None:
    """G-196, G-204."""
    price = PriceBook().price(ANTHROPIC, model)
    assert isinstance(price, LibraryPrice)
    counts = Counts(*tokens, cache_write=write + hour, cache_write_1h=hour, web_searches=hour % 7)
    context = ("speed", tier) if tier else None
    assert price.cost(counts, tier, NOW) == micro(price.exact(counts, context, NOW))

"""From an answer to a line in the ledger."""

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from corral.gateway.box import Box
from corral.gateway.metering import Call, Outcome, settle
from corral.gateway.pricing import PriceBook
from corral.model.egress import EgressPolicy
from corral.model.ids import SandboxId, TenantId
from corral.model.secrets import Provider, Secret
from corral.model.usage import Tokens, Usage
from corral.wire.link import Attach, SecretSpec
from corral.wire.usage import Counts, Reading

NOW = datetime(2026, 11, 1, tzinfo=UTC)
TENANT, SANDBOX = TenantId("default"), SandboxId("0" * 16)
BOOK = PriceBook()


def spec(url: str = "https://api.anthropic.com", provider: Provider = Provider.ANTHROPIC) -> SecretSpec:
    return SecretSpec(TENANT, "key", provider, url, Secret("0123456789"))


def box() -> Box:
    attach = Attach(0, SANDBOX, TENANT, "b", "00", ("key",), EgressPolicy(), ())
    return Box(attach, lambda record: None, frozenset)


def settled(
    reading: Reading, *, status: int = 200, model: str = "claude-opus-4-5", secret: SecretSpec | None = None
) -> Usage:
    chosen = secret or spec()
    call = Call(box(), chosen, model, BOOK.price(chosen, model), "messages", 3000, NOW)
    return settle(call, Outcome(status, reading, cut=False, duration_ms=5, request_id="r"), BOOK)


def test_a_complete_answer() -> None:
    """G-209."""
    usage = settled(Reading("claude-opus-4-5", Counts(10, 20, 30, 40), complete=True))
    assert usage.tokens == Tokens(10, 20, 30, 40)
    assert (usage.cost, usage.assumed) == (10 * 5 + 20 * 25 + 15 + 250, False)
    assert (usage.sandbox, usage.secret, usage.path, usage.request_id) == (SANDBOX, "key", "messages", "r")


def test_a_cut_answer_is_never_free() -> None:
    """G-201."""
    seen = settled(Reading("claude-opus-4-5", Counts(input=10), streamed=300, started=True))
    assert seen.tokens == Tokens(10, 100)
    assert seen.assumed
    unseen = settled(Reading(), status=0)
    assert unseen.tokens == Tokens(1000, 1)
    assert unseen.cost > 0


def test_an_answer_without_usage_is_estimated_and_flagged() -> None:
    """G-202."""
    usage = settled(Reading(streamed=30, started=True))
    assert (usage.tokens, usage.assumed) == (Tokens(1000, 10), True)


@pytest.mark.parametrize("status", [400, 401, 429, 500, 529])
def test_what_the_provider_refused_costs_nothing(status: int) -> None:
    """G-207."""
    usage = settled(Reading(streamed=50, started=True), status=status)
    assert (usage.cost, usage.tokens, usage.assumed) == (0, Tokens(), False)


def test_the_dearer_of_two_models_counts() -> None:
    """G-205."""
    counts = Counts(1000, 1000)
    cheap = settled(Reading("claude-haiku-4-5", counts, complete=True))
    dear = settled(Reading("claude-opus-4-1", counts, complete=True), model="claude-haiku-4-5")
    assert (cheap.model, cheap.cost) == ("claude-haiku-4-5", 30_000)
    assert (dear.model, dear.cost) == ("claude-opus-4-1", 90_000)


def test_an_assumed_price_is_flagged() -> None:
    """G-203."""
    assert settled(Reading("", Counts(1, 1), complete=True), model="claude-unheard-of").assumed


def test_a_stated_cost_counts_where_the_provider_bills_by_it() -> None:
    """G-197."""
    reading = Reading("", Counts(1000, 1000), complete=True, cost=Decimal("0.0000011"))
    router = spec("https://openrouter.ai/api/v1", Provider.OPENAI)
    assert settled(reading, model="openai/gpt-5", secret=router).cost == 2
    assert settled(reading).cost == 30_000

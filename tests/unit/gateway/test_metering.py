"""From an answer to a line in the ledger."""

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from corral.gateway.box import Box
from corral.gateway.metering import Call, Outcome, passed, settle, text_limit
from corral.gateway.pricing import PriceBook, worst_cost
from corral.model.egress import EgressPolicy
from corral.model.git import PushPolicy
from corral.model.grants import ModelRules
from corral.model.ids import SandboxId, TenantId
from corral.model.route import Route
from corral.model.secrets import Provider, Secret
from corral.model.usage import Tokens, Usage
from corral.wire.bounds import Bounds
from corral.wire.link import Attach, GrantSpec, SecretSpec
from corral.wire.usage import Counts, Reading

NOW = datetime(2026, 11, 1, tzinfo=UTC)
TENANT, SANDBOX = TenantId("default"), SandboxId("0" * 16)
BOOK = PriceBook()
BOUNDS = Bounds(3000, 1000)


def spec(url: str = "https://api.anthropic.com", provider: Provider = Provider.ANTHROPIC) -> SecretSpec:
    return SecretSpec(TENANT, "key", provider, url, Secret("0123456789"))


def box() -> Box:
    grant = GrantSpec("00", ("key",), ModelRules())
    attach = Attach(
        0, SANDBOX, TENANT, "b", grant, EgressPolicy(), Secret("seed"), (), PushPolicy(), Route(), ()
    )
    return Box(attach, lambda record: None, frozenset, frozenset)


def settled(
    reading: Reading,
    *,
    status: int = 200,
    model: str = "claude-opus-4-5",
    secret: SecretSpec | None = None,
    cut: bool = False,
    seconds: int = 0,
) -> Usage:
    chosen = secret or spec()
    price = BOOK.price(chosen, model)
    worst = worst_cost(price, BOUNDS, ("",), NOW)
    call = Call(box(), chosen, model, price, "messages", BOUNDS, worst, NOW, BOUNDS.output)
    return settle(call, Outcome(status, reading, cut, seconds * 1000, request_id="r"), BOOK)


def test_a_complete_answer() -> None:
    """G-209."""
    usage = settled(Reading("claude-opus-4-5", Counts(10, 20, 30, 40), complete=True))
    assert usage.tokens == Tokens(10, 20, 30, 40)
    assert (usage.cost, usage.assumed) == (10 * 5 + 20 * 25 + 15 + 250, False)
    assert (usage.sandbox, usage.secret, usage.path, usage.request_id) == (SANDBOX, "key", "messages", "r")


def test_a_cut_answer_is_never_free() -> None:
    """G-201."""
    seen = settled(Reading("claude-opus-4-5", Counts(input=10), streamed=300, started=True), cut=True)
    assert seen.tokens == Tokens(10, 100)
    assert (seen.cost, seen.assumed) == (10 * 5 + 100 * 25, True)
    unseen = settled(Reading(), status=0, cut=True)
    assert unseen.tokens == Tokens(3000, 1)
    assert unseen.cost == 3000 * 5 + 25


def test_what_was_made_unseen_is_charged_by_the_time_it_took() -> None:
    """G-201: thoughts are hardly shown, so a call that is given up after a minute of them must not look cheap."""
    reading = Reading("claude-opus-4-5", Counts(input=10), started=True)
    assert settled(reading, cut=True, seconds=1).tokens == Tokens(10, 500)
    assert settled(reading, cut=True, seconds=60).tokens == Tokens(10, BOUNDS.output)
    assert settled(reading, cut=True, seconds=60).cost == 10 * 5 + BOUNDS.output * 25


def test_an_answer_without_usage_is_estimated_and_flagged() -> None:
    """G-202."""
    usage = settled(Reading(streamed=30, started=True))
    assert (usage.tokens, usage.assumed) == (Tokens(3000, 10), True)
    assert usage.cost == 3000 * 5 + 1000 * 25


def test_what_is_sure_is_charged_also_above_the_reservation() -> None:
    """G-214: a provider that does not keep to the limit it was given."""
    usage = settled(Reading("claude-opus-4-5", Counts(10, 50_000), started=True), cut=True)
    assert usage.cost == 10 * 5 + 50_000 * 25


def test_a_stream_is_cut_only_when_it_is_sure_to_have_passed_its_reservation() -> None:
    """G-214."""
    price = BOOK.price(spec(), "claude-opus-4-5")
    worst = worst_cost(price, BOUNDS, ("",), NOW)
    call = Call(box(), spec(), "claude-opus-4-5", price, "messages", BOUNDS, worst, NOW, BOUNDS.output)
    assert not passed(call, Reading(counts=Counts(BOUNDS.input, BOUNDS.output)), 0)
    assert passed(call, Reading(counts=Counts(BOUNDS.input, BOUNDS.output + 1)), 0)
    assert not passed(call, Reading(), text_limit(BOUNDS.output))
    assert passed(call, Reading(), text_limit(BOUNDS.output) + 1)
    assert not passed(replace(call, output=None), Reading(), 10**12)


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


def test_a_call_that_was_held_to_a_region_costs_a_tenth_more() -> None:
    """G-204."""
    counts = Counts(1000, 1001)
    usual = settled(Reading("", counts, complete=True)).cost
    assert settled(Reading("", counts, complete=True, regional=True)).cost == usual + -(-usual // 10)
    price = BOOK.price(spec(), "claude-opus-4-5")
    call = Call(box(), spec(), "claude-opus-4-5", price, "messages", BOUNDS, usual, NOW, BOUNDS.output)
    assert passed(call, Reading("", counts, regional=True), 0)
    assert not passed(call, Reading("", counts), 0)

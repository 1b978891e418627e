"""What a model call costs.

Prices come from the operator first, then from the price library's own snapshot (it never asks the network). A
model that the library does not know yet is charged at the dearest known price of its generation (as in gpt-6), or
else of its provider, and marked as assumed. Where not even a provider is known, the call is refused before it is
made, with the command that sets a price: nothing is free by mistake. Money is integer micro-US-dollars, rounded up
per call.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import ROUND_CEILING, Decimal
from functools import cache, lru_cache

from genai_prices import Usage as LibraryUsage
from genai_prices import data_snapshot
from genai_prices.types import ModelInfo, TieredPrices, TimeOfDateConstraint
from genai_prices.types import Provider as LibraryProvider

from corral.errors import Forbidden
from corral.model.secrets import Provider
from corral.policy.models import segments
from corral.wire.bounds import Bounds
from corral.wire.link import PriceSpec, SecretSpec
from corral.wire.usage import Counts

MAX_MODEL = 256
"""Characters of a model's name."""
LARGEST_CONTEXT = 1_050_000
"""Tokens, for a model whose own is not known."""

_MICRO = Decimal(1_000_000)
_PROBE = 1_000_000
_FAMILY = {
    Provider.ANTHROPIC: re.compile(r"(.*[/.])?claude[-_.]", re.I),
    Provider.OPENAI: re.compile(r"(.*/)?(gpt-|chatgpt-|o[0-9](-|$)|codex-|text-embedding-)", re.I),
    Provider.GEMINI: re.compile(r"(gemini|gemma|text-embedding)-", re.I),
    Provider.OPENROUTER: re.compile(r"[^/]+/", re.I),
}
_LIBRARY_ID = {Provider.GEMINI: "google"}
_SUFFIX = re.compile(r":[a-z]+$")
"""How OpenRouter shall route a call to a model; `:free` and the rest state their cost in the answer."""
_GENERATION = re.compile(r"(gpt-[0-9]{1,3}|gemini-[0-9]{1,3}(?:\.[0-9]{1,3})?)(?![0-9])")
_STATES_COST = frozenset({"openrouter"})
"""Providers whose answers state the cost, which then counts (G-197)."""


@dataclass(frozen=True, slots=True)
class OperatorPrice:
    """A price that the operator gave."""

    spec: PriceSpec
    assumed: bool = False
    trusts_stated_cost: bool = False

    @property
    def context(self) -> int:
        """Tokens that the model can take in."""
        return LARGEST_CONTEXT

    def cost(self, counts: Counts, tier: str, at: datetime) -> int:
        """Micro-dollars."""
        spec = self.spec
        total = (
            counts.input * spec.input
            + counts.output * spec.output
            + counts.cache_read * spec.cache_read
            + counts.cache_write * spec.cache_write
        )
        return -(-total // 1_000_000)


@dataclass(frozen=True, slots=True)
class LibraryPrice:
    """A price of the library. `assumed` if it is the provider's dearest because the model is unknown."""

    provider: LibraryProvider
    model: ModelInfo
    assumed: bool

    @property
    def context(self) -> int:
        """Tokens that the model can take in."""
        return LARGEST_CONTEXT if self.assumed else self.model.context_window or LARGEST_CONTEXT

    @property
    def trusts_stated_cost(self) -> bool:
        """Whether the cost that the provider states in an answer is what it charges."""
        return self.provider.id in _STATES_COST

    def cost(self, counts: Counts, tier: str, at: datetime) -> int:
        """Micro-dollars."""
        context = ("speed" if self.provider.id == "anthropic" else "service_tier", tier) if tier else None
        key = (self.provider.id, self.model.id, context, at.date())
        steps = _steps(*key)
        if steps is None:
            return micro(self.exact(counts, context, at))
        size = counts.input + counts.cache_read + counts.cache_write
        step = max((start for start in steps if start < size), default=0)
        return micro(_rates(*key, step, steps[0] if steps else _PROBE).total(counts))

    def exact(self, counts: Counts, context: tuple[str, str] | None, at: datetime) -> Decimal:
        """US dollars, as the library computes them."""
        usage = LibraryUsage(
            input_tokens=counts.input + counts.cache_read + counts.cache_write,
            output_tokens=counts.output,
            cache_read_tokens=counts.cache_read,
            cache_write_tokens=counts.cache_write,
            cache_write_1h_tokens=counts.cache_write_1h,
            web_searches=counts.web_searches,
        )
        price_context = dict([context]) if context is not None else None
        return self.model.calc_price(
            usage, self.provider, genai_request_timestamp=at, price_context=price_context
        ).total_price


@dataclass(frozen=True, slots=True)
class _Rates:
    """US dollars per token or search, for inputs of a range of sizes. The library takes a quarter of a
    millisecond per call, which all other calls of the gateway would wait for.
    """

    input: Decimal
    output: Decimal
    cache_read: Decimal
    cache_write: Decimal
    cache_write_1h: Decimal
    web_search: Decimal

    def total(self, counts: Counts) -> Decimal:
        return (
            counts.input * self.input
            + counts.output * self.output
            + counts.cache_read * self.cache_read
            + (counts.cache_write - counts.cache_write_1h) * self.cache_write
            + counts.cache_write_1h * self.cache_write_1h
            + counts.web_searches * self.web_search
        )


@lru_cache(maxsize=1024)
def _steps(
    provider_id: str, model_id: str, context: tuple[str, str] | None, day: date
) -> tuple[int, ...] | None:
    """Sizes of the input above which other rates apply, ascending; None if the rates depend on the hour."""
    price = _by_id(provider_id, model_id)
    if price is None:
        return None
    listed = price.model.prices if isinstance(price.model.prices, list) else []
    constraints = [item.constraint for item in listed]
    constraints += [variant.constraint for variant in price.model.price_variants or []]
    if any(isinstance(constraint, TimeOfDateConstraint) for constraint in constraints):
        return None
    at = datetime.combine(day, time(12), UTC)
    prices = vars(price.model.get_prices(at, dict([context]) if context is not None else None)).values()
    return tuple(
        sorted({tier.start for item in prices if isinstance(item, TieredPrices) for tier in item.tiers})
    )


@lru_cache(maxsize=1024)
def _rates(
    provider_id: str, model_id: str, context: tuple[str, str] | None, day: date, step: int, first: int
) -> _Rates:
    """The rates of a model on a day for inputs larger than `step`, asked of the library kind by kind."""
    price = _by_id(provider_id, model_id)
    if price is None:
        raise Forbidden(f"no price of model {model_id!r} is known", "use `corral price set` on the host")
    at = datetime.combine(day, time(12), UTC)
    size = step + 1 if step else first

    def ask(**counts: int) -> Decimal:
        return price.exact(Counts(**counts), context, at)

    return _Rates(
        input=ask(input=size) / size,
        output=(ask(input=size, output=_PROBE) - ask(input=size)) / _PROBE,
        cache_read=ask(cache_read=size) / size,
        cache_write=ask(cache_write=size) / size,
        cache_write_1h=ask(cache_write=size, cache_write_1h=size) / size,
        web_search=(ask(input=size, web_searches=_PROBE) - ask(input=size)) / _PROBE,
    )


def _by_id(provider_id: str, model_id: str) -> LibraryPrice | None:
    provider = _provider_by_id(provider_id)
    found = [model for model in provider.models if model.id == model_id] if provider is not None else []
    return LibraryPrice(provider, found[0], assumed=False) if provider is not None and found else None


Price = OperatorPrice | LibraryPrice


def is_free(price: Price, at: datetime) -> bool:
    """Whether nothing that a call can do costs anything."""
    return price.cost(Counts(_PROBE, _PROBE, _PROBE, _PROBE, 0, _PROBE), "", at) == 0


def is_priced(price: Price, tier: str, at: datetime) -> bool:
    """Whether what a service tier or speed costs is known, an operator's price being the same for all."""
    counts = Counts(output=_PROBE)
    return isinstance(price, OperatorPrice) or price.cost(counts, tier, at) != price.cost(counts, "", at)


def per_million(price: Price, at: datetime) -> dict[str, float]:
    """US dollars per million tokens of input and of output, by OpenRouter's names, in the dearest step of a price."""
    read = price.cost(Counts(input=_PROBE), "", at)
    written = price.cost(Counts(input=_PROBE, output=_PROBE), "", at) - read
    return {"prompt": float(read / _MICRO), "completion": float(written / _MICRO)}


def worst_cost(price: Price, bounds: Bounds, tiers: Sequence[str], at: datetime) -> int:
    """The most that a call within bounds can cost, all of its input at the dearest of the rates that may apply (G-212)."""
    size, output, searches = bounds.input, bounds.output, bounds.searches
    ways = [
        Counts(input=size, output=output, web_searches=searches),
        Counts(cache_read=size, output=output, web_searches=searches),
    ]
    if bounds.caches:
        ways.append(Counts(cache_write=size, output=output, web_searches=searches))
    if bounds.for_an_hour:
        ways.append(Counts(cache_write=size, cache_write_1h=size, output=output, web_searches=searches))
    return max(price.cost(way, tier, at) for way in ways for tier in tiers)


def micro(dollars: Decimal) -> int:
    """US dollars as micro-dollars, rounded up (G-208)."""
    return int((dollars * _MICRO).to_integral_value(ROUND_CEILING))


class PriceBook:
    """All prices that are in force. Replaced as a whole when the operator changes one."""

    def __init__(self, prices: Sequence[PriceSpec] = ()) -> None:
        self._operator = {(spec.secret, spec.model): spec for spec in prices}

    def price(self, secret: SecretSpec, model: str) -> Price:
        """The price of a model at a secret's endpoint. Raises Forbidden, with the command that prices it
        (G-203).
        """
        found = self.known(secret, model)
        if found is not None:
            return found
        family = _FAMILY[secret.provider]
        at_its_own = _provider_by_url(secret.base_url)
        if at_its_own is not None:
            return _dearest(at_its_own.id, _generation(model), family if family.match(model) else None)
        if family.match(model):
            return _dearest(_library_id(secret.provider), _generation(model), family)
        raise Forbidden(
            f"the price of model {model[:80]!r} at the endpoint of secret {secret.name!r} is not known, so it is not used",
            f"on the host, price it in US dollars per million tokens: "
            f"`corral price set {secret.name} --model {model[:80]} --input X --output Y`",
        )

    def newest(self, secret: SecretSpec, family: str, model: str) -> str:
        """The newest model of a family (`haiku`) that has a price at a secret's endpoint. Raises Forbidden.

        `model` is the one in whose place it is sent.
        """
        by_url = _provider_by_url(secret.base_url)
        found = _newest(by_url.id if by_url is not None else _library_id(secret.provider), family)
        if not found:
            raise Forbidden(
                f"no model of the family {family!r} is known, to be sent in place of {model[:80]!r}",
                "on the host, give the alias a whole name: `corral grant set NAME --alias ASKED=MODEL`",
            )
        return found

    def known(self, secret: SecretSpec, model: str) -> Price | None:
        """The price of a model if it is known by itself."""
        spec = self._operator.get((secret.name, model)) or self._operator.get((secret.name, "*"))
        if spec is not None:
            return OperatorPrice(spec)
        provider = _provider_by_url(secret.base_url)
        known = provider.id if provider is not None else _library_id(secret.provider)
        found = _find(known, model)
        if found is None and secret.provider is Provider.OPENROUTER:
            found = _find(known, _SUFFIX.sub("", model))
        return found


@lru_cache(maxsize=256)
def _newest(provider_id: str, family: str) -> str:
    """The model of a family with the highest version, or an empty text."""
    provider = _provider_by_id(provider_id)
    models = provider.models if provider is not None else []
    of_it = [model.id for model in models if family in segments(model.id) and _find(provider_id, model.id)]
    return max(of_it, key=_version, default="")


def _version(model: str) -> tuple[int, ...]:
    """The numbers in a model's name, without dates."""
    return tuple(int(part) for part in segments(model) if part.isdecimal() and len(part) < 4)


def _library_id(provider: Provider) -> str:
    return _LIBRARY_ID.get(provider, provider.value)


@lru_cache(maxsize=256)
def _provider_by_url(base_url: str) -> LibraryProvider | None:
    try:
        return data_snapshot.get_snapshot().find_provider(None, None, base_url)
    except LookupError:
        return None


@cache
def _provider_by_id(provider: str) -> LibraryProvider | None:
    try:
        return data_snapshot.get_snapshot().find_provider(None, provider, None)
    except LookupError:
        return None


@lru_cache(maxsize=4096)
def _find(provider_id: str, model: str) -> LibraryPrice | None:
    """The library's entry, unless it knows no price in tokens for it: nothing is free by mistake.

    Not the snapshot's own look-up, which would keep every spelling that a sandbox can think of for good.
    """
    provider = _provider_by_id(provider_id)
    if provider is None:
        return None
    info = provider.find_model(model, all_providers=data_snapshot.get_snapshot().providers)
    if info is None or _reference_cost(provider, info) <= 0:
        return None
    return LibraryPrice(provider, info, assumed=False)


def _reference_cost(provider: LibraryProvider, info: ModelInfo) -> Decimal:
    usage = LibraryUsage(input_tokens=10_000, output_tokens=10_000)
    return info.calc_price(usage, provider).total_price


def _generation(model: str) -> str:
    """The family and number that begin a model's name, where a provider gives prices by them; else empty.

    Without it a new member of a cheap generation would cost thirty times its price, as the dearest of all is a model of
    long ago. A `pro` may cost more than all others of its generation, so none is assumed for it.
    """
    name = model.rpartition("/")[2].lower()
    found = _GENERATION.match(name)
    return "" if found is None or "pro" in re.split(r"[-.:]", name) else found[1]


@lru_cache(maxsize=256)
def _dearest(provider_id: str, generation: str = "", family: re.Pattern[str] | None = None) -> LibraryPrice:
    provider = _provider_by_id(provider_id)
    if provider is None:
        raise Forbidden(
            f"no price of provider {provider_id!r} is known", "use `corral price set` on the host"
        )
    of_it = [model for model in provider.models if generation and _generation(model.id) == generation]
    akin = [model for model in provider.models if family is None or family.match(model.id)]
    info = max(of_it or akin or provider.models, key=lambda model: _reference_cost(provider, model))
    return LibraryPrice(provider, info, assumed=True)


def load() -> None:
    """Read the library's data and make the caches that every call needs, before the first call waits for it."""
    for provider in _FAMILY:
        _dearest(_library_id(provider))

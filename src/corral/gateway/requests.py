"""What a model call's request says, before it is made: its model and price, the most that it can cost, and what is
changed in it so that it can be metered. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from corral.errors import Forbidden, InvalidInput
from corral.gateway import body
from corral.gateway.box import Box
from corral.gateway.endpoints import Endpoint, with_model
from corral.gateway.metering import GLOBAL, Call, regional
from corral.gateway.pricing import (
    MAX_MODEL,
    Price,
    PriceBook,
    is_free,
    is_priced,
    per_million,
    worst_cost,
)
from corral.model.budget import DEFAULT_MODEL_CALLS, DEFAULT_OUTPUT
from corral.model.grants import ModelRules
from corral.model.ids import TenantId
from corral.model.secrets import Provider
from corral.policy.models import layers, resolve
from corral.wire.bounds import Bounds, bounds
from corral.wire.fields import plainly_spelled
from corral.wire.gemini_bounds import gemini_bounds
from corral.wire.link import SecretSpec
from corral.wire.usage import Api, usage_option, with_fields

_WIDE_CONTEXT = 1_000_000
_MAX_ALTERNATIVES = 32
_READING, _SEARCH = 2_200_000, 50_000
"""Micro-dollars that OpenRouter charges beside tokens: for a document of a thousand pages, which is the longest that is read,
and for a search with ten results. What it was is in the cost that it states.
"""
_ANY = ModelRules()
_FAST = "fast"
_KNOWN_TIERS = (
    None,
    "auto",
    "default",
    "standard",
    "standard_only",
    "on_demand",
    "flex",
    "scale",
    "priority",
    _FAST,
)
"""None of them is dearer than `priority`."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the operator allows: model calls of one sandbox under way, tokens of output for one that sets no limit, and
    whose calls wait while a person is asked for more money: `*` for all, `TENANT`, `TENANT/SANDBOX`; and models, of all
    sandboxes and of tenants.
    """

    model_calls: int = DEFAULT_MODEL_CALLS
    output: int = DEFAULT_OUTPUT
    asking: frozenset[str] = frozenset()
    models: ModelRules = field(default_factory=ModelRules)
    of_tenants: Mapping[TenantId, ModelRules] = field(default_factory=dict)

    def asks_budget(self, tenant: TenantId, sandbox: str) -> bool:
        """Whether a call of that sandbox waits."""
        return not self.asking.isdisjoint(("*", tenant, f"{tenant}/{sandbox}"))


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that is ready to be sent, and what is known of it. `call` is None where nothing is metered."""

    wanted: Endpoint
    data: bytes
    call: Call | None = None
    streamed: bool = False
    strip_usage: bool = False


@dataclass(frozen=True, slots=True)
class Terms:
    """By what a call is judged: whose it is, what it goes to, prices and limits in force, the time. `betas` is its header
    `anthropic-beta`.
    """

    box: Box
    secret: SecretSpec
    prices: PriceBook
    limits: Limits
    betas: str
    at: datetime


def prepare(terms: Terms, wanted: Endpoint, data: bytes, parsed: body.Parsed) -> Prepared:
    """The body with its model priced and its cost bounded. Raises Forbidden for what has no price or cannot be metered,
    InvalidInput for what is malformed.
    """
    wanted, value, asked = _resolved(terms, wanted, parsed.value)
    if wanted.api is None:
        return Prepared(wanted, with_fields(parsed.text, parsed.value, asked).encode() if asked else data)
    model = wanted.model or _model(value.get("model"))
    prices = [terms.prices.price(terms.secret, name) for name in (model, *_alternatives(value))]
    free = all(is_free(price, terms.at) for price in prices)
    within = gemini_bounds if wanted.api in (Api.GEMINI, Api.GEMINI_EMBEDDINGS) else bounds
    found, changes = within(
        wanted.api,
        value,
        len(data),
        model=model,
        context=max(_wide(terms.betas), *(price.context for price in prices)),
        output=None if free else terms.limits.output,
    )
    _refuse_unsaid_searches(wanted, found, prices, free=free)
    if terms.secret.account:
        # This API takes no limits; the stream is cut where it passes what was set aside.
        for name in ("max_output_tokens", "max_tool_calls"):
            changes.pop(name, None)
    streamed = wanted.streams or value.get("stream") is True
    option = usage_option(value) if streamed and wanted.api is Api.OPENAI_CHAT else {}
    asked = {**asked, **changes, **option}
    tiers = _tiers(terms.secret, value, prices, terms.at)
    costs = [worst_cost(price, found, tiers, terms.at) for price in prices]
    reserved = max(costs)
    if terms.secret.provider is Provider.OPENROUTER and wanted.api is Api.OPENAI_CHAT:
        asked["usage"] = {"include": True}
    if not free and (terms.secret.provider is Provider.OPENROUTER or prices[0].trusts_stated_cost):
        asked |= _held_to(prices[costs.index(reserved)], value, terms.at)
        reserved += found.documents * _READING + found.searches * _SEARCH
    if value.get("inference_geo") not in (None, GLOBAL):
        reserved = regional(reserved)
    if asked:
        data = with_fields(parsed.text, parsed.value, asked).encode()
    call = Call(
        terms.box,
        terms.secret,
        model,
        prices[0],
        wanted.path,
        found,
        reserved,
        terms.at,
        None if free else found.output,
    )
    return Prepared(wanted, data, call, streamed, bool(option))


def _resolved(
    terms: Terms, wanted: Endpoint, value: Mapping[str, Any]
) -> tuple[Endpoint, Mapping[str, Any], dict[str, Any]]:
    """The endpoint and the request with the models that run, and what is changed in the request for that."""

    box, limits = terms.box, terms.limits
    of_tenant = limits.of_tenants.get(box.tenant, _ANY)
    rules = layers(box.grant.models, box.name, of_tenant, limits.models)

    def run(asked: str) -> str:
        return resolve(rules, asked, lambda family, model: terms.prices.newest(terms.secret, family, model))

    if wanted.model:
        return _resolved_path(wanted, value, run(wanted.model))
    if wanted.api is None and "model" not in value:
        return wanted, value, {}
    model = _model(value.get("model"))
    changed: dict[str, Any] = {}
    if (sent := run(model)) != model:
        changed["model"] = sent
    others = _alternatives(value)
    if (sent_others := [run(other) for other in others]) != others:
        changed["models"] = sent_others
    return wanted, {**value, **changed}, changed


def _resolved_path(
    wanted: Endpoint, value: Mapping[str, Any], sent: str
) -> tuple[Endpoint, Mapping[str, Any], dict[str, Any]]:
    """As `_resolved`, where the path names the model."""
    if "model" not in value or sent == wanted.model:
        return with_model(wanted, sent), value, {}
    if value["model"] not in (wanted.model, f"models/{wanted.model}"):
        raise InvalidInput("`model` differs from the model in the path", "leave it out of the body")
    changed = {"model": f"models/{sent}"}
    return with_model(wanted, sent), {**value, **changed}, changed


def _model(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_MODEL or not value.isprintable():
        raise InvalidInput("the request names no model", f"set `model`, at most {MAX_MODEL} characters")
    _refuse_presets(value)
    return value


def _refuse_presets(model: str) -> None:
    """What OpenRouter keeps under a name may choose another model, tools and limits than are written here (G-180)."""
    if "@preset/" in model:
        raise Forbidden(
            "presets are kept by the provider, which is not allowed here",
            "name a model, and send what the preset says",
        )


def _refuse_unsaid_searches(wanted: Endpoint, found: Bounds, prices: Sequence[Price], *, free: bool) -> None:
    """Chat answers do not say how often the web was searched, unless they state what all of it cost."""
    stated = all(price.trusts_stated_cost for price in prices)
    if found.searches and wanted.api is Api.OPENAI_CHAT and not (stated or free):
        raise Forbidden(
            "searches of this API are not allowed here: what they cost is not in the answer",
            "search by the Responses API, or in the sandbox",
        )


def _held_to(price: Price, value: Mapping[str, Any], at: datetime) -> dict[str, Any]:
    """The field by which OpenRouter, where many sell one model, goes to nobody dearer than what was set aside (G-211)."""
    chosen = value.get("provider")
    if chosen is None:
        chosen = {}
    if not isinstance(chosen, dict):
        raise InvalidInput("`provider` is not an object", "correct `provider`")
    plainly_spelled(chosen, ("max_price",))
    own = chosen.get("max_price")
    limits = dict(own) if isinstance(own, dict) else {}
    for name, most in per_million(price, at).items():
        given = limits.get(name)
        limits[name] = min(given, most) if isinstance(given, int | float) else most
    return {"provider": {**chosen, "max_price": limits}}


def _alternatives(value: Mapping[str, Any]) -> list[str]:
    """Other models that the endpoint may run instead (G-180)."""
    others = value.get("models", [])
    if not isinstance(others, list) or len(others) > _MAX_ALTERNATIVES:
        raise InvalidInput(
            f"`models` is not a list of at most {_MAX_ALTERNATIVES}", "leave it out, or name fewer"
        )
    return [_model(other) for other in others]


def _wide(betas: str) -> int:
    """A larger context than the model's usual one, which Anthropic gives to those who ask for it in a header."""
    return _WIDE_CONTEXT if "context" in betas else 0


def _tiers(
    spec: SecretSpec, value: Mapping[str, Any], prices: Sequence[Price], at: datetime
) -> tuple[str, ...]:
    """Service tiers that may be charged for. Raises Forbidden for one whose price is not known."""
    if spec.provider is Provider.GEMINI:
        return ("",)
    tier = value.get("service_tier")
    if tier not in _KNOWN_TIERS:
        raise _no_price("service tier", tier)
    if spec.provider is Provider.ANTHROPIC:
        speed = value.get("speed")
        if speed in (None, "standard"):
            return ("",)
        if speed != _FAST or not all(is_priced(price, _FAST, at) for price in prices):
            raise _no_price("speed", speed)
        return (_FAST, "")
    return ("",) if tier in (None, "default", "flex") else ("", "priority")


def _no_price(kind: str, name: object) -> Forbidden:
    return Forbidden(
        f"the {kind} {str(name)[:64]!r} is not allowed here: its price is not known", "leave it out"
    )

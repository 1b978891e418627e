"""What a model call's request says, before it is made: its model and price, the most that it can cost, and what is
changed in it so that it can be metered. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from corral.errors import Forbidden, InvalidInput
from corral.gateway import body
from corral.gateway.box import Box
from corral.gateway.endpoints import Endpoint, with_model
from corral.gateway.metering import Call
from corral.gateway.pricing import MAX_MODEL, PriceBook, is_free, worst_cost
from corral.model.budget import DEFAULT_MODEL_CALLS, DEFAULT_OUTPUT
from corral.model.grants import ModelRules
from corral.model.ids import TenantId
from corral.model.secrets import Provider
from corral.policy.models import layers, resolve
from corral.wire.bounds import bounds
from corral.wire.gemini_bounds import gemini_bounds
from corral.wire.link import SecretSpec
from corral.wire.usage import Api, usage_option, with_fields

_WIDE_CONTEXT = 1_000_000
_MAX_ALTERNATIVES = 32
_ANY = ModelRules()


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
    if terms.secret.account:
        # This API takes no limit of output; the stream is cut where it passes what was set aside.
        changes.pop("max_output_tokens", None)
    streamed = wanted.streams or value.get("stream") is True
    option = usage_option(value) if streamed and wanted.api is Api.OPENAI_CHAT else {}
    asked = {**asked, **changes, **option}
    if terms.secret.provider is Provider.OPENROUTER and wanted.api is Api.OPENAI_CHAT:
        asked["usage"] = {"include": True}
    if asked:
        data = with_fields(parsed.text, parsed.value, asked).encode()
    call = Call(
        terms.box,
        terms.secret,
        model,
        prices[0],
        wanted.path,
        found,
        max(worst_cost(price, found, _tiers(terms.secret, value), terms.at) for price in prices),
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
    _refuse_presets(terms.secret, model, value)
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
    return value


def _refuse_presets(spec: SecretSpec, model: str, value: Mapping[str, Any]) -> None:
    """What OpenRouter keeps under a name may choose another model, tools and limits than are written here (G-180)."""
    if spec.provider is Provider.OPENROUTER and ("@preset/" in model or value.get("preset") is not None):
        raise Forbidden(
            "presets are kept by the provider, which is not allowed here",
            "name a model, and send what the preset says",
        )


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


def _tiers(spec: SecretSpec, value: Mapping[str, Any]) -> tuple[str, ...]:
    """Service tiers that may be charged for."""
    if spec.provider is Provider.GEMINI:
        return ("",)
    if spec.provider is Provider.ANTHROPIC:
        return ("fast", "") if value.get("speed") is not None else ("",)
    return ("",) if value.get("service_tier") in (None, "default", "flex") else ("", "priority")

"""Which model a call may run. Values in, values out.

Rules come in layers, the sandbox's own first, then its template's, its tenant's, and the host's. A name is first replaced by
each layer's aliases in turn, once each; what then stands is the model that runs, and every layer must allow it.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from corral.errors import Forbidden, InvalidInput
from corral.model.grants import Alias, ModelLayer, ModelRules

MAX_RULES = 64
MAX_UNDER = 8
_PATTERN = re.compile(r"[A-Za-z0-9*._:/@~-]{1,256}")
_WORD = re.compile(r"[a-z]{2,32}")

Newest = Callable[[str, str], str]
"""The newest model of a family in place of a model: `(word, model)`. Raises Forbidden where there is none."""


def checked_rules(rules: ModelRules) -> ModelRules:
    """Themselves, or InvalidInput that names the pattern that is none."""
    if len(rules.allow) > MAX_RULES or len(rules.aliases) > MAX_RULES:
        raise InvalidInput("these are too many rules for models", f"give at most {MAX_RULES} of each kind")
    for text in (*rules.allow, *(alias.asked for alias in rules.aliases)):
        _check(text)
    for alias in rules.aliases:
        _check(alias.sent)
        if "*" in alias.sent:
            raise InvalidInput(f"{alias.sent[:80]!r} is not one model", "name the model that shall be sent")
    return rules


def _check(text: str) -> None:
    if not _PATTERN.fullmatch(text):
        raise InvalidInput(f"{text[:80]!r} is no model", "write a name or a pattern such as claude-haiku-*")


def over(rules: ModelRules, base: ModelRules | None) -> ModelRules:
    """`rules` for what is made from something with the rules `base`, which they can only tighten. Raises InvalidInput."""
    if base is None:
        return rules
    below = (ModelLayer(base.allow, base.aliases), *base.under)
    under = (*rules.under, *(layer for layer in below if layer not in rules.under))
    if len(under) > MAX_UNDER:
        raise InvalidInput(
            "too many templates with rules for models stand on each other", "start from a lower one"
        )
    return replace(rules, under=under)


def parse_alias(text: str) -> Alias:
    """`ASKED=SENT`, as in `opus=haiku` or `gpt-5*=gpt-5-mini`. Raises InvalidInput."""
    asked, equals, sent = text.partition("=")
    if not equals:
        raise InvalidInput(f"{text[:80]!r} is no alias", "write ASKED=SENT, such as opus=haiku")
    return checked_rules(ModelRules(aliases=(Alias(asked.strip(), sent.strip()),))).aliases[0]


@dataclass(frozen=True, slots=True)
class Layer:
    """Rules, and the command that changes them."""

    rules: ModelLayer
    command: str


def layers(box: ModelRules, name: str, tenant: ModelRules, host: ModelRules) -> list[Layer]:
    """All rules for the calls of the sandbox `name`, in order."""
    return [
        Layer(box, f"corral grant set {name} --models PATTERN"),
        *(Layer(rules, "corral template build NAME --models PATTERN") for rules in box.under),
        Layer(tenant, "corral models set PATTERN"),
        Layer(host, "corral config set models.allow PATTERN"),
    ]


def resolve(layers: Sequence[Layer], asked: str, newest: Newest) -> str:
    """The model to send. Raises Forbidden for one that a layer does not allow (G-180)."""
    model = asked
    for layer in layers:
        model = _renamed(layer.rules, model, newest)
    for layer in layers:
        rules = layer.rules
        if not any(_matches(pattern, model) for pattern in rules.allow):
            allowed = ", ".join(rules.allow[:8]) or "none"
            as_asked = "" if model == asked else f" (asked for as {asked[:80]!r})"
            raise Forbidden(
                f"model {model[:80]!r}{as_asked} is not allowed in this sandbox",
                f"use one of: {allowed}; or on the host, allow it: `{layer.command}`",
            )
    return model


def _renamed(rules: ModelLayer, model: str, newest: Newest) -> str:
    for alias in rules.aliases:
        if _matches(alias.asked, model) or (is_family(alias.asked) and alias.asked in segments(model)):
            return newest(alias.sent, model) if is_family(alias.sent) else alias.sent
    return model


def is_family(text: str) -> bool:
    """Whether it is a family's word, such as `haiku`, and no model's name."""
    return _WORD.fullmatch(text) is not None


def segments(model: str) -> list[str]:
    """The parts of a model's name: `claude`, `haiku`, `4`, `5`."""
    return re.split(r"[-./:@_]", model.lower())


def _matches(pattern: str, model: str) -> bool:
    return pattern == "*" or _compiled(pattern).fullmatch(model) is not None


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.IGNORECASE)

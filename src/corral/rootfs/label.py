"""What an exported template keeps of its configuration where images have no place for it: one label, as JSON.

An image with such a label may come from anybody: what is read is checked as what a caller of the API gives, and refused where
it is not whole, since a template without a part of its configuration could be one without its limits or its rules.
"""

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from corral.engine.plan import check_services
from corral.errors import InvalidInput
from corral.model.grants import ModelRules
from corral.model.sandbox import Limits
from corral.model.template import TemplateConfig
from corral.policy.models import MAX_UNDER, checked_rules
from corral.wire.codec import MismatchError, decode, encode

LABEL = "dev.corral.template"
MAX_LABEL = 1 << 20
_KEPT = frozenset(field.name for field in fields(TemplateConfig)) - {"env", "user", "workdir"}
"""Fields of a configuration that an image has no place for."""
_LIMITS = frozenset(field.name for field in fields(Limits))


def write_label(config: TemplateConfig) -> str:
    """The label's text. Raises InvalidInput for what is too large for one."""
    kept = {name: value for name, value in encode(config).items() if name in _KEPT}
    text = json.dumps(kept, sort_keys=True)
    if len(text) > MAX_LABEL:
        raise InvalidInput(
            f"the template's configuration has {len(text)} bytes, more than an image's label holds",
            f"give its services shorter commands and variables, {MAX_LABEL} bytes in all",
        )
    return text


def read_label(labels: Any) -> TemplateConfig | None:
    """What the label says, in a configuration that says nothing else; None without one. Raises InvalidInput for one that
    nothing can be made of."""
    text = labels.get(LABEL) if isinstance(labels, dict) else None
    if text is None:
        return None
    if not isinstance(text, str) or len(text) > MAX_LABEL:
        raise _wrong("it is no text, or too long")
    try:
        return _read(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise _wrong("it is no JSON") from error
    except (MismatchError, InvalidInput) as error:
        raise _wrong(str(error)[:200]) from error


def _read(document: Any) -> TemplateConfig:
    """Raises MismatchError, InvalidInput."""
    if not isinstance(document, dict):
        raise MismatchError("it is no object")
    found = {name: value for name, value in document.items() if name in _KEPT}
    _check_whole(found)
    config = decode(TemplateConfig, {"sudo": False, **found})
    check_services(config.services)
    if any("\0" in word for word in (*config.start_command, *config.ready_command)):
        raise MismatchError("a command holds what is no text")
    if config.ready_seconds is not None and not 1 <= config.ready_seconds <= 3600:
        raise MismatchError("ready_seconds is not from 1 to 3600")
    if config.limits is not None:
        config.limits.checked()
    if config.models is not None:
        _check_models(config.models)
    return config


def _check_whole(found: Mapping[str, Any]) -> None:
    """Raise MismatchError where a bound is left out, which a default would widen."""
    limits, models = found.get("limits"), found.get("models")
    if isinstance(limits, dict) and (missing := _LIMITS - limits.keys()):
        raise MismatchError(f"limits lack {min(missing)}")
    if isinstance(models, dict):
        under = models.get("under")
        for layer in (models, *(under if isinstance(under, list) else ())):
            if isinstance(layer, dict) and "allow" not in layer:
                raise MismatchError("rules for models lack what they allow")


def _check_models(rules: ModelRules) -> None:
    if len(rules.under) > MAX_UNDER:
        raise MismatchError("too many rules for models lie under each other")
    for layer in (rules, *rules.under):
        checked_rules(ModelRules(layer.allow, layer.aliases))


def _wrong(what: str) -> InvalidInput:
    return InvalidInput(
        f"the image's label {LABEL} is not valid: {what}",
        "export the template again, with this version of Corral or an older one; or remove the label",
    )

"""What an exported template keeps of its configuration where images have no place for it: one label, as JSON.

An image with such a label may come from anybody: what is read is checked as what a caller of the API gives, and refused where
it is not whole, since a template without a part of its configuration could be one without its limits or its rules.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from corral.engine.plan import check_services
from corral.engine.ports import KeptConfig
from corral.errors import InvalidInput
from corral.model.grants import Alias, ModelLayer, ModelRules
from corral.model.sandbox import Limits
from corral.model.service import Service
from corral.model.template import TemplateConfig
from corral.policy.models import MAX_UNDER, checked_rules

LABEL = "dev.corral.template"
MAX_LABEL = 1 << 20
_MAX_NUMBER = 1 << 53


def write_label(config: TemplateConfig) -> str:
    """The label's text. Raises InvalidInput for what is too large for one."""
    kept = {
        "sudo": config.sudo,
        "start_command": config.start_command,
        "ready_command": config.ready_command,
        "ready_seconds": config.ready_seconds,
        "services": [asdict(service) for service in config.services],
        "limits": asdict(config.limits) if config.limits is not None else None,
        "models": asdict(config.models) if config.models is not None else None,
    }
    text = json.dumps(kept, sort_keys=True)
    if len(text) > MAX_LABEL:
        raise InvalidInput(
            f"the template's configuration has {len(text)} bytes, more than an image's label holds",
            f"give its services shorter commands and variables, {MAX_LABEL} bytes in all",
        )
    return text


def read_label(labels: Any) -> KeptConfig | None:
    """What the label says; None without one. Raises InvalidInput for one that nothing can be made of."""
    text = labels.get(LABEL) if isinstance(labels, dict) else None
    if text is None:
        return None
    if not isinstance(text, str) or len(text) > MAX_LABEL:
        raise _wrong("it is no text, or too long")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _wrong("it is no JSON") from error
    found = _object(document, "the label")
    services = tuple(_service(one) for one in _items(found.get("services", []), "services"))
    check_services(services)
    seconds, limits, models = (found.get(key) for key in ("ready_seconds", "limits", "models"))
    return KeptConfig(
        bool(found.get("sudo")),
        _words(found.get("start_command", []), "start_command"),
        _words(found.get("ready_command", []), "ready_command"),
        None if seconds is None else _seconds(seconds, "ready_seconds"),
        services,
        None if limits is None else _limits(limits),
        None if models is None else _models(models),
    )


def _service(value: Any) -> Service:
    found = _of(Service, value, "a service")
    env = _object(found.get("env", {}), "env")
    return Service(
        name=_text(found.get("name"), "name"),
        command=_words(found.get("command"), "command"),
        ready=_words(found.get("ready", []), "ready"),
        user=_text(found.get("user", ""), "user"),
        cwd=_text(found.get("cwd", ""), "cwd"),
        env={_text(key, "env"): _text(item, "env") for key, item in env.items()},
        patience=_seconds(found.get("patience", 120.0), "patience"),
        attempt=_seconds(found.get("attempt", 30.0), "attempt"),
    )


def _limits(value: Any) -> Limits:
    found = {key: _number(item, key) for key, item in _of(Limits, value, "limits").items()}
    if missing := {field.name for field in fields(Limits)} - found.keys():
        raise _wrong(f"limits lack {min(missing)}")
    cpus = float(found.pop("cpus"))
    return Limits(cpus=cpus, **{key: int(item) for key, item in found.items()}).checked()


def _models(value: Any) -> ModelRules:
    found = _of(ModelRules, value, "models")
    under = tuple(_layer(_of(ModelLayer, one, "under")) for one in _items(found.get("under", []), "under"))
    if len(under) > MAX_UNDER:
        raise _wrong("too many rules for models lie under each other")
    own = _layer(found)
    return ModelRules(own.allow, own.aliases, under)


def _layer(found: Mapping[str, Any]) -> ModelLayer:
    aliases = [_of(Alias, one, "an alias") for one in _items(found.get("aliases", []), "aliases")]
    rules = ModelRules(
        # Without it all models would be allowed.
        _words(found.get("allow"), "allow"),
        tuple(Alias(_text(one.get("asked"), "asked"), _text(one.get("sent"), "sent")) for one in aliases),
    )
    checked_rules(rules)
    return ModelLayer(rules.allow, rules.aliases)


def _of(cls: type[Service | Limits | ModelLayer | Alias], value: Any, what: str) -> Mapping[str, Any]:
    """An object with fields of `cls` alone: what a newer version has added could be a bound."""
    found = _object(value, what)
    if unknown := found.keys() - {field.name for field in fields(cls)}:
        raise _wrong(f"{what} has the unknown field {min(unknown)[:80]!r}")
    return found


def _object(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(f"{what} is no object")
    return value


def _items(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise _wrong(f"{what} is no list")
    return value


def _words(value: Any, what: str) -> tuple[str, ...]:
    return tuple(_text(word, what) for word in _items(value, what))


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise _wrong(f"{what} holds what is no text")
    return value


def _number(value: Any, what: str) -> float:
    if type(value) not in (int, float) or not 0 <= value <= _MAX_NUMBER:
        raise _wrong(f"{what} is no number of its kind")
    number: float = value
    return number


def _seconds(value: Any, what: str) -> float:
    if not 1 <= (seconds := _number(value, what)) <= 3600:
        raise _wrong(f"{what} is not from 1 to 3600 seconds")
    return float(seconds)


def _wrong(what: str) -> InvalidInput:
    return InvalidInput(
        f"the image's label {LABEL} is not valid: {what}",
        "export the template again, with this version of Corral or an older one; or remove the label",
    )

"""What tells the contents of templates apart, whatever their names are and whenever they were made."""

import hashlib
import json
from typing import Any

from corral.model.template import Template
from corral.wire.codec import encode


def fingerprint(template: Template) -> str:
    """64 hexadecimal digits, the same for templates of the same layers and configuration. What a configuration leaves empty
    does not count: one that was written before there was such a field has the same fingerprint after it."""
    config = {key: _one_form(value) for key, value in encode(template.config).items() if value}
    held = json.dumps([list(template.layers), config], sort_keys=True)
    return hashlib.sha256(held.encode()).hexdigest()


def _one_form(value: Any) -> Any:
    """A JSON value in which equal numbers are written alike."""
    if isinstance(value, dict):
        return {key: _one_form(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_one_form(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value

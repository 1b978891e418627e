"""Fields of requests that two parsers could read differently: some servers take `Model` for `model`, the last of both."""

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

from corral.errors import InvalidInput

JUDGED = frozenset(
    {
        "model", "models", "route", "prompt", "provider", "max_tokens", "max_completion_tokens", "max_output_tokens",
        "n", "best_of", "prediction", "stream", "stream_options", "usage", "store", "background",
        "modalities", "audio", "container", "context_management", "tools", "plugins",
        "web_search_options", "messages", "input", "system", "cache_control", "service_tier", "speed",
        "inference_geo", "max_tool_calls", "reasoning", "moderation",
        "contents", "systemInstruction", "system_instruction", "generationConfig", "generation_config", "cachedContent",
        "cached_content", "serviceTier", "requests",
    }
)  # fmt: skip
"""Fields of a whole request by which it is judged and its cost bounded."""


def plainly_spelled(value: Mapping[str, Any], known: Collection[str]) -> None:
    """Raises InvalidInput where two fields of an object differ in nothing but case, or one is a known one in another case
    (G-181).
    """
    folded = _folded(frozenset(known))
    seen: set[str] = set()
    for name in value:
        plain = name.casefold()
        if plain in seen or folded.get(plain, name) != name:
            raise InvalidInput(
                f"the field {name[:64]!r} can be read as another one",
                "spell fields as the API's documentation does",
            )
        seen.add(plain)


@lru_cache
def _folded(known: frozenset[str]) -> Mapping[str, str]:
    return {name.casefold(): name for name in known}

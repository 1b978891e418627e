"""The most that a call of Gemini's API can use, told from its request (see `bounds`).

Refused is what an answer does not show the cost of, and what refers to what the provider keeps.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from corral.errors import Forbidden, InvalidInput
from corral.wire.bounds import FRAME, MAX_CHOICES, MAX_OUTPUT, PICTURE, SEARCHES, Bounds, number
from corral.wire.fields import plainly_spelled
from corral.wire.gemini import mapping, mappings, pick, spelled
from corral.wire.usage import Api

_FREE_TOOLS = frozenset({"functionDeclarations"})
_SEARCH_TOOLS = frozenset({"googleSearch", "googleSearchRetrieval"})
_LIMITING = frozenset({"maxOutputTokens", "max_output_tokens", "candidateCount", "candidate_count"})
_KEPT = ("cachedContent", "continuationToken", "store")
_ROUTING = ("routingConfig", "modelConfig", "modelSelectionConfig")
_LOWER = re.compile(r"_([a-z])")
_LIMITS: tuple[tuple[tuple[str, ...], int], ...] = (
    (("gemini-1.0", "gemini-pro"), 2_048),
    (("gemini-1.5", "gemini-2.0", "gemini-flash-1.5", "gemma"), 8_192),
)
_LIMIT = 65_536
"""What newer models put out at most; a higher limit is refused by the provider."""
MEDIA = re.compile(r"image|tts|live|veo|banana|omni|audio|lyria|imagen")
"""Names of models that make pictures, speech or videos."""


def gemini_bounds(
    api: Api, request: Mapping[str, Any], size: int, *, model: str, context: int, output: int | None
) -> tuple[Bounds, dict[str, Any]]:
    """As `bounds.bounds`."""
    if MEDIA.search(model):
        raise Forbidden(f"what model {model[:80]!r} makes cannot be metered", "use a model that writes text")
    _check_model(request, model)
    if api is Api.GEMINI_EMBEDDINGS:
        return _embeddings(request, size, model), {}
    found = _survey(request)
    limit, changes = _output(request, model, output)
    tokens = size - found.inline + found.pictures * PICTURE + FRAME * (1 + found.searches)
    if found.documents or found.searches:
        tokens += context
    return Bounds(tokens, limit, found.searches * SEARCHES, caches=False), changes


def _check_model(request: Mapping[str, Any], model: str) -> None:
    """The path names the model; a body that names another one is read in two ways (G-180)."""
    if request.get("model") not in (None, model, f"models/{model}"):
        raise InvalidInput("`model` differs from the model in the path", "leave it out of the body")


def _embeddings(request: Mapping[str, Any], size: int, model: str) -> Bounds:
    requests = request.get("requests")
    for item in mappings(requests) if isinstance(requests, list) else [request]:
        _check_model(item, model)
        for part in _parts(item.get("content")):
            if pick(part, "inlineData") is not None or pick(part, "fileData") is not None:
                raise Forbidden("only text can be embedded here", "send text")
    return Bounds(size + FRAME, 0)


def _output(request: Mapping[str, Any], model: str, default: int | None) -> tuple[int, dict[str, Any]]:
    config = mapping(pick(request, "generationConfig"))
    plainly_spelled(config, _LIMITING)
    most = next((limit for names, limit in _LIMITS if model.startswith(names)), _LIMIT)
    named, several = spelled(config, "maxOutputTokens"), spelled(config, "candidateCount")
    pick(config, "maxOutputTokens"), pick(config, "candidateCount")
    limit = number(config, named, MAX_OUTPUT)
    choices = number(config, several, MAX_CHOICES) or 1
    if limit:
        return limit * choices, {}
    if default is None:
        return 0, {}
    own = min(default, most)
    return own * choices, {spelled(request, "generationConfig"): {**config, named: own}}


@dataclass(slots=True)
class _Survey:
    """What stands in a request beside text. `inline`: bytes of base64."""

    pictures: int = 0
    documents: int = 0
    inline: int = 0
    searches: int = 0


def _survey(request: Mapping[str, Any]) -> _Survey:
    """Look through a request. Raises Forbidden for what an answer does not show the cost of."""
    found = _Survey()
    for name in _KEPT:
        if pick(request, name) not in (None, False):
            raise Forbidden(
                f"`{name}` is what the provider keeps, which is not allowed here", "send the content itself"
            )
    if str(pick(request, "serviceTier") or "standard").lower().rpartition("_")[2] not in ("standard", "flex"):
        raise Forbidden("this service tier is not allowed here", "leave `serviceTier` out")
    _survey_config(mapping(pick(request, "generationConfig")))
    for tool in mappings(request.get("tools")):
        _survey_tool(tool, found)
    for place in ("contents", "systemInstruction"):
        for part in _parts(pick(request, place)):
            _survey_part(part, found)
    return found


def _survey_config(config: Mapping[str, Any]) -> None:
    for name in _ROUTING:
        if pick(config, name) is not None:
            raise Forbidden(
                f"`{name}` lets another model run than the one that was checked and priced, so it is not allowed here",
                "leave it out, and name the model in the path",
            )
    modalities = pick(config, "responseModalities")
    wanted = {str(item).upper() for item in modalities} if isinstance(modalities, list) else set()
    if wanted - {"TEXT", "MODALITY_UNSPECIFIED"} or pick(config, "speechConfig") is not None:
        raise Forbidden("pictures and speech that a model makes cannot be metered", "ask for text")


def _survey_tool(tool: Mapping[str, Any], found: _Survey) -> None:
    for name, value in tool.items():
        camel = _LOWER.sub(lambda match: match[1].upper(), name)
        if value is None or camel in _FREE_TOOLS:
            continue
        if camel not in _SEARCH_TOOLS:
            raise Forbidden(
                f"the provider's tool {name[:64]!r} is not allowed here: what it costs is not in the answer",
                "leave it out of `tools`, and use a tool inside the sandbox",
            )
        found.searches += 1


def _survey_part(part: Mapping[str, Any], found: _Survey) -> None:
    if pick(part, "fileData") is not None:
        raise Forbidden("`fileData` is what the provider keeps, which is not allowed here", "send it inline")
    inline = pick(part, "inlineData")
    if isinstance(inline, Mapping):
        kind = str(pick(inline, "mimeType") or "").lower()
        data = inline.get("data")
        size = len(data) if isinstance(data, str) else 0
        if kind.startswith("image/"):
            found.pictures += 1
            found.inline += size
        elif kind.startswith("text/") or kind == "application/pdf":
            found.documents += 1
            found.inline += size
        else:
            raise Forbidden(f"content of type {kind[:64]!r} cannot be metered", "send text or pictures")
    response = pick(part, "functionResponse")
    nested = response.get("parts") if isinstance(response, Mapping) else None
    for item in mappings(nested):
        _survey_part(item, found)


def _parts(contents: object) -> Iterator[Mapping[str, Any]]:
    """The parts of one content or several."""
    for content in mappings(contents if isinstance(contents, list) else [contents]):
        parts = content.get("parts")
        yield from mappings(parts if isinstance(parts, list) else [parts])

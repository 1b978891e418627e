"""The most that a model call can use, told from its request before it is made.

Text: no tokenizer in use makes more tokens of a text than it has UTF-8 bytes, and JSON only lengthens a text, so the
size of the request bounds all that stands in it. What a request merely points to has a ceiling of its own: a picture
has one per picture; a document, a file or a search brings at most what fits into the model's context. Pictures and
documents that stand in the request as base64 count by these ceilings in place of their bytes, where the API takes
them as such. Output is bounded by the limit in the request; where there is none, one is written into it.

What an API may charge for without saying so in its answer is refused (`Forbidden`): audio, pictures made, code run and
files searched at the provider, tools of other servers, and whatever refers to what the provider keeps.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from corral.errors import Forbidden, InvalidInput
from corral.wire.tools import check_plugins, tools_in
from corral.wire.unmetered import refuse_unmetered
from corral.wire.usage import Api

MAX_OUTPUT = 10_000_000
"""Tokens that a request may allow, over all of its answers."""
MAX_CHOICES = 128
PICTURE = 16_384
"""Tokens that one picture is at most: more than any published formula gives, but for models of DENSE_PICTURES."""
DENSE_PICTURE = 65_536
DENSE_PICTURES = "4o-mini"
FRAME = 4_096
"""Tokens that an API adds of its own, as for the use of tools; and again for each tool that it describes itself."""
SEARCHES = 10
"""Searches that are set aside for a request which does not say how many it allows."""
_MAX_SEARCHES = 1_000
_MAX_DEPTH = 8
_SEARCHING = re.compile(r":online|-search-(preview|api)")
"""Models that search the web whether they are told to or not."""

_PICTURES = frozenset({"image", "image_url", "input_image"})
_DOCUMENTS = frozenset({"document", "file", "input_file", "container_upload"})
_AUDIO = frozenset({"input_audio", "audio", "output_audio"})
_UNSAID = "what it costs is not in the answer"


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most tokens of a call. `caches`: input may be charged as written to a cache, `for_an_hour` to one that lasts.
    `documents`: those that a provider may have another service read.
    """

    input: int
    output: int
    searches: int = 0
    caches: bool = False
    for_an_hour: bool = False
    documents: int = 0


@dataclass(slots=True)
class _Survey:
    """What stands in a request that is not text."""

    pictures: int = 0
    documents: int = 0
    inline: int = 0
    described: int = 0
    searches: int = 0
    caches: bool = False
    for_an_hour: bool = False


def bounds(
    api: Api, request: Mapping[str, Any], size: int, *, model: str, context: int, output: int | None
) -> tuple[Bounds, dict[str, Any]]:
    """The bounds of a request of `size` bytes, and the fields to write into it so that they hold (G-211, G-212).

    `context` is the model's, in tokens; `output` the limit for a request without one, None where none is needed since
    nothing costs anything. Raises InvalidInput for a limit that is none, Forbidden for what cannot be metered.
    """
    survey = _Survey()
    refuse_unmetered(request)
    _refuse_container(api, request)
    _survey_tools(request.get("tools"), survey)
    _survey_caches(request, survey)
    for block in _blocks(request):
        _survey_block(block, survey)
    plugins = check_plugins(request.get("plugins"))
    if (
        plugins.searches
        or request.get("web_search_options") is not None
        or _SEARCHING.search(model) is not None
    ):
        survey.searches += SEARCHES
    limit, changes = _output(api, request, model, output)
    if api is Api.OPENAI_RESPONSES and survey.searches:
        # No tool of this API says how often it may be used, but a request does.
        most = number(request, "max_tool_calls", _MAX_SEARCHES)
        survey.searches = SEARCHES if most is None else most
        if most is None:
            changes["max_tool_calls"] = SEARCHES
    picture = DENSE_PICTURE if DENSE_PICTURES in model else PICTURE
    tokens = size - survey.inline + survey.pictures * picture + FRAME * (1 + survey.described)
    if survey.documents or survey.searches:
        tokens += context
    found = Bounds(
        tokens,
        limit,
        survey.searches,
        survey.caches or api is not Api.ANTHROPIC_MESSAGES,
        survey.for_an_hour,
        0 if plugins.reads_free else survey.documents,
    )
    return found, changes


def _refuse_container(api: Api, request: Mapping[str, Any]) -> None:
    if api is Api.ANTHROPIC_MESSAGES and request.get("container") is not None:
        raise Forbidden(f"`container` is not allowed here: {_UNSAID}", "run code in the sandbox")


def _survey_tools(value: object, survey: _Survey) -> None:
    for tool in tools_in(value):
        survey.described += tool.described
        if tool.searches:
            survey.searches += number(tool.fields, "max_uses", _MAX_SEARCHES) or SEARCHES


def _survey_caches(value: object, survey: _Survey) -> None:
    """Whether anything is asked to be cached, wherever it stands."""
    waiting: list[object] = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, list):
            waiting.extend(part for part in item if isinstance(part, dict | list))
        elif isinstance(item, dict):
            waiting.extend(part for part in item.values() if isinstance(part, dict | list))
            control = item.get("cache_control")
            if control is not None:
                survey.caches = True
                survey.for_an_hour |= not isinstance(control, dict) or control.get("ttl", "5m") != "5m"


def _blocks(request: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Content in the places where the APIs take pictures and documents as such; elsewhere they are text."""
    for place in ("messages", "input", "system"):
        for item in _dicts(request.get(place)):
            yield from _nested(item, _MAX_DEPTH)


def _nested(block: Mapping[str, Any], depth: int) -> Iterator[Mapping[str, Any]]:
    yield block
    if depth:
        for place in ("content", "output"):
            for item in _dicts(block.get(place)):
                yield from _nested(item, depth - 1)


def _survey_block(block: Mapping[str, Any], survey: _Survey) -> None:
    if "tools" in block:
        # They may come with the conversation, too.
        _survey_tools(block["tools"], survey)
    added = block.get("tool")
    if isinstance(added, dict) and "definition" in added:
        _survey_tools([added["definition"]], survey)
    kind = block.get("type")
    if not isinstance(kind, str):
        kind = ""
    if kind in _AUDIO or block.get("audio") is not None:
        raise Forbidden("audio cannot be metered", "send text")
    if kind in _PICTURES:
        _refuse_kept(block)
        survey.pictures += 1
        survey.inline += _inline(block)
    elif kind in _DOCUMENTS:
        _refuse_kept(block)
        survey.documents += 1
        survey.inline += _inline(block)
    elif kind == "item_reference":
        raise Forbidden(
            "an item reference means what the provider keeps, which is not allowed here", "send the item"
        )
    elif kind == "compaction_trigger":
        raise Forbidden(
            "a `compaction_trigger` is not allowed here: what it uses has no bound",
            "sum up the conversation in a call of its own",
        )


def _refuse_kept(block: Mapping[str, Any]) -> None:
    """Files that the provider keeps are those of everybody with its key."""
    for held in (block, block.get("source"), block.get("file"), block.get("image_url")):
        if isinstance(held, Mapping) and held.get("file_id") is not None:
            raise Forbidden(
                "`file_id` refers to what the provider keeps, which is not allowed here",
                "send the file itself",
            )


def _inline(block: Mapping[str, Any]) -> int:
    """Bytes of base64 in a picture or document; at most what they are in the request."""
    source = block.get("source")
    if isinstance(source, Mapping):
        return _text_size(source.get("data")) if source.get("type") == "base64" else 0
    held = block.get("image_url", block.get("file", block))
    if isinstance(held, str):
        return _data_url(held)
    if not isinstance(held, Mapping):
        return 0
    return _data_url(held.get("url")) + _data_url(held.get("file_data"))


def _data_url(value: object) -> int:
    return _text_size(value) if isinstance(value, str) and value.startswith("data:") else 0


def _text_size(value: object) -> int:
    return len(value) if isinstance(value, str) else 0


def _output(
    api: Api, request: Mapping[str, Any], model: str, default: int | None
) -> tuple[int, dict[str, Any]]:
    """The most tokens of output, and what is to be written into the request so that it is."""
    match api:
        case Api.OPENAI_EMBEDDINGS | Api.GEMINI_EMBEDDINGS | Api.GEMINI:
            return 0, {}
        case Api.ANTHROPIC_MESSAGES:
            limit = number(request, "max_tokens", MAX_OUTPUT)
            if limit is None and default is not None:
                raise InvalidInput("max_tokens: field required", "set `max_tokens`")
            return limit or 0, {}
        case Api.OPENAI_RESPONSES:
            changes: dict[str, Any] = {"store": False} if request.get("store") is None else {}
            limit = number(request, "max_output_tokens", MAX_OUTPUT)
            if limit is None and default is not None:
                limit = changes["max_output_tokens"] = min(default, known_limit(model))
            return limit or 0, changes
        case Api.OPENAI_CHAT:
            return _chat_output(request, model, default)


def _chat_output(request: Mapping[str, Any], model: str, default: int | None) -> tuple[int, dict[str, Any]]:
    given = [number(request, name, MAX_OUTPUT) for name in ("max_completion_tokens", "max_tokens")]
    limit = max((one for one in given if one is not None), default=None)
    choices = max(number(request, name, MAX_CHOICES) or 1 for name in ("n", "best_of"))
    changes: dict[str, Any] = {}
    if limit is None and default is not None:
        limit = changes[_limit_field(model)] = min(default, known_limit(model))
    limit = limit or 0
    if request.get("prediction") is not None:
        # What was predicted and did not come is charged as output.
        limit += _size(request["prediction"])
    return limit * choices, changes


def _limit_field(model: str) -> str:
    """OpenAI's newer models refuse `max_tokens`; nobody else is sure to know the other name."""
    name = model.rpartition("/")[2].removeprefix("ft:")
    known = name.startswith(("gpt-", "chatgpt-", "codex-", "o1", "o3", "o4"))
    return "max_completion_tokens" if known and not name.startswith("gpt-oss") else "max_tokens"


def known_limit(model: str) -> int:
    """What a model puts out at most, for those that refuse a higher limit. All others take MAX_OUTPUT."""
    name = model.rpartition("/")[2].removeprefix("ft:")
    for prefixes, limit in _LIMITS:
        if name.startswith(prefixes):
            return limit
    return MAX_OUTPUT


_LIMITS: tuple[tuple[tuple[str, ...], int], ...] = (
    (("gpt-3.5", "gpt-4-", "gpt-4o-2024-05-13"), 4_096),
    (
        ("gpt-4o", "gpt-4.5", "chatgpt-4o", "gpt-5-chat", "gpt-5.1-chat", "gpt-5.2-chat", "gpt-5.3-chat"),
        16_384,
    ),
    (("gpt-4.1",), 32_768),
    (("gpt-4",), 4_096),
)


def number(request: Mapping[str, Any], name: str, most: int) -> int | None:
    """The number from 0 to `most` in a field, None where it is not there. Raises InvalidInput for anything else."""
    value = request.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise InvalidInput(f"`{name}` is not a number from 0 to {most}", f"correct `{name}`")
    return value


def _size(value: object) -> int:
    """Characters of all texts in a value, an upper bound of their bytes in UTF-8 taken."""
    if isinstance(value, str):
        return len(value) * 4
    if isinstance(value, Mapping):
        return sum(_size(item) for item in value.values())
    return sum(_size(item) for item in value) if isinstance(value, list) else 0


def _dicts(value: object) -> Iterator[Mapping[str, Any]]:
    return (item for item in value if isinstance(item, dict)) if isinstance(value, list) else iter(())

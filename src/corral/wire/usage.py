"""What a model call used, read from its response as it streams by.

The forms differ in where the counts stand and in what they include (an Anthropic input count leaves out what
came from a cache, an OpenAI one does not); `Counts` is the one form behind them. `UsageMeter` takes a
response's bytes in pieces of any size and can be asked at any moment what is known so far: a stream that
breaks is charged by that.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Any, assert_never

from corral.errors import TooLarge
from corral.wire import gemini
from corral.wire.crowding import crowded
from corral.wire.sse import Blocks, Decoder, Event

MAX_JSON = 64 * 1024 * 1024
"""Bytes of a response that is not streamed; a longer one is metered by its size."""

_LARGE = 128 * 1024
"""Bytes from which on it is looked whether a text can be parsed without holding up everybody (G-340)."""
_PARSED = 2 * 1024 * 1024
"""Bytes of an answer up to which all of it is parsed. Larger ones are embeddings, hardly anything of which is read."""
_MAX_PART = 64 * 1024
_MAX_MADE = 10_000
_SEARCHED = "web_search_call"
_DECODER = json.JSONDecoder()
_MAX_COUNT = 10**12
_ANYWHERE = (None, "", "global", "not_available")
"""Values of Anthropic's `inference_geo` for a call that was not held to a region."""
_DELTA_FRAME = 110
"""Bytes of a text delta's event that are not text; measured over the three APIs, on the low side."""


class Api(StrEnum):
    """A form of request and response."""

    ANTHROPIC_MESSAGES = "anthropic-messages"
    OPENAI_CHAT = "openai-chat"
    OPENAI_RESPONSES = "openai-responses"
    OPENAI_EMBEDDINGS = "openai-embeddings"
    GEMINI = "gemini"
    GEMINI_EMBEDDINGS = "gemini-embeddings"


_MESSAGE = ("model", "usage", "service_tier")
_READ: Mapping[Api, tuple[str, ...]] = {
    **dict.fromkeys(Api, _MESSAGE),
    Api.OPENAI_EMBEDDINGS: ("model", "usage"),
    Api.GEMINI_EMBEDDINGS: ("usageMetadata",),
}
"""Fields of a whole answer by which it is metered."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Tokens by kind, none of them in two kinds. `cache_write_1h` is the part of `cache_write` kept for an
    hour.
    """

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    cache_write_1h: int = 0
    web_searches: int = 0


@dataclass(frozen=True, slots=True)
class Reading:
    """What a response said so far.

    `complete`: the final counts were seen. `streamed` counts bytes of generated text, for an estimate where
    they were not. `cost` in US dollars where the provider states it. `tier` is the service tier that it
    charged; `regional`: it held the call to one region.
    """

    model: str = ""
    counts: Counts = field(default_factory=Counts)
    complete: bool = False
    started: bool = False
    streamed: int = 0
    tier: str = ""
    cost: Decimal | None = None
    regional: bool = False


class UsageMeter:
    """Reads the usage of one response. Never raises for what a provider sends: what cannot be read is not
    counted.
    """

    def __init__(self, api: Api, streamed: bool, exact_after: int | None = None) -> None:
        """Once more than `exact_after` bytes of events have come, the text in them is counted exactly, in `text`."""
        self.api = api
        self.text = 0
        self._exact_after = exact_after
        self._decoder = Decoder() if streamed else None
        # Gemini streams an array of answers to those who do not ask for events.
        self._objects = gemini.Objects(MAX_JSON) if api is Api.GEMINI and not streamed else None
        self._body = bytearray()
        self._lost = False
        self.reading = Reading()

    def feed(self, data: bytes) -> None:
        """Take the next piece of the response's body."""
        if self._lost:
            self._add_streamed(len(data))
        elif self._decoder is not None:
            self._feed_events(self._decoder, data)
        elif self._objects is not None:
            self._feed_objects(self._objects, data)
        elif len(self._body) + len(data) > MAX_JSON:
            self._lose(len(self._body) + len(data))
        else:
            self._body += data

    def finish(self) -> Reading:
        """What is known, the response having ended or been cut."""
        if self._decoder is not None and not self._lost:
            for event in self._decoder.finish():
                self._take(event)
        elif self._body:
            self._take_json(self._body)
        return self.reading

    def _feed_events(self, decoder: Decoder, data: bytes) -> None:
        try:
            events = decoder.feed(data)
        except TooLarge:
            self._lose(len(data))
            return
        for event in events:
            self._take(event)

    def _feed_objects(self, objects: gemini.Objects, data: bytes) -> None:
        try:
            found = objects.feed(data)
        except TooLarge:
            self._lose(len(data))
            return
        for item in found:
            self._take_gemini(item, len(item))

    def _take_gemini(self, data: str | bytes, size: int) -> None:
        """One answer, or the next piece of one: each holds the counts so far, and the last one's hold (G-195)."""
        if len(data) > _PARSED:
            self._add_streamed(size)
            return
        value = _object(data)
        if value is None:
            return
        if isinstance(model := value.get("modelVersion"), str) and model:
            self.reading = replace(self.reading, model=model[:256])
        self._add_streamed(max(1, size - _DELTA_FRAME))
        if self._exact_after is not None and self.reading.streamed > self._exact_after:
            self.text += gemini.text_size(value)
        searches = max(self.reading.counts.web_searches, gemini.searches(value))
        metadata = value.get("usageMetadata")
        if isinstance(metadata, dict):
            said = gemini.usage(metadata)
            counts = Counts(said.input, said.output, said.cache_read, web_searches=searches)
            candidates = list(gemini.mappings(value.get("candidates")))
            ended = bool(candidates) and all(item.get("finishReason") for item in candidates)
            complete = ended or self.reading.complete or bool(value.get("promptFeedback"))
            self.reading = replace(self.reading, counts=counts, complete=complete, started=True)

    def _lose(self, size: int) -> None:
        """Go on by size alone: the response is too large to be read."""
        self._lost = True
        self._body.clear()
        self._add_streamed(size)

    def _add_streamed(self, size: int) -> None:
        self.reading = replace(self.reading, streamed=self.reading.streamed + size, started=True)

    def _take_json(self, body: bytearray) -> None:
        value = _object(body) if len(body) <= _PARSED else _parts(body, self.api)
        if value is None:
            self._add_streamed(len(body))
            return
        self.reading = replace(self.reading, started=True)
        if self.api is Api.GEMINI_EMBEDDINGS:
            metadata = gemini.mapping(value.get("usageMetadata"))
            if said := gemini.usage(metadata).input:
                self.reading = replace(self.reading, counts=Counts(input=said), complete=True)
        self._take_message(value, final=True)
        self._take_searches(value)
        if not self.reading.complete:
            self._add_streamed(len(body))

    def _take_message(self, value: Mapping[str, Any], final: bool) -> None:
        """Take a whole answer, or the object in a stream that has its fields."""
        if isinstance(model := value.get("model"), str) and model:
            self.reading = replace(self.reading, model=model[:256])
        usage = value.get("usage")
        if isinstance(usage, dict):
            self._take_usage(usage, final)
        if isinstance(tier := value.get("service_tier"), str):
            self.reading = replace(self.reading, tier=tier[:32])

    def _take_usage(self, usage: Mapping[str, Any], final: bool) -> None:
        read = _anthropic if self.api is Api.ANTHROPIC_MESSAGES else _openai
        counts = read(usage, self.reading.counts)
        reading = replace(self.reading, counts=counts, complete=self.reading.complete or final, started=True)
        if isinstance(tier := usage.get("service_tier"), str):
            reading = replace(reading, tier=tier[:32])
        if usage.get("speed") == "fast":
            reading = replace(reading, tier="fast")
        if self.api is Api.ANTHROPIC_MESSAGES and usage.get("inference_geo") not in _ANYWHERE:
            reading = replace(reading, regional=True)
        if (cost := _dollars(usage.get("cost"))) is not None:
            reading = replace(reading, cost=cost + _own_key_cost(usage))
        self.reading = reading

    def _take(self, event: Event) -> None:
        match self.api:
            case Api.ANTHROPIC_MESSAGES:
                self._take_anthropic(event)
            case Api.OPENAI_CHAT:
                self._take_chat(event)
            case Api.OPENAI_RESPONSES:
                self._take_responses(event)
            case Api.GEMINI:
                self._take_gemini(event.data, len(event.data))
            case Api.OPENAI_EMBEDDINGS | Api.GEMINI_EMBEDDINGS:
                self._add_streamed(len(event.data))
            case _:
                assert_never(self.api)

    def _take_anthropic(self, event: Event) -> None:
        kind = event.event
        if kind == "content_block_delta":
            self._add_text(event)
        if kind not in ("message_start", "message_delta", "message"):
            return
        value = _object(event.data)
        if value is None:
            return
        # Some servers leave the event's name out; its type stands in the data, too.
        if kind == "message" and value.get("type") == "content_block_delta":
            self._add_text(event)
        elif value.get("type") == "message_start" and isinstance(message := value.get("message"), dict):
            self._take_message(message, final=False)
        elif value.get("type") == "message_delta":
            self._take_message(value, final=True)

    def _take_chat(self, event: Event) -> None:
        if event.data == "[DONE]":
            return
        # A chunk says `"usage":null` unless it is the last; a quote inside of a text is escaped.
        if self.reading.model and ('"usage"' not in event.data or '"usage":null' in event.data):
            self._add_text(event)
            return
        value = _object(event.data)
        if value is None:
            return
        self._take_message(value, final=isinstance(value.get("usage"), dict))
        if value.get("choices"):
            self._add_text(event)

    def _take_responses(self, event: Event) -> None:
        kind = event.event
        if kind.endswith(".delta"):
            self._add_text(event)
            return
        if kind not in (
            "response.created",
            "response.completed",
            "response.incomplete",
            "response.failed",
            "message",
        ):
            return
        value = _object(event.data)
        if value is None or not isinstance(response := value.get("response"), dict):
            return
        self._take_message(response, final=value.get("type") != "response.created")
        self._take_searches(response)

    def _take_searches(self, response: Mapping[str, Any]) -> None:
        """Searches that OpenAI made, which it charges for each and counts nowhere."""
        output = response.get("output")
        if self.api is Api.OPENAI_RESPONSES and isinstance(output, list):
            made = sum(isinstance(item, dict) and item.get("type") == _SEARCHED for item in output)
            counts = replace(self.reading.counts, web_searches=max(self.reading.counts.web_searches, made))
            self.reading = replace(self.reading, counts=counts)

    def _add_text(self, event: Event) -> None:
        self._add_streamed(max(1, len(event.data) - _DELTA_FRAME))
        if self._exact_after is not None and self.reading.streamed > self._exact_after:
            self.text += _generated(_object(event.data) or {})


def _generated(value: Mapping[str, Any]) -> int:
    """UTF-8 bytes of text in a delta of any of the APIs."""
    choices = value.get("choices")
    deltas = (
        [item.get("delta") for item in choices if isinstance(item, dict)] if isinstance(choices, list) else []
    )
    return sum(_texts(delta) for delta in [*deltas, value.get("delta")])


def _texts(value: object) -> int:
    if isinstance(value, str):
        return len(value.encode("utf-8", "replace"))
    if isinstance(value, dict):
        # A signature stands for text that was counted or is hidden; its type and index are not generated.
        return sum(
            _texts(item) for name, item in value.items() if name not in ("type", "signature", "id", "role")
        )
    return sum(map(_texts, value)) if isinstance(value, list) else 0


def _parts(body: bytearray, api: Api) -> Mapping[str, Any]:
    """Of a large answer what is read of it, found where it stands: a quote inside of a text is escaped, so a name in quotes is
    one. All of it is not parsed, since Python's parser lets nobody else run meanwhile (G-340).
    """
    found: dict[str, Any] = {}
    for name in _READ[api]:
        at = body.rfind(b'"%s"' % name.encode())
        if at < 0:
            continue
        text = body[at : at + _MAX_PART].decode("utf-8", "replace")
        try:
            found[name], _ = _DECODER.raw_decode(text.partition(":")[2].lstrip())
        except (ValueError, RecursionError):
            continue
    if api is Api.OPENAI_RESPONSES:
        found["output"] = [{"type": _SEARCHED}] * min(body.count(b'"%s"' % _SEARCHED.encode()), _MAX_MADE)
    return found


def _object(text: str | bytes | bytearray) -> Mapping[str, Any] | None:
    if len(text) > _LARGE and crowded(text):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _count(usage: object, *path: str) -> int | None:
    """The non-negative number at a path, or None."""
    value: object = usage
    for key in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_COUNT:
        return None
    return value


def _dollars(value: object) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        amount = Decimal(str(value))
    except InvalidOperation:
        return None
    return amount if amount.is_finite() and 0 <= amount < _MAX_COUNT else None


def _own_key_cost(usage: Mapping[str, Any]) -> Decimal:
    """What OpenRouter's upstream charges beside it, where a key of one's own for that is used."""
    details = usage.get("cost_details")
    if usage.get("is_byok") is not True or not isinstance(details, dict):
        return Decimal(0)
    return _dollars(details.get("upstream_inference_cost")) or Decimal(0)


def _anthropic(usage: Mapping[str, Any], known: Counts) -> Counts:
    """Counts of `usage` over those known: a stream's last message repeats some and raises the others (G-192).

    Where the answer took several samplings, they are listed, and the counts beside that list leave some of them out; none is
    more than what all of them have together.
    """
    listed = usage.get("iterations")
    steps = [step for step in listed if isinstance(step, dict)] if isinstance(listed, list) else []

    def larger(before: int, *path: str) -> int:
        return max(before, _count(usage, *path) or 0, sum(_count(step, *path) or 0 for step in steps))

    hour = larger(known.cache_write_1h, "cache_creation", "ephemeral_1h_input_tokens")
    return Counts(
        input=larger(known.input, "input_tokens"),
        output=larger(known.output, "output_tokens"),
        cache_read=larger(known.cache_read, "cache_read_input_tokens"),
        cache_write=max(larger(known.cache_write, "cache_creation_input_tokens"), hour),
        cache_write_1h=hour,
        web_searches=larger(known.web_searches, "server_tool_use", "web_search_requests"),
    )


def _openai(usage: Mapping[str, Any], known: Counts) -> Counts:
    """Counts of Chat, Responses and Embeddings: what was read from a cache is a part of the input (G-196)."""
    total = _count(usage, "prompt_tokens") or _count(usage, "input_tokens") or 0
    output = _count(usage, "completion_tokens") or _count(usage, "output_tokens") or 0
    cached = 0
    written = 0
    for details in ("prompt_tokens_details", "input_tokens_details"):
        cached = max(cached, _count(usage, details, "cached_tokens") or 0)
        written = max(written, _count(usage, details, "cache_write_tokens") or 0)
    cached = min(cached, total)
    written = min(written, total - cached)
    return replace(
        known, input=total - cached - written, output=output, cache_read=cached, cache_write=written
    )


def usage_option(request: Mapping[str, Any]) -> dict[str, Any]:
    """The field that makes a streamed chat request ask for usage; empty if it does by itself (G-193)."""
    options = request.get("stream_options")
    if not isinstance(options, dict):
        return {"stream_options": {"include_usage": True}}
    return (
        {} if options.get("include_usage") is True else {"stream_options": {**options, "include_usage": True}}
    )


def with_fields(body: str, request: Mapping[str, Any], changes: Mapping[str, Any]) -> str:
    """A request with some fields set. `request` is `body` parsed.

    Where that is possible the text is kept and only added to, so that nothing else of it is read differently later.
    """
    if not changes:
        return body
    if any(name in request for name in changes):
        return json.dumps({**request, **changes}, ensure_ascii=False, separators=(",", ":"))
    start = body.index("{") + 1
    added = json.dumps(changes, ensure_ascii=False, separators=(",", ":"))[1:-1]
    return f"{body[:start]}{added}{',' if request else ''}{body[start:]}"


class UsageChunkFilter:
    """Takes the usage chunk out of a chat stream for a client that did not ask for it; all else passes as it
    came.

    Bytes are held back until their event is complete, and no longer.
    """

    def __init__(self) -> None:
        self._blocks = Blocks()
        self._passing = False

    def feed(self, data: bytes) -> bytes:
        """The bytes to send on now."""
        if self._passing:
            return data
        try:
            blocks = self._blocks.feed(data)
        except TooLarge:
            self._passing = True
            return self._blocks.rest()
        return b"".join(block for block in blocks if not _is_usage_chunk(block))

    def finish(self) -> bytes:
        """The bytes of an event that was not completed."""
        return self._blocks.rest()


def _is_usage_chunk(block: bytes) -> bool:
    if b'"usage"' not in block or b'"choices"' not in block:
        return False
    events = Decoder().feed(block)
    value = _object(events[0].data) if events else None
    return value is not None and value.get("choices") == [] and isinstance(value.get("usage"), dict)

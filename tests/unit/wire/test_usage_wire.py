"""Usage from the responses of the three APIs, streamed and not."""

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.wire.usage import Api, Counts, Reading, UsageChunkFilter, UsageMeter, usage_option, with_fields


def event(name: str, data: Any) -> bytes:
    return (f"event: {name}\n" if name else "").encode() + b"data: " + json.dumps(data).encode() + b"\n\n"


ANTHROPIC_USAGE = {
    "input_tokens": 10,
    "cache_creation_input_tokens": 50,
    "cache_read_input_tokens": 30,
    "cache_creation": {"ephemeral_5m_input_tokens": 20, "ephemeral_1h_input_tokens": 30},
    "output_tokens": 1,
    "service_tier": "standard",
}
ANTHROPIC_STREAM = (
    event(
        "message_start", {"type": "message_start", "message": {"model": "claude-x", "usage": ANTHROPIC_USAGE}}
    )
    + event("ping", {"type": "ping"})
    + event("content_block_delta", {"type": "content_block_delta", "delta": {"text": "hello " * 40}})
    + event("message_delta", {"type": "message_delta", "usage": {"output_tokens": 77, "input_tokens": 10}})
    + event("message_stop", {"type": "message_stop"})
)
ANTHROPIC_COUNTS = Counts(input=10, output=77, cache_read=30, cache_write=50, cache_write_1h=30)
CHAT_USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 20,
    "prompt_tokens_details": {"cached_tokens": 60},
    "completion_tokens_details": {"reasoning_tokens": 5},
}
CHAT_CHUNK = {"model": "gpt-x", "choices": [{"delta": {"content": "hi"}}], "usage": None}
CHAT_LAST = {"model": "gpt-x", "choices": [], "usage": CHAT_USAGE}
CHAT_STREAM = event("", CHAT_CHUNK) * 3 + event("", CHAT_LAST) + b"data: [DONE]\n\n"
CHAT_COUNTS = Counts(input=40, output=20, cache_read=60)
RESPONSE = {
    "model": "gpt-y",
    "service_tier": "default",
    "usage": {"input_tokens": 9, "output_tokens": 4, "input_tokens_details": {"cached_tokens": 2}},
}


def responses_stream(end: str) -> bytes:
    return (
        event("response.created", {"type": "response.created", "response": {"model": "gpt-y", "usage": None}})
        + event("response.output_text.delta", {"type": "response.output_text.delta", "delta": "hi"})
        + event(end, {"type": end, "response": RESPONSE})
    )


def read(api: Api, data: bytes, *, streamed: bool = True, cuts: tuple[int, ...] = ()) -> Reading:
    meter = UsageMeter(api, streamed)
    for cut in cuts:
        meter.feed(data[:cut])
        data = data[cut:]
    meter.feed(data)
    return meter.finish()


@given(st.lists(st.integers(0, 60), max_size=30))
def test_anthropic_stream(cuts: list[int]) -> None:
    """G-192, G-196, G-198, G-199."""
    reading = read(Api.ANTHROPIC_MESSAGES, ANTHROPIC_STREAM, cuts=tuple(cuts))
    assert (reading.model, reading.counts, reading.complete) == ("claude-x", ANTHROPIC_COUNTS, True)
    assert reading.tier == "standard"


def test_anthropic_stream_without_event_names() -> None:
    data = b"\n".join(line for line in ANTHROPIC_STREAM.split(b"\n") if not line.startswith(b"event:"))
    reading = read(Api.ANTHROPIC_MESSAGES, data)
    assert (reading.counts, reading.complete) == (ANTHROPIC_COUNTS, True)
    assert reading.streamed > 0


def test_anthropic_json() -> None:
    """G-191."""
    body = json.dumps({"model": "claude-x", "usage": {**ANTHROPIC_USAGE, "output_tokens": 77}}).encode()
    reading = read(Api.ANTHROPIC_MESSAGES, body, streamed=False, cuts=(5, 20))
    assert (reading.counts, reading.complete) == (ANTHROPIC_COUNTS, True)


def test_anthropic_web_searches() -> None:
    usage = {"input_tokens": 1, "output_tokens": 1, "server_tool_use": {"web_search_requests": 3}}
    reading = read(Api.ANTHROPIC_MESSAGES, json.dumps({"usage": usage}).encode(), streamed=False)
    assert reading.counts.web_searches == 3


ITERATIONS = [
    {"type": "compaction", "input_tokens": 180_000, "output_tokens": 3_500, "cache_read_input_tokens": 5},
    {"type": "message", "input_tokens": 23_000, "output_tokens": 1_000,
     "cache_creation_input_tokens": 7, "cache_creation": {"ephemeral_1h_input_tokens": 7}},
    "odd", {"type": "message", "input_tokens": "many"},
]  # fmt: skip


@pytest.mark.parametrize(
    ("geo", "regional"), [("us", True), ("global", False), ("not_available", False), (None, False)]
)
def test_where_a_call_was_held_is_read(geo: object, regional: bool) -> None:
    """G-204."""
    usage = {"input_tokens": 5, "output_tokens": 7, "inference_geo": geo}
    data = json.dumps({"model": "m", "usage": usage}).encode()
    assert read(Api.ANTHROPIC_MESSAGES, data, streamed=False).regional is regional
    stream = event("message_start", {"type": "message_start", "message": {"model": "m", "usage": usage}})
    assert read(Api.ANTHROPIC_MESSAGES, stream).regional is regional


def test_samplings_that_the_counts_leave_out_are_counted_and_none_twice() -> None:
    """G-191, G-192."""
    usage = {"input_tokens": 23_000, "output_tokens": 1_000, "iterations": ITERATIONS}
    expected = Counts(203_000, 4_500, 5, 7, 7)
    body = json.dumps({"model": "m", "usage": usage}).encode()
    assert read(Api.ANTHROPIC_MESSAGES, body, streamed=False).counts == expected
    start = {
        "type": "message_start",
        "message": {"model": "m", "usage": {**usage, "iterations": ITERATIONS[:1]}},
    }
    stream = (
        event("message_start", start) + event("message_delta", {"type": "message_delta", "usage": usage}) * 2
    )
    assert read(Api.ANTHROPIC_MESSAGES, stream).counts == expected
    one = {
        "input_tokens": 10,
        "output_tokens": 2,
        "iterations": [{"type": "message", "input_tokens": 10, "output_tokens": 2}],
    }
    body = json.dumps({"model": "m", "usage": one}).encode()
    assert read(Api.ANTHROPIC_MESSAGES, body, streamed=False).counts == Counts(10, 2)


def test_a_cut_anthropic_stream_keeps_what_was_seen() -> None:
    """G-201."""
    cut = ANTHROPIC_STREAM.index(b"event: message_delta")
    reading = read(Api.ANTHROPIC_MESSAGES, ANTHROPIC_STREAM[:cut])
    assert not reading.complete
    assert reading.counts.input == 10
    assert reading.streamed > 100


@given(st.lists(st.integers(0, 60), max_size=30))
def test_chat_stream(cuts: list[int]) -> None:
    """G-193, G-196."""
    reading = read(Api.OPENAI_CHAT, CHAT_STREAM, cuts=tuple(cuts))
    assert (reading.model, reading.counts, reading.complete) == ("gpt-x", CHAT_COUNTS, True)


def test_chat_json_and_stated_cost() -> None:
    """G-191, G-197."""
    body = json.dumps({"model": "m", "usage": {**CHAT_USAGE, "cost": 0.00015}}).encode()
    reading = read(Api.OPENAI_CHAT, body, streamed=False)
    assert (reading.counts, reading.cost) == (CHAT_COUNTS, Decimal("0.00015"))


@pytest.mark.parametrize("end", ["response.completed", "response.incomplete", "response.failed"])
def test_responses_stream(end: str) -> None:
    """G-194."""
    reading = read(Api.OPENAI_RESPONSES, responses_stream(end))
    assert (reading.model, reading.complete, reading.tier) == ("gpt-y", True, "default")
    assert reading.counts == Counts(input=7, output=4, cache_read=2)


def test_responses_json() -> None:
    """G-191."""
    reading = read(Api.OPENAI_RESPONSES, json.dumps(RESPONSE).encode(), streamed=False)
    assert reading.counts == Counts(input=7, output=4, cache_read=2)


def test_of_a_large_answer_only_what_counts_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """G-198, G-340: wherever in it that stands, and however it is written."""
    numbers = "0.012345678901," * 400_000
    usage = '"usage" :\n {"prompt_tokens": 7, "total_tokens": 7}, "model": "m"'
    parsed: list[object] = []
    monkeypatch.setattr(json, "loads", parsed.append)
    for text in (f'{{"data": [{numbers}1], {usage}}}', f'{{{usage}, "data": [{numbers}1]}}'):
        reading = read(Api.OPENAI_EMBEDDINGS, text.encode(), streamed=False)
        assert (reading.counts, reading.model, reading.complete) == (Counts(input=7), "m", True)
    gemini_text = f'{{"embeddings": [{numbers}1], "usageMetadata": {{"promptTokenCount": 9}}}}'
    assert read(Api.GEMINI_EMBEDDINGS, gemini_text.encode(), streamed=False).counts == Counts(input=9)
    said = json.dumps({"text": '"usage": {"input_tokens": 1}' * 100_000})
    calls = '{"type": "web_search_call"}, {"type": "web_search_call"}'
    text = f'{{"usage": {{"input_tokens": 5, "output_tokens": 6}}, "output": [{calls}, {said}]}}'
    assert read(Api.OPENAI_RESPONSES, text.encode(), streamed=False).counts == Counts(5, 6, web_searches=2)
    for noise in (b'{"data": 1' + b" " * 3_000_000, b'"usage"' * 500_000, b'{"usage":' * 400_000):
        assert not read(Api.OPENAI_CHAT, noise, streamed=False).complete
    assert parsed == []


def test_a_large_piece_of_geminis_is_text_that_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """G-202, G-340."""
    monkeypatch.setattr(json, "loads", lambda _: pytest.fail("it is parsed"))
    text = f'{{"candidates": [{{"content": {{"parts": [{{"text": "{"x" * 3_000_000}"}}]}}}}]}}'.encode()
    for data, streamed in ((text, False), (b"data: " + text + b"\n\n", True)):
        reading = read(Api.GEMINI, data, streamed=streamed)
        assert reading.streamed >= 3_000_000
        assert not reading.complete


def test_a_response_without_usage_is_not_complete() -> None:
    """G-202."""
    reading = read(Api.OPENAI_CHAT, b'{"choices":[]}', streamed=False)
    assert not reading.complete
    assert reading.streamed > 0


@pytest.mark.parametrize("bad", [-1, 1.5, True, "7", None, 10**13, [], {}])
def test_counts_that_are_none_are_not_believed(bad: object) -> None:
    usage = {"prompt_tokens": bad, "completion_tokens": bad, "prompt_tokens_details": {"cached_tokens": bad}}
    reading = read(Api.OPENAI_CHAT, json.dumps({"usage": usage}).encode(), streamed=False)
    assert reading.counts == Counts()


@given(st.sampled_from(list(Api)), st.booleans(), st.lists(st.binary(max_size=80), max_size=20))
def test_noise_never_raises(api: Api, streamed: bool, parts: list[bytes]) -> None:
    meter = UsageMeter(api, streamed)
    for part in parts:
        meter.feed(b"data: " + part + b"\n\n" if streamed else part)
    assert meter.finish().counts.input >= 0


@pytest.mark.parametrize(
    ("body", "added"),
    [
        ('{"stream":true,"model":"m"}', True),
        ('{"stream":true,"stream_options":null}', True),
        ('{"stream":true,"stream_options":{"include_usage":false,"x":1}}', True),
        ('{"stream":true,"stream_options":{"include_usage":true}}', False),
        (" {}", True),
    ],
)
def test_usage_is_asked_for(body: str, added: bool) -> None:
    """G-193."""
    option = usage_option(json.loads(body))
    text = with_fields(body, json.loads(body), option)
    assert bool(option) is added
    assert json.loads(text)["stream_options"]["include_usage"] is True
    if added:
        changed, original = json.loads(text), json.loads(body)
        extra = changed.pop("stream_options")
        options = original.pop("stream_options", None) or {}
        assert changed == original
        assert {**options, "include_usage": True} == extra
    else:
        assert text == body


@given(st.lists(st.integers(0, 60), max_size=30))
def test_the_usage_chunk_is_taken_out(cuts: list[int]) -> None:
    """G-193."""
    data, found, keep = CHAT_STREAM, b"", UsageChunkFilter()
    for cut in cuts:
        found += keep.feed(data[:cut])
        data = data[cut:]
    found += keep.feed(data) + keep.finish()
    assert found == event("", CHAT_CHUNK) * 3 + b"data: [DONE]\n\n"


def test_other_events_pass_at_once() -> None:
    """G-99."""
    keep = UsageChunkFilter()
    assert keep.feed(event("", CHAT_CHUNK)) == event("", CHAT_CHUNK)
    assert keep.feed(b": beat\n\n") == b": beat\n\n"
    assert keep.feed(b"data: un") == b""
    assert keep.finish() == b"data: un"


def test_text_is_counted_exactly_once_there_is_reason_to() -> None:
    """G-214."""
    delta = event(
        "content_block_delta",
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "é" * 100}},
    )
    chunk = event("", {"model": "m", "choices": [{"delta": {"content": "x" * 100, "role": "assistant"}}]})
    item = event("response.output_text.delta", {"type": "response.output_text.delta", "delta": "y" * 100})
    for api, data, size in (
        (Api.ANTHROPIC_MESSAGES, delta, 200), (Api.OPENAI_CHAT, chunk, 100), (Api.OPENAI_RESPONSES, item, 100),
    ):  # fmt: skip
        meter, never = UsageMeter(api, streamed=True, exact_after=0), UsageMeter(api, streamed=True)
        for _ in range(5):
            meter.feed(data)
            never.feed(data)
        assert (meter.text, never.text) == (5 * size, 0)


def test_searches_of_the_responses_api_are_counted() -> None:
    output = [{"type": "web_search_call"}, {"type": "message"}, {"type": "web_search_call"}]
    response = {"model": "m", "usage": {"input_tokens": 1, "output_tokens": 2}, "output": output}
    meter = UsageMeter(Api.OPENAI_RESPONSES, streamed=False)
    meter.feed(json.dumps(response).encode())
    assert meter.finish().counts.web_searches == 2
    meter = UsageMeter(Api.OPENAI_RESPONSES, streamed=True)
    meter.feed(event("response.completed", {"type": "response.completed", "response": response}))
    assert meter.finish().counts.web_searches == 2


def test_an_answer_of_too_many_values_is_not_parsed() -> None:
    """G-340: it is metered by its size."""
    body = b'{"model":"m","usage":{"prompt_tokens":1,"completion_tokens":1},"x":[' + b"[]," * 600_000 + b"0]}"
    reading = read(Api.OPENAI_CHAT, body, streamed=False)
    assert not reading.complete
    assert reading.streamed == len(body)

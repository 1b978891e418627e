"""What the three APIs read and write: conversations, order of events, whole bodies, usage."""

import itertools
import json
from collections.abc import Mapping
from typing import Any

import pytest

from corral.model.usage import Tokens
from corral.testing.agent_brain import Conversation, Reply, Tool, ToolKind
from corral.testing.dialect_anthropic import AnthropicMessages
from corral.testing.dialect_chat import OpenAIChat
from corral.testing.dialect_responses import OpenAIResponses
from corral.testing.model_dialects import Call, Dialect, Event

DIALECTS: list[Dialect] = [AnthropicMessages(), OpenAIResponses(), OpenAIChat()]
TOKENS = Tokens(input=10, output=7, cache_read=90, cache_write=0)
COMMAND = json.dumps({"command": "python3 -m unittest && git add -A && git commit -m 'Make add() add'"})
SAID = "Now the tests, to see what fails in this repository."


def call(
    tool: Tool | None = None, arguments: str = "", *, text: str = SAID, usage_wanted: bool = True
) -> Call:
    conversation = Conversation("some-model", 400, usage_wanted=usage_wanted)
    return Call("000001", 1_700_000_000, conversation, Reply(text, tool, arguments, 3), TOKENS)


def names(events: list[Event]) -> list[str]:
    """The names of events, repeated ones once."""
    return [name for name, _ in itertools.groupby(event.name for event in events)]


def datas(events: list[Event]) -> list[dict[str, Any]]:
    return [event.data for event in events if event.data is not None]


def test_anthropic_stream_has_the_blocks_in_order_and_the_usage_at_both_ends() -> None:
    events = list(AnthropicMessages().events(call(Tool("Bash"), COMMAND)))
    assert names(events) == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    data = datas(events)
    assert all(event.name == event.data["type"] for event in events if event.data is not None)
    assert data[0]["message"]["usage"]["cache_read_input_tokens"] == 90
    assert data[0]["message"]["usage"]["output_tokens"] == 1
    assert data[-2]["usage"]["output_tokens"] == 7
    assert data[-2]["delta"]["stop_reason"] == "tool_use"
    deltas = [d["delta"] for d in data if d["type"] == "content_block_delta"]
    assert "".join(d.get("text", "") for d in deltas) == SAID
    assert "".join(d.get("partial_json", "") for d in deltas) == COMMAND
    assert [d["index"] for d in data if "index" in d] == sorted(d["index"] for d in data if "index" in d)


def test_responses_stream_numbers_its_events_and_ends_with_the_whole_response() -> None:
    events = list(OpenAIResponses().events(call(Tool("exec_command"), COMMAND)))
    assert names(events) == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    data = datas(events)
    assert [d["sequence_number"] for d in data] == list(range(len(data)))
    assert data[0]["response"]["usage"] is None
    whole = data[-1]["response"]
    assert whole["usage"]["input_tokens"] == 100
    assert whole["usage"]["input_tokens_details"]["cached_tokens"] == 90
    assert whole["usage"]["total_tokens"] == 107
    assert whole["output"] == [d["item"] for d in data if d["type"] == "response.output_item.done"]
    assert whole["output"][1]["arguments"] == COMMAND


def test_responses_calls_a_custom_tool_in_its_namespace() -> None:
    tool = Tool("exec", kind=ToolKind.CUSTOM, namespace="functions")
    events = list(OpenAIResponses().events(call(tool, "text(1);", text="")))
    assert names(events)[2:5] == [
        "response.output_item.added",
        "response.custom_tool_call_input.delta",
        "response.custom_tool_call_input.done",
    ]
    (item,) = datas(events)[-1]["response"]["output"]
    assert (item["type"], item["input"], item["namespace"]) == ("custom_tool_call", "text(1);", "functions")


@pytest.mark.parametrize("wanted", [True, False])
def test_chat_stream_gives_usage_last_and_only_where_it_was_asked_for(wanted: bool) -> None:
    events = list(OpenAIChat().events(call(Tool("bash"), COMMAND, usage_wanted=wanted)))
    assert events[-1].encode() == b"data: [DONE]\n\n"
    data = datas(events)
    choices = [d["choices"][0] for d in data if d["choices"]]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert choices[-1]["finish_reason"] == "tool_calls"
    assert all(choice["finish_reason"] is None for choice in choices[:-1])
    calls = [c["delta"]["tool_calls"][0] for c in choices if "tool_calls" in c["delta"]]
    assert calls[0]["id"]
    assert all("id" not in c for c in calls[1:])
    assert "".join(c["function"]["arguments"] for c in calls) == COMMAND
    if wanted:
        assert (data[-1]["choices"], data[-1]["usage"]["total_tokens"]) == ([], 107)
        assert all(d["usage"] is None for d in data[:-1])
    else:
        assert all("usage" not in d and d["choices"] for d in data)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.name)
def test_a_last_text_ends_the_turn(dialect: Dialect) -> None:
    body = json.dumps(dialect.body(call()))
    assert SAID in body
    assert any(word in body for word in ('"end_turn"', '"completed"', '"stop"'))
    assert "tool_use" not in body
    assert "function" not in body


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.name)
def test_events_are_one_line_of_json_each(dialect: Dialect) -> None:
    for event in dialect.events(call(Tool("bash"), json.dumps({"command": "a\n\r\u2028b"}), text="x\n\ny")):
        *head, data = event.encode().decode().removesuffix("\n\n").split("\n")
        assert head == ([f"event: {event.name}"] if event.name else [])
        assert data.startswith("data: ")
        assert "\r" not in data


ANTHROPIC_BODY = {
    "model": "m",
    "max_tokens": 100,
    "stream": True,
    "tools": [
        {"name": "Bash", "input_schema": {"type": "object"}},
        {"type": "web_search_20250305", "name": "web"},
    ],
    "messages": [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "Bash", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "x"}]},
    ],
}
RESPONSES_BODY = {
    "model": "m",
    "stream": True,
    "input": [
        {
            "type": "additional_tools",
            "tools": [{"type": "namespace", "name": "f", "tools": [{"type": "custom", "name": "Bash"}]}],
        },
        {"type": "message", "role": "user", "content": "go"},
        {"type": "custom_tool_call_output", "call_id": "a", "output": "x"},
        {"type": "custom_tool_call_output", "call_id": "a", "output": "y"},
    ],
}
CHAT_BODY = {
    "model": "m",
    "stream": True,
    "tools": [{"type": "function", "function": {"name": "Bash", "parameters": {}}}],
    "messages": [{"role": "user", "content": "go"}, {"role": "tool", "tool_call_id": "a", "content": "x"}],
}
BODIES: list[Mapping[str, Any]] = [ANTHROPIC_BODY, RESPONSES_BODY, CHAT_BODY]


@pytest.mark.parametrize(
    ("dialect", "body"), list(zip(DIALECTS, BODIES, strict=True)), ids=lambda v: getattr(v, "name", "")
)
def test_requests_are_read_into_the_same_conversation(dialect: Dialect, body: Mapping[str, Any]) -> None:
    conversation = dialect.read(body, 400)
    assert (conversation.model, conversation.size, conversation.stream) == ("m", 400, True)
    assert [tool.name for tool in conversation.tools] == ["Bash"]
    assert conversation.results == 1


def test_namespaces_of_tools_are_kept() -> None:
    (tool,) = OpenAIResponses().read(RESPONSES_BODY, 1).tools
    assert (tool.kind, tool.namespace) == (ToolKind.CUSTOM, "f")


SCHEMA = {"type": "object"}


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        (
            DIALECTS[0],
            {**ANTHROPIC_BODY, "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        ),
        (DIALECTS[1], {**RESPONSES_BODY, "text": {"format": {"type": "json_schema", "schema": SCHEMA}}}),
        (
            DIALECTS[2],
            {**CHAT_BODY, "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
        ),
    ],
    ids=["anthropic", "responses", "chat"],
)
def test_a_wanted_form_of_answer_is_read(dialect: Dialect, body: Mapping[str, Any]) -> None:
    assert dialect.read(body, 1).answer_schema == SCHEMA


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.name)
@pytest.mark.parametrize(
    "body", [[], {}, {"model": "m"}, {"model": "m", "messages": [], "input": 5}, "x", None]
)
def test_what_is_no_request_is_refused_in_the_declared_way(dialect: Dialect, body: Any) -> None:
    with pytest.raises((ValueError, KeyError, TypeError, AttributeError)):
        dialect.read(body, 1)

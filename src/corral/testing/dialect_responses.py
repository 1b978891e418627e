"""OpenAI Responses."""

from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

from corral.testing.agent_brain import Conversation, Tool, ToolKind
from corral.testing.model_dialects import Call, Event, Json, objects, pieces
from corral.testing.openai_errors import openai_error

_RESULTS = ("function_call_output", "custom_tool_call_output", "local_shell_call_output")


class OpenAIResponses:
    """`POST /v1/responses`."""

    name = "openai-responses"
    cache_writes = False

    def read(self, body: Mapping[str, Any], size: int) -> Conversation:
        """See Dialect."""
        if not isinstance(body["input"], str | list):
            raise ValueError("input: a text or a list of items is required")
        items = objects(body["input"])
        output = body.get("text", {}).get("format") or {}
        return Conversation(
            model=str(body["model"]),
            size=size,
            tools=tuple(_tools([*objects(body.get("tools")), *items])),
            results=len({item.get("call_id") for item in items if item.get("type") in _RESULTS}),
            stream=body.get("stream") is True,
            answer_schema=output.get("schema") if output.get("type") == "json_schema" else None,
            max_tokens=int(body.get("max_output_tokens") or 0),
        )

    def events(self, call: Call) -> Iterator[Event]:
        """See Dialect."""
        numbers = count()

        def event(name: str, **fields: Any) -> Event:
            return Event(name, {"type": name, "sequence_number": next(numbers), **fields})

        begun = self._response(call, "in_progress", [], None)
        yield event("response.created", response=begun)
        yield event("response.in_progress", response=begun)
        for index, item in enumerate(_items(call)):
            for name, fields in _item_events(index, item):
                yield event(name, output_index=index, **fields)
        yield event("response.completed", response=self.body(call))

    def body(self, call: Call) -> Json:
        """See Dialect."""
        return self._response(call, "completed", _items(call), _usage(call))

    def error(self, status: int, message: str) -> Json:
        """See Dialect."""
        return openai_error(status, message)

    @staticmethod
    def _response(call: Call, status: str, output: list[Json], usage: Json | None) -> Json:
        return {
            "id": f"resp_{call.id}",
            "object": "response",
            "created_at": call.created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "model": call.conversation.model,
            "output": output,
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "store": False,
            "temperature": 1.0,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "usage": usage,
        }


def _tools(items: list[Mapping[str, Any]], namespace: str = "") -> Iterator[Tool]:
    """The tools in a list of tools or of input items: Codex offers some of its in an item of the input."""
    for item in items:
        match item.get("type"):
            case "function":
                yield Tool(str(item["name"]), item.get("parameters") or {}, namespace=namespace)
            case "custom":
                yield Tool(str(item["name"]), kind=ToolKind.CUSTOM, namespace=namespace)
            case "additional_tools":
                yield from _tools(objects(item.get("tools")))
            case "namespace":
                yield from _tools(objects(item.get("tools")), str(item.get("name", "")))


def _items(call: Call) -> list[Json]:
    reply = call.reply
    items: list[Json] = []
    if reply.text:
        part = {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}
        head = {"id": f"msg_{call.tool_call_id}", "type": "message", "status": "completed"}
        items.append({**head, "role": "assistant", "content": [part]})
    if reply.tool is not None:
        items.append(_tool_item(call, reply.tool))
    return items


def _tool_item(call: Call, tool: Tool) -> Json:
    custom = tool.kind is ToolKind.CUSTOM
    item = {
        "id": f"{'ctc' if custom else 'fc'}_{call.tool_call_id}",
        "type": "custom_tool_call" if custom else "function_call",
        "status": "completed",
        "call_id": f"call_{call.tool_call_id}",
        "name": tool.name,
        "input" if custom else "arguments": call.reply.arguments,
    }
    return {**item, "namespace": tool.namespace} if tool.namespace else item


def _item_events(index: int, item: Json) -> Iterator[tuple[str, Json]]:
    """Names and fields of the events of one output item; the caller adds what all events have."""
    if item["type"] == "message":
        yield "response.output_item.added", {"item": {**item, "status": "in_progress", "content": []}}
        yield from _text_events(item)
    else:
        key = "input" if item["type"] == "custom_tool_call" else "arguments"
        stem = "custom_tool_call_input" if key == "input" else "function_call_arguments"
        yield "response.output_item.added", {"item": {**item, "status": "in_progress", key: ""}}
        for piece in pieces(item[key]):
            yield f"response.{stem}.delta", {"item_id": item["id"], "delta": piece}
        yield f"response.{stem}.done", {"item_id": item["id"], key: item[key]}
    yield "response.output_item.done", {"item": item}


def _text_events(item: Json) -> Iterator[tuple[str, Json]]:
    part = item["content"][0]
    place = {"item_id": item["id"], "content_index": 0}
    yield "response.content_part.added", {**place, "part": {**part, "text": ""}}
    for piece in pieces(part["text"]):
        yield "response.output_text.delta", {**place, "delta": piece, "logprobs": []}
    yield "response.output_text.done", {**place, "text": part["text"], "logprobs": []}
    yield "response.content_part.done", {**place, "part": part}


def _usage(call: Call) -> Json:
    tokens = call.tokens
    prompt = tokens.input + tokens.cache_read
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": tokens.cache_read},
        "output_tokens": tokens.output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + tokens.output,
    }

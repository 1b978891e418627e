"""Anthropic Messages."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from corral.testing.agent_brain import Conversation, Tool
from corral.testing.model_dialects import Call, Event, Json, objects, pieces

_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


class AnthropicMessages:
    """`POST /v1/messages`."""

    name = "anthropic-messages"
    cache_writes = True

    def read(self, body: Mapping[str, Any], size: int) -> Conversation:
        """See Dialect."""
        messages = body["messages"]
        if not isinstance(messages, list) or not messages:
            raise ValueError("messages: at least one message is required")
        blocks = [block for message in objects(messages) for block in objects(message.get("content"))]
        output = body.get("output_config", {}).get("format") or body.get("output_format") or {}
        return Conversation(
            model=str(body["model"]),
            size=size,
            # Server-side tools have a type and no schema; the model does not call them here.
            tools=tuple(
                Tool(str(t["name"]), t["input_schema"])
                for t in objects(body.get("tools"))
                if "input_schema" in t
            ),
            results=len({block.get("tool_use_id") for block in blocks if block.get("type") == "tool_result"}),
            stream=body.get("stream") is True,
            answer_schema=output.get("schema") if output.get("type") == "json_schema" else None,
            max_tokens=int(body["max_tokens"]),
        )

    def events(self, call: Call) -> Iterator[Event]:
        """See Dialect."""
        message = self._message(call, content=[], stop_reason=None, usage=_usage(call, output=1))
        yield _event("message_start", message=message)
        for index, block in enumerate(_content(call)):
            yield from _block_events(index, block)
            if index == 0:
                yield _event("ping")
        yield _event(
            "message_delta",
            delta={"stop_reason": _stop_reason(call), "stop_sequence": None},
            usage=_usage(call, output=call.tokens.output),
        )
        yield _event("message_stop")

    def body(self, call: Call) -> Json:
        """See Dialect."""
        usage = _usage(call, output=call.tokens.output)
        return self._message(call, content=_content(call), stop_reason=_stop_reason(call), usage=usage)

    def error(self, status: int, message: str) -> Json:
        """See Dialect."""
        return {"type": "error", "error": {"type": _ERROR_TYPES.get(status, "api_error"), "message": message}}

    @staticmethod
    def _message(call: Call, content: list[Json], stop_reason: str | None, usage: Json) -> Json:
        return {
            "id": f"msg_{call.id}",
            "type": "message",
            "role": "assistant",
            "model": call.conversation.model,
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": None,
            "usage": usage,
        }


def _event(name: str, **fields: Any) -> Event:
    return Event(name, {"type": name, **fields})


def _content(call: Call) -> list[Json]:
    content: list[Json] = [{"type": "text", "text": call.reply.text}] if call.reply.text else []
    if call.reply.tool is not None:
        use = {"type": "tool_use", "id": f"toolu_{call.tool_call_id}", "name": call.reply.tool.name}
        content.append({**use, "input": json.loads(call.reply.arguments)})
    return content


def _block_events(index: int, block: Json) -> Iterator[Event]:
    if block["type"] == "text":
        start, kind, key, text = {**block, "text": ""}, "text_delta", "text", block["text"]
    else:
        start, kind, key, text = (
            {**block, "input": {}},
            "input_json_delta",
            "partial_json",
            json.dumps(block["input"]),
        )
    yield _event("content_block_start", index=index, content_block=start)
    for piece in pieces(text):
        yield _event("content_block_delta", index=index, delta={"type": kind, key: piece})
    yield _event("content_block_stop", index=index)


def _stop_reason(call: Call) -> str:
    return "end_turn" if call.reply.tool is None else "tool_use"


def _usage(call: Call, output: int) -> Json:
    tokens = call.tokens
    return {
        "input_tokens": tokens.input,
        "cache_creation_input_tokens": tokens.cache_write,
        "cache_read_input_tokens": tokens.cache_read,
        "cache_creation": {
            "ephemeral_5m_input_tokens": tokens.cache_write,
            "ephemeral_1h_input_tokens": 0,
        },
        "output_tokens": output,
        "service_tier": "standard",
    }

"""OpenAI Chat Completions."""

from collections.abc import Iterator, Mapping
from typing import Any

from corral.testing.agent_brain import Conversation, Tool
from corral.testing.model_dialects import Call, Event, Json, objects, pieces
from corral.testing.openai_errors import openai_error


class OpenAIChat:
    """`POST /v1/chat/completions`."""

    name = "openai-chat"
    cache_writes = False

    def read(self, body: Mapping[str, Any], size: int) -> Conversation:
        """See Dialect."""
        messages = body["messages"]
        if not isinstance(messages, list) or not messages:
            raise ValueError("messages: at least one message is required")
        functions = [t["function"] for t in objects(body.get("tools")) if t.get("type") == "function"]
        output = body.get("response_format") or {}
        return Conversation(
            model=str(body["model"]),
            size=size,
            tools=tuple(Tool(str(f["name"]), f.get("parameters") or {}) for f in functions),
            results=len({m.get("tool_call_id") for m in objects(messages) if m.get("role") == "tool"}),
            stream=body.get("stream") is True,
            usage_wanted=(body.get("stream_options") or {}).get("include_usage") is True,
            answer_schema=output["json_schema"].get("schema")
            if output.get("type") == "json_schema"
            else None,
            max_tokens=int(body.get("max_completion_tokens") or body.get("max_tokens") or 0),
        )

    def events(self, call: Call) -> Iterator[Event]:
        """See Dialect."""
        yield _chunk(call, {"role": "assistant", "content": ""})
        for piece in pieces(call.reply.text):
            yield _chunk(call, {"content": piece})
        if call.reply.tool is not None:
            yield _chunk(call, {"tool_calls": [{"index": 0, **_tool_call(call, call.reply.tool, "")}]})
            for piece in pieces(call.reply.arguments):
                yield _chunk(call, {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})
        yield _chunk(call, {}, finish_reason=_finish_reason(call))
        if call.conversation.usage_wanted:
            yield Event("", {**_head(call, "chat.completion.chunk"), "choices": [], "usage": _usage(call)})
        yield Event("", None)

    def body(self, call: Call) -> Json:
        """See Dialect."""
        message: Json = {"role": "assistant", "content": call.reply.text or None, "refusal": None}
        if call.reply.tool is not None:
            message["tool_calls"] = [_tool_call(call, call.reply.tool, call.reply.arguments)]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish_reason(call)}
        return {**_head(call, "chat.completion"), "choices": [choice], "usage": _usage(call)}

    def error(self, status: int, message: str) -> Json:
        """See Dialect."""
        return openai_error(status, message)


def _head(call: Call, kind: str) -> Json:
    return {
        "id": f"chatcmpl-{call.id}",
        "object": kind,
        "created": call.created,
        "model": call.conversation.model,
        "service_tier": "default",
        "system_fingerprint": "fp_scripted",
    }


def _chunk(call: Call, delta: Json, finish_reason: str | None = None) -> Event:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    chunk = {**_head(call, "chat.completion.chunk"), "choices": [choice]}
    # Every chunk but the last says so where usage was asked for: a reader that trusts the key alone is wrong.
    return Event("", {**chunk, "usage": None} if call.conversation.usage_wanted else chunk)


def _tool_call(call: Call, tool: Tool, arguments: str) -> Json:
    function = {"name": tool.name, "arguments": arguments}
    return {"id": f"call_{call.tool_call_id}", "type": "function", "function": function}


def _finish_reason(call: Call) -> str:
    return "stop" if call.reply.tool is None else "tool_calls"


def _usage(call: Call) -> Json:
    tokens = call.tokens
    prompt = tokens.input + tokens.cache_read
    return {
        "prompt_tokens": prompt,
        "completion_tokens": tokens.output,
        "total_tokens": prompt + tokens.output,
        "prompt_tokens_details": {"cached_tokens": tokens.cache_read, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    }

"""The decisions of a scripted model: pure functions of the conversation so far.

A model API is stateless: each request carries the whole conversation. So the next step follows from the number of
tool results in it, and one script serves any number of agents at once, survives restarts, and a request repeated
after an error gets the same answer.

Agents also make requests that are none of the conversation's: titles, topic detection, quota probes, structured
answers. They offer no shell, or ask for one token, or for JSON; each gets a harmless answer.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from corral.model.usage import Tokens
from corral.testing.agent_script import Script

SIDE_ANSWER = "Make the tests pass"
_BYTES_PER_TOKEN = 4
_MAX_SCHEMA_DEPTH = 8


class ToolKind(StrEnum):
    """How a tool takes its input: JSON arguments, or one free text."""

    FUNCTION = "function"
    CUSTOM = "custom"


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that the agent offers. `schema` is the JSON schema of its arguments; empty for a custom tool.

    `namespace` is the group it was offered in, where the API has groups.
    """

    name: str
    schema: Mapping[str, Any] = field(default_factory=dict)
    kind: ToolKind = ToolKind.FUNCTION
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class Conversation:
    """One request, whatever the API. `results` counts the tool results in it, `size` the bytes of its body.

    `answer_schema` is set where the request wants JSON of that schema; `max_tokens` is 0 where none is given.
    """

    model: str
    size: int
    tools: tuple[Tool, ...] = ()
    results: int = 0
    stream: bool = False
    usage_wanted: bool = True
    answer_schema: Mapping[str, Any] | None = None
    max_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model says and, with `tool`, calls. `arguments` is JSON text, or the free text of a custom tool."""

    text: str
    tool: Tool | None = None
    arguments: str = ""
    number: int = 0
    side: bool = False


def decide(script: Script, conversation: Conversation) -> Reply:
    """The model's next turn."""
    if conversation.answer_schema is not None:
        return Reply(json.dumps(sample(conversation.answer_schema)), side=True)
    shell = find_shell(conversation.tools)
    if shell is None or conversation.max_tokens == 1:
        return Reply(SIDE_ANSWER, side=True)
    if conversation.results >= len(script.steps):
        return Reply(script.final, number=conversation.results)
    step = script.steps[conversation.results]
    return Reply(step.say, shell, shell_arguments(shell, step.run, step.say), conversation.results)


# Names of the shell tool by agent: Claude Code; OpenCode and Pi; Codex in its several forms.
_SHELL_NAMES = ("Bash", "bash", "exec_command", "shell_command", "shell", "container.exec", "exec")


def find_shell(tools: tuple[Tool, ...]) -> Tool | None:
    """The offered tool that runs shell commands, by its name and the shape of its arguments."""
    by_name = {tool.name: tool for tool in tools}
    for name in _SHELL_NAMES:
        tool = by_name.get(name)
        if tool is not None and (tool.kind is ToolKind.CUSTOM or _command_key(tool) is not None):
            return tool
    return None


def _command_key(tool: Tool) -> str | None:
    properties = _properties(tool.schema)
    return next((key for key in ("command", "cmd") if key in properties), None)


def shell_arguments(tool: Tool, command: str, purpose: str) -> str:
    """The input that makes `tool` run `command`: JSON for a function, a program for the custom tool `exec`."""
    key = _command_key(tool)
    if tool.kind is ToolKind.CUSTOM or key is None:
        return _CODE_MODE.replace("COMMAND", json.dumps(command))
    properties = _properties(tool.schema)
    wants_list = properties[key].get("type") == "array"
    arguments: dict[str, Any] = {key: ["bash", "-lc", command] if wants_list else command}
    if "yield_time_ms" in properties:
        arguments["yield_time_ms"] = 30_000
    for name in tool.schema.get("required", ()):
        if name not in arguments:
            arguments[name] = purpose if name == "description" else sample(properties.get(name, {}))
    return json.dumps(arguments)


# Codex's code mode takes JavaScript. A command that runs long is asked for until it ends, within one step.
_CODE_MODE = """\
// @exec: {"yield_time_ms": 600000}
let result = await tools.exec_command({cmd: COMMAND, yield_time_ms: 30000});
text(result.output);
while (result.session_id !== undefined && result.exit_code === undefined) {
  result = await tools.write_stdin({session_id: result.session_id, yield_time_ms: 30000});
  text(result.output);
}
"""


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = schema.get("properties")
    return properties if isinstance(properties, Mapping) else {}


def sample(schema: Mapping[str, Any], depth: int = 0) -> Any:
    """A small value of a JSON schema; null where it goes deeper than eight levels."""
    if depth > _MAX_SCHEMA_DEPTH:
        return None
    for key in ("anyOf", "oneOf"):
        if schema.get(key):
            return _sample_of_any(schema[key], depth + 1)
    if schema.get("enum"):
        return schema["enum"][0]
    if "const" in schema:
        return schema["const"]
    kind = schema.get("type")
    if isinstance(kind, list):
        return _sample_of_any([{**schema, "type": one} for one in kind], depth + 1)
    match kind:
        case "object":
            inner = _properties(schema)
            return {name: sample(inner.get(name, {}), depth + 1) for name in schema.get("required", inner)}
        case "array":
            return []
        case "boolean":
            return False
        case "integer" | "number":
            return max(0, schema.get("minimum", 0))
        case "null":
            return None
        case _:
            return SIDE_ANSWER


def _sample_of_any(choices: Any, depth: int) -> Any:
    """Null where it may be null: an agent's optional arguments are best left out."""
    if any(choice.get("type") == "null" for choice in choices):
        return None
    return sample(choices[0], depth) if choices else None


def usage_of(conversation: Conversation, reply: Reply, *, cache_writes: bool) -> Tokens:
    """What the call used: about four bytes a token; the earlier turns are read from the cache, the rest of the
    prompt is written to it but for its last tokens, as with an agent that caches well. `cache_writes` says whether
    the API counts what it writes; else that is plain input.
    """
    prompt = max(1, -(-conversation.size // _BYTES_PER_TOKEN))
    output = max(1, -(-(len(reply.text.encode()) + len(reply.arguments.encode())) // _BYTES_PER_TOKEN))
    if reply.side:
        return Tokens(input=prompt, output=output)
    read = prompt * 9 // 10 if conversation.results else 0
    written = (prompt - read) * 3 // 4 if cache_writes else 0
    return Tokens(input=prompt - read - written, output=output, cache_read=read, cache_write=written)

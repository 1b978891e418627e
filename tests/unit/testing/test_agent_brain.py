"""The scripted model's decisions, by the tools that each agent offers."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import InvalidInput, NotFound
from corral.testing.agent_brain import (
    SIDE_ANSWER,
    Conversation,
    Tool,
    ToolKind,
    decide,
    find_shell,
    sample,
    shell_arguments,
    usage_of,
)
from corral.testing.agent_script import FIX_TESTS, Script, Step, load_script

SCRIPT = Script("two", (Step("make one", "first"), Step("make 'two'")), "done")


def function(name: str, properties: Mapping[str, Any], required: tuple[str, ...] = ()) -> Tool:
    return Tool(name, {"type": "object", "properties": properties, "required": list(required)})


TEXT = {"type": "string"}
READ = function("Read", {"file_path": TEXT}, ("file_path",))
CLAUDE = function("Bash", {"command": TEXT, "description": TEXT, "timeout": {"type": "number"}}, ("command",))
OPENCODE = function("bash", {"command": TEXT, "description": TEXT}, ("command", "description"))
PI = function(
    "bash",
    {"command": TEXT, "timeout": {"anyOf": [{"type": "number"}, {"type": "null"}]}},
    ("command", "timeout"),
)
CODEX_LIST = function("shell", {"command": {"type": "array", "items": TEXT}}, ("command",))
CODEX_EXEC = function("exec_command", {"cmd": TEXT, "yield_time_ms": {"type": "number"}}, ("cmd",))
CODEX_CODE = Tool("exec", kind=ToolKind.CUSTOM, namespace="functions")


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        (CLAUDE, {"command": "ls"}),
        (OPENCODE, {"command": "ls", "description": "why"}),
        (PI, {"command": "ls", "timeout": None}),
        (CODEX_LIST, {"command": ["bash", "-lc", "ls"]}),
        (CODEX_EXEC, {"cmd": "ls", "yield_time_ms": 30_000}),
    ],
    ids=["claude", "opencode", "pi", "codex-list", "codex-exec"],
)
def test_each_agents_shell_tool_is_found_and_called_in_its_own_form(tool: Tool, arguments: object) -> None:
    assert find_shell((READ, tool)) is tool
    assert json.loads(shell_arguments(tool, "ls", "why")) == arguments


def test_code_mode_gets_a_program_that_quotes_the_command() -> None:
    program = shell_arguments(CODEX_CODE, "echo \"a\" 'b'\n", "")
    assert 'tools.exec_command({cmd: "echo \\"a\\" \'b\'\\n"' in program
    assert program.startswith("// @exec:")


def test_tools_of_a_shells_name_without_a_command_are_not_taken() -> None:
    assert find_shell((function("bash", {"text": TEXT}), READ)) is None


def test_the_step_follows_from_the_number_of_results() -> None:
    replies = [decide(SCRIPT, Conversation("m", 100, (READ, CLAUDE), results=n)) for n in range(4)]
    assert [reply.text for reply in replies] == ["first", "", "done", "done"]
    assert [reply.tool for reply in replies] == [CLAUDE, CLAUDE, None, None]
    assert json.loads(replies[1].arguments)["command"] == "make 'two'"
    assert not any(reply.side for reply in replies)


@pytest.mark.parametrize(
    "conversation",
    [
        Conversation("m", 100),
        Conversation("m", 100, (READ,), results=1),
        Conversation("m", 100, (CLAUDE,), max_tokens=1),
    ],
    ids=["title", "no-shell", "quota-probe"],
)
def test_side_requests_get_a_harmless_answer(conversation: Conversation) -> None:
    reply = decide(SCRIPT, conversation)
    assert (reply.text, reply.tool, reply.side) == (SIDE_ANSWER, None, True)


def test_a_wanted_form_of_answer_is_given_even_where_a_shell_is_offered() -> None:
    schema = {
        "type": "object",
        "properties": {"title": TEXT, "new": {"type": "boolean"}, "note": {"type": ["string", "null"]}},
        "required": ["title", "new", "note"],
    }
    reply = decide(SCRIPT, Conversation("m", 100, (CLAUDE,), answer_schema=schema))
    assert json.loads(reply.text) == {"title": SIDE_ANSWER, "new": False, "note": None}
    assert reply.side


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"enum": ["b", "a"]}, "b"),
        ({"const": 3}, 3),
        ({"type": "integer", "minimum": 5}, 5),
        ({"type": "number"}, 0),
        ({"type": "array", "items": TEXT}, []),
        ({"oneOf": [{"type": "boolean"}, TEXT]}, False),
        ({"type": "null"}, None),
        ({}, SIDE_ANSWER),
    ],
)
def test_samples_fit_their_schema(schema: dict[str, Any], value: object) -> None:
    assert sample(schema) == value


def test_a_schema_without_end_ends() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {}, "required": ["x"]}
    schema["properties"]["x"] = schema
    assert json.dumps(sample(schema)).count("x") < 20


@given(size=st.integers(0, 10**8), results=st.integers(0, 50), cache_writes=st.booleans())
def test_usage_adds_up_to_the_prompt(size: int, results: int, cache_writes: bool) -> None:
    conversation = Conversation("m", size, (CLAUDE,), results=results)
    tokens = usage_of(conversation, decide(SCRIPT, conversation), cache_writes=cache_writes)
    assert tokens.input + tokens.cache_read + tokens.cache_write == max(1, -(-size // 4))
    assert min(tokens.input, tokens.cache_read, tokens.cache_write) >= 0
    assert tokens.output >= 1
    assert cache_writes or tokens.cache_write == 0


def test_scripts_are_found_by_name_and_read_from_data() -> None:
    assert load_script("fix-tests") is FIX_TESTS
    script = Script.from_data("x", {"steps": ["a", {"run": "b", "say": "c"}], "final": "d"})
    assert script == Script("x", (Step("a"), Step("b", "c")), "d")


@pytest.mark.parametrize("data", [None, [], {}, {"steps": "a"}, {"steps": [1]}, {"steps": [], "final": 1}])
def test_what_is_no_script_is_refused(data: object) -> None:
    with pytest.raises(InvalidInput):
        Script.from_data("x", data)


def test_unknown_script_is_answered_with_the_names() -> None:
    with pytest.raises(NotFound) as caught:
        load_script("nothing-of-this-name")
    assert "fix-tests" in caught.value.hint

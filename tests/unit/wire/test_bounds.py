"""The most that a call can use, told from its request."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import CorralError, Forbidden, InvalidInput
from corral.wire.bounds import DENSE_PICTURE, FRAME, PICTURE, SEARCHES, Bounds, bounds, known_limit
from corral.wire.usage import Api, with_fields

CONTEXT, OUTPUT = 200_000, 32_000
PNG = "iVBORw0KGgo" * 10_000
MESSAGES: dict[str, Any] = {"max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]}


def bound(
    request: dict[str, Any],
    api: Api = Api.ANTHROPIC_MESSAGES,
    *,
    model: str = "some-model",
    output: int | None = OUTPUT,
) -> tuple[Bounds, dict[str, Any]]:
    return bounds(api, request, size(request), model=model, context=CONTEXT, output=output)


def size(request: dict[str, Any]) -> int:
    return len(json.dumps(request).encode())


def test_text_is_bounded_by_its_bytes_and_output_by_its_limit() -> None:
    """G-212."""
    assert bound(MESSAGES) == (Bounds(size(MESSAGES) + FRAME, 100), {})
    other = {**MESSAGES, "system": "é" * 1000, "tools": [{"name": "x", "input_schema": {"type": "object"}}]}
    assert bound(other)[0].input == size(other) + FRAME


@pytest.mark.parametrize(
    ("api", "model", "given", "limit", "changes"),
    [
        (Api.OPENAI_CHAT, "gpt-5", {}, OUTPUT, {"max_completion_tokens": OUTPUT}),
        (Api.OPENAI_CHAT, "gpt-5", {"max_tokens": None}, OUTPUT, {"max_completion_tokens": OUTPUT}),
        (Api.OPENAI_CHAT, "gpt-4o", {}, 16_384, {"max_completion_tokens": 16_384}),
        (Api.OPENAI_CHAT, "openai/gpt-4-turbo", {}, 4_096, {"max_completion_tokens": 4_096}),
        (Api.OPENAI_CHAT, "qwen3-coder", {}, OUTPUT, {"max_tokens": OUTPUT}),
        (Api.OPENAI_CHAT, "gpt-5", {"max_completion_tokens": 7}, 7, {}),
        (Api.OPENAI_CHAT, "gpt-5", {"max_completion_tokens": 7, "max_tokens": 9, "n": 3}, 27, {}),
        (Api.OPENAI_CHAT, "gpt-5", {"n": 4}, 4 * OUTPUT, {"max_completion_tokens": OUTPUT}),
        (Api.OPENAI_RESPONSES, "gpt-5", {"store": False}, OUTPUT, {"max_output_tokens": OUTPUT}),
        (Api.OPENAI_RESPONSES, "gpt-5", {"max_output_tokens": 5}, 5, {"store": False}),
        (Api.OPENAI_RESPONSES, "gpt-5", {"max_output_tokens": 5, "store": None}, 5, {"store": False}),
        (Api.OPENAI_EMBEDDINGS, "text-embedding-3-small", {"input": "x"}, 0, {}),
    ],
)
def test_a_request_without_a_limit_gets_one(
    api: Api, model: str, given: dict[str, Any], limit: int, changes: dict[str, Any]
) -> None:
    """G-206, G-212, and of stored responses G-179."""
    found, written = bound(given, api, model=model)
    assert (found.output, written) == (limit, changes)
    changed = json.loads(with_fields(json.dumps(given), given, written))
    assert changed == {**given, **changes}


def test_where_nothing_costs_anything_no_limit_is_written() -> None:
    assert bound({}, Api.OPENAI_CHAT, output=None) == (Bounds(2 + FRAME, 0, caches=True), {})
    assert bound({"messages": []}, output=None)[1] == {}


def test_anthropic_wants_a_limit() -> None:
    with pytest.raises(InvalidInput, match="max_tokens"):
        bound({"messages": []})


@pytest.mark.parametrize("value", [-1, 1.5, True, "9", 10**30, [], {}])
def test_a_limit_that_is_none_is_refused(value: object) -> None:
    """G-181."""
    with pytest.raises(InvalidInput):
        bound({**MESSAGES, "max_tokens": value})
    with pytest.raises(InvalidInput):
        bound({"n": value if value != 10**30 else 129}, Api.OPENAI_CHAT)


def picture(api: Api) -> dict[str, Any]:
    match api:
        case Api.ANTHROPIC_MESSAGES:
            source = {"type": "base64", "media_type": "image/png", "data": PNG}
            return {"type": "image", "source": source}
        case Api.OPENAI_CHAT:
            return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + PNG}}
        case _:
            return {"type": "input_image", "image_url": "data:image/png;base64," + PNG}


@pytest.mark.parametrize("api", [Api.ANTHROPIC_MESSAGES, Api.OPENAI_CHAT, Api.OPENAI_RESPONSES])
def test_a_picture_counts_as_a_picture_and_not_by_its_bytes(api: Api) -> None:
    """G-212."""
    place = "input" if api is Api.OPENAI_RESPONSES else "messages"
    request = {"max_tokens": 1, place: [{"role": "user", "content": [picture(api)] * 3}]}
    found = bound(request, api)[0].input
    assert 3 * PICTURE < found < 3 * PICTURE + FRAME + 1000
    assert bound(request, api, model="gpt-4o-mini")[0].input > 3 * DENSE_PICTURE


def test_a_picture_in_the_result_of_a_tool_counts_as_one() -> None:
    result = {"type": "tool_result", "tool_use_id": "x", "content": [picture(Api.ANTHROPIC_MESSAGES)]}
    request = {"max_tokens": 1, "messages": [{"role": "user", "content": [result]}]}
    assert PICTURE < bound(request)[0].input < PICTURE + FRAME + 1000


@pytest.mark.parametrize("place", ["input", "input_schema", "arguments"])
def test_what_only_looks_like_a_picture_is_text(place: str) -> None:
    """G-212: a sandbox writes `image` where the API reads text, so that a long text would count as little."""
    block = {"type": "tool_use", "id": "x", "name": "y", place: picture(Api.ANTHROPIC_MESSAGES)}
    request = {"max_tokens": 1, "messages": [{"role": "assistant", "content": [block]}]}
    assert bound(request)[0].input >= len(PNG)
    linked = {"type": "image", "source": {"type": "url", "url": "https://x/" + PNG}}
    request = {"max_tokens": 1, "messages": [{"role": "user", "content": [linked]}]}
    assert bound(request)[0].input >= len(PNG) + PICTURE


@pytest.mark.parametrize(
    "content",
    [
        {"type": "document", "source": {"type": "base64", "data": PNG}},
        {"type": "document", "source": {"type": "url", "url": "https://x"}},
        {"type": "document", "source": {"type": "file", "file_id": "file_1"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64," + PNG}},
        {"type": "input_file", "file_id": "file-1"},
    ],
)
def test_a_document_is_at_most_what_fits_into_the_context(content: dict[str, Any]) -> None:
    """G-212."""
    request = {"max_tokens": 1, "messages": [{"role": "user", "content": [content]}]}
    assert CONTEXT < bound(request)[0].input < CONTEXT + FRAME + 1000


def test_searches_are_set_aside() -> None:
    tools = [
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 3},
        {"type": "web_fetch_20250910"},
    ]
    found, _ = bound({**MESSAGES, "tools": tools})
    assert found.searches == 3 + SEARCHES
    assert found.input > CONTEXT + 3 * FRAME
    assert bound({"plugins": [{"id": "web"}]}, Api.OPENAI_CHAT)[0].searches == SEARCHES
    assert bound({}, Api.OPENAI_CHAT, model="x/y:online")[0].searches == SEARCHES


@pytest.mark.parametrize(
    ("control", "hour"),
    [
        ({"type": "ephemeral"}, False),
        ({"type": "ephemeral", "ttl": "5m"}, False),
        ({"ttl": "1h"}, True),
        ("odd", True),
    ],
)
def test_caching_is_seen_wherever_it_is_asked_for(control: object, hour: bool) -> None:
    """G-196, G-212: writing to a cache is dearer."""
    assert not bound(MESSAGES)[0].caches
    for request in (
        {**MESSAGES, "cache_control": control},
        {**MESSAGES, "tools": [{"name": "x", "cache_control": control}]},
        {**MESSAGES, "system": [{"type": "text", "text": "x", "cache_control": control}]},
        {**MESSAGES, "deep": [[{"er": [{"cache_control": control}]}]]},
    ):
        found, _ = bound(request)
        assert (found.caches, found.for_an_hour) == (True, hour)


@pytest.mark.parametrize(
    ("api", "extra"),
    [
        (Api.OPENAI_RESPONSES, {"background": True}),
        (Api.OPENAI_RESPONSES, {"store": True}),
        (Api.OPENAI_CHAT, {"store": True}),
        (Api.OPENAI_RESPONSES, {"previous_response_id": "resp_1"}),
        (Api.OPENAI_RESPONSES, {"conversation": "conv_1"}),
        (Api.OPENAI_RESPONSES, {"input": [{"type": "item_reference", "id": "rs_1"}]}),
        (Api.OPENAI_RESPONSES, {"tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]}),
        (Api.OPENAI_RESPONSES, {"tools": [{"type": "image_generation"}]}),
        (Api.OPENAI_RESPONSES, {"tools": [{"type": "file_search"}]}),
        (Api.OPENAI_RESPONSES, {"tools": [{"type": "mcp", "server_url": "https://x"}]}),
        (Api.OPENAI_CHAT, {"modalities": ["text", "audio"]}),
        (Api.OPENAI_CHAT, {"audio": {"voice": "x"}}),
        (Api.OPENAI_CHAT, {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}),
        (Api.ANTHROPIC_MESSAGES, {"tools": [{"type": "code_execution_20250825"}]}),
        (
            Api.ANTHROPIC_MESSAGES,
            {"tools": [{"type": "advisor_20260301", "name": "advisor", "model": "dear"}]},
        ),
        (Api.ANTHROPIC_MESSAGES, {"tools": [{"type": "bash_20250124x"}]}),
        (Api.ANTHROPIC_MESSAGES, {"tools": [{"type": ["bash_20250124"]}]}),
        (Api.OPENAI_CHAT, {"tools": [{"type": "openrouter:advisor"}]}),
        (Api.OPENAI_CHAT, {"tools": [{"type": "openrouter:image_generation"}]}),
        (Api.OPENAI_CHAT, {"tools": [{"type": "web_search_and_more"}]}),
        (Api.OPENAI_CHAT, {"plugins": [{"id": "web"}, {"id": "fusion", "model": "dear"}]}),
        (Api.OPENAI_RESPONSES, {"tools": [{"type": "shell", "environment": {"type": "container_auto"}}]}),
        (Api.OPENAI_RESPONSES, {"tools": [{"type": "shell"}]}),
        (Api.OPENAI_RESPONSES, {"tools": [{"type": "namespace", "tools": [{"type": "image_generation"}]}]}),
        (
            Api.OPENAI_RESPONSES,
            {"input": [{"type": "additional_tools", "tools": [{"type": "code_interpreter"}]}]},
        ),
        (Api.OPENAI_RESPONSES, {"context_management": [{"type": "compaction", "compact_threshold": 1}]}),
        (Api.ANTHROPIC_MESSAGES, {"context_management": {"edits": [{"type": "compact_20260112"}]}}),
        (Api.ANTHROPIC_MESSAGES, {"compaction": {"type": "enabled"}}),
        (Api.ANTHROPIC_MESSAGES, {"mcp_servers": [{"url": "https://x"}]}),
        (Api.ANTHROPIC_MESSAGES, {"container": "c"}),
    ],
)
def test_what_cannot_be_metered_is_refused(api: Api, extra: dict[str, Any]) -> None:
    """G-179, G-203."""
    with pytest.raises(Forbidden):
        bound({**MESSAGES, **extra}, api)


@pytest.mark.parametrize(
    ("tool", "described"),
    [
        ({"type": "function", "name": "image_generation"}, 0),
        ({"type": "custom", "name": "apply_patch"}, 0),
        ({"name": "code_execution"}, 0),
        ({"type": "namespace", "name": "f", "tools": [{"type": "custom"}, {"type": "local_shell"}]}, 1),
        ({"type": "local_shell"}, 1),
        ({"type": "apply_patch"}, 1),
        ({"type": "computer_use_preview"}, 1),
        ({"type": "shell", "environment": {"type": "local"}}, 1),
        ({"type": "tool_search", "execution": "client"}, 1),
        ({"type": "bash_20250124", "name": "bash"}, 1),
        ({"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"}, 1),
        ({"type": "computer_20250124", "name": "computer"}, 1),
        ({"type": "memory_20250818", "name": "memory"}, 1),
        ({"type": "tool_search_tool_bm25_20251119", "name": "search"}, 1),
    ],
)
def test_tools_of_the_sandbox_are_open(tool: dict[str, Any], described: int) -> None:
    """G-179: those that it describes itself, and those that the API describes and it carries out."""
    request = {**MESSAGES, "tools": [tool]}
    found = bound(request)[0]
    assert (found.searches, found.input) == (0, size(request) + FRAME * (1 + described))
    later = {"input": [{"type": "additional_tools", "role": "developer", "tools": [tool]}]}
    assert bound(later, Api.OPENAI_RESPONSES)[0].input == size(later) + FRAME * (1 + described)


@pytest.mark.parametrize(
    "kind", ["web_search", "web_search_20260209", "web_search_preview", "web_search_preview_2025_03_11", "web_search_2025_08_26"]
)  # fmt: skip
def test_searches_are_open_by_all_their_names(kind: str) -> None:
    assert bound({"tools": [{"type": kind}]}, Api.OPENAI_RESPONSES)[0].searches == SEARCHES


@pytest.mark.parametrize("tool", [{"type": "function", "Type": "advisor"}, {"Type": "image_generation"}])
def test_a_tool_has_one_reading(tool: dict[str, Any]) -> None:
    """G-181."""
    with pytest.raises(InvalidInput):
        bound({**MESSAGES, "tools": [tool]})


def test_parts_of_a_conversation_may_be_left_out() -> None:
    """What Claude Code asks for."""
    edits = [{"type": "clear_thinking_20251015", "keep": "all"}, {"type": "clear_tool_uses_20250919"}]
    assert bound({**MESSAGES, "context_management": {"edits": edits}})[0].output == 100
    assert bound({**MESSAGES, "context_management": None})[0].output == 100


def test_limits_of_models() -> None:
    assert (known_limit("gpt-4.1-mini"), known_limit("gpt-4"), known_limit("ft:gpt-4o:x")) == (
        32_768,
        4_096,
        16_384,
    )
    assert known_limit("gpt-5.2") > 1_000_000


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "content",
                    "source",
                    "data",
                    "image_url",
                    "url",
                    "tools",
                    "messages",
                    "input",
                    "file",
                    "x",
                    "n",
                ]
            ),
            inner | st.sampled_from(["image", "base64", "document", "input_image", "text"]),
            max_size=4,
        )
    ),
    max_leaves=25,
)


@given(
    st.sampled_from(list(Api)),
    st.dictionaries(st.sampled_from(["messages", "input", "tools", "max_tokens"]), JSON),
)
def test_any_request_is_bounded_or_refused(api: Api, request: dict[str, Any]) -> None:
    """Fuzz: a declared error, or bounds above zero."""
    try:
        found, _ = bound(request, api)
    except CorralError:
        return
    assert found.input >= FRAME
    assert found.output >= 0

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
KEPT_DOCUMENT = {"type": "document", "source": {"type": "file", "file_id": "file_1"}}
INLINE_TOOL = {
    "type": "tool_addition",
    "tool": {"type": "tool_definition", "definition": {"type": "advisor_20260301", "model": "dear"}},
}
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
        {"type": "file", "file": {"file_data": "data:application/pdf;base64," + PNG}},
        {"type": "input_file", "file_url": "https://x"},
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
        (Api.OPENAI_RESPONSES, {"multi_agent": {"enabled": True}}),
        (Api.OPENAI_RESPONSES, {"reasoning": {"effort": "low", "mode": "pro"}}),
        (Api.OPENAI_RESPONSES, {"input": [{"type": "compaction_trigger"}]}),
        (Api.OPENAI_CHAT, {"modalities": ["text", "image"]}),
        (Api.OPENAI_CHAT, {"messages": [{"role": "assistant", "audio": {"id": "audio_1"}}]}),
        (Api.OPENAI_CHAT, {"search_parameters": {"mode": "on"}}),
        (Api.OPENAI_CHAT, {"enable_search": True}),
        (Api.OPENAI_CHAT, {"data_sources": [{"type": "azure_search"}]}),
        (Api.OPENAI_CHAT, {"plugins": [{"id": "web", "max_results": 11}]}),
        (Api.OPENAI_CHAT, {"plugins": [{"id": "file-parser", "pdf": {"engine": "new-ocr"}}]}),
        (Api.ANTHROPIC_MESSAGES, {"billing_policy": {"bill_to": "user_profile"}}),
        (Api.ANTHROPIC_MESSAGES, {"messages": [{"role": "user", "content": [INLINE_TOOL]}]}),
    ],
)
def test_what_cannot_be_metered_is_refused(api: Api, extra: dict[str, Any]) -> None:
    """G-179, G-203."""
    with pytest.raises(Forbidden):
        bound({**MESSAGES, **extra}, api)


@pytest.mark.parametrize(
    ("api", "extra"),
    [
        (Api.ANTHROPIC_MESSAGES, {"fallbacks": [{"model": "claude-opus-5"}]}),
        (Api.ANTHROPIC_MESSAGES, {"fallbacks": "default"}),
        (Api.OPENAI_CHAT, {"fallbacks": ["dear"]}),
        (Api.OPENAI_CHAT, {"context_window_fallbacks": [{"cheap": ["dear"]}]}),
        (Api.OPENAI_CHAT, {"model_list": [{"model_name": "cheap", "litellm_params": {"model": "dear"}}]}),
        (Api.OPENAI_CHAT, {"compound_custom": {"models": {"answering_model": "dear"}}}),
        (Api.OPENAI_CHAT, {"providerOptions": {"gateway": {"models": ["dear"]}}}),
        (Api.OPENAI_CHAT, {"extra_body": {"models": ["dear"]}}),
        (Api.OPENAI_CHAT, {"preset": "mine"}),
        (Api.OPENAI_RESPONSES, {"moderation": {"model": "gpt-5-pro"}}),
    ],
)
def test_no_other_model_runs_than_the_one_that_is_judged(api: Api, extra: dict[str, Any]) -> None:
    """G-180."""
    with pytest.raises(Forbidden):
        bound({**MESSAGES, **extra}, api)


@pytest.mark.parametrize(
    ("api", "extra"),
    [
        (Api.OPENAI_RESPONSES, {"prompt": {"id": "pmpt_1", "version": "2"}}),
        (Api.OPENAI_CHAT, {"prompt_id": "mine"}),
        (Api.ANTHROPIC_MESSAGES, {"thread": {"type": "continue", "previous_message_id": "msg_1"}}),
        (Api.OPENAI_RESPONSES, {"input": [{"content": [{"type": "input_file", "file_id": "file-1"}]}]}),
        (Api.OPENAI_RESPONSES, {"input": [{"content": [{"type": "input_image", "file_id": "file-1"}]}]}),
        (Api.OPENAI_CHAT, {"messages": [{"content": [{"type": "file", "file": {"file_id": "file-1"}}]}]}),
        (Api.ANTHROPIC_MESSAGES, {"messages": [{"content": [KEPT_DOCUMENT]}]}),
        (Api.ANTHROPIC_MESSAGES, {"messages": [{"content": [{"type": "container_upload", "file_id": "f"}]}]}),
    ],
)
def test_what_the_provider_keeps_is_not_used(api: Api, extra: dict[str, Any]) -> None:
    """G-179, G-180: a stored prompt names a model and tools of its own, a file is anybody's with the key."""
    with pytest.raises(Forbidden, match="keeps"):
        bound({**MESSAGES, **extra}, api)


@pytest.mark.parametrize(
    "extra",
    [
        {"fallbacks": []}, {"enable_search": False}, {"prompt": "text"}, {"modalities": ["text"]}, {"best_of": 1},
        {"reasoning": {"effort": "high", "mode": "standard"}}, {"moderation": {"model": "omni-moderation-latest"}},
    ],
)  # fmt: skip
def test_what_changes_nothing_is_let_through(extra: dict[str, Any]) -> None:
    assert bound({"max_tokens": 5, **extra}, Api.OPENAI_CHAT)[0].output == 5


def test_all_alternatives_are_counted() -> None:
    """G-206."""
    assert bound({"max_tokens": 5, "n": 2, "best_of": 3}, Api.OPENAI_CHAT)[0].output == 15


def test_uses_of_tools_are_held_to_what_is_set_aside() -> None:
    """G-211, G-212: a request to the Responses API says how often its tools are used, and gets that said if it does not."""
    search = {"tools": [{"type": "web_search"}], "max_output_tokens": 5, "store": False}
    found, changes = bound(search, Api.OPENAI_RESPONSES)
    assert (found.searches, changes) == (SEARCHES, {"max_tool_calls": SEARCHES})
    for most in (0, 3, 500):
        found, changes = bound({**search, "max_tool_calls": most}, Api.OPENAI_RESPONSES)
        assert (found.searches, changes) == (most, {})
    with pytest.raises(InvalidInput):
        bound({**search, "max_tool_calls": 10**6}, Api.OPENAI_RESPONSES)


@pytest.mark.parametrize("model", ["x/y:online", "gpt-4o-search-preview", "gpt-5-search-api-2025-10-14"])
def test_models_that_always_search_do_so(model: str) -> None:
    assert bound({"max_tokens": 1}, Api.OPENAI_CHAT, model=model)[0].searches == SEARCHES


@pytest.mark.parametrize(
    ("plugins", "read"),
    [
        (None, 1),
        ([{"id": "file-parser"}], 1),
        ([{"id": "file-parser", "pdf": {"engine": "mistral-ocr"}}], 1),
        ([{"id": "file-parser", "pdf": {"engine": "native"}}], 0),
        ([{"id": "file-parser"}, {"id": "file-parser", "pdf": {"engine": "native"}}], 1),
    ],
)
def test_documents_that_another_service_may_read_are_counted(plugins: object, read: int) -> None:
    """G-204."""
    document = {"type": "file", "file": {"file_data": "data:application/pdf;base64," + PNG}}
    request = {"max_tokens": 1, "messages": [{"content": [document]}], "plugins": plugins}
    assert bound(request, Api.OPENAI_CHAT)[0].documents == read


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

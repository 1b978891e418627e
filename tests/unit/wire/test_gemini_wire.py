"""Gemini's API: counts from every form of its answers, and bounds from its requests."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import CorralError, Forbidden, InvalidInput, TooLarge
from corral.wire.bounds import FRAME, PICTURE, SEARCHES, Bounds
from corral.wire.gemini import Objects
from corral.wire.gemini_bounds import gemini_bounds
from corral.wire.usage import Api, Counts, Reading, UsageMeter

MODEL = "gemini-3-flash-preview"
TEXT: dict[str, Any] = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}


def piece(text: str, metadata: dict[str, int], *, end: str = "") -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"parts": [{"text": text}], "role": "model"}, "index": 0}
    if end:
        candidate["finishReason"] = end
    return {"candidates": [candidate], "usageMetadata": metadata, "modelVersion": MODEL, "responseId": "r"}


# As the API gave them: a running total in each piece, thoughts beside candidates, a part from a cache.
PIECES = [
    piece('a "brace } in', {"promptTokenCount": 120, "totalTokenCount": 320, "thoughtsTokenCount": 200}),
    piece(" a \\ string {", {"promptTokenCount": 120, "candidatesTokenCount": 9, "thoughtsTokenCount": 200}),
    piece(
        " ends", {"promptTokenCount": 120, "candidatesTokenCount": 12, "totalTokenCount": 340, "thoughtsTokenCount": 200,
                  "cachedContentTokenCount": 100, "toolUsePromptTokenCount": 8}, end="STOP",
    ),
]  # fmt: skip
COUNTS = Counts(input=28, output=212, cache_read=100)
EVENTS = b"".join(b"data: " + json.dumps(item).encode() + b"\r\n\r\n" for item in PIECES)
ARRAY = ("[" + "\n,\r\n".join(json.dumps(item, indent=2) for item in PIECES) + "\n]").encode()


def read(data: bytes, *, events: bool, api: Api = Api.GEMINI, cuts: tuple[int, ...] = ()) -> Reading:
    meter = UsageMeter(api, events)
    for cut in cuts:
        meter.feed(data[:cut])
        data = data[cut:]
    meter.feed(data)
    return meter.finish()


@given(st.booleans(), st.lists(st.integers(0, 200), max_size=30))
def test_streams(events: bool, cuts: list[int]) -> None:
    """G-191, G-195, G-196, G-198, G-199: the last total counts, thoughts are output, in events and in an array."""
    reading = read(EVENTS if events else ARRAY, events=events, cuts=tuple(cuts))
    assert (reading.model, reading.counts, reading.complete) == (MODEL, COUNTS, True)


def test_a_whole_answer() -> None:
    """G-191, G-195."""
    reading = read(json.dumps(PIECES[-1]).encode(), events=False, cuts=(3, 50))
    assert (reading.counts, reading.complete) == (COUNTS, True)


@pytest.mark.parametrize("events", [True, False])
def test_a_cut_stream_keeps_what_was_seen(events: bool) -> None:
    """G-201."""
    data = EVENTS if events else ARRAY
    reading = read(data[: data.index(b" a \\")], events=events)
    assert not reading.complete
    assert (reading.counts.input, reading.counts.output) == (120, 200)
    assert reading.streamed > 0


def test_blocked_prompts_searches_errors_and_embeddings() -> None:
    """G-191, G-207."""
    blocked = {
        "promptFeedback": {"blockReason": "SAFETY"},
        "usageMetadata": {"promptTokenCount": 7, "totalTokenCount": 7},
    }
    assert read(json.dumps(blocked).encode(), events=False) == Reading(
        counts=Counts(input=7), complete=True, started=True, streamed=1
    )
    grounded = piece("x", {"promptTokenCount": 1, "candidatesTokenCount": 1}, end="STOP")
    grounded["candidates"][0]["groundingMetadata"] = {"webSearchQueries": ["a", "b"]}
    assert read(json.dumps(grounded).encode(), events=False).counts.web_searches == 2
    error = b'{"error": {"code": 400, "message": "bad", "status": "INVALID_ARGUMENT"}}'
    reading = read(error, events=False)
    assert (reading.counts, reading.complete) == (Counts(), False)
    embedded = b'{"embeddings": [{"values": [0.1]}], "usageMetadata": {"promptTokenCount": 5}}'
    assert read(embedded, events=False, api=Api.GEMINI_EMBEDDINGS).counts == Counts(input=5)
    assert not read(b'{"embedding": {"values": [0.1]}}', events=False, api=Api.GEMINI_EMBEDDINGS).complete


def test_text_past_a_limit_is_counted() -> None:
    """G-214."""
    meter = UsageMeter(Api.GEMINI, streamed=True, exact_after=1000)
    for _ in range(20):
        meter.feed(b"data: " + json.dumps(piece("é" * 400, {})).encode() + b"\n\n")
    assert meter.text > 10_000


@given(st.binary(max_size=200), st.lists(st.integers(0, 20), max_size=10))
def test_objects_of_any_bytes(data: bytes, cuts: list[int]) -> None:
    """However it is cut, the same objects come out, and nothing is raised below the limit."""
    whole, pieces = Objects(1000), Objects(1000)
    found, rest = [], data
    for cut in cuts:
        found += pieces.feed(rest[:cut])
        rest = rest[cut:]
    found += pieces.feed(rest)
    assert found == whole.feed(data)


def test_an_object_without_end_is_too_large() -> None:
    objects = Objects(1000)
    with pytest.raises(TooLarge):
        objects.feed(b"{" + b"x" * 2000)


def bound(
    request: dict[str, Any], *, model: str = MODEL, api: Api = Api.GEMINI, output: int | None = 32_000
) -> tuple[Bounds, Any]:
    return gemini_bounds(api, request, size(request), model=model, context=1_000_000, output=output)


def size(request: dict[str, Any]) -> int:
    return len(json.dumps(request).encode())


@pytest.mark.parametrize(
    ("given", "limit", "changes"),
    [
        ({}, 32_000, {"generationConfig": {"maxOutputTokens": 32_000}}),
        ({"generationConfig": {"temperature": 0}}, 32_000, {"generationConfig": {"temperature": 0, "maxOutputTokens": 32_000}}),
        (
            {"generation_config": {"candidate_count": 2}}, 64_000,
            {"generation_config": {"candidate_count": 2, "maxOutputTokens": 32_000}},
        ),
        ({"generationConfig": {"maxOutputTokens": 5}}, 5, {}),
        ({"generation_config": {"max_output_tokens": 5, "candidateCount": 3}}, 15, {}),
        ({"generationConfig": {"maxOutputTokens": 0}}, 32_000, {"generationConfig": {"maxOutputTokens": 32_000}}),
    ],
)  # fmt: skip
def test_output_is_limited_in_either_spelling(
    given: dict[str, Any], limit: int, changes: dict[str, Any]
) -> None:
    """G-206, G-212."""
    request = {**TEXT, **given}
    assert bound(request) == (Bounds(size(request) + FRAME, limit), changes)


def test_older_models_take_no_more_than_they_can() -> None:
    assert bound(TEXT, model="gemini-2.0-flash")[0].output == 8_192


def test_pictures_documents_and_searches() -> None:
    """G-212."""
    data = "iVBORw0KGgo" * 1000
    picture = {"contents": {"parts": {"inline_data": {"mime_type": "image/png", "data": data}}}}
    assert bound(picture)[0].input == size(picture) - len(data) + PICTURE + FRAME
    paper = {"contents": [{"parts": [{"inlineData": {"mimeType": "application/pdf", "data": data}}]}]}
    assert bound(paper)[0].input == size(paper) - len(data) + FRAME + 1_000_000
    search = {**TEXT, "tools": [{"google_search": {}}, {"functionDeclarations": []}]}
    assert (bound(search)[0].searches, bound(search)[0].input) == (
        SEARCHES,
        size(search) + 2 * FRAME + 1_000_000,
    )


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        ({"generationConfig": {"maxOutputTokens": 5, "max_output_tokens": 9}}, InvalidInput),
        ({"generationConfig": {}, "generation_config": {"maxOutputTokens": 9}}, InvalidInput),
        ({"generationConfig": {"maxOutputTokens": "9"}}, InvalidInput),
        ({"generationConfig": {"candidateCount": 1000}}, InvalidInput),
        ({"model": "models/gemini-3-pro-preview"}, InvalidInput),
        ({"cachedContent": "cachedContents/x"}, Forbidden),
        ({"cached_content": "cachedContents/x"}, Forbidden),
        ({"continuationToken": "x"}, Forbidden),
        ({"store": True}, Forbidden),
        ({"generationConfig": {"routingConfig": {"manualMode": {"modelName": "dear"}}}}, Forbidden),
        ({"generationConfig": {"model_config": {"featureSelectionPreference": "x"}}}, Forbidden),
        ({"generationConfig": {"responseModalities": ["TEXT", "IMAGE"]}}, Forbidden),
        ({"generationConfig": {"response_modalities": ["AUDIO"]}}, Forbidden),
        ({"generationConfig": {"speechConfig": {}}}, Forbidden),
        ({"serviceTier": "PRIORITY"}, Forbidden),
        ({"generationConfig": {"maxOutputTokens": 1, "MaxOutputTokens": 9}}, InvalidInput),
        ({"generationConfig": {"maxoutputtokens": 9}}, InvalidInput),
        ({"tools": [{"codeExecution": {}}]}, Forbidden),
        ({"tools": [{"functionDeclarations": [], "url_context": {}}]}, Forbidden),
        ({"contents": [{"parts": [{"fileData": {"fileUri": "files/x"}}]}]}, Forbidden),
        ({"contents": [{"parts": [{"file_data": {"file_uri": "gs://x"}}]}]}, Forbidden),
        ({"contents": [{"parts": [{"inlineData": {"mimeType": "audio/wav", "data": ""}}]}]}, Forbidden),
        ({"systemInstruction": {"parts": {"inline_data": {"mime_type": "video/mp4"}}}}, Forbidden),
        ({"contents": [{"parts": [{"functionResponse": {"parts": [{"fileData": {}}]}}]}]}, Forbidden),
    ],
)
def test_what_cannot_be_metered_is_refused(request_: dict[str, Any], error: type[CorralError]) -> None:
    """G-179, G-180, G-181."""
    with pytest.raises(error):
        bound({**TEXT, **request_})


@pytest.mark.parametrize(
    "model", ["gemini-3-pro-image-preview", "gemini-2.5-flash-tts", "veo-3", "gemini-3.8-live"]
)
def test_models_that_make_pictures_or_speech_are_refused(model: str) -> None:
    """G-204."""
    with pytest.raises(Forbidden):
        bound(TEXT, model=model)


def test_embeddings() -> None:
    """G-191."""
    one: dict[str, Any] = {"model": f"models/{MODEL}", "content": {"parts": [{"text": "x"}]}}
    assert bound(one, api=Api.GEMINI_EMBEDDINGS) == (Bounds(size(one) + FRAME, 0), {})
    refused: list[dict[str, Any]] = [
        {"requests": [one, {**one, "model": "models/other"}]},
        {"content": {"parts": [{"inlineData": {}}]}},
    ]
    for bad in refused:
        with pytest.raises(CorralError):
            bound(bad, api=Api.GEMINI_EMBEDDINGS)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**7) | st.sampled_from(["image/png", "TEXT", "x"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["contents", "parts", "text", "inlineData", "inline_data", "mimeType", "data", "tools", "generationConfig",
             "maxOutputTokens", "candidateCount", "responseModalities", "functionResponse", "systemInstruction", "requests"]
        ),
        inner,
        max_size=4,
    ),
    max_leaves=30,
)  # fmt: skip


@given(
    st.dictionaries(st.sampled_from(["contents", "tools", "generationConfig", "requests"]), _JSON),
    st.booleans(),
)
def test_any_request_is_bounded_or_refused(request: dict[str, Any], embeds: bool) -> None:
    """G-342."""
    try:
        found, _ = bound(request, api=Api.GEMINI_EMBEDDINGS if embeds else Api.GEMINI)
    except CorralError:
        return
    assert found.input > 0


@given(_JSON)
def test_any_answer_is_read(value: Any) -> None:
    """G-342."""
    answer = {"candidates": value, "usageMetadata": value, "modelVersion": value}
    read(json.dumps(answer).encode(), events=False)

"""Gemini, OpenRouter and compatible servers behind a real gateway process."""

import io
import json
import zlib
from typing import TYPE_CHECKING, Any

import brotli  # type: ignore[import-untyped]  # it ships none
import pytest
from aiohttp import web

from corral.engine.ports import ModelPrice, OpenedSecret
from corral.model.ids import TenantId
from corral.model.secrets import Provider, Secret

if TYPE_CHECKING:
    from tests.system.gateway.conftest import Bed, BoxEnd

KEY = "AIza-canary-0123456789abcdef"
TENANT = TenantId("default")
MODEL = "gemini-2.5-flash"
ASK = {"contents": [{"parts": [{"text": "hi"}]}], "generationConfig": {"maxOutputTokens": 100}}
PIECE = {
    "candidates": [{"content": {"parts": [{"text": "hello"}]}}],
    "usageMetadata": {"promptTokenCount": 100, "totalTokenCount": 100},
    "modelVersion": MODEL,
}
LAST = {
    "candidates": [{"content": {"parts": [{"text": "!"}]}, "finishReason": "STOP"}],
    "usageMetadata": {
        "promptTokenCount": 100,
        "candidatesTokenCount": 4,
        "thoughtsTokenCount": 6,
        "totalTokenCount": 110,
    },
    "modelVersion": MODEL,
}
CHAT = {"model": "openai/gpt-5", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 10}


@pytest.fixture
async def box(bed: "Bed") -> "BoxEnd":
    """A sandbox with a secret of each kind."""
    base = f"http://127.0.0.1:{bed.upstream.port}"
    kinds = (("gemini", Provider.GEMINI), ("openrouter", Provider.OPENROUTER), ("github", Provider.GITHUB))
    await bed.secrets(*(OpenedSecret(TENANT, name, kind, base, Secret(KEY)) for name, kind in kinds))
    return await bed.attach(secrets=("gemini", "openrouter", "github", "openai"))


def serve(bed: "Bed", kind: str, *chunks: bytes) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": kind})
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
        return response

    bed.upstream.handler = handler


async def post(
    bed: "Bed", box: "BoxEnd", path: str, body: Any, headers: dict[str, str] | None = None
) -> tuple[int, bytes]:
    given = {"Host": "gateway.corral", "x-goog-api-key": box.token, "Content-Type": "application/json"}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with bed.http.post(
        box.url + path, data=io.BytesIO(data), headers={**given, **(headers or {})}
    ) as answer:
        return answer.status, await answer.read()


async def test_gemini_is_metered_in_every_form(bed: "Bed", box: "BoxEnd") -> None:
    """G-176, G-177, G-178, G-183, G-191, G-195."""
    whole = json.dumps(LAST).encode()
    events = [b"data: " + json.dumps(item).encode() + b"\r\n\r\n" for item in (PIECE, LAST)]
    array = [b"[" + json.dumps(PIECE).encode(), b"\n,\n", whole[:20], whole[20:] + b"]"]
    forms = [
        ("generateContent", "", "application/json", [whole]),
        ("streamGenerateContent", "?alt=sse&key=" + box.token, "text/event-stream", events),
        ("streamGenerateContent", "", "application/json", array),
    ]
    for method, query, kind, chunks in forms:
        serve(bed, kind, *chunks)
        status, got = await post(
            bed,
            box,
            f"/s/gemini/v1beta/models/{MODEL}:{method}{query}",
            ASK,
            {
                "X-Goog-User-Project": "other",
                "X-Goog-FieldMask": "candidates",
                "X-HTTP-Method-Override": "GET",
            },
        )
        assert (status, got) == (200, b"".join(chunks))
        seen = bed.upstream.seen[-1]
        assert seen.path == f"/v1beta/models/{MODEL}:{method}" + ("?alt=sse" if query else "")
        assert seen.all("x-goog-api-key") == [KEY]
        gone = ("authorization", "x-goog-user-project", "x-goog-fieldmask", "x-http-method-override")
        assert [seen.all(name) for name in gone] == [[]] * 4
        assert box.token not in str(seen)
        usage = await bed.usage.get()
        assert (usage.tokens.input, usage.tokens.output, usage.assumed) == (100, 10, False)
        assert (usage.model, usage.provider, usage.cost) == (MODEL, "gemini", 55)


async def test_gemini_is_refused_in_its_own_shape(bed: "Bed", box: "BoxEnd") -> None:
    """G-179, G-180, G-181, G-184, G-311: with a reason."""
    for path, body, status, reason in (
        (f"v1beta/models/{MODEL}:batchGenerateContent", ASK, 403, "batches"),
        ("v1beta/cachedContents", ASK, 403, "keeps"),
        ("upload/v1beta/files", ASK, 403, "files"),
        ("v1beta/models/veo-3:predictLongRunning", ASK, 403, "videos"),
        (f"v1beta/models/{MODEL}:generateContent", {**ASK, "model": "models/other"}, 400, "differs"),
        ("v1beta/models/gemini-3-pro-image-preview:generateContent", ASK, 403, "metered"),
        (f"v1beta/models/{MODEL}:generateContent", b'{"contents": 1, "contents": 2}', 400, "repeated"),
    ):
        got, answer = await post(bed, box, f"/s/gemini/{path}", body)
        error = json.loads(answer)["error"]
        assert (got, error["code"]) == (status, status), path
        assert reason in error["message"]
    assert bed.upstream.seen == []


async def test_a_gemini_stream_without_end_is_cut(bed: "Bed", box: "BoxEnd") -> None:
    """G-214, G-225."""
    much = json.dumps(
        {"candidates": [{"content": {"parts": [{"text": "word " * 2000}]}}], "modelVersion": MODEL}
    ).encode()
    serve(bed, "text/event-stream", *[b"data: " + much + b"\n\n"] * 50)
    status, got = await post(bed, box, f"/s/gemini/v1beta/models/{MODEL}:streamGenerateContent?alt=sse", ASK)
    assert status == 200
    assert json.loads(got.rsplit(b"data: ", 1)[1])["error"]["code"] == 402
    assert len(got) < 20 * len(much)
    usage = await bed.usage.get()
    assert usage.assumed


async def test_openrouters_stated_cost_counts(bed: "Bed", box: "BoxEnd") -> None:
    """G-177, G-193, G-197; with a key of one's own at its upstream, both parts."""
    usage: dict[str, Any] = {"prompt_tokens": 10, "completion_tokens": 5, "cost": 0.00125}
    for more, cost in (
        ({}, 1250),
        ({"is_byok": True, "cost_details": {"upstream_inference_cost": 0.01}}, 11_250),
        ({"is_byok": False, "cost_details": {"upstream_inference_cost": 0.01}}, 1250),
    ):
        answer = {"model": "openai/gpt-5", "usage": {**usage, **more}, "choices": []}
        serve(bed, "application/json", json.dumps(answer).encode())
        status, _ = await post(
            bed, box, "/s/openrouter/api/v1/chat/completions", {**CHAT, "model": "openai/gpt-5:nitro"}
        )
        assert status == 200
        seen = bed.upstream.seen[-1]
        assert (seen.path, seen.all("authorization")) == ("/v1/chat/completions", [f"Bearer {KEY}"])
        assert json.loads(seen.body)["usage"] == {"include": True}
        assert (await bed.usage.get()).cost == cost
    last = {"model": "openai/gpt-5", "choices": [], "usage": usage}
    serve(
        bed,
        "text/event-stream",
        b": OPENROUTER PROCESSING\n\n",
        b"data: " + json.dumps(last).encode() + b"\n\n",
        b"data: [DONE]\n\n",
    )
    assert (await post(bed, box, "/s/openrouter/v1/chat/completions", {**CHAT, "stream": True}))[0] == 200
    assert (await bed.usage.get()).cost == 1250


@pytest.mark.parametrize(
    "body", [{**CHAT, "model": "@preset/mine"}, {**CHAT, "preset": "mine"}, {**CHAT, "models": ["x"] * 99}]
)
async def test_what_openrouter_keeps_is_not_used(bed: "Bed", box: "BoxEnd", body: dict[str, Any]) -> None:
    """G-180."""
    assert (await post(bed, box, "/s/openrouter/v1/chat/completions", body))[0] in (400, 403)
    assert bed.upstream.seen == []


async def test_a_git_hosts_secret_is_no_model_api(bed: "Bed", box: "BoxEnd") -> None:
    """G-17."""
    assert (await post(bed, box, "/s/github/v1/chat/completions", CHAT))[0] == 403
    assert bed.upstream.seen == []


async def test_a_model_on_the_host_is_reached_by_this_path_alone(bed: "Bed") -> None:
    """A server such as Ollama or vLLM on loopback, with prices of 0."""
    base = f"http://127.0.0.1:{bed.upstream.port}/v1"
    await bed.client.set_secrets([OpenedSecret(TENANT, "local", Provider.OPENAI, base, Secret("not-needed"))])
    await bed.client.set_prices([ModelPrice("local", "*", 0, 0, 0, 0)])
    box = await bed.attach(secrets=("local",))
    serve(
        bed,
        "application/json",
        b'{"model": "qwen3", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}',
    )
    status, _ = await post(bed, box, "/s/local/v1/chat/completions", {**CHAT, "model": "qwen3"})
    assert (status, bed.upstream.seen[0].path) == (200, "/v1/chat/completions")
    assert (await bed.usage.get()).cost == 0
    async with bed.http.get(box.url, headers={"Host": f"127.0.0.1:{bed.upstream.port}"}) as answer:
        assert answer.status == 403


@pytest.mark.parametrize("coding", ["br", "deflate", "raw deflate"])
async def test_compressed_requests(bed: "Bed", box: "BoxEnd", coding: str) -> None:
    """G-182."""
    serve(bed, "application/json", json.dumps(LAST).encode())
    plain = json.dumps(ASK).encode()
    raw = zlib.compressobj(wbits=-15)
    packed = {
        "br": brotli.compress(plain),
        "deflate": zlib.compress(plain),
        "raw deflate": raw.compress(plain) + raw.flush(),
    }[coding]
    path = f"/s/gemini/v1beta/models/{MODEL}:generateContent"
    status, _ = await post(bed, box, path, packed, {"Content-Encoding": coding.split()[-1]})
    assert status == 200
    assert (bed.upstream.seen[0].body, bed.upstream.seen[0].all("content-encoding")) == (plain, [])
    bomb = brotli.compress(b" " * (65 * 1024 * 1024))
    assert (await post(bed, box, path, bomb, {"Content-Encoding": "br"}))[0] == 413

"""The model service of a real gateway process, against an upstream that a test scripts."""

import asyncio
import gzip
import io
import json
import zlib
from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
import zstandard
from aiohttp import web

from corral.engine.ports import ModelPrice, OpenedSecret
from corral.errors import InvalidInput
from corral.model.ids import TenantId
from corral.model.secrets import Provider, Secret

if TYPE_CHECKING:
    from tests.system.gateway.conftest import Bed, BoxEnd

KEY = "sk-ant-canary-0123456789abcdef"
MODEL = "claude-sonnet-4-5"
REQUEST = {"model": MODEL, "max_tokens": 10, "messages": [{"role": "user", "content": "hi"}]}
CHAT = {"model": "gpt-5", "messages": [{"role": "user", "content": "hi"}]}
ANSWER = {"model": MODEL, "usage": {"input_tokens": 100, "output_tokens": 10}, "content": []}


def event(name: str, data: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()


STREAM = [
    event(
        "message_start",
        {"type": "message_start", "message": {"model": MODEL, "usage": {"input_tokens": 100}}},
    ),
    event("content_block_delta", {"type": "content_block_delta", "delta": {"text": "x" * 300}}),
    event("message_delta", {"type": "message_delta", "usage": {"output_tokens": 10}}),
    event("message_stop", {"type": "message_stop"}),
]


async def post(
    bed: "Bed",
    box: "BoxEnd",
    path: str,
    body: Any = None,
    headers: dict[str, str] | None = None,
    token: str | None = None,
) -> tuple[int, dict[str, Any], Mapping[str, str]]:
    """A JSON call with the box's token in the provider's place."""
    given = {"Host": "gateway.corral", "x-api-key": token or box.token} | (headers or {})
    data = body if isinstance(body, bytes) else json.dumps(body if body is not None else REQUEST).encode()
    given.setdefault("Content-Type", "application/json")
    async with bed.http.post(box.url + path, data=io.BytesIO(data), headers=given) as answer:
        text = await answer.read()
        return answer.status, json.loads(text), answer.headers


async def answers(bed: "Bed", value: Any = ANSWER, **options: Any) -> None:
    """Make the upstream answer with JSON."""

    async def handler(_request: web.Request) -> web.StreamResponse:
        return web.json_response(value, **options)

    bed.upstream.handler = handler


async def test_a_call_goes_up_with_the_real_key_and_is_metered(bed: "Bed") -> None:
    """G-177, G-191, G-209."""
    box = await bed.attach()
    await answers(bed, headers={"request-id": "req_1"})
    headers = {
        "anthropic-beta": "a,b",
        "anthropic-version": "2023-06-01",
        "OpenAI-Organization": "evil",
        "Cookie": "a=b",
    }
    status, value, _ = await post(bed, box, "/s/anthropic/v1/messages?beta=true", headers=headers)
    assert (status, value) == (200, ANSWER)
    seen = bed.upstream.seen[0]
    assert (seen.method, seen.path) == ("POST", "/v1/messages?beta=true")
    assert seen.all("x-api-key") == [KEY]
    assert (seen.all("anthropic-beta"), seen.all("openai-organization"), seen.all("cookie")) == (
        ["a,b"],
        [],
        [],
    )
    assert box.token not in str(seen)
    assert json.loads(seen.body) == REQUEST
    usage = await bed.usage.get()
    assert (usage.sandbox, usage.model, usage.secret, usage.status) == (box.id, MODEL, "anthropic", 200)
    assert (usage.tokens.input, usage.tokens.output, usage.cost, usage.assumed) == (100, 10, 450, False)
    assert (usage.request_id, usage.path) == ("req_1", "messages")


def spellings(token: str) -> list[tuple[str, dict[str, str]]]:
    basic = b64encode(f"user:{token}".encode()).decode()
    basic_user = b64encode(f"{token}:".encode()).decode()
    return [
        ("", {"Authorization": f"Bearer {token}"}), ("", {"Authorization": f"Basic {basic}"}),
        ("", {"Authorization": f"Basic {basic_user}"}), ("", {"x-api-key": token}), ("", {"X-Goog-Api-Key": token}),
        ("", {"api-key": token}), (f"?key={token}", {}), (f"?a=1&api_key={token}&b=2", {}),
        ("", {"x-api-key": token, "Authorization": f"Bearer {token}"}),
    ]  # fmt: skip


async def test_the_token_is_taken_in_every_spelling(bed: "Bed") -> None:
    """G-176, G-177."""
    box = await bed.attach()
    await answers(bed)
    for query, headers in spellings(box.token):
        async with bed.http.post(
            f"{box.url}/s/openai/v1/chat/completions{query}",
            json=CHAT,
            headers={"Host": "gateway.corral", **headers},
        ) as answer:
            assert answer.status == 200, headers
        seen = bed.upstream.seen[-1]
        assert seen.all("authorization") == [f"Bearer {KEY}"]
        assert (seen.all("x-api-key"), seen.all("api-key"), seen.all("x-goog-api-key")) == ([], [], [])
        assert "key=" not in seen.path
        assert box.token not in str(seen)


async def test_other_tokens_are_refused(bed: "Bed") -> None:
    """G-19, G-24, G-177, G-184, G-189, G-226."""
    box, other = await bed.attach(1), await bed.attach(2)
    for token in ("wrong", other.token, KEY, " "):
        status, value, headers = await post(bed, box, "/s/anthropic/v1/messages", token=token)
        assert status == 401
        assert value["type"] == "error"
        assert value["error"]["type"] == "authentication_error"
        assert headers["x-should-retry"] == "false"
    status, _, _ = await post(bed, box, "/s/anthropic/v1/messages", headers={"Authorization": "Bearer other"})
    assert status == 401
    status, value = 0, {}
    for _ in range(40):
        status, value, _ = await post(bed, box, "/s/openai/v1/chat/completions", token="wrong")
        if status == 429:
            break
    assert status == 429
    assert "Corral gateway" in value["error"]["message"]
    assert bed.upstream.seen == []
    record = await bed.audit("llm", "denied")
    assert record.reason == "bad-token"
    # Its own token still works.
    await answers(bed)
    assert (await post(bed, box, "/s/anthropic/v1/messages"))[0] == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/messages/batches"), ("POST", "/v1/files"), ("GET", "/v1/organizations/api_keys"), ("DELETE", "/v1/models/x"),
        ("POST", "/v1/../admin"), ("POST", "/v1/messages/"), ("POST", "//v1/messages"), ("POST", "/v1/%6dessages"),
        ("GET", "/v1/models/.."), ("PUT", "/v1/messages"),
    ],
)  # fmt: skip
async def test_only_listed_endpoints_are_open(bed: "Bed", method: str, path: str) -> None:
    """G-77, G-179."""
    box = await bed.attach()
    head = f"{method} /s/anthropic{path} HTTP/1.1\r\nHost: gateway.corral\r\nx-api-key: {box.token}\r\n"
    answer = await box.raw(head.encode() + b"Content-Length: 2\r\nContent-Type: application/json\r\n\r\n{}")
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert b"POST /v1/messages" in answer
    assert bed.upstream.seen == []


async def test_free_endpoints_and_tolerant_paths(bed: "Bed") -> None:
    """G-178, G-187, G-229."""
    box = await bed.attach()
    await answers(bed, {"data": []})
    headers = {"Host": "gateway.corral", "x-api-key": box.token}
    for path in ("/v1/models", "/models", "/v1/v1/models", "/v1/models/claude-x", "/v1/models?limit=1"):
        async with bed.http.get(f"{box.url}/s/anthropic{path}", headers=headers) as answer:
            assert answer.status == 200
    paths = [seen.path for seen in bed.upstream.seen]
    assert paths == ["/v1/models", "/v1/models", "/v1/models", "/v1/models/claude-x", "/v1/models?limit=1"]
    assert (await post(bed, box, "/s/anthropic/v1/messages/count_tokens"))[0] == 200
    async with bed.http.head(f"{box.url}/s/anthropic/", headers=headers) as answer:
        assert answer.status == 200
    await bed.client.ping()
    assert bed.usage.empty()


async def test_a_secret_that_is_not_granted_does_not_exist(bed: "Bed") -> None:
    """G-17, G-173."""
    box = await bed.attach(secrets=("anthropic",))
    async with bed.http.get(box.url + "/s/openai/v1/models", headers={"Host": "gateway.corral"}) as answer:
        assert answer.status == 403
    await bed.client.set_secrets([])
    async with bed.http.get(box.url + "/s/anthropic/v1/models", headers={"Host": "gateway.corral"}) as answer:
        assert answer.status == 403


@pytest.mark.parametrize("api", ["anthropic", "openai"])
async def test_events_pass_as_they_come(bed: "Bed", api: str) -> None:
    """G-99: each event has arrived before the next is made."""
    box = await bed.attach()
    step = asyncio.Semaphore(0)
    events = (
        STREAM
        if api == "anthropic"
        else [event("", {"model": "gpt-5", "choices": [{"delta": {"content": str(i)}}]}) for i in range(4)]
    )

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for item in events:
            await step.acquire()
            await response.write(item)
        await step.acquire()
        return response

    bed.upstream.handler = handler
    path = "/s/anthropic/v1/messages" if api == "anthropic" else "/s/openai/v1/chat/completions"
    body = {**(REQUEST if api == "anthropic" else CHAT), "stream": True}
    headers = {"Host": "gateway.corral", "x-api-key": box.token}
    async with asyncio.timeout(30), bed.http.post(box.url + path, json=body, headers=headers) as answer:
        assert answer.headers["Content-Type"] == "text/event-stream"
        for item in events:
            step.release()
            assert await answer.content.readexactly(len(item)) == item
        step.release()
        assert await answer.content.read() == b""
    usage = await bed.usage.get()
    assert usage.assumed is (api == "openai")
    if api == "anthropic":
        assert (usage.tokens.input, usage.tokens.output) == (100, 10)


async def test_usage_is_asked_for_and_kept_from_a_client_that_did_not(bed: "Bed") -> None:
    """G-193."""
    box = await bed.attach()
    chunk = event("", {"model": "gpt-5", "choices": [{"delta": {"content": "x"}}], "usage": None})
    last = event("", {"model": "gpt-5", "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}})

    async def handler(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        assert body["stream_options"] == {"include_usage": True}
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for part in (chunk, chunk, last[:30], last[30:], b"data: [DONE]\n\n"):
            await response.write(part)
        return response

    bed.upstream.handler = handler
    headers = {"Host": "gateway.corral", "Authorization": f"Bearer {box.token}"}
    url = box.url + "/s/openai/v1/chat/completions"
    async with bed.http.post(url, json={**CHAT, "stream": True}, headers=headers) as answer:
        assert await answer.read() == chunk + chunk + b"data: [DONE]\n\n"
    asked = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
    async with bed.http.post(url, json=asked, headers=headers) as answer:
        assert await answer.read() == chunk + chunk + last + b"data: [DONE]\n\n"
    for _ in range(2):
        usage = await bed.usage.get()
        assert (usage.tokens.input, usage.tokens.output, usage.assumed) == (7, 3, False)


async def test_a_stream_that_breaks_looks_broken_and_is_charged(bed: "Bed") -> None:
    """G-102, G-201."""
    box = await bed.attach()

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for item in STREAM[:2]:
            await response.write(item)
        assert request.transport is not None
        request.transport.abort()
        return response

    bed.upstream.handler = handler
    headers = {"Host": "gateway.corral", "x-api-key": box.token}
    with pytest.raises((aiohttp.ClientPayloadError, ConnectionResetError)):
        async with bed.http.post(
            box.url + "/s/anthropic/v1/messages", json={**REQUEST, "stream": True}, headers=headers
        ) as answer:
            await answer.read()
    usage = await bed.usage.get()
    assert usage.tokens.input == 100
    assert usage.tokens.output == REQUEST["max_tokens"]
    assert usage.assumed
    assert usage.cost > 0


async def test_a_client_that_goes_away_cancels_upstream_and_is_charged(bed: "Bed") -> None:
    """G-101, G-201, G-219."""
    box = await bed.attach()
    gone = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(STREAM[0])
        try:
            await asyncio.Event().wait()
        finally:
            gone.set()
        return response

    bed.upstream.handler = handler
    headers = {"Host": "gateway.corral", "x-api-key": box.token}
    async with asyncio.timeout(30):
        answer = await bed.http.post(
            box.url + "/s/anthropic/v1/messages", json={**REQUEST, "stream": True}, headers=headers
        )
        assert await answer.content.readexactly(len(STREAM[0])) == STREAM[0]
        answer.close()
        await gone.wait()
        usage = await bed.usage.get()
    assert usage.tokens.input == 100
    assert usage.assumed


async def test_an_echo_of_the_key_is_taken_out(bed: "Bed") -> None:
    """G-137 to G-139, G-184."""
    box = await bed.attach()

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(
            status=400, headers={"X-Echo": f"key {KEY}!", "Content-Type": "application/json"}
        )
        await response.prepare(request)
        for i in range(0, len(KEY), 3):
            await response.write(KEY[i : i + 3].encode())
        await response.write(
            b" " + b64encode(b"a" + KEY.encode()) + b" " + KEY.encode().hex().encode() + b" end"
        )
        return response

    bed.upstream.handler = handler
    headers = {"Host": "gateway.corral", "x-api-key": box.token}
    async with bed.http.post(box.url + "/s/anthropic/v1/messages", json=REQUEST, headers=headers) as answer:
        text = await answer.read()
        assert answer.status == 400
        assert KEY not in answer.headers["X-Echo"]
    assert text.startswith(b"[redacted:anthropic]")
    assert text.endswith(b" end")
    for form in (KEY.encode(), b64encode(b"a" + KEY.encode())[4:30], KEY.encode().hex().encode()):
        assert form not in text
    assert (await bed.audit("redaction", "redacted")).secret == "anthropic"
    usage = await bed.usage.get()
    assert (usage.cost, usage.status) == (0, 400)


@pytest.mark.parametrize("coding", ["", "gzip"])
async def test_a_secret_itself_is_not_told_to_a_model(bed: "Bed", coding: str) -> None:
    """G-44: in the conversation, packed or not; a key that is a word may be spoken of."""
    box = await bed.attach()
    await answers(bed)
    url = f"http://127.0.0.1:{bed.upstream.port}"
    word = OpenedSecret(TenantId("default"), "own", Provider.OPENAI, url, Secret("sk-no-key-is-required"))
    await bed.secrets(word)
    for told, status in ((f"the key is {KEY}.", 403), ("set it to sk-no-key-is-required", 200)):
        data = json.dumps({**REQUEST, "messages": [{"role": "user", "content": told}]}).encode()
        data = gzip.compress(data) if coding else data
        headers = {"Content-Encoding": coding or "identity"}
        got, value, _ = await post(bed, box, "/s/anthropic/v1/messages", data, headers)
        assert got == status, value
    assert len(bed.upstream.seen) == 1
    assert (await bed.audit("leak", "denied")).secret in ("anthropic", "openai")  # the same key


async def test_a_compressed_answer_is_read_all_the_same(bed: "Bed") -> None:
    """G-94, G-140, G-200."""
    box = await bed.attach()

    async def handler(_request: web.Request) -> web.StreamResponse:
        data = gzip.compress(json.dumps({**ANSWER, "echo": KEY}).encode())
        return web.Response(body=data, headers={"Content-Encoding": "gzip"}, content_type="application/json")

    bed.upstream.handler = handler
    status, value, _ = await post(
        bed, box, "/s/anthropic/v1/messages", headers={"Accept-Encoding": "br, zstd"}
    )
    assert status == 200
    assert value["echo"] != KEY
    assert bed.upstream.seen[0].all("accept-encoding") == ["identity"]
    assert (await bed.usage.get()).tokens.input == 100

    async def unreadable(_request: web.Request) -> web.StreamResponse:
        return web.Response(body=b"xx", headers={"Content-Encoding": "compress"})

    bed.upstream.handler = unreadable
    assert (await post(bed, box, "/s/anthropic/v1/messages"))[0] == 502


@pytest.mark.parametrize("coding", ["gzip", "zstd", "deflate"])
async def test_compressed_requests_are_decoded(bed: "Bed", coding: str) -> None:
    """G-182."""
    box = await bed.attach()
    await answers(bed)
    plain = json.dumps(REQUEST).encode()
    encoders: dict[str, Callable[[bytes], bytes]] = {
        "gzip": gzip.compress,
        "deflate": zlib.compress,
        "zstd": zstandard.compress,
    }
    data = encoders[coding](plain)
    status, _, _ = await post(bed, box, "/s/anthropic/v1/messages", data, {"Content-Encoding": coding})
    assert status == 200
    assert bed.upstream.seen[0].body == plain
    assert bed.upstream.seen[0].all("content-encoding") == []
    status, _, _ = await post(bed, box, "/s/anthropic/v1/messages", data[:-3], {"Content-Encoding": coding})
    assert status == 400


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b'{"model":"claude-sonnet-4-5","model":"x"}', {}, 400),
        (b'{"model":"claude-sonnet-4-5","a":{"b":1,"b":2}}', {}, 400),
        (b"{not json", {}, 400),
        (b'{"model":"\xff"}', {}, 400),
        (b'{"model":"claude-sonnet-4-5","x":NaN}', {}, 400),
        (b"[" * 100_000, {}, 400),
        (b'{"messages":[]}', {}, 400),
        (b'{"model":["claude-sonnet-4-5"]}', {}, 400),
        (b"{}", {"Content-Type": "text/plain"}, 415),
        (b"{}", {"Content-Encoding": "compress"}, 415),
        (gzip.compress(bytes(80 * 1024 * 1024)), {"Content-Encoding": "gzip"}, 413),
    ],
)
async def test_bodies_that_parsers_read_differently_are_refused(
    bed: "Bed", body: bytes, headers: dict[str, str], status: int
) -> None:
    """G-181, G-182, G-186."""
    box = await bed.attach()
    found, value, _ = await post(bed, box, "/s/anthropic/v1/messages", body, headers)
    assert found == status
    assert value["error"]["message"].startswith("Corral gateway: ")
    assert bed.upstream.seen == []


async def test_a_body_that_is_badly_framed_never_goes_up(bed: "Bed") -> None:
    """G-74."""
    box = await bed.attach()
    head = f"POST /s/anthropic/v1/messages HTTP/1.1\r\nHost: gateway.corral\r\nx-api-key: {box.token}\r\n"
    head += "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = await box.raw(head.encode() + b"2\r\n{}\r\nzz\r\n\r\n")
    assert answer[8:13] == b" 400 "
    assert bed.upstream.seen == []


async def test_a_large_context_passes(bed: "Bed") -> None:
    """G-186."""
    box = await bed.attach()
    await answers(bed)
    body = {**REQUEST, "messages": [{"role": "user", "content": "x" * 40 * 1024 * 1024}]}
    assert (await post(bed, box, "/s/anthropic/v1/messages", body))[0] == 200
    assert len(bed.upstream.seen[0].body) > 40 * 1024 * 1024


async def test_a_model_without_a_price_is_refused_until_it_has_one(bed: "Bed") -> None:
    """G-203."""
    box = await bed.attach()
    await answers(bed, {"model": "qwen", "usage": {"prompt_tokens": 1_000_000, "completion_tokens": 0}})
    body = {**CHAT, "model": "qwen"}
    path = "/s/openai/v1/chat/completions"
    status, value, _ = await post(bed, box, path, body)
    assert status == 403
    assert "corral price set openai --model qwen --input X --output Y" in value["error"]["message"]
    assert bed.upstream.seen == []
    await bed.client.set_prices([ModelPrice("openai", "qwen", 5_000_000, 0, 0, 0)])
    assert (await post(bed, box, path, body))[0] == 200
    assert (await bed.usage.get()).cost == 5_000_000
    assert (await post(bed, box, path, {**body, "models": ["other-model"]}))[0] == 403


async def test_background_and_websocket_are_refused(bed: "Bed") -> None:
    """G-89, G-179."""
    box = await bed.attach()
    body = {"model": "gpt-5", "input": "x", "background": True}
    assert (await post(bed, box, "/s/openai/v1/responses", body))[0] == 403
    answer = await box.raw(
        f"GET /s/openai/v1/responses HTTP/1.1\r\nHost: gateway.corral\r\nAuthorization: Bearer {box.token}\r\n"
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
    )
    assert answer.startswith(b"HTTP/1.1 426 ")


async def test_what_is_told_of_a_call_is_found_in_the_log(bed: "Bed") -> None:
    """G-190, G-209, G-314, G-322: by its id, with what it moved, and by the provider's id."""
    box = await bed.attach()
    await answers(bed, headers={"request-id": "req_1"})
    status, _, headers = await post(bed, box, "/s/anthropic/v1/messages/batches")
    refused = await bed.audit("llm", "denied")
    assert (status, refused.reason) == (403, "endpoint-not-allowed")
    assert refused.request_id == headers["X-Corral-Request"]
    status, _, headers = await post(bed, box, "/s/anthropic/v1/messages")
    made = await bed.audit("llm", "allowed")
    assert (status, made.provider_request_id) == (200, "req_1")
    assert headers["request-id"] == "req_1"
    assert made.request_id not in ("", refused.request_id)
    assert (made.bytes_sent, made.bytes_received > 100) == (len(json.dumps(REQUEST)), True)
    assert made.detail()["bytes_sent"] == str(made.bytes_sent)


async def test_errors_of_the_provider_pass_untouched(bed: "Bed") -> None:
    """G-184, G-188, G-207."""
    box = await bed.attach()
    error = {"type": "error", "error": {"type": "rate_limit_error", "message": "slow"}}
    await answers(bed, error, status=429, headers={"retry-after": "7", "x-should-retry": "true"})
    status, value, headers = await post(bed, box, "/s/anthropic/v1/messages")
    assert (status, value) == (429, error)
    assert (headers["retry-after"], headers["x-should-retry"]) == ("7", "true")
    assert "X-Corral-Decision" not in headers
    assert len(bed.upstream.seen) == 1
    assert (await bed.usage.get()).cost == 0


async def test_a_provider_that_is_down_is_an_error_to_retry(bed: "Bed") -> None:
    """G-184, G-207."""
    box = await bed.attach()
    await bed.secrets(base="http://127.0.0.1:1")
    status, value, headers = await post(bed, box, "/s/anthropic/v1/messages")
    assert status == 502
    assert value["error"]["type"] == "api_error"
    assert "Retry-After" in headers
    assert "127.0.0.1" not in json.dumps(value)
    await bed.client.ping()
    assert bed.usage.empty()


async def test_a_bad_base_url_is_refused_by_the_gateway(bed: "Bed") -> None:
    with pytest.raises(InvalidInput):
        await bed.client.set_secrets(
            [OpenedSecret(TenantId("default"), "x", Provider.OPENAI, "ftp://h", Secret("12345678"))]
        )


async def test_a_killed_gateway_comes_back_and_loses_no_usage(bed: "Bed") -> None:
    """G-335: what it had sent is read after its death, and what it must know is said to the next one."""
    box = await bed.attach()
    step = asyncio.Event()

    async def handler(_request: web.Request) -> web.StreamResponse:
        await step.wait()
        return web.json_response(ANSWER)

    bed.upstream.handler = handler
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        calls = [tasks.create_task(post(bed, box, "/s/anthropic/v1/messages")) for _ in range(5)]
        while len(bed.upstream.seen) < 5:
            await bed.client.ping()
        # From here on the ledger takes nothing.
        bed.taking.clear()
        step.set()
    assert [call.result()[0] for call in calls] == [200] * 5
    await bed.client.ping()
    await bed.kill()
    await bed.client.lost()
    # The sandbox's connection waits in the backlog meanwhile.
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(post(bed, box, "/s/anthropic/v1/messages"))
        await bed.client.reattach(bed.spawn())
        bed.taking.set()
    assert waiting.result()[0] == 200
    async with asyncio.timeout(30):
        assert [(await bed.usage.get()).cost for _ in range(6)] == [450] * 6
    await bed.client.detach(box.id)
    with pytest.raises(aiohttp.ClientConnectionError):
        await post(bed, box, "/s/anthropic/v1/messages")


async def test_a_gateway_that_is_asked_to_stop_sends_its_last_records(bed: "Bed") -> None:
    """G-219, G-335."""
    box = await bed.attach()
    step = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(STREAM[0])
        await step.wait()
        return response

    bed.upstream.handler = handler
    answer = await ask_for_a_stream(bed, box)
    await answer.content.readexactly(len(STREAM[0]))
    assert bed.process is not None
    bed.process.terminate()
    async with asyncio.timeout(30):
        assert (await bed.usage.get()).tokens.input == 100
        await bed.client.lost()
    step.set()
    answer.close()


async def begin_a_stream(request: web.Request) -> web.StreamResponse:
    """Its first event, and nothing after it."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(STREAM[0])
    await asyncio.Event().wait()
    return response


async def ask_for_a_stream(bed: "Bed", box: "BoxEnd") -> aiohttp.ClientResponse:
    """A call whose answer is streamed; the caller closes it."""
    headers = {"Host": "gateway.corral", "x-api-key": box.token}
    return await bed.http.post(
        box.url + "/s/anthropic/v1/messages", json={**REQUEST, "stream": True}, headers=headers
    )


async def test_detaching_cuts_open_streams(bed: "Bed") -> None:
    """G-22, G-333."""
    box = await bed.attach()
    bed.upstream.handler = begin_a_stream
    async with asyncio.timeout(30):
        answer = await ask_for_a_stream(bed, box)
        await answer.content.readexactly(len(STREAM[0]))
        await bed.client.detach(box.id)
        with pytest.raises(aiohttp.ClientError):
            await answer.content.read()
        answer.close()
        assert (await bed.usage.get()).tokens.input == 100


async def test_nothing_of_the_key_is_in_what_the_gateway_records(bed: "Bed") -> None:
    """G-23, G-323: not where a provider gives it back as the request's id, or as the name of the model either."""
    box = await bed.attach()
    await answers(bed, {**ANSWER, "model": KEY}, headers={"request-id": KEY})
    await post(bed, box, f"/s/anthropic/v1/messages?key={box.token}", token=box.token)
    await post(bed, box, f"/s/anthropic/v1/other?key={KEY}")
    await bed.audit("llm", "denied")
    text = repr(bed.audits) + repr(await bed.usage.get())
    assert KEY not in text
    assert box.token not in text

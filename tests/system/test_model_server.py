"""The scripted model server as its own process, over HTTP."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from corral.testing.agent_script import FIX_TESTS
from corral.testing.model_server import ModelServer

KEY = "sk-real-key-of-this-test"
ANTHROPIC = {"x-api-key": KEY, "anthropic-version": "2023-06-01"}
OPENAI = {"authorization": f"Bearer {KEY}"}
BASH = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
MESSAGES: dict[str, Any] = {
    "model": "claude-sonnet-4-5",
    "max_tokens": 1000,
    "stream": True,
    "tools": [{"name": "Bash", "input_schema": BASH}],
    "messages": [{"role": "user", "content": "make the tests pass"}],
}
RESPONSES: dict[str, Any] = {
    "model": "gpt-5.1",
    "stream": True,
    "tools": [{"type": "function", "name": "shell", "parameters": BASH}],
    "input": "make the tests pass",
}
CHAT: dict[str, Any] = {
    "model": "gpt-5.1",
    "stream": True,
    "stream_options": {"include_usage": True},
    "tools": [{"type": "function", "function": {"name": "bash", "parameters": BASH}}],
    "messages": [{"role": "user", "content": "make the tests pass"}],
}
CALLS = [
    pytest.param("/v1/messages", ANTHROPIC, MESSAGES, id="anthropic"),
    pytest.param("/v1/responses", OPENAI, RESPONSES, id="responses"),
    pytest.param("/v1/chat/completions", OPENAI, CHAT, id="chat"),
]


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer(KEY) as server:
        yield server


@pytest.fixture
async def client(server: ModelServer) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(server.url) as session:
        yield session


def last_data(text: str) -> dict[str, Any]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")]
    found: dict[str, Any] = json.loads(lines[-1])
    return found


async def read_into(received: bytearray, response: aiohttp.ClientResponse) -> None:
    async for piece in response.content.iter_any():
        received += piece


async def test_process_says_its_port_serves_logs_and_stops_on_a_signal(tmp_path: Path) -> None:
    key, log = tmp_path / "key", tmp_path / "log"
    key.write_text(KEY + "\n")
    command = (sys.executable, "-m", "corral.testing.model_server", "--key-file", str(key), "--log", str(log))
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        port = json.loads(await process.stdout.readline())["port"]
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
            async with session.post("/v1/messages", json=MESSAGES, headers=ANTHROPIC) as response:
                assert response.status == 200
                assert last_data(await response.text())["type"] == "message_stop"
            async with session.get("/__stats") as response:
                assert (await response.json())["calls"] == {"anthropic-messages": 1}
    finally:
        process.terminate()
        code = await process.wait()
    assert code == 0
    (record,) = [json.loads(line) for line in log.read_text().splitlines()]
    assert (record["path"], record["good"], record["calls"]) == ("/v1/messages", True, "Bash")
    assert KEY not in log.read_text()


async def test_process_refuses_an_empty_key(tmp_path: Path) -> None:
    command = (
        sys.executable,
        "-m",
        "corral.testing.model_server",
        "--key-env",
        "NO_SUCH_VARIABLE_OF_THIS_TEST",
    )
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    _, errors = await process.communicate()
    assert process.returncode == 2
    assert b"the key is empty" in errors


@pytest.mark.parametrize(("path", "headers", "body"), CALLS)
async def test_stream_and_whole_body_agree_with_the_stats(
    server: ModelServer,
    client: aiohttp.ClientSession,
    path: str,
    headers: dict[str, str],
    body: dict[str, Any],
) -> None:
    async with client.post(path, json=body, headers=headers) as response:
        assert response.content_type == "text/event-stream"
        streamed = await response.text()
    assert FIX_TESTS.steps[0].say.split()[0] in streamed
    async with client.post(path, json={**body, "stream": False}, headers=headers) as response:
        whole = await response.json()
    usage = whole["usage"]
    prompt = usage.get("prompt_tokens") or usage["input_tokens"] + usage.get("cache_creation_input_tokens", 0)
    assert prompt > 0
    counted = server.stats.tokens[body["model"]]
    assert counted.output == 2 * (usage.get("completion_tokens") or usage["output_tokens"])
    assert (server.stats.good, server.stats.bad, server.stats.extra) == (2, 0, 0)


@pytest.mark.parametrize(("path", "headers", "body"), CALLS)
async def test_wrong_key_is_refused_in_the_apis_own_shape(
    server: ModelServer,
    client: aiohttp.ClientSession,
    path: str,
    headers: dict[str, str],
    body: dict[str, Any],
) -> None:
    wrong = {name: value.replace(KEY, "sk-wrong") for name, value in headers.items()}
    async with client.post(path, json=body, headers=wrong) as response:
        assert response.status == 401
        error = (await response.json())["error"]
    assert error["type"] == "authentication_error" or error["code"] == "invalid_api_key"
    assert (server.stats.good, server.stats.bad, server.stats.calls) == (0, 1, {})


async def test_key_beside_another_credential_is_counted(
    server: ModelServer, client: aiohttp.ClientSession
) -> None:
    headers = {**ANTHROPIC, "authorization": "Bearer token-of-a-sandbox"}
    async with client.post("/v1/messages", json=MESSAGES, headers=headers) as response:
        assert response.status == 200
    assert server.stats.extra == 1


async def test_conversation_is_followed_to_the_end_of_the_script(client: aiohttp.ClientSession) -> None:
    messages: list[dict[str, Any]] = list(MESSAGES["messages"])
    commands = []
    while True:
        body = {**MESSAGES, "stream": False, "messages": messages}
        async with client.post("/v1/messages", json=body, headers=ANTHROPIC) as response:
            answer = await response.json()
        messages.append({"role": "assistant", "content": answer["content"]})
        if answer["stop_reason"] == "end_turn":
            break
        use = answer["content"][-1]
        commands.append(use["input"]["command"])
        result = {"type": "tool_result", "tool_use_id": use["id"], "content": "ok"}
        messages.append({"role": "user", "content": [result]})
    assert commands == [step.run for step in FIX_TESTS.steps]
    assert messages[-1]["content"][0]["text"] == FIX_TESTS.final


async def test_another_script_can_be_given(client: aiohttp.ClientSession) -> None:
    async with client.put("/__script", json={"steps": ["uname -a"]}) as response:
        assert response.status == 204
    async with client.post("/v1/messages", json={**MESSAGES, "stream": False}, headers=ANTHROPIC) as response:
        assert (await response.json())["content"][-1]["input"] == {"command": "uname -a"}
    async with client.put("/__script", json={"steps": 1}) as response:
        assert response.status == 400


async def test_models_and_token_counts(client: aiohttp.ClientSession) -> None:
    async with client.get("/v1/models", headers=OPENAI) as response:
        assert (await response.json())["object"] == "list"
    async with client.get("/v1/models/claude-x", headers=ANTHROPIC) as response:
        assert (await response.json())["id"] == "claude-x"
    async with client.post("/v1/messages/count_tokens", json=MESSAGES, headers=ANTHROPIC) as response:
        assert (await response.json())["input_tokens"] > 0


@pytest.mark.parametrize(
    ("path", "data", "status"),
    [("/v1/messages", b"{", 400), ("/v1/messages", b"[]", 400), ("/v1/messages/batches", b"{}", 404)],
)
async def test_bad_requests_are_answered_in_anthropics_shape(
    client: aiohttp.ClientSession, path: str, data: bytes, status: int
) -> None:
    async with client.post(path, data=data, headers=ANTHROPIC) as response:
        assert response.status == status
        assert (await response.json())["type"] == "error"


async def test_error_faults_strike_and_pass(server: ModelServer, client: aiohttp.ClientSession) -> None:
    async with client.put("/__faults", json={"status": 429, "retry_after": 1.5, "times": 1}) as response:
        assert response.status == 204
    async with client.post("/v1/messages", json=MESSAGES, headers=ANTHROPIC) as response:
        assert (response.status, response.headers["retry-after"]) == (429, "1.5")
        assert (await response.json())["error"]["type"] == "rate_limit_error"
    async with client.post("/v1/messages", json=MESSAGES, headers=ANTHROPIC) as response:
        assert response.status == 200
    assert server.stats.faulted == 1


@pytest.mark.parametrize(("path", "headers", "body"), CALLS)
async def test_cut_stream_breaks_instead_of_ending(
    client: aiohttp.ClientSession, path: str, headers: dict[str, str], body: dict[str, Any]
) -> None:
    async with client.put("/__faults", json={"cut_after": 2, "delay": 0.001}) as response:
        assert response.status == 204
    async with client.post(path, json=body, headers=headers) as response:
        received = bytearray()
        with pytest.raises(aiohttp.ClientPayloadError):
            await read_into(received, response)
    assert received.count(b"data: ") == 2

"""A model server without a model: it speaks three APIs and follows a script.

It answers Anthropic Messages, OpenAI Responses and OpenAI Chat Completions, streamed or whole, with usage numbers that
add up, to whoever sends its key in the API's own header. Agents driven by it do real work (run, edit, commit) with the
tools that they offer, so a whole run can be shown and tested without a provider.

`python -m corral.testing.model_server --port 0 --key-env NAME` prints one JSON line, `{"port": …}`, once it listens.

Beside the APIs it answers without a key: `GET /__stats` (requests with the key and without it, calls, tokens),
`PUT /__faults` (see model_faults) and `PUT /__script` (see agent_script).
"""

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from aiohttp import web

from corral.errors import CorralError, InvalidInput
from corral.testing.agent_brain import decide, usage_of
from corral.testing.agent_script import FIX_TESTS, Script, load_script
from corral.testing.dialect_anthropic import AnthropicMessages
from corral.testing.dialect_chat import OpenAIChat
from corral.testing.dialect_responses import OpenAIResponses
from corral.testing.model_dialects import Call, Dialect, Json
from corral.testing.model_faults import Faults
from corral.testing.model_requests import Stats, decode_body, judge

MAX_BODY = 64 * 1024 * 1024

_ANTHROPIC = AnthropicMessages()
_RESPONSES = OpenAIResponses()
_CHAT = OpenAIChat()
_ENDPOINTS: dict[str, Dialect] = {
    "/v1/messages": _ANTHROPIC,
    "/v1/responses": _RESPONSES,
    "/v1/chat/completions": _CHAT,
}
_CHATGPT = "/backend-api/codex/"
"""Where a ChatGPT subscription's Responses API is."""
_COUNT_TOKENS = "/v1/messages/count_tokens"
_MODELS = ("claude-sonnet-4-5", "claude-haiku-4-5", "gpt-5.1", "gpt-5.1-codex", "gpt-5-mini")


class ModelServer:
    """The server, as an async context manager; `url` is good while it is entered.

    `script` and `faults` may be changed at any time and hold for the next call.
    """

    def __init__(
        self,
        key: str,
        script: Script = FIX_TESTS,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        log: TextIO | None = None,
    ) -> None:
        self.script = script
        self.faults = Faults()
        self.stats = Stats()
        self.host = host
        self.port = port
        self._key = key
        self._log = log
        self._ids = count(1)
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_get("/__stats", self._get_stats)
        app.router.add_put("/__faults", self._put_faults)
        app.router.add_put("/__script", self._put_script)
        app.router.add_route("*", "/{path:.*}", self._answer)
        # Bodies are decoded here: aiohttp knows zstd only where a further package is installed.
        self._runner = web.AppRunner(app, access_log=None, auto_decompress=False, shutdown_timeout=1.0)

    @property
    def url(self) -> str:
        """The base URL, without `/v1`."""
        return f"http://{self.host}:{self.port}"

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.host, self.port)
        await site.start()
        self.port = int(self._runner.addresses[0][1])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()

    async def _get_stats(self, request: web.Request) -> web.Response:
        return web.json_response(asdict(self.stats))

    async def _put_faults(self, request: web.Request) -> web.Response:
        return await self._control(request, lambda data: setattr(self, "faults", Faults.from_data(data)))

    async def _put_script(self, request: web.Request) -> web.Response:
        return await self._control(
            request, lambda data: setattr(self, "script", Script.from_data("given", data))
        )

    @staticmethod
    async def _control(request: web.Request, apply: Callable[[Any], None]) -> web.Response:
        try:
            apply(json.loads(await request.read()))
        except ValueError as error:
            return web.json_response(
                InvalidInput(f"not JSON: {error}", "send a JSON object").to_dict(), status=400
            )
        except CorralError as error:
            return web.json_response(error.to_dict(), status=error.status)
        return web.Response(status=204)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        anthropic = request.path.startswith("/v1/messages") or "anthropic-version" in request.headers
        credentials = judge(request.headers, "x-api-key" if anthropic else "authorization", self._key)
        dialect = _ENDPOINTS.get(_path(request), _ANTHROPIC if anthropic else _CHAT)
        self.stats.good += credentials.good
        self.stats.bad += not credentials.good
        self.stats.extra += credentials.good and bool(credentials.extra)
        record: Json = {"method": request.method, "path": request.path, **asdict(credentials)}
        try:
            if not credentials.good:
                return self._error(
                    record, dialect, 401, "invalid x-api-key" if anthropic else "Incorrect API key provided"
                )
            return await self._route(request, dialect, record)
        finally:
            self._write_log(record)

    async def _route(self, request: web.Request, dialect: Dialect, record: Json) -> web.StreamResponse:
        path = _path(request)
        if request.method == "GET" and path.startswith("/v1/models"):
            return _models(path.removeprefix("/v1/models").strip("/"), dialect)
        if request.method != "POST" or path not in (*_ENDPOINTS, _COUNT_TOKENS):
            return self._error(record, dialect, 404, f"there is no {request.method} {request.path}")
        try:
            coding = request.headers.get("content-encoding", "").lower()
            data = decode_body(await request.read(), coding)
            body = json.loads(data)
            if path == _COUNT_TOKENS:
                return web.json_response({"input_tokens": max(1, len(data) // 4)})
            if request.path.startswith(_CHATGPT):
                _check_subscription(request, body)
            conversation = dialect.read(body, len(data))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return self._error(record, dialect, 400, f"the request is not valid: {error}")
        reply = decide(self.script, conversation)
        tokens = usage_of(conversation, reply, cache_writes=dialect.cache_writes)
        call = Call(f"{next(self._ids):06d}", int(time.time()), conversation, reply, tokens)
        record |= _describe(call)
        return await self._send(request, dialect, call, record)

    async def _send(
        self, request: web.Request, dialect: Dialect, call: Call, record: Json
    ) -> web.StreamResponse:
        faults = self.faults
        if faults.strikes:
            self.faults = faults.spent()
            self.stats.faulted += 1
        await asyncio.sleep(faults.wait)
        if faults.strikes and faults.status:
            response = self._error(record, dialect, faults.status, "a fault was asked for")
            if faults.retry_after >= 0:
                response.headers["retry-after"] = f"{faults.retry_after:g}"
            return response
        self.stats.add_call(dialect.name, call)
        if not call.conversation.stream:
            return web.json_response(dialect.body(call), headers={"request-id": f"req_{call.id}"})
        cut_after = faults.cut_after if faults.strikes else -1
        return await self._stream(request, dialect, call, faults.delay, cut_after)

    @staticmethod
    async def _stream(
        request: web.Request, dialect: Dialect, call: Call, delay: float, cut_after: int
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"cache-control": "no-cache", "request-id": f"req_{call.id}"})
        response.content_type = "text/event-stream"
        response.charset = "utf-8"
        await response.prepare(request)
        for number, event in enumerate(dialect.events(call)):
            if number == cut_after:
                # Without the last chunk: the client sees a broken body, not an end.
                if request.transport is not None:
                    request.transport.close()
                break
            if delay:
                await asyncio.sleep(delay)
            await response.write(event.encode())
        return response

    @staticmethod
    def _error(record: Json, dialect: Dialect, status: int, message: str) -> web.Response:
        record["status"] = status
        return web.json_response(dialect.error(status, message), status=status)

    def _write_log(self, record: Json) -> None:
        if self._log is not None:
            self._log.write(json.dumps(record) + "\n")
            self._log.flush()


def _describe(call: Call) -> Json:
    conversation, reply = call.conversation, call.reply
    return {
        "model": conversation.model,
        "stream": conversation.stream,
        "tools": [tool.name for tool in conversation.tools],
        "results": conversation.results,
        "side": reply.side,
        "calls": reply.tool.name if reply.tool else None,
        "tokens": asdict(call.tokens),
    }


def _path(request: web.Request) -> str:
    """The path as the usual API has it."""
    return "/v1/" + request.path.removeprefix(_CHATGPT) if request.path.startswith(_CHATGPT) else request.path


def _check_subscription(request: web.Request, body: Json) -> None:
    """What the API of a ChatGPT subscription insists on. Raises ValueError."""
    if not request.headers.get("chatgpt-account-id"):
        raise ValueError("no account is named")
    if body.get("store") is not False or body.get("stream") is not True or "max_output_tokens" in body:
        raise ValueError("it must be streamed, not stored, and without max_output_tokens")


def _models(wanted: str, dialect: Dialect) -> web.Response:
    """The list of models, or one of them: any name is answered, since the script does not mind."""
    if dialect is _ANTHROPIC:
        entries = [
            {"type": "model", "id": name, "display_name": name, "created_at": "2025-01-01T00:00:00Z"}
            for name in ((wanted,) if wanted else _MODELS)
        ]
        ends = {"first_id": entries[0]["id"], "last_id": entries[-1]["id"], "has_more": False}
        return web.json_response(entries[0] if wanted else {"data": entries, **ends})
    models = [
        {"id": name, "object": "model", "created": 1735689600, "owned_by": "scripted"}
        for name in ((wanted,) if wanted else _MODELS)
    ]
    return web.json_response(models[0] if wanted else {"object": "list", "data": models})


async def serve(server: ModelServer, ready: Callable[[], None], stopped: Awaitable[object]) -> None:
    """Run `server` until `stopped`; call `ready` once it listens."""
    async with server:
        ready()
        await stopped


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m corral.testing.model_server", description="A scripted model server."
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    parser.add_argument("--port", type=int, default=0, help="port to listen on (default: a free one)")
    key = parser.add_mutually_exclusive_group(required=True)
    key.add_argument("--key-file", type=Path, help="file that holds the key that clients must send")
    key.add_argument("--key-env", metavar="NAME", help="environment variable that holds it")
    parser.add_argument(
        "--script", default=FIX_TESTS.name, help="a script's name or JSON file (default %(default)s)"
    )
    parser.add_argument("--faults", type=json.loads, default={}, help="faults to begin with, as JSON")
    parser.add_argument("--log", type=Path, help="file to append one JSON line per request to")
    return parser.parse_args(argv)


def _read_key(arguments: argparse.Namespace) -> str:
    if arguments.key_file is not None:
        try:
            key = str(arguments.key_file.read_text()).strip()
        except OSError as error:
            raise InvalidInput(
                f"the key file cannot be read: {error}", "give a file that holds the key"
            ) from error
    else:
        key = str(os.environ.get(arguments.key_env, "")).strip()
    if not key:
        raise InvalidInput("the key is empty", "give a key by --key-file or --key-env")
    return key


async def _main(arguments: argparse.Namespace, log: TextIO | None) -> None:
    server = ModelServer(
        _read_key(arguments), load_script(arguments.script), host=arguments.host, port=arguments.port, log=log
    )
    server.faults = Faults.from_data(arguments.faults)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)

    def ready() -> None:
        sys.stdout.write(json.dumps({"port": server.port}) + "\n")
        sys.stdout.flush()

    await serve(server, ready, stop.wait())


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    arguments = _arguments(argv)
    try:
        if arguments.log is None:
            asyncio.run(_main(arguments, None))
        else:
            with arguments.log.open("a") as log:
                asyncio.run(_main(arguments, log))
    except CorralError as error:
        sys.stderr.write(f"{error}: {error.hint}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The code interpreter's service, which runs inside sandboxes of the template `code-interpreter-v1`.

It is copied into the template, imports nothing of Corral, and has no secrets: whoever reaches the port may run code, as the
proxy before it decides. Each context is a Jupyter kernel; executions in one context come one after another. A client that
goes away interrupts its execution.
"""

import asyncio
import contextlib
import json
import os
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from jupyter_client.asynchronous.client import AsyncKernelClient  # type: ignore[import-not-found]
from jupyter_client.manager import AsyncKernelManager  # type: ignore[import-not-found]

PORT = 49999
HOME = os.path.expanduser("~")  # noqa: PTH111  one string
DEFAULT = "default"
LANGUAGES = ("python", "python3", "ipython")
MAX_CONTEXTS = 32
MAX_BODY = 64 * 1024 * 1024
START_SECONDS = 60
INTERRUPT_SECONDS = 5
_KEYS = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "text/latex": "latex",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "application/json": "json",
    "application/javascript": "javascript",
    "e2b/data": "data",
    "e2b/chart": "chart",
}


@dataclass
class Context:
    """A kernel, and its turn."""

    id: str
    language: str
    cwd: str
    manager: AsyncKernelManager
    client: AsyncKernelClient
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def shown(self) -> dict[str, str]:
        """As clients see it."""
        return {"id": self.id, "language": self.language, "cwd": self.cwd}


class Contexts:
    """All kernels."""

    def __init__(self) -> None:
        self._all: dict[str, Context] = {}
        self._making = asyncio.Lock()

    async def make(self, language: str | None, cwd: str | None, id: str | None = None) -> Context:
        """A new kernel. Raises an HTTP error for what cannot be."""
        wanted = (language or "python").lower()
        if wanted not in LANGUAGES:
            raise _refused(400, f"the language {wanted[:40]!r} is not installed: use python")
        if len(self._all) >= MAX_CONTEXTS:
            raise _refused(429, f"{len(self._all)} contexts are there already: remove some")
        directory = cwd or HOME
        if not os.path.isdir(directory):  # noqa: PTH112, ASYNC240
            raise _refused(400, f"there is no directory {directory[:200]!r}")
        manager = AsyncKernelManager(kernel_name="python3")
        await manager.start_kernel(cwd=directory)
        client = manager.client()
        client.start_channels()
        try:
            await client.wait_for_ready(timeout=START_SECONDS)
        except RuntimeError as error:
            await manager.shutdown_kernel(now=True)
            raise _refused(500, f"the kernel did not start: {error}") from None
        made = Context(id or str(uuid.uuid4()), "python", directory, manager, client)
        self._all[made.id] = made
        return made

    async def get(self, id: str | None) -> Context:
        """The context of that id, or the one that is always there."""
        if id is None or id == DEFAULT:
            async with self._making:
                return self._all.get(DEFAULT) or await self.make(None, None, DEFAULT)
        if id not in self._all:
            raise _refused(404, f"context {id[:80]!r} not found")
        return self._all[id]

    async def remove(self, id: str) -> None:
        """End one."""
        found = await self.get(id)
        self._all.pop(found.id, None)
        found.client.stop_channels()
        await found.manager.shutdown_kernel(now=True)

    async def restart(self, id: str) -> None:
        """Begin anew, with nothing in it."""
        found = await self.get(id)
        found.client.stop_channels()
        await found.manager.restart_kernel(now=True)
        found.client = found.manager.client()
        found.client.start_channels()
        await found.client.wait_for_ready(timeout=START_SECONDS)

    def all(self) -> list[Context]:
        """All of them."""
        return list(self._all.values())


def _refused(status: int, message: str) -> web.HTTPException:
    kinds = {400: web.HTTPBadRequest, 404: web.HTTPNotFound, 429: web.HTTPTooManyRequests}
    body = json.dumps({"code": status, "message": message})
    return kinds.get(status, web.HTTPInternalServerError)(text=body, content_type="application/json")


def result_of(data: dict[str, Any], *, main: bool) -> dict[str, Any]:
    """A result as clients know it; kinds of data that they do not know go into `extra`."""
    known = {_KEYS[kind]: value for kind, value in data.items() if kind in _KEYS}
    extra = {kind: value for kind, value in data.items() if kind not in _KEYS}
    return {"type": "result", **known, "is_main_result": main, **({"extra": extra} if extra else {})}


def line_of(message: dict[str, Any]) -> dict[str, Any] | None:
    """What clients are told of a kernel's message; None for nothing."""
    kind, content = message["msg_type"], message["content"]
    if kind == "stream":
        return {"type": content["name"], "text": content["text"], "timestamp": time.time_ns()}
    if kind == "display_data":
        return result_of(content["data"], main=False)
    if kind == "execute_result":
        return result_of(content["data"], main=True)
    if kind == "error":
        return {
            "type": "error",
            "name": content["ename"],
            "value": content["evalue"],
            "traceback": "\n".join(content["traceback"]),
        }
    if kind == "execute_input":
        return {"type": "number_of_executions", "execution_count": content["execution_count"]}
    return None


async def run(context: Context, code: str, env: dict[str, str]) -> AsyncIterator[dict[str, Any]]:
    """What an execution tells, to its end. Given up, it is interrupted."""
    async with context.turn:
        former = await _set_env(context, env) if env else None
        done = False
        asked = context.client.execute(code, store_history=True, allow_stdin=False)
        try:
            while not done:
                message = await _next(context)
                if message is None:
                    yield {
                        "type": "error",
                        "name": "KernelDied",
                        "value": "the kernel ended",
                        "traceback": "",
                    }
                    await context.manager.restart_kernel(now=True)
                    return
                if message["parent_header"].get("msg_id") != asked:
                    continue
                if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                    done = True
                elif (line := line_of(message)) is not None:
                    yield line
        finally:
            if not done:
                await asyncio.shield(_interrupt(context, asked))
            if former is not None:
                context.client.execute(_restoring(former), silent=True, store_history=False)


async def _interrupt(context: Context, asked: str) -> None:
    """Return once an execution has ended that nobody waits for; one that does not heed is ended with its kernel."""
    try:
        async with asyncio.timeout(INTERRUPT_SECONDS):
            await context.manager.interrupt_kernel()
            while (message := await _next(context)) is not None:
                ended = message["msg_type"] == "status" and message["content"]["execution_state"] == "idle"
                if ended and message["parent_header"].get("msg_id") == asked:
                    return
    except TimeoutError:
        pass
    await context.manager.restart_kernel(now=True)
    await context.client.wait_for_ready(timeout=START_SECONDS)


async def _next(context: Context) -> dict[str, Any] | None:
    """The kernel's next message; None once it has ended."""
    while True:
        try:
            message: dict[str, Any] = await context.client.get_iopub_msg(timeout=2.0)
            return message
        except Exception:  # noqa: BLE001  queue.Empty, of whichever queue it is
            if not await context.manager.is_alive():
                return None


async def _set_env(context: Context, env: dict[str, str]) -> list[str]:
    code = f"import os as _o; _o.environ.update({dict(env)!r}); del _o"
    context.client.execute(code, silent=True, store_history=False)
    return list(env)


def _restoring(names: list[str]) -> str:
    given = {name: os.environ.get(name) for name in names}
    return (
        f"import os as _o\nfor _k, _v in {given!r}.items():\n"
        "    _o.environ.pop(_k, None) if _v is None else _o.environ.__setitem__(_k, _v)\ndel _o, _k, _v"
    )


# -- HTTP -----------------------------------------------------------------------------------------------------------


async def _body(request: web.Request) -> dict[str, Any]:
    try:
        body = await request.json() if request.can_read_body else {}
    except ValueError:
        raise _refused(400, "the body is not JSON") from None
    if not isinstance(body, dict):
        raise _refused(400, "the body is not an object")
    return body


async def execute(request: web.Request) -> web.StreamResponse:
    """Run code; lines of JSON, as they come."""
    body = await _body(request)
    code, env = body.get("code"), body.get("env_vars") or {}
    if not isinstance(code, str) or not isinstance(env, dict):
        raise _refused(400, "`code` is missing, or `env_vars` is not an object")
    contexts: Contexts = request.app["contexts"]
    language = body.get("language")
    if body.get("context_id") is None and language and str(language).lower() not in LANGUAGES:
        raise _refused(400, f"the language {str(language)[:40]!r} is not installed: use python")
    context = await contexts.get(body.get("context_id"))
    response = web.StreamResponse(headers={"content-type": "application/x-ndjson"})
    await response.prepare(request)
    lines = run(context, code, {str(k): str(v) for k, v in env.items()})
    async with contextlib.aclosing(lines):  # type: ignore[type-var]
        async for line in lines:
            await response.write(json.dumps(line).encode() + b"\n")
        await response.write(json.dumps({"type": "end_of_execution"}).encode() + b"\n")
    await response.write_eof()
    return response


async def make_context(request: web.Request) -> web.Response:
    """A new context."""
    body = await _body(request)
    made = await request.app["contexts"].make(body.get("language"), body.get("cwd"))
    return web.json_response(made.shown())


async def list_contexts(request: web.Request) -> web.Response:
    """All of them."""
    await request.app["contexts"].get(None)
    return web.json_response([context.shown() for context in request.app["contexts"].all()])


async def remove_context(request: web.Request) -> web.Response:
    """End one."""
    await request.app["contexts"].remove(request.match_info["id"])
    return web.Response(status=204)


async def restart_context(request: web.Request) -> web.Response:
    """Begin one anew."""
    await request.app["contexts"].restart(request.match_info["id"])
    return web.Response(status=204)


async def health(request: web.Request) -> web.Response:
    """Ready once the first kernel is."""
    await request.app["contexts"].get(None)
    return web.Response(text="ok")


def main() -> None:
    """Serve until the sandbox ends."""
    app = web.Application(client_max_size=MAX_BODY)
    app["contexts"] = Contexts()
    app.add_routes(
        [
            web.post("/execute", execute),
            web.post("/contexts", make_context),
            web.get("/contexts", list_contexts),
            web.delete("/contexts/{id}", remove_context),
            web.post("/contexts/{id}/restart", restart_context),
            web.get("/health", health),
        ]
    )
    web.run_app(app, host="0.0.0.0", port=PORT, handler_cancellation=True, print=None)  # noqa: S104


if __name__ == "__main__":
    main()

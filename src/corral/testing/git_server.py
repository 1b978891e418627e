"""A git server for tests: the real `git http-backend` behind HTTP or TLS, with a token, over a directory of bare
repositories. It says on stdout where it listens, as one line of JSON.

`python -m corral.testing.git_server --root DIR [--token-env NAME] [--cert FILE --key FILE] [--lfs]`
"""

import argparse
import asyncio
import base64
import contextlib
import hmac
import json
import os
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from aiohttp import web

from corral.host import process
from corral.host.tasks import TaskOwner

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_CHUNK = 256 * 1024
_BACKEND_SECONDS = 3600.0


class GitServer:
    """Serves the bare repositories below `root`. Without `token` everybody may read and write.

    What it was asked is in `seen`: method, path and user of each request. `override` answers in its place.
    """

    def __init__(self, root: Path, token: str = "") -> None:
        self._root = root
        self._token = token
        self.seen: list[tuple[str, str, str]] = []
        self.override: Handler | None = None
        self.app = web.Application(client_max_size=1 << 62)
        self.app.router.add_route("*", "/{path:.*}", self._serve)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        user, _ = _basic(request.headers.get("Authorization", ""))
        self.seen.append((request.method, request.path_qs, user))
        if self.override is not None:
            return await self.override(request)
        return await self.serve(request)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """What git's own server answers."""
        user, password = _basic(request.headers.get("Authorization", ""))
        if self._token and not hmac.compare_digest(password, self._token):
            return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="git"'})
        env = {
            "GIT_PROJECT_ROOT": str(self._root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_HTTP_MAX_REQUEST_BUFFER": "1G",
            "PATH_INFO": request.path,
            "QUERY_STRING": request.query_string,
            "REQUEST_METHOD": request.method,
            "CONTENT_TYPE": request.headers.get("Content-Type", ""),
            "HTTP_CONTENT_ENCODING": request.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": request.headers.get("Git-Protocol", ""),
            "REMOTE_USER": user or "anonymous",
            "REMOTE_ADDR": "127.0.0.1",
            "HOME": "/nonexistent",
        }
        if request.content_length is not None:
            env["CONTENT_LENGTH"] = str(request.content_length)
        async with (
            process.stream(["git", "http-backend"], timeout=_BACKEND_SECONDS, env=env) as backend,
            TaskOwner() as tasks,
        ):
            tasks.start(_feed(request, backend), name="feed")
            return await _answer(request, backend)


def _basic(value: str) -> tuple[str, str]:
    with contextlib.suppress(ValueError):
        user, _, password = base64.b64decode(value.removeprefix("Basic ")).decode().partition(":")
        return user, password
    return "", ""


async def _feed(request: web.Request, backend: process.Stream) -> None:
    with contextlib.suppress(BrokenPipeError):
        async for chunk in request.content.iter_chunked(_CHUNK):
            await backend.write(chunk)
    backend.close_stdin()


async def _answer(request: web.Request, backend: process.Stream) -> web.StreamResponse:
    head = b""
    while b"\r\n\r\n" not in head and (more := await backend.read()):
        head += more
    fields, _, rest = head.partition(b"\r\n\r\n")
    response = web.StreamResponse()
    for line in fields.decode().split("\r\n"):
        name, _, value = line.partition(": ")
        if name == "Status":
            response.set_status(int(value.split()[0]))
        elif name:
            response.headers[name] = value
    with contextlib.suppress(ConnectionError):  # the client has gone
        await response.prepare(request)
        await response.write(rest)
        while more := await backend.read():
            await response.write(more)
        await response.write_eof()
    return response


@contextlib.asynccontextmanager
async def serving(server: GitServer, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Serve on a free port of loopback meanwhile."""
    runner = web.AppRunner(server.app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def _main(options: argparse.Namespace) -> None:
    tls = None
    if options.cert:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(options.cert, options.key)
    server = GitServer(options.root, os.environ.get(options.token_env, "") if options.token_env else "")
    async with serving(server, tls) as port:
        sys.stdout.write(json.dumps({"port": port}) + "\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


def main() -> None:
    """The entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--token-env", help="the variable that holds the token")
    parser.add_argument("--cert")
    parser.add_argument("--key")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_main(parser.parse_args()))


if __name__ == "__main__":
    main()

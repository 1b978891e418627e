"""`corral serve`: the engine process."""

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from logging.handlers import RotatingFileHandler

import uvicorn
import uvloop
from fastapi import FastAPI

from corral.api.server import ApiProtocol
from corral.daemon.lock import InstanceLock
from corral.daemon.places import Places
from corral.daemon.wiring import Daemon
from corral.errors import CorralError, InvalidInput
from corral.host.capacity import raise_handle_limit

log = logging.getLogger(__name__)

LOG_BYTES = 10 * 1024 * 1024
BACKLOG = 1024


class _Server(uvicorn.Server):
    """Serves until told; signals are the daemon's, not the server's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def main(argv: list[str] | None = None) -> int:
    """Run the daemon until SIGTERM or SIGINT; the process's exit code."""
    options = _options(argv)
    places = Places.from_environment()
    try:
        if os.geteuid() != 0:
            raise InvalidInput("the daemon needs root", "run it as root or by its systemd unit")
        # Whatever the caller's is: sandboxes' own ids pass through what we make. What is private is made so by name.
        os.umask(0o022)
        raise_handle_limit()
        places.create()
        with InstanceLock(places.lock):
            _log_to(places, to_terminal=not options.detach)
            uvloop.run(_serve(places, options.listen))
    except CorralError as error:
        log.error("%s", error)
        print(f"error: {error.message}\nhint: {error.hint}", file=sys.stderr)  # noqa: T201 - before any client is there
        return error.exit_code
    return 0


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="corral serve", description="Run Corral's daemon.")
    parser.add_argument(
        "--listen", metavar="HOST:PORT", default="", help="serve the API on TCP too; needs API keys"
    )
    parser.add_argument(
        "--detach", action="store_true", help="log to the data directory only, not to the terminal"
    )
    return parser.parse_args(argv)


def _log_to(places: Places, *, to_terminal: bool) -> None:
    handlers: list[logging.Handler] = [RotatingFileHandler(places.log, maxBytes=LOG_BYTES, backupCount=3)]
    if to_terminal:
        handlers.append(logging.StreamHandler())
    logging.basicConfig(
        level=logging.INFO,
        handlers=handlers,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        force=True,
    )


async def _serve(places: Places, listen: str) -> None:
    async with Daemon.open(places) as daemon:
        address = listen or daemon.config.value.listen
        sockets = [_unix_socket(places), *([_tcp_socket(address)] if address else [])]
        names = [address.rpartition(":")[0]] if address else []
        server = _server(daemon.app(names))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, lambda: setattr(server, "should_exit", True))
        # What is loaded by now stays: no later collection need look at it.
        gc.collect()
        gc.freeze()
        log.info("serving %s%s", places.socket, f" and {address}" if address else "")
        try:
            await server.serve(sockets=sockets)
        finally:
            places.socket.unlink(missing_ok=True)


def _server(app: FastAPI) -> _Server:
    return _Server(
        uvicorn.Config(
            app,
            http=ApiProtocol,
            loop="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=2,
            timeout_keep_alive=75,
        )
    )


def _unix_socket(places: Places) -> socket.socket:
    """A new socket that only root can open; what a former daemon left is replaced, since this one holds the lock."""
    places.socket.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX)
    mask = os.umask(0o177)
    try:
        sock.bind(str(places.socket))
    finally:
        os.umask(mask)
    sock.listen(BACKLOG)
    return sock


def _tcp_socket(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    try:
        return socket.create_server((host.strip("[]"), int(port)), backlog=BACKLOG)
    except (OSError, ValueError) as error:
        raise InvalidInput(f"cannot listen on {address}: {error}", "give another HOST:PORT") from error


if __name__ == "__main__":
    sys.exit(main())

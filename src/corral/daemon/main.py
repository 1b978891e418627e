"""`corral serve`: the engine process."""

import argparse
import asyncio
import gc
import logging
import os
import signal
import sys
from logging.handlers import RotatingFileHandler

import uvloop

from corral.daemon.childlog import LOG_BYTES, LOGS_KEPT
from corral.daemon.listening import listening, name_server, servers
from corral.daemon.lock import InstanceLock
from corral.daemon.places import Places
from corral.daemon.volatile import make_volatile
from corral.daemon.wiring import Daemon
from corral.errors import CorralError, InvalidInput
from corral.host.capacity import raise_handle_limit

log = logging.getLogger(__name__)

COLLECT_AFTER = (10_000, 2, 2)
"""Objects more than before after which cycles are looked for among the new ones, and how many such looks until older ones
are looked at too. At Python's 700 a hundred creates spend a twentieth of their time on it."""


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
            make_volatile(places.run)
            places.create()
            log_to(places, to_terminal=not options.detach)
            uvloop.run(_serve(places, options))
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
    parser.add_argument("--tls-listen", metavar="HOST:PORT", default="", help="serve it by TLS too")
    parser.add_argument("--tls-cert", metavar="FILE", default="", help="the certificate chain, PEM")
    parser.add_argument("--tls-key", metavar="FILE", default="", help="its key, PEM")
    parser.add_argument(
        "--domain", default="", help="give ports of sandboxes names below it: PORT-SANDBOX.DOMAIN"
    )
    parser.add_argument(
        "--detach", action="store_true", help="log to the data directory only, not to the terminal"
    )
    return parser.parse_args(argv)


def log_to(places: Places, *, to_terminal: bool) -> None:
    """Log to the data directory from now on. What cannot be written there is lost, and told of nowhere: on a full disk each
    line would be a page on standard error, which may be a pipe that nobody reads, and stop the daemon.
    """
    logging.raiseExceptions = False
    handlers: list[logging.Handler] = [
        RotatingFileHandler(places.log, maxBytes=LOG_BYTES, backupCount=LOGS_KEPT)
    ]
    if to_terminal:
        handlers.append(logging.StreamHandler())
    logging.basicConfig(
        level=logging.INFO,
        handlers=handlers,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        force=True,
    )


async def _serve(places: Places, options: argparse.Namespace) -> None:
    async with Daemon.open(places) as daemon:
        config = daemon.config.value
        what = listening(config, places, options)
        made = servers(daemon.app(what.names, what.addresses), places, what)
        loop = asyncio.get_running_loop()

        def end() -> None:
            for server, _ in made:
                server.should_exit = True

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end)
        # What is loaded by now stays: no later collection need look at it.
        gc.collect()
        gc.freeze()
        gc.collect()  # else a full collection waits until there is a quarter as much as what was just put aside
        gc.set_threshold(*COLLECT_AFTER)
        log.info("serving %s", ", ".join(filter(None, (str(places.socket), what.plain, what.tls))))
        try:
            async with name_server(config, what), asyncio.TaskGroup() as tasks:
                for server, sockets in made:
                    tasks.create_task(server.serve(sockets=sockets))
        finally:
            places.socket.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())

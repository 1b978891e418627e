"""A client of a real daemon and a sandbox in it, and what stands outside of it: a model server, a webhook."""

import queue
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tests.conftest import Daemon
from tests.models import Model, serving

from corral import Client, Sandbox


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    """A client of the shared daemon."""
    with daemon.client() as client:
        yield client


@pytest.fixture
def box(client: Client) -> Sandbox:
    """A running sandbox; removed at the end of the test."""
    return Sandbox.create(client=client, name="box")


@pytest.fixture
def model(daemon: Daemon) -> Iterator[Model]:
    """A model server, as the service `slow`."""
    with serving() as found:
        daemon.cli(
            *("secret", "add", "slow", "--provider", "anthropic", "--base-url", found.url),
            input=f"{found.key}\n",
        )
        try:
            yield found
        finally:
            if daemon.process is not None:
                daemon.cli("secret", "rm", "slow", check=False)


@pytest.fixture
def hook(daemon: Daemon) -> Iterator[tuple[str, "queue.Queue[tuple[str, bytes]]"]]:
    """A webhook: its URL, and signature and body of what it got. It fails the first call of each delivery."""
    got: queue.Queue[tuple[str, bytes]] = queue.Queue()
    seen: set[str] = set()

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            first = self.headers["corral-delivery"] not in seen
            seen.add(self.headers["corral-delivery"])
            self.send_response(503 if first else 204)
            self.end_headers()
            if not first:
                got.put((self.headers["corral-signature"], body))

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook", got
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

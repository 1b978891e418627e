"""A hostile program that may use a secret for a host, and wants the secret itself, or to use it elsewhere."""

import json
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING

import pytest

from corral import Sandbox

if TYPE_CHECKING:
    from tests.attack.conftest import Range

pytestmark = pytest.mark.root

SECRET = "glpat-Real/Token+That=StaysOnTheHost0123"
HOST = "host.corral"


class Peer(BaseHTTPRequestHandler):
    """A server that helps the program inside: it says back what it was sent, in every spelling and in small pieces."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        key = self.headers.get("Private-Token", "")
        self.server.seen.append((self.path, key, body))  # type: ignore[attr-defined]
        spellings = [
            key,
            b64encode(key.encode()).decode(),
            b64encode(b"ab" + key.encode()).decode(),
            key.encode().hex(),
        ]
        told = "|".join(spellings).encode()
        self.send_response(200)
        self.send_header("X-Key", key)
        self.send_header("Content-Length", str(len(told)))
        self.end_headers()
        for start in range(0, len(told), 5):
            self.wfile.write(told[start : start + 5])
            self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def peers() -> Iterator[tuple[ThreadingHTTPServer, ThreadingHTTPServer]]:
    """Two services of the host, to one of which the secret goes."""
    with ExitStack() as stack:
        servers = []
        for _ in range(2):
            server = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), Peer))
            server.seen = []  # type: ignore[attr-defined]
            thread = Thread(target=server.serve_forever)
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            servers.append(server)
        yield servers[0], servers[1]


Peers = tuple[ThreadingHTTPServer, ThreadingHTTPServer]


@pytest.fixture
def thief(arena: "Range", isolation: str, peers: Peers) -> Iterator[Sandbox]:
    """A sandbox with the secret, and with both services."""
    bound, other = (server.server_address[1] for server in peers)
    binding = {"hosts": [HOST], "ports": [bound], "plaintext": True}
    arena.client.put_secret("lab", SECRET, binding=binding)
    try:
        yield arena.box(
            isolation, secrets=("lab=KEY",), allow=(f"private:{HOST}:{bound}", f"private:{HOST}:{other}")
        )
    finally:
        arena.client.remove_secret("lab")


def ask(box: Sandbox, port: int, *options: str, path: str = "/") -> str:
    """What curl prints of a request, its head too."""
    done = box.exec(f'curl -sS -m 60 -i --path-as-is "http://{HOST}:{port}{path}" -d x {" ".join(options)}')
    return done.stdout + done.stderr


def test_echoes_hold_no_secret(thief: Sandbox, peers: Peers) -> None:
    """G-1, G-137 to G-139: a server that sends the secret back, spelled as it likes and cut as it likes."""
    port = peers[0].server_address[1]
    shown = ask(thief, port, '-H "Private-Token: $KEY"')
    assert peers[0].seen[0][1] == SECRET  # type: ignore[attr-defined]
    raw = SECRET.encode()
    for form in (SECRET, raw.hex(), b64encode(raw).decode()[:-2], b64encode(b"ab" + raw).decode()[4:-2]):
        assert form not in shown
    assert SECRET not in thief.exec("env; cat /proc/[0-9]*/environ | tr '\\0' '\\n'", user="root").stdout


def test_the_placeholder_is_worth_nothing_elsewhere(thief: Sandbox, peers: Peers) -> None:
    """G-32, G-33, G-45, G-348: at another port, in another field, in the body, in the path, behind another Host."""
    bound, other = peers[0].server_address[1], peers[1].server_address[1]
    ask(thief, other, '-H "Private-Token: $KEY"')
    ask(thief, bound, '-H "X-Mine: $KEY"', '-d "$KEY"', path="/$KEY?k=$KEY")
    ask(thief, bound, '-H "Private-Token: $KEY"', f'-H "Host: {HOST}:{other}"')
    ask(thief, bound, '-H "Private-Token: $KEY"', '-H "Host: evil.example"')
    ask(thief, bound, '-H "Private-Token: $KEY"', path="/../admin")
    seen = [*peers[0].seen, *peers[1].seen]  # type: ignore[attr-defined]
    assert len(seen) == 2
    assert SECRET not in json.dumps([(path, key, body.decode()) for path, key, body in seen])
    assert "evil.example" not in json.dumps([path for path, _, _ in seen])


def test_another_sandboxes_placeholder_is_text(
    arena: "Range", isolation: str, thief: Sandbox, peers: Peers
) -> None:
    """G-15, G-29: each sandbox has its own, and no use for another's."""
    port = peers[0].server_address[1]
    stand = thief.exec("printenv KEY").stdout.strip()
    box = arena.box(isolation, secrets=("lab=KEY",), allow=(f"private:{HOST}:{port}",))
    assert box.exec("printenv KEY").stdout.strip() != stand
    ask(box, port, f"-H 'Private-Token: {stand}'")
    assert peers[0].seen[-1][1] == stand  # type: ignore[attr-defined]


def test_a_sandbox_without_the_secret_gets_none(
    arena: "Range", isolation: str, thief: Sandbox, peers: Peers
) -> None:
    """G-17, G-41: it may reach the same host, and the secret is not put into its requests."""
    port = peers[0].server_address[1]
    stand = thief.exec("printenv KEY").stdout.strip()
    box = arena.box(isolation, allow=(f"private:{HOST}:{port}",))
    assert box.exec("printenv KEY").exit_code != 0
    ask(box, port, f"-H 'Private-Token: {stand}'")
    assert peers[0].seen[-1][1] == stand  # type: ignore[attr-defined]


def test_a_secret_that_is_set_is_set_for_its_holders_alone(
    arena: "Range", isolation: str, peers: Peers
) -> None:
    """G-17, G-26, G-41: with it, every request to the host has the secret; without it, none, whatever the program does."""
    port = peers[0].server_address[1]
    binding = {
        "hosts": [HOST],
        "ports": [port],
        "plaintext": True,
        "mode": "set",
        "fields": ["Private-Token"],
        "paths": ["/**"],
    }
    arena.client.put_secret("set", SECRET, binding=binding)
    try:
        for secrets, sent in ((("set",), SECRET), ((), "")):
            box = arena.box(isolation, secrets=secrets, allow=(f"private:{HOST}:{port}",))
            ask(box, port)
            assert peers[0].seen[-1][1] == sent  # type: ignore[attr-defined]
    finally:
        arena.client.remove_secret("set")


def test_a_secret_that_leaked_does_not_leave(thief: Sandbox, peers: Peers) -> None:
    """G-44: neither to its own host nor to another, in the head or in the body."""
    for server in peers:
        port = server.server_address[1]
        for options in (f"-H 'X-Note: {SECRET}'", f"-d 'x{SECRET}'"):
            assert "secret-in-request" in ask(thief, port, options)
        assert SECRET not in json.dumps([(path, key, body.decode()) for path, key, body in server.seen])  # type: ignore[attr-defined]


FLOOD = f"""
import resource, socket
resource.setrlimit(resource.RLIMIT_NOFILE, (20000, 20000))
held, refused = [], 0
for number in range(10_000):
    try:
        held.append(socket.create_connection(("{HOST}", PORT), 5))
        held[-1].send(b"POST / HTTP/1.1\\r\\nHost: ")
    except OSError:
        refused += 1
print(len(held), refused, flush=True)
input()
"""


@pytest.mark.timeout(600)
def test_ten_thousand_connections_keep_nobody_else_out(arena: "Range", thief: Sandbox, peers: Peers) -> None:
    """G-339, G-340: what one sandbox holds open is bounded, and another is served meanwhile."""
    port = peers[0].server_address[1]
    thief.exec(f"cat > /tmp/flood.py <<'E'\n{FLOOD.replace('PORT', str(port))}\nE")
    other = arena.box(secrets=("lab=KEY",), allow=(f"private:{HOST}:{port}",))
    thief.exec("(sleep 280 | python3 /tmp/flood.py > /tmp/flood.out 2>&1) &")
    # Under gVisor a connection takes milliseconds, with the look-up of its name.
    ended = "for second in $(seq 200); do [ -s /tmp/flood.out ] && break; sleep 1; done; cat /tmp/flood.out"
    shown = thief.exec(ended, timeout=220).stdout.split()
    assert int(shown[0]) + int(shown[1]) == 10_000, shown
    for _ in range(5):
        assert "200 OK" in ask(other, port, '-H "Private-Token: $KEY"')
    assert SECRET in [key for _, key, _ in peers[0].seen]  # type: ignore[attr-defined]
    assert arena.gateway.num_fds() < 2000

"""Ports of sandboxes from outside (G-303): who gets there, what the server inside is told, and what its answers can do."""

import base64
import json
import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from tests.attack.conftest import GUEST, SMALL

from corral import Client, Sandbox
from corral.errors import NotFound

if TYPE_CHECKING:
    from tests.conftest import Daemon

pytestmark = pytest.mark.root
PORT = 8000


@dataclass(frozen=True)
class Outside:
    """A daemon that listens on TCP, and a sandbox that serves."""

    daemon: "Daemon"
    client: Client
    box: Sandbox
    address: tuple[str, int]
    tls: tuple[str, int]
    key: str

    @property
    def host(self) -> str:
        return f"{PORT}-{self.box.id}.localhost"

    def http(self, **headers: str) -> httpx2.Client:
        """A client of the sandbox's port."""
        host, port = self.address
        return httpx2.Client(
            base_url=f"http://{host}:{port}", headers={"host": self.host, **headers}, trust_env=False
        )

    def token(self, port: int = PORT) -> dict[str, str]:
        """The header that opens a port."""
        found = self.box.url(port)
        return {found.header: found.token}

    def raw(self, request: str, *, host: str | None = None, **headers: str) -> socket.socket:
        """A connection on which a request's head was sent."""
        sock = socket.create_connection(self.address, timeout=30)
        lines = [request, f"host: {host or self.host}", *(f"{k}: {v}" for k, v in headers.items())]
        sock.sendall("\r\n".join([*lines, "", ""]).encode())
        return sock


def _free() -> tuple[str, int]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return "127.0.0.1", probe.getsockname()[1]


def serve(box: Sandbox, bind: str, port: int = PORT) -> None:
    """Start the server of `guest/server.py` and wait until it listens."""
    box.files.upload(GUEST / "server.py", "/home/user/server.py")
    box.spawn(["python3", "/home/user/server.py", bind, str(port)])
    waiting = f"until ss -Htln sport = :{port} | grep -q .; do sleep 0.05; done"
    assert box.exec(["sh", "-c", waiting], timeout=60).exit_code == 0


@pytest.fixture(scope="module")
def outside(shared_daemon: "Daemon") -> Iterator[Outside]:
    daemon, address, tls = shared_daemon, _free(), _free()
    settings = {
        "api.listen": f"{address[0]}:{address[1]}",
        "tls.listen": f"{tls[0]}:{tls[1]}",
        "api.domain": "sandboxes.test",
    }
    for name, value in settings.items():
        daemon.cli("config", "set", name, value)
    daemon.stop()
    daemon.start()
    try:
        with daemon.client() as client, Sandbox.create(client=client, limits=SMALL) as box:
            serve(box, "127.0.0.1")
            key = str(json.loads(daemon.cli("key", "create", "preview", "--json").stdout)["key"])
            yield Outside(daemon, client, box, address, tls, key)
    finally:
        for name in settings:
            daemon.cli("config", "set", name, "")
        daemon.stop()
        daemon.start()


def test_a_port_is_for_holders_of_its_token(outside: Outside) -> None:
    with outside.http() as http:
        assert http.get("/").status_code == 401
        assert http.get("/", headers={"corral-port-token": "wrong"}).status_code == 401
        assert http.get("/", headers=outside.token(PORT + 1)).status_code == 401
        assert http.get("/", headers={"x-api-key": outside.key}).status_code == 401
        assert http.get("/a?b=1", headers=outside.token()).json()["path"] == "/a?b=1"


def test_a_browser_gets_a_cookie_for_the_address_once(outside: Outside) -> None:
    token = outside.box.url(PORT).token
    with outside.http() as http:
        entered = http.get(f"/page?x=1&corral-port-token={token}")
        assert entered.status_code == 303
        assert entered.headers["location"] == "/page?x=1"
        cookie = entered.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "samesite=lax" in cookie.lower()
        told = http.get("/page?x=1", headers={"cookie": cookie.partition(";")[0] + "; own=1"}).json()
        assert told["headers"]["Cookie"] == "own=1"


def test_the_server_inside_sees_no_credential(outside: Outside) -> None:
    token = outside.box.url(PORT).token
    headers = {
        **outside.token(),
        "x-api-key": outside.key,
        "authorization": f"Bearer {outside.key}",
        "e2b-traffic-access-token": "traffic",
        "x-access-token": "access",
        "cookie": f"corral-port-token={token}",
    }
    with outside.http() as http:
        text = http.get("/", headers=headers).text
    for secret in (token, outside.key, "traffic", '"access"'):
        assert secret not in text


def test_the_token_opens_nothing_else(outside: Outside) -> None:
    token = outside.box.url(PORT).token
    with httpx2.Client(base_url=f"http://127.0.0.1:{outside.address[1]}", trust_env=False) as http:
        for headers in ({"authorization": f"Bearer {token}"}, {"x-api-key": token}, outside.token()):
            assert http.get("/v1/sandboxes", headers=headers).status_code == 401
            assert http.get("/v2/sandboxes", headers=headers).status_code == 401


def test_a_sandboxs_name_leads_to_it_alone_and_never_to_the_api(outside: Outside) -> None:
    with outside.http() as http:
        told = http.get("/v1/sandboxes", headers={**outside.token(), "x-api-key": outside.key})
        assert told.json()["path"] == "/v1/sandboxes"
        routed = {"e2b-sandbox-id": "0" * 16, "e2b-sandbox-port": "49983"}
        assert http.get("/here", headers={**outside.token(), **routed}).json()["path"] == "/here"


def test_bodies_stream_both_ways(outside: Outside) -> None:
    with outside.http(**outside.token()) as http:
        assert http.get("/stream").text == "piece 0\npiece 1\npiece 2\n"
        assert http.post("/", content=b"a" * 3_000_000).json()["size"] == 3_000_000
        assert http.post("/", content=(b"b" * 1000 for _ in range(500))).json()["size"] == 500_000


def test_what_is_no_answer_is_told_and_nothing_hangs(outside: Outside) -> None:
    with outside.http(**outside.token()) as http:
        for path in ("/garbage", "/endless-head"):
            assert http.get(path).status_code == 502, path
        with pytest.raises(httpx2.HTTPError):
            http.get("/short")
        assert http.get("/").status_code == 200


def test_ports_and_sandboxes_that_are_not_there(outside: Outside) -> None:
    with outside.http() as http:
        shut = http.get("/", headers={"host": f"9999-{outside.box.id}.localhost", **outside.token(9999)})
        assert (shut.status_code, shut.json()["message"]) == (
            502,
            "The sandbox is running but port is not open",
        )
        gone = http.get("/", headers={"host": f"{PORT}-{'0' * 16}.localhost"})
        assert (gone.status_code, gone.json()["message"]) == (502, "The sandbox was not found")
        assert http.get("/", headers={"host": f"99999-{outside.box.id}.localhost"}).status_code == 400
        assert http.get("/", headers={"host": f"{PORT}-{outside.box.id}.evil.test"}).status_code == 403


def _handshake(**headers: str) -> dict[str, str]:
    key = base64.b64encode(os.urandom(16)).decode()
    return {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": key,
        **headers,
    }


def test_a_websocket_passes_bytes_both_ways(outside: Outside) -> None:
    with (
        outside.raw("GET /ws HTTP/1.1", **_handshake(**outside.token())) as sock,
        sock.makefile("rb") as file,
    ):
        assert file.readline().startswith(b"HTTP/1.1 101")
        while file.readline() != b"\r\n":
            pass
        seen: dict[str, Any] = json.loads(file.readline())
        assert "corral-port-token" not in {name.lower() for name in seen}
        for size in (1, 100_000, 2_000_000):
            sent = os.urandom(size)
            sock.sendall(sent)
            assert file.read(size) == sent


def test_a_websocket_needs_the_token_too(outside: Outside) -> None:
    for headers in ({}, {"corral-port-token": "wrong"}):
        with outside.raw("GET /ws HTTP/1.1", **_handshake(**headers)) as sock:
            assert sock.recv(100).startswith(b"HTTP/1.1 401")
    with outside.raw("GET /ws HTTP/1.1", host="127.0.0.1", **_handshake()) as sock:
        assert sock.recv(100).startswith(b"HTTP/1.1 404")


def test_a_refused_upgrade_ends_the_connection(outside: Outside) -> None:
    """Else a later request on it, with whatever credentials, would reach the sandbox unread."""
    with outside.raw("GET /refuse HTTP/1.1", **_handshake(**outside.token())) as sock:
        data = b""
        while piece := sock.recv(65536):
            data += piece
        assert data.startswith(b"HTTP/1.1 403")
        assert b"connection: close" in data


def test_tls_on_the_domain(outside: Outside) -> None:
    context = ssl.create_default_context(cafile=outside.daemon.data / "tls" / "ca.pem")
    name = f"{PORT}-{outside.box.id}.sandboxes.test"
    with (
        closing(socket.create_connection(outside.tls, timeout=30)) as plain,
        context.wrap_socket(plain, server_hostname=name) as sock,
    ):
        header = next(f"{k}: {v}" for k, v in outside.token().items())
        sock.sendall(f"GET / HTTP/1.1\r\nhost: {name}\r\n{header}\r\nconnection: close\r\n\r\n".encode())
        told = b""
        while piece := sock.recv(65536):
            told += piece
    assert told.startswith(b"HTTP/1.1 200")
    assert b'"X-Forwarded-Proto": "https"' in told


def _read_to_the_end(sock: socket.socket) -> None:
    while sock.recv(65536):
        pass


@pytest.mark.parametrize("end", ["pause", "remove"])
def test_streams_are_reset_when_the_sandbox_goes_down(outside: Outside, end: str) -> None:
    box = Sandbox.create(client=outside.client, limits=SMALL)
    try:
        serve(box, "127.0.0.1")
        found = box.url(PORT)
        host = f"{PORT}-{box.id}.localhost"
        with outside.raw("GET /forever HTTP/1.1", host=host, **{found.header: found.token}) as sock:
            assert sock.recv(100).startswith(b"HTTP/1.1 200")
            if end == "pause":
                outside.client.pause_sandbox(box.id)
            else:
                outside.client.remove_sandbox(box.id)
            with pytest.raises(ConnectionResetError):
                _read_to_the_end(sock)
    finally:
        with suppress(NotFound):
            box.kill()


@pytest.mark.gvisor
@pytest.mark.parametrize("bind", ["0.0.0.0", "127.0.0.1"])
def test_a_port_of_a_gvisor_sandbox(outside: Outside, bind: str) -> None:
    with Sandbox.create(client=outside.client, isolation="gvisor", limits=SMALL) as box:
        serve(box, bind)
        found = box.url(PORT)
        with outside.http(host=f"{PORT}-{box.id}.localhost", **{found.header: found.token}) as http:
            assert http.get("/inside").json()["path"] == "/inside"
        free = f"import socket; socket.create_server(('0.0.0.0', {PORT}))"
        given_back = f'pkill python3; until python3 -c "{free}" 2>&1; do sleep 0.1; done'
        assert box.exec(["sh", "-c", given_back], timeout=60).exit_code == 0

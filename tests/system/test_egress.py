"""What a sandbox reaches: model services through its gateway, hosts that were allowed for it, and nothing else.

What keeps a hostile sandbox in is in tests/attack; here is what an honest agent is told.
"""

import json
import socket
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.conftest import Daemon
from tests.models import Model, serving
from tests.traces import wait_for

import corral
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


@pytest.mark.parametrize("isolation", ["container", "gvisor"])
def test_the_first_process_finds_the_gateway_in_place(client: Client, isolation: str) -> None:
    """G-14: an image's own entry point and command, which run before anything else does, are kept in as all else is."""
    script = (
        "#!/bin/sh\n"
        "{ curl -s -m 5 -o /dev/null -w '%{http_code} ' http://gateway.corral/; "
        "curl -s -m 5 -o /dev/null -w '%{http_code} ' -H 'Host: evil.example' http://203.0.113.9/; "
        "curl -s -m 5 -o /dev/null http://203.0.113.9:8080/; echo $?; } > /tmp/first\n"
        'exec "$@"\n'
    )
    dockerfile = (
        "FROM base\nUSER root\n"
        f"RUN echo {b64encode(script.encode()).decode()} | base64 -d > /entry && chmod 755 /entry\n"
        'ENTRYPOINT ["/entry"]\nCMD ["sleep", "infinity"]\n'
    )
    corral.Template().from_dockerfile(dockerfile).build("eager", client=client)
    try:
        with Sandbox.create("eager", client=client, isolation=isolation) as box:
            wait_for(lambda: box.exec("cat /tmp/first").stdout.count(" ") == 2, "the entry point has not run")
            # The gateway answers, a host is refused by it, and another port by the kernel.
            wait_for(
                lambda: box.exec("cat /tmp/first").stdout == "200 403 7\n", box.exec("cat /tmp/first").stdout
            )
    finally:
        client.remove_template("eager")


@pytest.mark.parametrize("isolation", ["container", "gvisor"])
def test_a_network_inside_the_network_reaches_no_more(client: Client, isolation: str) -> None:
    """G-130: where a container engine's namespaces can be made at all, the gateway is all that is reached from them, or
    nothing is.
    """
    ask = "curl -s -m 5 -o /dev/null -w '%{http_code}'"
    with Sandbox.create(client=client, isolation=isolation) as box:
        for flags in (
            "--user --map-root-user",
            "--user --map-root-user --net",
            "--net",
            "--net --mount --pid --fork",
        ):
            for user in ("user", "root"):
                got = box.exec(
                    f"unshare {flags} {ask} -H 'Host: evil.example' http://203.0.113.9/", user=user
                )
                assert got.stdout in ("", "000", "403"), (flags, user, got)
                got = box.exec(f"unshare {flags} {ask} http://203.0.113.9:8080/", user=user)
                assert got.stdout in ("", "000"), (flags, user, got)
        assert box.exec(f"{ask} -H 'Host: evil.example' http://203.0.113.9/").stdout == "403"


def test_a_token_is_the_same_after_a_pause_and_so_is_what_was_spent(client: Client, model: Model) -> None:
    """G-20, G-220: and when it ends."""
    client.put_secret("talk", model.key, "anthropic", model.url)
    try:
        made = client.create_sandbox(secrets=("talk",), expires=3600)
        box = Sandbox.connect(made.id, client=client)
        old = box.spawn(["bash", "-c", "read; echo $ANTHROPIC_API_KEY"], stdin=True)
        assert _ask(box)[0] == 200
        wait_for(lambda: client.usage(box.id).cost > 0, "nothing was billed")
        before = (box.exec("echo $ANTHROPIC_API_KEY").stdout, client.grant(box.id), client.usage(box.id).cost)
        box.pause()
        box.resume()
        after = (box.exec("echo $ANTHROPIC_API_KEY").stdout, client.grant(box.id), client.usage(box.id).cost)
        assert after == before
        assert before[1].expires_at is not None
        old.write(b"\n")
        assert old.wait().stdout == before[0]
        assert _ask(box)[0] == 200
        wait_for(lambda: client.usage(box.id).cost == 2 * before[2], "the second call was billed otherwise")
    finally:
        client.remove_secret("talk")


RULED = {"host-not-allowed", "denied-by-rule", "request-not-allowed", "login", "model-api"}


def _refused(client: Client, box: Sandbox, host: str | None) -> bool:
    """Whether a rule has refused something there."""
    return any(one["reason"] in RULED for one in client.denials(box.id) if one["host"] == host)


def test_what_is_shown_and_asked_about_is_what_holds(client: Client, banner: int) -> None:
    """G-304, G-316: each rule with where it comes from; a verdict is what a request meets with."""
    client.put_secret("bound", "sk_live_0123456789abcdef", binding={"hosts": ["api.example.com"]})
    try:
        box = Sandbox.create(
            client=client, secrets=("bound",), allow=("@npm", "*.example.org", f"private:tcp:host.corral:{banner}"),
            deny=("bad.example.org",),
        )  # fmt: skip
        client.change_egress(box.id, allow=["GET late.example.net/v1/**"])
        shown = {(rule.rule, rule.deny): rule.origin for rule in client.get_egress(box.id)}
        assert shown["registry.npmjs.org", False] == "@npm"
        assert shown["*.example.org", False] == shown["GET late.example.net/v1/**", False] == ""
        assert shown["bad.example.org", True] == ""
        assert "bound" in shown["api.example.com:443", False]
        asked = {
            "https://api.example.com/x": ("GET", True), "https://a.example.org/": ("GET", True),
            "https://bad.example.org/": ("GET", False), "https://late.example.net/v1/x": ("GET", True),
            "https://late.example.net/v2/x": ("GET", False),
            "https://auth.openai.com/oauth/token": ("POST", False),
            "https://elsewhere.example.com/": ("GET", False), "https://api.anthropic.com/": ("GET", False),
        }  # fmt: skip
        for url, (method, allowed) in asked.items():
            verdict = client.check_egress(box.id, url, method)
            assert (url, verdict.allowed) == (url, allowed)
            assert bool(verdict.rule) is allowed
            assert bool(verdict.reason and verdict.hint) is not allowed
            met = box.exec(
                f"curl -sS -m 60 -X {method} -o /tmp/said -w '%{{http_code}}' {url}; cat /tmp/said"
            )
            # Nobody is at these hosts: what is allowed fails later than by a rule.
            wait_for(
                lambda: _refused(client, box, urlsplit(url).hostname) is not allowed,  # noqa: B023
                f"{url}: {met.stdout} {met.stderr}",
            )
        assert client.check_egress(box.id, "https://api.example.com/x").secrets == ["bound"]
    finally:
        client.remove_secret("bound")


def test_the_hosts_ssh_agent_is_not_inside(
    daemon: Daemon, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G-302: neither its socket nor a way to it, nor keys, nor SSH to anywhere."""
    home, agent = tmp_path / "home", tmp_path / "agent.sock"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "id_ed25519").write_text("a private key")
    (home / ".gitconfig").write_text("[user]\nname = Ann\n")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(agent))
        listening.listen()
        for name, value in (("SSH_AUTH_SOCK", agent), ("SSH_AGENT_PID", 1), ("HOME", home)):
            monkeypatch.setenv(name, str(value))
        daemon.cli("create", "--name", "box")
        box = Sandbox.connect("box", client=client)
        inside = box.exec(
            "env; ls -A ~ ~/.ssh /tmp; find / -xdev -type s -user user 2>/dev/null", user="root"
        ).stdout
        assert not [word for word in ("SSH_", "id_ed25519", "agent.sock") if word in inside]
        assert box.exec(["bash", "-c", "exec 3<>/dev/tcp/140.82.121.4/22"]).exit_code != 0
        listening.setblocking(False)
        with pytest.raises(BlockingIOError):
            listening.accept()


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

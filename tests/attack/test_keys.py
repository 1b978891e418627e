"""A hostile program against the keys: searching for them, having them sent back, using another sandbox's token."""

import contextlib
import json
import os
import secrets
import socket
import ssl
import threading
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from corral import Sandbox
from corral.errors import CorralError
from corral.testing.attack.loot import forms

if TYPE_CHECKING:
    from tests.attack.conftest import Canary, Range

pytestmark = pytest.mark.root

# The store's image holds what the sandboxes' directories hold, which are searched one by one.
MAX_FILE = 64 * 1024 * 1024
REQUEST = {"model": "claude-sonnet-4-5", "max_tokens": 16, "messages": [{"role": "user", "content": "hello"}]}


def token_of(box: Sandbox) -> str:
    """What the sandbox holds in the place of a key."""
    return box.exec("printenv ANTHROPIC_API_KEY || printenv ANTHROPIC_AUTH_TOKEN", check=True).stdout.strip()


def ask(
    arena: "Range",
    box: Sandbox,
    secret: str,
    token: str,
    *,
    body: Any = None,
    stream: bool = False,
    echo: str = "body",
) -> dict[str, Any]:
    """A model call from inside, as raw as it can be."""
    content = json.dumps({**REQUEST, "stream": stream, "metadata": {"echo": echo}} if body is None else body)
    text = (
        f"POST /s/{secret}/v1/messages HTTP/1.1\r\nHost: gateway.corral\r\nx-api-key: {token}\r\nanthropic-version: 2023-06-01\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n{content}"
    )
    [answers] = arena.net(box, ("raw", "10.200.0.1", 80, text))
    return dict(answers[0])


def test_a_key_is_nowhere_in_a_sandbox(arena: "Range", isolation: str, canary: "Canary") -> None:
    """G-1, principle 3: after real use of a key, its root searches files, mounts, environments, arguments and memory."""
    box = arena.box(isolation, secrets=(canary.name,))
    answer = ask(arena, box, canary.name, token_of(box))
    assert answer["status"] == 200, answer  # the model server answers to the real key only
    assert arena.run(box, "search", data=canary.masked(), user="root", timeout=110) == []


def test_the_search_finds_what_is_there(arena: "Range", isolation: str, canary: "Canary") -> None:
    """The control of the test above: the same search finds a decoy in a file, an environment, arguments and memory."""
    box = arena.box(isolation)
    decoy = f"decoy+{secrets.token_hex(16)}"
    fake = type(canary)(canary.name, decoy, "")
    box.files.write("/var/lib/decoy", b"x" * 5_000_000 + forms(decoy)[0], user="root")
    waiting = box.spawn(["sleep", "300"], env={"HIDDEN": decoy}, user="root")
    hidden = box.spawn(["python3", "-c", "import sys, time; kept = sys.stdin.read(); print('ready', flush=True); time.sleep(300)"],
                       user="root", stdin=True)  # fmt: skip
    hidden.write(decoy.encode())
    hidden.close_stdin()
    assert next(iter(hidden.output())).text == "ready\n"
    found = arena.run(box, "search", data=fake.masked(), user="root", timeout=110)
    assert "/var/lib/decoy" in found
    assert any(place.endswith("/environ") for place in found)
    if isolation == "container":  # gVisor does not show memory
        assert any(place.endswith("/mem") for place in found)
    waiting.kill()
    hidden.kill()


def test_a_key_is_nowhere_in_what_the_host_shows(arena: "Range", canary: "Canary") -> None:
    """G-1, CRED-10, G-323: not in commands' output, API's answers, errors, logs, the database, process lists, the run directory."""
    box = arena.box(secrets=(canary.name,))
    ask(arena, box, canary.name, token_of(box))
    ask(arena, box, canary.name, "wrong")
    daemon = arena.daemon
    shown = [
        daemon.cli(*command, check=False)
        for command in (
            ("show", box.name, "--json"), ("ls", "--json"), ("secret", "ls", "--json"), ("secret", "ls"), ("logs", box.name),
            ("daemon", "logs"), ("daemon", "status"), ("config", "get"), ("template", "ls", "--json"),
            ("secret", "add", "canary", "--provider", "nonsense"), ("secret", "show", "canary"), ("doctor",),
        )
    ]  # fmt: skip
    said = "".join(done.stdout + done.stderr for done in shown)
    said += (
        str(arena.client.usage(box.id)) + str(arena.client.denials(box.id)) + str(arena.client.list_secrets())
    )
    with contextlib.suppress(CorralError):
        arena.client.put_secret("canary", canary.key, "nonsense")
    for broken in (
        {"value": canary.key + "\0"},
        {"value": canary.key + "\n" + canary.key},
        {"value": "x" + canary.key, "base_url": "-"},
    ):
        with pytest.raises(CorralError) as caught:
            arena.client.put_secret("canary", broken["value"], "anthropic", broken.get("base_url"))
        said += str(caught.value) + caught.value.hint
    assert not canary.seen_in(said)
    places = (daemon.data, daemon.run, arena.store / box.id)
    assert [path for place in places for path in _files(place) if canary.seen_in(path.read_bytes())] == []


def _files(place: Path) -> list[Path]:
    """Files of a directory of the host's, what is mounted below it left out."""
    found = []
    for folder, names, files in os.walk(place):
        names[:] = [
            name
            for name in names
            if not os.path.ismount(Path(folder, name)) and name not in ("layers", "store")
        ]
        found += [Path(folder, name) for name in files]
    found = [path for path in found if not os.path.ismount(path)]
    return [
        path for path in found if path.is_file() and not path.is_symlink() and path.stat().st_size < MAX_FILE
    ]


def test_a_key_is_in_no_process_list_of_the_host(arena: "Range", canary: "Canary") -> None:
    """G-40: neither as an argument nor in an environment of the daemon, the gateway or a sandbox, seen from the host."""
    box = arena.box(secrets=(canary.name,))
    ask(arena, box, canary.name, token_of(box))
    seen = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            shown = (
                (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                if entry.name.isdigit()
                else b""
            )
            # The test's own model server got it by its environment.
            if canary.seen_in(shown) and b"corral.testing.model_server" not in shown:
                seen.append(shown)
    assert seen == []


@pytest.mark.parametrize("mode", ["body", "stream", "error"])
def test_an_echoed_key_is_taken_out(arena: "Range", isolation: str, echo: "Canary", mode: str) -> None:
    """G-137, CRED-18: a provider that sends the key back, in a header, an error, events, encoded, in pieces of 7 bytes."""
    box = arena.box(isolation, secrets=(echo.name,))
    answer = ask(arena, box, echo.name, token_of(box), echo=mode, stream=mode == "stream")
    assert answer["head"], answer
    assert "redacted" in answer["head"] + answer["body"]
    assert not echo.seen_in(json.dumps(answer, ensure_ascii=False))
    assert not echo.seen_in(answer["body"])


def test_another_sandboxes_token_is_refused(arena: "Range", isolation: str, canary: "Canary") -> None:
    """G-15, G-19: a stolen token is worth nothing elsewhere, in every header that carries one, and dies with its sandbox."""
    owner, thief = arena.box(secrets=(canary.name,)), arena.box(isolation, secrets=(canary.name,))
    stolen = token_of(owner)
    assert stolen != token_of(thief)
    assert ask(arena, owner, canary.name, stolen)["status"] == 200
    assert ask(arena, thief, canary.name, stolen)["status"] == 401
    own = token_of(thief)
    for field in (
        f"Authorization: Bearer {stolen}",
        f"X-Goog-Api-Key: {stolen}",
        f"x-api-key: {own}\r\nAuthorization: Bearer {stolen}",
    ):
        [answer] = arena.net(
            thief, ("http", "10.200.0.1", 80, "gateway.corral", f"/s/{canary.name}/v1/models", field + "\r\n")
        )
        assert answer["status"] == 401, field
    owner.kill()
    assert ask(arena, thief, canary.name, stolen)["status"] == 401
    assert ask(arena, thief, canary.name, own)["status"] == 200


def test_guessing_tokens_is_slow(arena: "Range", canary: "Canary") -> None:
    """G-24: many wrong tokens are answered with 429 in the end, and are in the audit log; the right one works all the same."""
    box = arena.box(secrets=(canary.name,))
    right = token_of(box)
    text = f"GET /s/{canary.name}/v1/models HTTP/1.1\r\nHost: gateway.corral\r\nx-api-key: guess\r\nConnection: close\r\n\r\n"
    answers = arena.net(box, *(("raw", "10.200.0.1", 80, text) for _ in range(60)))
    assert 429 in {answer[0]["status"] for answer in answers}
    assert ask(arena, box, canary.name, right)["status"] == 200


def test_a_secret_that_was_not_granted_is_not_served(
    arena: "Range", isolation: str, canary: "Canary"
) -> None:
    """G-17: a sandbox without a grant has no secret, whatever path it spells."""
    box = arena.box(isolation)
    names = ("canary", "CANARY", "canary%2f", "../s/canary", "%63anary", "canary/../canary")
    answers = arena.net(
        box, *(("http", "10.200.0.1", 80, "gateway.corral", f"/s/{name}/v1/models") for name in names)
    )
    assert {answer["status"] for answer in answers} <= {400, 403, 404}
    assert "canary" not in arena.net(box, ("http", "10.200.0.1", 80, "gateway.corral", "/policy"))[0]["body"]


def test_only_metered_endpoints_are_open(arena: "Range", isolation: str, canary: "Canary") -> None:
    """G-178 to G-187: with a good token, what is not metered is not sent upstream, however it is spelled."""
    box = arena.box(isolation, secrets=(canary.name,))
    field = f"x-api-key: {token_of(box)}\r\n"
    paths = (
        "/v1/files", "/v1/organizations/usage", "/v1/messages/batches", "/v1/../admin", "/v1/%2e%2e/admin", "//v1/files",
        "/v1/models/../files", "/v1/models/..%2ffiles", "/v1/messages;x", "/v1/messages%00", "/v1/models?x=1#/../files",
    )  # fmt: skip
    attempts: list[tuple[object, ...]] = [
        ("http", "10.200.0.1", 80, "gateway.corral", f"/s/{canary.name}{path}", field) for path in paths
    ]
    attempts.append(
        ("http", "10.200.0.1", 80, "gateway.corral", f"/s/{canary.name}/v1/files/x", field, "DELETE")
    )
    statuses = [answer["status"] for answer in arena.net(box, *attempts)]
    assert statuses[-2] in (200, 400, 403)  # a list of models, whose query is its own affair
    assert set(statuses[:-2] + statuses[-1:]) <= {400, 403, 404, 405}


def test_a_model_without_a_price_is_refused(arena: "Range", canary: "Canary") -> None:
    """G-203, principle 4: what cannot be metered is not bought."""
    box = arena.box(secrets=(canary.name,))
    token = token_of(box)
    bad: tuple[object, ...] = (
        {**REQUEST, "model": ""},
        {**REQUEST, "model": 7},
        {**REQUEST, "model": "x" * 1000},
        [],
        {},
        "text",
    )
    for body in bad:
        assert ask(arena, box, canary.name, token, body=body)["status"] in (400, 403)
    assert (
        ask(arena, box, canary.name, token, body={**REQUEST, "model": "claude-unknown-99"})["status"] == 200
    )
    assert any(total.assumed for total in arena.client.usage(box.id).models)


def test_an_upstream_without_a_trusted_certificate_gets_no_key(arena: "Range", tmp_path: Path) -> None:
    """G-56: whoever sits between gateway and provider, with a certificate of his own making, hears nothing."""
    heard = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(_self_signed(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)

        def listen() -> None:
            connection, _ = listener.accept()
            try:
                with context.wrap_socket(connection, server_side=True) as opened:
                    heard.append(opened.recv(4096))
            except (ssl.SSLError, OSError) as error:
                heard.append(type(error).__name__.encode())

        thread = threading.Thread(target=listen)
        thread.start()
        key = f"sk-{secrets.token_hex(16)}"
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        arena.client.put_secret("between", key, "anthropic", url)
        try:
            box = arena.box(secrets=("between",))
            assert ask(arena, box, "between", token_of(box))["status"] == 502
        finally:
            arena.client.remove_secret("between")
            thread.join()
    assert len(heard) == 1
    assert key.encode() not in heard[0]
    assert b"POST" not in heard[0]


def _self_signed(place: Path) -> Path:
    """A certificate for 127.0.0.1 and its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = place / "self-signed.pem"
    encoding = serialization.Encoding.PEM
    secret = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(secret + certificate.public_bytes(encoding))
    return path

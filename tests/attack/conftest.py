"""What attack tests share: sandboxes of both isolations with hostile programs in them, and a secret worth stealing.

The programs are those of `corral self-test`, and some in `guest/`; they run with the sandbox's own Python, as its root
unless said otherwise.
"""

import json
import secrets
import threading
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import psutil
import pytest
from tests.models import serving

from corral import Client, Sandbox
from corral.errors import Unsupported
from corral.testing.attack import guest
from corral.testing.attack.arena import Trap, host_addresses, open_trap
from corral.testing.attack.loot import make_key, masked, seen_in

if TYPE_CHECKING:
    from tests.conftest import Daemon

GUEST = Path(__file__).parent / "guest"
SHIPPED = Path(guest.__file__).parent
PLACE = "/opt/attack"
MIB = 1024 * 1024
# Where nothing is asked of a sandbox but to be there.
SMALL = {"memory": 512 * MIB, "pids": 256, "disk": 256 * MIB}


@dataclass
class Range:
    """A daemon, and the sandboxes that attack it."""

    daemon: "Daemon"
    client: Client

    def box(self, isolation: str = "container", **options: Any) -> Sandbox:
        """A sandbox with the hostile programs in it; removed at the end of the test."""
        try:
            box = Sandbox.create(client=self.client, isolation=isolation, **{"limits": SMALL, **options})
        except Unsupported as error:
            pytest.skip(f"{error.message}: {error.hint}")
        return self.armed(box)

    def armed(self, box: Sandbox) -> Sandbox:
        """The sandbox, with the hostile programs in it."""
        for programs in (SHIPPED, GUEST):
            for program in sorted(programs.glob("*.py")):
                box.files.upload(program, f"{PLACE}/tests/attack/guest/{program.name}", user="root")
        return box

    def run(
        self,
        box: Sandbox,
        program: str,
        *args: object,
        data: object = None,
        user: str = "root",
        timeout: float = 100,
    ) -> Any:
        """Run a hostile program to its end; the JSON that it printed."""
        command = ["python3", "-m", f"tests.attack.guest.{program}", *map(str, args)]
        given = data if isinstance(data, str) else json.dumps(data)
        done = box.exec(command, user=user, cwd=PLACE, timeout=timeout, input=given)
        if done.exit_code != 0:
            pytest.fail(f"{program} ended with {done.exit_code} {done.reason}: {done.stderr[-3000:]}")
        return json.loads(done.stdout)

    def net(self, box: Sandbox, *attempts: tuple[object, ...], user: str = "user") -> list[Any]:
        """Network attempts, as guest/net.py names them; their outcomes."""
        return list(self.run(box, "net", data=[list(item) for item in attempts], user=user))

    def alive(self) -> None:
        """The daemon serves, and another sandbox can be made and used."""
        with Sandbox.create(client=self.client) as other:
            assert other.exec("echo alive", timeout=60).stdout == "alive\n"

    @property
    def engine(self) -> psutil.Process:
        """The daemon's engine."""
        assert self.daemon.process is not None
        return psutil.Process(self.daemon.process.pid)

    @property
    def gateway(self) -> psutil.Process:
        """The daemon's gateway."""
        return next(p for p in self.engine.children() if "corral.gateway.main" in p.cmdline())

    @property
    def store(self) -> Path:
        """The daemon's store of sandboxes' files, on the host."""
        return self.daemon.data / "store" / "sandboxes"


@pytest.fixture
def arena(daemon: "Daemon") -> Iterator[Range]:
    """A daemon with a client."""
    with daemon.client() as client:
        yield Range(daemon, client)


@pytest.fixture(params=["container", pytest.param("gvisor", marks=pytest.mark.gvisor)])
def isolation(request: pytest.FixtureRequest) -> str:
    """Each isolation that one host can give."""
    return str(request.param)


@pytest.fixture
def box(arena: Range, isolation: str) -> Sandbox:
    """A sandbox of each isolation."""
    return arena.box(isolation)


@dataclass(frozen=True)
class Canary:
    """A real key behind the gateway; `name` is its secret's name."""

    name: str
    key: str
    url: str

    def masked(self) -> str:
        """The forms of the key, masked as guest/search.py wants them."""
        return masked(self.key)

    def seen_in(self, data: bytes | str) -> bool:
        """Whether the key can be read out of something."""
        return seen_in(self.key, data)


@pytest.fixture
def canary(daemon: "Daemon") -> Iterator[Canary]:
    """A secret given by the CLI; what answers behind it is a scripted model server that knows the real key."""
    with serving(make_key()) as model:
        daemon.cli(
            *("secret", "add", "canary", "--provider", "anthropic", "--base-url", model.url),
            input=f"{model.key}\n",
        )
        try:
            yield Canary("canary", model.key, model.url)
        finally:
            daemon.cli("secret", "rm", "canary", check=False)


class _Echo(BaseHTTPRequestHandler):
    """Sends back everything that it was sent, in every form and in small pieces."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        key = self.headers.get("x-api-key") or self.headers.get("authorization", "").removeprefix("Bearer ")
        raw = key.encode()
        lines = [key, quote(key, safe=""), raw.hex(), b64encode(raw).decode(), b64encode(b"x" + raw).decode(),
                 b64encode(b"xy" + raw).decode(), json.dumps(key), str(self.headers)]  # fmt: skip
        mode = json.loads(body).get("metadata", {}).get("echo", "body")
        content = "\n".join(lines).encode()
        if mode == "error":
            self._send(
                401,
                "application/json",
                json.dumps({"error": {"message": f"invalid key {key}"}}).encode(),
                key,
            )
        elif mode == "stream":
            self._send(
                200,
                "text/event-stream",
                b"".join(b"data: " + line.encode() + b"\n\n" for line in lines[:6]),
                key,
            )
        else:
            self._send(200, "application/json", content, key)

    def _send(self, status: int, kind: str, content: bytes, key: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("x-echo", quote(key))
        self.send_header("x-echo-raw", key)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for start in range(0, len(content), 7):
            piece = content[start : start + 7]
            self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def echo(daemon: "Daemon") -> Iterator[Canary]:
    """A secret whose provider sends the key back."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Echo)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    key, url = make_key(), f"http://127.0.0.1:{server.server_address[1]}"
    daemon.cli("secret", "add", "echo", "--provider", "anthropic", "--base-url", url, input=key + "\n")
    try:
        yield Canary("echo", key, url)
    finally:
        daemon.cli("secret", "rm", "echo", check=False)
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def trap(tmp_path: Path) -> Iterator[Trap]:
    """Services of the host, on every address that it has."""
    with open_trap(tmp_path) as made:
        yield made


@pytest.fixture
def host_secret(tmp_path: Path) -> Iterator[Path]:
    """A file of the host that its root alone may read, with known content, where no sandbox has one."""
    path = tmp_path / "host-secret"
    path.write_text(f"host secret {secrets.token_hex(16)}\n")
    path.chmod(0o600)
    before = path.read_bytes()
    yield path
    assert path.read_bytes() == before, "the host's file was written to"


@pytest.fixture
def addresses() -> list[str]:
    """Addresses by which the host itself might be reached."""
    return [
        *host_addresses(),
        "127.0.0.1",
        "127.0.0.53",
        "0.0.0.0",
        "10.200.0.1",
        "172.17.0.1",
        "169.254.169.254",
    ]

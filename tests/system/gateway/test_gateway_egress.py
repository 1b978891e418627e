"""Egress of a sandbox with its real network: DNS, TLS pass-through and plain HTTP to a host outside."""

import asyncio
import contextlib
import errno
import ipaddress
import os
import secrets
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import dns.edns
import dns.message
import dns.rcode
import pytest
from tests.certificates import make_certificate

from corral.host import namespaces
from corral.model.egress import EgressPolicy, HostRule
from corral.model.ids import SandboxId
from corral.network.networks import Networks
from corral.policy.learning import begin

if TYPE_CHECKING:
    from tests.system.gateway.conftest import Bed

pytestmark = pytest.mark.root

_T = TypeVar("_T")
ALL_PORTS = (80, 443, 8443)


@dataclass
class Outside:
    """A host of its own: a network namespace joined to this one by a veth pair."""

    name: str
    address: str
    certificate: ssl.SSLContext
    authority: Path
    servers: list[asyncio.Server] = field(default_factory=list)

    def inside(self, work: Callable[[], _T]) -> _T:
        fd = os.open(f"/run/netns/{self.name}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return namespaces.run_in_netns(fd, work)
        finally:
            os.close(fd)

    async def serve(
        self,
        port: int,
        handler: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
        *,
        tls: bool,
    ) -> None:
        sock = self.inside(lambda: socket.create_server((self.address, port)))
        context = self.certificate if tls else None
        self.servers.append(await asyncio.start_server(handler, sock=sock, ssl=context))

    def client_context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.authority))


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@contextlib.contextmanager
def namespace(subnet: int) -> Iterator[str]:
    """A namespace at 10.213.`subnet`.2, this host being .1."""
    name = f"corral-gw-{secrets.token_hex(3)}"
    link = name.replace("corral-", "c")
    ip("netns", "add", name)
    try:
        ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("addr", "add", f"10.213.{subnet}.1/30", "dev", link)
        ip("link", "set", link, "up")
        ip("-n", name, "addr", "add", f"10.213.{subnet}.2/30", "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        yield name
    finally:
        ip("netns", "del", name)


@dataclass
class World:
    """A sandbox's network, its gateway, and a host outside."""

    bed: "Bed"
    networks: Networks
    sandbox: SandboxId
    outside: Outside

    def inside(self, work: Callable[[], _T]) -> _T:
        fd = os.open(self.networks.sandbox_netns(self.sandbox), os.O_RDONLY | os.O_CLOEXEC)
        try:
            return namespaces.run_in_netns(fd, work)
        finally:
            os.close(fd)

    def ask_sync(self, name: str, kind: str, server: str, *, tcp: bool, edns: bool) -> dns.message.Message:
        query = dns.message.make_query(name, kind, use_edns=0 if edns else None)
        data = query.to_wire()
        sock = self.inside(lambda: socket.socket(type=socket.SOCK_STREAM if tcp else socket.SOCK_DGRAM))
        with sock:
            sock.settimeout(10)
            # A connected datagram socket takes answers from the address that it asked, and from no other.
            sock.connect((server, 53))
            sock.sendall(len(data).to_bytes(2, "big") + data if tcp else data)
            answer = sock.recv(4096)
            while tcp and len(answer) < 2 + int.from_bytes(answer[:2], "big"):
                answer += sock.recv(4096)
        message = dns.message.from_wire(answer[2:] if tcp else answer)
        assert query.is_response(message)
        return message

    async def ask(
        self, name: str, kind: str = "A", *, server: str = "10.200.0.1", tcp: bool = False, edns: bool = False
    ) -> dns.message.Message:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, lambda: self.ask_sync(name, kind, server, tcp=tcp, edns=edns))

    async def address(self, name: str) -> str:
        answer = await self.ask(name)
        assert len(answer.answer) == 1, answer
        return str(answer.answer[0][0].address)

    async def connect(self, address: str, port: int) -> socket.socket:
        sock = self.inside(lambda: socket.socket())
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, (address, port))
        except OSError:
            sock.close()
            raise
        return sock

    async def tls(
        self, address: str, port: int, name: str
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        sock = await self.connect(address, port)
        return await asyncio.open_connection(
            sock=sock, ssl=self.outside.client_context(), server_hostname=name
        )

    async def http(self, address: str, data: bytes, port: int = 80) -> bytes:
        reader, writer = await asyncio.open_connection(sock=await self.connect(address, port))
        writer.write(data)
        try:
            async with asyncio.timeout(30):
                return await reader.read()
        finally:
            writer.close()


NAMES = ["allowed.test", "sub.wild.test", "other.test", "proxied.test"]


@pytest.fixture
async def world(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    make_gateway: Any = request.getfixturevalue("make_gateway")
    subnet = os.getpid() % 250
    networks = Networks(tmp_path / "run")
    sandbox = SandboxId(secrets.token_hex(8))
    with namespace(subnet) as name:
        address = f"10.213.{subnet}.2"
        certificate, authority = make_certificate(tmp_path, NAMES)
        outside = Outside(name, address, certificate, authority)
        hosts = tmp_path / "hosts"
        lines = [f"{address} {item}" for item in NAMES]
        lines += [
            "127.0.0.1 loop.test", "169.254.169.254 meta.test", "10.214.0.1 closed.test", f"10.213.{subnet}.1 host.test",
            "127.0.0.1 mixed.test", f"{address} mixed.test",
        ]  # fmt: skip
        hosts.write_text("\n".join(lines) + "\n")
        prefix = ["unshare", "-m", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', str(hosts)]
        async with make_gateway(prefix=prefix, uid=64_321) as bed:
            try:
                await networks.create(sandbox)
                hosts_allowed = (
                    "allowed.test",
                    "other.test",
                    "loop.test",
                    "meta.test",
                    "closed.test",
                    "host.test",
                    "mixed.test",
                )
                policy = EgressPolicy(
                    (*(HostRule(item, ALL_PORTS) for item in hosts_allowed), HostRule("*.wild.test")),
                    (f"10.213.{subnet}.0/30",),
                )
                listeners = list(await networks.listen(sandbox, (8443,)))
                await bed.attach(int(sandbox, 16), policy=policy, listeners=listeners)
                yield World(bed, networks, sandbox, outside)
            finally:
                for server in outside.servers:
                    server.close()
                await networks.remove(sandbox)
                await networks.close()


async def test_names_that_are_allowed_have_stand_in_addresses(world: World) -> None:
    """G-69, G-280, G-282 to G-284, G-287, G-289."""
    stand_ins = ipaddress.ip_network("198.18.0.0/15")
    first, second = await world.address("allowed.test"), await world.address("ALLOWED.test")
    assert first == second
    assert ipaddress.ip_address(first) in stand_ins
    wild = await world.address("sub.wild.test")
    assert ipaddress.ip_address(wild) in stand_ins
    assert wild != first
    assert await world.address("localhost") == await world.address("any.localhost") == "127.0.0.1"
    assert await world.address("gateway.corral") == "10.200.0.1"
    for server in ("8.8.8.8", "10.200.0.1"):
        answer = await world.ask("allowed.test", server=server)
        assert answer.answer[0][0].address == first
    assert (await world.ask("aLLowed.test", tcp=True)).question[0].name.to_text() == "aLLowed.test."


@pytest.mark.parametrize("kind", ["AAAA", "HTTPS", "SVCB", "TXT", "ANY", "MX", "SRV", "NS", "SOA", "CAA"])
async def test_other_types_have_no_data(world: World, kind: str) -> None:
    """G-285, G-293."""
    answer = await world.ask("allowed.test", kind)
    assert (answer.rcode(), answer.answer) == (dns.rcode.NOERROR, [])


async def test_names_that_are_not_allowed_do_not_exist(world: World) -> None:
    """G-52, G-281, G-288, G-295, G-296."""
    for name in (
        "evil.test",
        "wild.test",
        "allowed.test.evil.test",
        "data.allowed.test",
        "metadata.google.internal",
        "api.openai.com",
    ):
        answer = await world.ask(name, edns=True)
        assert answer.rcode() == dns.rcode.NXDOMAIN
        assert any(isinstance(option, dns.edns.EDEOption) for option in answer.options)
    assert (await world.ask("evil.test", "TXT")).rcode() == dns.rcode.NXDOMAIN
    record = await world.bed.audit("dns", "denied")
    assert record.host == "evil.test"


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends back what comes, and the end after it."""
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write(b"<end>")
        if writer.can_write_eof():
            writer.write_eof()
    writer.close()


@pytest.mark.parametrize("port", [443, 8443])
async def test_tls_passes_through_unopened(world: World, port: int) -> None:
    """G-47, G-55, G-62, G-92, G-322: the certificate that the client sees is the server's own."""
    await world.outside.serve(port, echo, tls=True)
    reader, writer = await world.tls(await world.address("allowed.test"), port, "allowed.test")
    block = secrets.token_bytes(1024 * 1024)

    async def send() -> None:
        for _ in range(8):
            writer.write(block)
            await writer.drain()

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        tasks.create_task(send())
        for _ in range(8):
            assert await reader.readexactly(len(block)) == block
    writer.close()
    record = await world.bed.audit("tls", "allowed")
    assert (record.host, record.port, record.rule) == ("allowed.test", port, "allowed.test")
    over = await world.bed.audit("tls", "ended")
    assert (over.host, over.port, over.request_id) == ("allowed.test", port, "")
    assert min(over.bytes_sent, over.bytes_received) > 8 * len(block)


async def test_each_direction_of_a_tunnel_ends_by_itself(world: World) -> None:
    """G-92: after the client's end of input the server's answer still arrives."""
    await world.outside.serve(443, echo, tls=False)
    sent = hello("allowed.test") + b"more"
    reader, writer = await asyncio.open_connection(
        sock=await world.connect(await world.address("allowed.test"), 443)
    )
    writer.write(sent)
    writer.write_eof()
    async with asyncio.timeout(30):
        assert await reader.read() == sent + b"<end>"
    writer.close()


def hello(name: str) -> bytes:
    """What a TLS client sends first."""
    outgoing = ssl.MemoryBIO()
    connection = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        connection.do_handshake()
    return outgoing.read()


async def test_a_wildcard_name_is_dialled_at_connect_time(world: World) -> None:
    """G-283."""
    await world.outside.serve(443, echo, tls=True)
    _, writer = await world.tls(await world.address("sub.wild.test"), 443, "sub.wild.test")
    writer.close()


async def refused(world: World, address: str, name: str, port: int = 443) -> None:
    """The TLS library is told of the refusal by an alert."""
    with pytest.raises(ssl.SSLError, match=r"tlsv1 (alert access denied|unrecognized name)"):
        await world.tls(address, port, name)


async def test_tls_that_is_refused_gets_an_alert_and_the_reason_can_be_read(world: World) -> None:
    """G-47, G-50, G-54, G-55, G-62 to G-67, G-315."""
    allowed, other = await world.address("allowed.test"), await world.address("other.test")
    cases = {
        "host-not-allowed": (allowed, "evil.test", 443),
        "destination-mismatch": (other, "allowed.test", 443),
        "port-not-allowed": (await world.address("sub.wild.test"), "sub.wild.test", 8443),
        "model-api": ("8.8.8.8", "api.anthropic.com", 443),
    }
    for address, name, port in cases.values():
        await refused(world, address, name, port)
    for name in ("loop.test", "meta.test", "closed.test", "host.test"):
        await refused(world, await world.address(name), name)
    listed = await world.http(
        "10.200.0.1", b"GET /denials HTTP/1.1\r\nHost: gateway.corral\r\nConnection: close\r\n\r\n"
    )
    for reason in (*cases, "address-not-allowed"):
        assert reason.encode() in listed
    for hidden in (b"127.0.0.1", b"169.254", b"10.214", b"10.213"):
        assert hidden not in listed


async def test_tls_without_a_name_or_to_the_gateway_is_refused(world: World) -> None:
    """G-47, G-50."""
    context = world.outside.client_context()
    context.check_hostname = False
    sock = await world.connect(await world.address("allowed.test"), 443)
    with pytest.raises(ssl.SSLError):
        await asyncio.open_connection(sock=sock, ssl=context, server_hostname="")
    await refused(world, "10.200.0.1", "allowed.test")


async def test_only_addresses_that_pass_are_dialled(world: World) -> None:
    """G-67, G-73: one of the name's two addresses is loopback."""
    await world.outside.serve(80, answer_with(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"), tls=False)
    found = await world.http(
        await world.address("mixed.test"), b"GET / HTTP/1.1\r\nHost: mixed.test\r\nConnection: close\r\n\r\n"
    )
    assert found.endswith(b"\r\n\r\nok")
    assert (await world.bed.audit("address", "denied")).reason == "a loopback address"


@pytest.mark.parametrize(
    ("name", "address", "told"),
    [
        ("loop.test", b"127.0.0.1", b"a loopback address"),
        ("meta.test", b"169.254", b"a metadata service"),
        ("closed.test", b"10.214", b"a private or special address"),
    ],
)
async def test_a_refusal_tells_the_kind_of_an_address_and_not_the_address(
    world: World, name: str, address: bytes, told: bytes
) -> None:
    """G-68, G-160: a sandbox does not learn what stands in the host's own name service."""
    request = b"GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % name.encode()
    found = await world.http(await world.address(name), request)
    assert found.startswith(b"HTTP/1.1 403 ")
    assert told in found
    assert address not in found


async def test_nothing_is_followed(world: World) -> None:
    """G-58, G-113: a redirect goes to the client, and what is to be loaded ahead is loaded by nobody here."""
    seen: list[bytes] = []
    answer = (
        b"HTTP/1.1 103 Early Hints\r\nLink: </ahead>; rel=preload\r\n\r\n"
        b"HTTP/1.1 302 Found\r\nLocation: http://other.test/x\r\nLink: </ahead>; rel=preload\r\nContent-Length: 0\r\n\r\n"
    )
    await world.outside.serve(80, answer_with(answer, seen), tls=False)
    request = b"GET / HTTP/1.1\r\nHost: allowed.test\r\nAuthorization: Bearer x\r\nConnection: close\r\n\r\n"
    found = await world.http(await world.address("allowed.test"), request)
    assert b"HTTP/1.1 302 " in found
    assert b"\r\nLocation: http://other.test/x\r\n" in found
    await world.bed.audit("http", "allowed")
    assert [head.split(b"\r\n")[:2] for head in seen] == [[b"GET / HTTP/1.1", b"Host: allowed.test"]]


@pytest.mark.parametrize("method", [b"GET", b"DELETE", b"OPTIONS"])
async def test_a_body_goes_with_any_method(world: World, method: bytes) -> None:
    """G-83."""
    seen: list[bytes] = []
    await world.outside.serve(
        80, answer_with(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", seen), tls=False
    )
    request = (
        b"%s / HTTP/1.1\r\nHost: allowed.test\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbody" % method
    )
    assert (await world.http(await world.address("allowed.test"), request)).endswith(b"ok")
    assert seen[0].startswith(method)
    assert seen[0].endswith(b"\r\n\r\nbody")


def answer_with(
    data: bytes, seen: list[bytes] | None = None
) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """A server that reads one request's head and a body of the length that it says, then answers with `data`."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = await reader.readuntil(b"\r\n\r\n")
            lines = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            length = int(lines[0].split(b":")[1]) if lines else 0
            body = await reader.readexactly(length)
            if seen is not None:
                seen.append(head + body)
            writer.write(data)
            await writer.drain()
        writer.close()

    return handler


async def test_plain_http_passes_as_it_is(world: World) -> None:
    """G-48, G-78 to G-82, G-85, G-87, G-97, G-112, G-322."""
    seen: list[bytes] = []
    answer = (
        b"HTTP/1.1 299 Odd\r\nX-One: a\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nAlt-Svc: h3\r\nKeep-Alive: 5\r\n"
        b"Content-Length: 3\r\n\r\nabc"
    )
    await world.outside.serve(80, answer_with(answer, seen), tls=False)
    request = (
        b"POST //a/%2e%2F;x?q=%20&q=2 HTTP/1.1\r\nHost: allowed.test\r\nuser-AGENT: x\r\nX-Two: 1\r\nX-Two: 2\r\n"
        b"X-Drop: y\r\nX-Corral-Decision: forged\r\nProxy-Authorization: z\r\nConnection: close, X-Drop\r\nTE: gzip\r\n"
        b"Content-Length: 4\r\n\r\nbody"
    )
    found = await world.http(await world.address("allowed.test"), request)
    assert seen == [
        b"POST //a/%2e%2F;x?q=%20&q=2 HTTP/1.1\r\nHost: allowed.test\r\nuser-AGENT: x\r\nX-Two: 1\r\nX-Two: 2\r\n"
        b"Content-Length: 4\r\n\r\nbody"
    ]
    head, _, body = found.partition(b"\r\n\r\n")
    assert body == b"abc"
    assert head.split(b"\r\n") == [
        b"HTTP/1.1 299 ", b"X-One: a", b"Set-Cookie: a=1", b"Set-Cookie: b=2", b"Content-Length: 3", b"Connection: close",
    ]  # fmt: skip
    record = await world.bed.audit("http", "allowed")
    assert (record.host, record.path, record.status) == ("allowed.test", "//a/%2e%2F;x", 299)
    assert (record.bytes_sent, record.bytes_received) == (4, len(found))
    assert len(record.request_id) == 16


async def test_a_request_that_goes_on_is_on_record_before_it_is_over(world: World) -> None:
    """G-322: and again at its end, with what it moved."""
    go_on = asyncio.Event()

    async def slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\na")
        await go_on.wait()
        writer.write(b"bc")
        writer.close()

    await world.outside.serve(80, slowly, tls=False)
    request = b"GET / HTTP/1.1\r\nHost: allowed.test\r\nConnection: close\r\n\r\n"
    asking = asyncio.ensure_future(world.http(await world.address("allowed.test"), request))
    begun = await world.bed.audit("http", "allowed")
    assert (begun.status, begun.bytes_received) == (200, 0)
    go_on.set()
    over = await world.bed.audit("http", "ended")
    assert (over.request_id, over.bytes_received) == (begun.request_id, len(await asking))
    assert over.duration_ms >= 1000


@pytest.mark.parametrize(
    "text",
    [
        b"GET /a HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET /a b HTTP/1.1\r\n\r\n",
        b"GET /a HTTP/1.1\r\nHost: allowed.test\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
    ],
)
async def test_a_request_that_is_refused_for_its_form_is_on_record(world: World, text: bytes) -> None:
    """G-322."""
    found = await world.http(await world.address("allowed.test"), text)
    record = await world.bed.audit("http", "denied")
    assert (record.reason, record.status) == ("bad-request", 400)
    assert f"X-Corral-Request: {record.request_id}\r\n".encode() in found


async def test_expect_continue_is_answered_after_the_decision(world: World) -> None:
    """G-84."""
    await world.outside.serve(80, answer_with(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"), tls=False)
    head = b"POST / HTTP/1.1\r\nHost: %s\r\nExpect: 100-continue\r\nContent-Length: 4\r\nConnection: close\r\n\r\n"
    address = await world.address("allowed.test")
    reader, writer = await asyncio.open_connection(sock=await world.connect(address, 80))
    writer.write(head % b"allowed.test")
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"body")
    assert (await reader.read()).startswith(b"HTTP/1.1 200 OK")
    writer.close()
    assert (await world.http(address, head % b"evil.test")).startswith(b"HTTP/1.1 403 ")


@pytest.mark.parametrize(
    ("name", "field", "status"),
    [
        ("allowed.test", "evil.test", b"403"), ("allowed.test", "other.test", b"421"),
        ("allowed.test", "allowed.test:8443", b"421"),
        ("loop.test", "loop.test", b"403"), ("closed.test", "closed.test", b"403"), ("host.test", "host.test", b"403"),
        ("allowed.test", "10.200.0.1", b"403"), ("allowed.test", "gateway.corral", b"421"), ("allowed.test", "a b", b"403"),
        ("allowed.test", "127.0.0.1", b"403"), ("allowed.test", "metadata.google.internal", b"403"),
    ],
)  # fmt: skip
async def test_plain_http_to_elsewhere_is_refused(world: World, name: str, field: str, status: bytes) -> None:
    """G-47, G-48, G-54, G-62 to G-66."""
    request = f"GET / HTTP/1.1\r\nHost: {field}\r\nConnection: close\r\n\r\n".encode()
    found = await world.http(await world.address(name), request)
    assert found[9:12] == status
    assert b"10.213" not in found
    assert b"10.214" not in found


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nA: b\x01c\r\nContent-Length: 0\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"",
    ],
)
async def test_an_ambiguous_answer_is_refused(world: World, answer: bytes) -> None:
    """G-75, G-98."""
    await world.outside.serve(80, answer_with(answer), tls=False)
    found = await world.http(
        await world.address("allowed.test"),
        b"GET / HTTP/1.1\r\nHost: allowed.test\r\nConnection: close\r\n\r\n",
    )
    assert found.startswith(b"HTTP/1.1 502 ")


async def test_an_answer_that_breaks_off_does_not_look_complete(world: World) -> None:
    """G-102."""
    await world.outside.serve(
        80, answer_with(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"), tls=False
    )
    with contextlib.suppress(ConnectionResetError):
        found = await world.http(
            await world.address("allowed.test"),
            b"GET / HTTP/1.1\r\nHost: allowed.test\r\nConnection: close\r\n\r\n",
        )
        assert not found.endswith(b"0\r\n\r\n")


async def test_plain_http_works_on_a_further_port(world: World) -> None:
    """G-55: what is no TLS on a rule's port is read as HTTP."""
    await world.outside.serve(8443, answer_with(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"), tls=False)
    request = b"GET / HTTP/1.1\r\nHost: allowed.test:8443\r\nConnection: close\r\n\r\n"
    assert (await world.http(await world.address("allowed.test"), request, 8443)).endswith(b"ok")
    found = await world.http(await world.address("allowed.test"), b"SSH-2.0-OpenSSH\r\n\r\n", 8443)
    assert found[9:12] == b"400"


async def test_detaching_ends_tunnels_and_names(world: World) -> None:
    """G-333."""
    await world.outside.serve(443, echo, tls=True)
    address = await world.address("allowed.test")
    reader, writer = await world.tls(address, 443, "allowed.test")
    await world.bed.client.detach(world.sandbox)
    async with asyncio.timeout(30):
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            assert await reader.read() == b""
    writer.close()
    with pytest.raises(OSError) as caught:
        await world.connect(address, 443)
    assert caught.value.errno == errno.ECONNREFUSED


async def test_a_policy_changes_under_open_connections(world: World) -> None:
    """G-307, G-308: what is still allowed goes on, what is not is cut at once, and a further port opens."""
    for port in (443, 9443):
        await world.outside.serve(port, echo, tls=True)
    kept = await world.tls(await world.address("allowed.test"), 443, "allowed.test")
    cut = await world.tls(await world.address("other.test"), 443, "other.test")
    with pytest.raises(ConnectionRefusedError):
        await world.connect(await world.address("allowed.test"), 9443)
    policy = EgressPolicy(
        (HostRule("allowed.test", (443, 9443)), HostRule("proxied.test")),
        (f"10.213.{os.getpid() % 250}.0/30",),
    )
    listeners = await world.networks.open_ports(world.sandbox, (9443,))
    assert 9443 not in world.bed.client.ports(world.sandbox)
    await world.bed.client.set_policy(world.sandbox, policy, listeners)
    assert 9443 in world.bed.client.ports(world.sandbox)
    for listener in listeners:
        listener.sock.close()
    assert await cut[0].read() == b""
    kept[1].write(b"still here")
    assert await kept[0].readexactly(10) == b"still here"
    added = await world.tls(await world.address("allowed.test"), 9443, "allowed.test")
    proxied = await world.tls(await world.address("proxied.test"), 443, "proxied.test")
    assert (await world.ask("other.test")).rcode() == dns.rcode.NXDOMAIN
    for _, writer in (kept, cut, added, proxied):
        writer.close()
    await world.bed.kill()
    await world.bed.client.reattach(world.bed.spawn())
    again = await world.tls(await world.address("allowed.test"), 9443, "allowed.test")
    again[1].close()


async def test_ranges_hold_for_addresses_and_for_what_names_lead_to(world: World) -> None:
    """G-62, G-67, G-305: denied, a range shuts names that are allowed; allowed, it opens addresses and no name."""
    await world.outside.serve(80, answer_with(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"), tls=False)
    await world.outside.serve(443, echo, tls=True)
    subnet = f"10.213.{os.getpid() % 250}"
    names = (HostRule("allowed.test"), HostRule("mixed.test"))

    async def get(host: str, address: str) -> bytes:
        request = f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        return (await world.http(address, request.encode()))[9:12]

    async def hold(*rules: HostRule) -> None:
        await world.bed.client.set_policy(world.sandbox, EgressPolicy(rules, (f"{subnet}.0/30",)), [])

    await hold(*names)
    stand_in = await world.address("allowed.test")
    assert await get("allowed.test", stand_in) == b"200"
    assert await get(world.outside.address, world.outside.address) == b"403"

    await hold(*names, HostRule("*"), HostRule(f"{subnet}.0/24", deny=True))
    assert await get("allowed.test", stand_in) == b"403"
    assert await get("mixed.test", await world.address("mixed.test")) == b"403"
    sock = await world.connect(stand_in, 443)
    with pytest.raises(ssl.SSLError):
        await asyncio.open_connection(
            sock=sock, ssl=world.outside.client_context(), server_hostname="allowed.test"
        )
    assert await get(world.outside.address, world.outside.address) == b"403"

    await hold(HostRule(f"{subnet}.0/24"))
    assert await get(world.outside.address, world.outside.address) == b"200"
    assert await get("allowed.test", stand_in) == b"403"
    context = world.outside.client_context()
    context.check_hostname = False
    sock = await world.connect(world.outside.address, 443)
    reader, writer = await asyncio.open_connection(sock=sock, ssl=context, server_hostname="")
    writer.write(b"by its address")
    assert await reader.readexactly(14) == b"by its address"
    writer.close()


async def test_a_name_that_fails_for_a_while_is_asked_for_again(world: World, tmp_path: Path) -> None:
    """G-292: the others are not concerned; once there, its addresses may stand there twice, beside one that is dead."""
    await world.outside.serve(80, answer_with(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"), tls=False)
    subnet = f"10.213.{os.getpid() % 250}"
    rules = (HostRule("allowed.test"), HostRule("late.test"), HostRule("never.test"))
    await world.bed.client.set_policy(world.sandbox, EgressPolicy(rules, (f"{subnet}.0/29",)), [])

    async def get(host: str) -> bytes:
        request = f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        return (await world.http(await world.address(host), request.encode()))[9:12]

    assert await get("late.test") in (b"403", b"502")
    assert await get("allowed.test") == b"200"
    with (tmp_path / "hosts").open("a") as file:
        file.write(
            f"{subnet}.2 late.test\n{subnet}.2 late.test\n{subnet}.6 late.test\n{subnet}.2 late.test\n"
        )
    assert await get("late.test") == b"200"
    assert await get("never.test") in (b"403", b"502")


async def test_what_is_reached_by_learning_alone_is_recorded_as_that(world: World) -> None:
    """G-317."""
    await world.outside.serve(443, echo, tls=True)
    policy = begin(EgressPolicy((HostRule("allowed.test"),), (f"10.213.{os.getpid() % 250}.0/30",)))
    await world.bed.client.set_policy(world.sandbox, policy, ())
    for name in ("allowed.test", "proxied.test"):
        _, writer = await world.tls(await world.address(name), 443, name)
        writer.close()
    for name in ("meta.test", "loop.test"):  # whatever a name leads to, private places stay shut
        with pytest.raises((ConnectionError, ssl.SSLError)):
            await world.tls(await world.address(name), 443, name)

    def reached() -> dict[str, str]:
        return {r.host: r.rule for r in world.bed.audits if (r.kind, r.decision) == ("tls", "allowed")}

    async with asyncio.timeout(20):
        while len(reached()) < 2:  # records come on their own
            await world.bed.client.ping()
    assert reached() == {"allowed.test": "allowed.test", "proxied.test": "learning"}

"""What is under way is cut once it could not be begun any more: inside of TLS that was ended, and passed through."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from h2.connection import H2Connection

from corral.gateway.box import Box
from corral.gateway.dial import Dialer
from corral.gateway.forward import Forwarder
from corral.gateway.front import Front
from corral.gateway.inject import Bound
from corral.gateway.multiplex import Multiplexed
from corral.gateway.relay import Side
from corral.gateway.service import Service, _Served
from corral.gateway.tls import TlsClient
from corral.model.binding import Binding, Place
from corral.model.egress import EgressPolicy, HostRule
from corral.model.git import PushPolicy
from corral.model.grants import ModelRules
from corral.model.ids import SandboxId, TenantId
from corral.model.route import Route
from corral.model.secrets import Secret
from corral.policy.addresses import Network
from corral.policy.bindings import complete_binding
from corral.policy.egress import MODEL_HOSTS, Allowed, narrows
from corral.policy.rules import parse_rule
from corral.wire.link import Attach, AuditRecord, GrantSpec, SetConfig, SetPolicy

HOST, PORT = "open.test", 443
OPEN = EgressPolicy((HostRule(HOST), HostRule("other.test")))
VALUE = Secret("sk_live_0123456789abcdefghij")


class Transport(asyncio.Transport):
    """A client's connection, which keeps what is written to it."""

    def __init__(self, address: str = "") -> None:
        super().__init__({"sockname": (address, PORT)})
        self.written = b""
        self.aborted = False
        self.protocol: Any = None

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def writelines(self, list_of_data: Any) -> None:
        self.written += b"".join(map(bytes, list_of_data))

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.aborted

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing to limit."""

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        """What has been read comes all the same."""

    def resume_reading(self) -> None:
        """Nothing was stopped."""

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol


class Servers:
    """A dialer whose lookups do not end, and whose connections lead to a transport that keeps what it gets."""

    def __init__(self) -> None:
        self.tls = self.http2 = ssl.create_default_context()
        self.asked = asyncio.Event()

    async def addresses(self, _box: Box, _allowed: Allowed) -> None:
        self.asked.set()
        await asyncio.Event().wait()

    async def connect(self, _box: Box, _allowed: Allowed, side: Side) -> None:
        self.asked.set()
        side.connection_made(Transport())

    def parent(self, *_: object) -> None:
        """There is none."""

    _networks: tuple[Network, ...] = ()
    set_networks = Dialer.set_networks


class Stuck(Servers):
    """Servers that no connection is made to in time."""

    async def connect(self, _box: Box, allowed: Allowed, side: Side) -> None:
        await self.addresses(_box, allowed)


@pytest.fixture
async def servers() -> Servers:
    return Stuck()


class World:
    """A box with its forwarder."""

    def __init__(self, servers: Servers) -> None:
        self.records: list[AuditRecord] = []
        grant = GrantSpec("00", ("stripe",), ModelRules())
        attach = Attach(
            0, SandboxId("0" * 16), TenantId("t"), "b", grant, OPEN, Secret("seed"), (), PushPolicy(), Route(), ()
        )  # fmt: skip
        self.bypass: frozenset[str] = frozenset()
        self.box = Box(attach, self.records.append, lambda _: MODEL_HOSTS, lambda: self.bypass)
        self.servers = servers
        self.forwarder = Forwarder(self.box, servers)  # type: ignore[arg-type]
        self.front = Front(self.box, None, self.forwarder)  # type: ignore[arg-type]

    def bind(self, *, host: str = HOST, place: Place = Place.HEADER) -> str:
        """Bind the secret to a host; its placeholder."""
        binding = complete_binding("stripe", VALUE, Binding((host,), places=(place,)), None)
        bound = Bound.of("stripe", VALUE, binding, Secret("seed"))
        self.box.set_bound((bound,), None, None)
        return bound.pairs[0][0]

    def allowed(self) -> Allowed:
        found = self.box.decide(HOST, PORT)
        assert isinstance(found, Allowed)
        return found

    async def ask(self, text: str) -> Transport:
        """A request inside of TLS that was ended, while its server does not answer."""
        transport = Transport()
        protocol: Any = self.front.inside(self.allowed(), "http/1.1")
        protocol.connection_made(transport)
        protocol.data_received(text.replace("\n", "\r\n").encode())
        await self.servers.asked.wait()
        assert not transport.is_closing()
        return transport

    async def pass_through(self, host: str = HOST) -> Transport:
        """A tunnel that is open."""
        transport = Transport(str(self.box.names.address(host)))
        client = TlsClient(self.box, PORT, self.servers, self.front, lambda: None)  # type: ignore[arg-type]
        client.connection_made(transport)
        client.data_received(hello(host))
        await self.servers.asked.wait()
        await asyncio.sleep(0)
        assert not transport.is_closing()
        return transport


@pytest.fixture
async def world(servers: Servers) -> AsyncIterator[World]:
    found = World(servers)
    yield found
    await found.forwarder.close()


@pytest.fixture
async def passing() -> AsyncIterator[World]:
    found = World(Servers())
    yield found
    await found.forwarder.close()


def hello(host: str) -> bytes:
    """The first bytes of a TLS client."""
    out = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), out, server_hostname=host)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return out.read()


def rules(*texts: str, deny: str = "") -> EgressPolicy:
    denying = (replace(parse_rule(deny), deny=True),) if deny else ()
    return EgressPolicy(tuple(map(parse_rule, texts)) + denying)


GET = f"GET /a HTTP/1.1\nHost: {HOST}\nX-Api-Key: KEY\n\n"


@pytest.mark.parametrize(
    "policy",
    [
        rules("other.test"),
        rules(HOST, deny=HOST),
        rules(f"POST {HOST}"),
        rules(HOST, deny=f"{HOST}/a"),
        rules(HOST, deny="10.0.0.0/8"),
    ],
)
async def test_a_request_inside_ended_tls_ends_with_its_permission(
    world: World, policy: EgressPolicy
) -> None:
    """G-308, G-333."""
    transport = await world.ask(GET)
    world.box.set_policy(OPEN)
    assert not transport.is_closing()
    world.box.set_policy(policy)
    assert transport.is_closing()


@pytest.mark.parametrize("text", [GET, f"POST /a HTTP/1.1\nHost: {HOST}\nContent-Length: 9\n\nsome body"])
async def test_a_request_ends_with_its_secret(world: World, text: str) -> None:
    """G-333: in the head, and where it may be in a body."""
    stand = world.bind(place=Place.HEADER if text == GET else Place.BODY)
    transport = await world.ask(text.replace("KEY", stand))
    world.box.cut_uncovered(())
    assert not transport.is_closing()
    world.bind(host="other.test")
    world.box.cut_uncovered(())
    assert transport.is_closing()
    assert [(r.kind, r.host, r.secret, r.reason) for r in world.records if r.decision == "cut"] == [
        ("https", HOST, "stripe", "secret-revoked")
    ]


async def test_one_without_the_secret_goes_on(world: World) -> None:
    """G-333."""
    world.bind()
    transport = await world.ask(GET)
    world.box.set_bound((), None, None)
    world.box.cut_uncovered(())
    assert not transport.is_closing()


async def test_of_http2_only_the_denied_request_ends(world: World) -> None:
    """G-308, G-333."""
    transport = Transport()
    server = Multiplexed(world.box, world.servers, world.allowed())  # type: ignore[arg-type]
    server.connection_made(transport)
    client = http2_client(("/a", "/b"))
    server.data_received(client.data_to_send())
    await world.servers.asked.wait()
    world.box.set_policy(rules(HOST, deny=f"{HOST}/a"))
    await asyncio.sleep(0)
    assert not transport.is_closing()
    events = client.receive_data(transport.written)
    assert [event.stream_id for event in events if type(event).__name__ == "StreamReset"] == [1]
    world.box.set_policy(rules("other.test"))
    assert transport.is_closing()


def http2_client(paths: tuple[str, ...]) -> Any:
    """A client that has asked for these paths."""
    client = H2Connection()
    client.initiate_connection()
    for number, path in enumerate(paths):
        head = [(":method", "GET"), (":scheme", "https"), (":authority", HOST), (":path", path)]
        client.send_headers(1 + 2 * number, head, end_stream=True)
    return client


@pytest.mark.parametrize(
    "policy",
    [
        rules("other.test"),
        rules(f"POST {HOST}"),
        rules(HOST, deny=f"{HOST}/a"),
        rules(HOST, deny="10.0.0.0/8"),
    ],
)
async def test_a_tunnel_ends_where_it_would_not_be_passed_through(
    passing: World, policy: EgressPolicy
) -> None:
    """G-59, G-308."""
    transport = await passing.pass_through()
    passing.box.set_policy(replace(OPEN, rules=(*OPEN.rules, HostRule("third.test"))))
    assert not transport.is_closing()
    passing.box.set_policy(policy)
    assert transport.is_closing()


async def test_a_tunnel_ends_where_a_secret_goes_now(passing: World) -> None:
    """G-308."""
    transport = await passing.pass_through()
    passing.bind(host="other.test")
    passing.box.cut_uncovered(())
    assert not transport.is_closing()
    passing.bind()
    passing.box.cut_uncovered(())
    assert transport.is_closing()


async def test_at_a_bypassed_host_a_tunnel_ends_with_rules_that_cannot_be_kept(passing: World) -> None:
    """G-132, G-308."""
    passing.bypass = frozenset({HOST})
    transport = await passing.pass_through()
    passing.bind()
    passing.box.cut_uncovered(())
    assert not transport.is_closing()
    passing.box.set_policy(rules(f"POST {HOST}"))
    assert transport.is_closing()


async def test_what_is_passed_unread_ends_when_it_is_to_be_read(passing: World) -> None:
    """G-299, G-308."""
    passing.box.set_policy(rules(f"tcp:{HOST}:{PORT}"))
    transport = Transport(str(passing.box.names.address(HOST)))
    client = TlsClient(passing.box, PORT, passing.servers, passing.front, lambda: None)  # type: ignore[arg-type]
    client.connection_made(transport)
    await passing.servers.asked.wait()
    assert not transport.is_closing()
    passing.box.set_policy(rules(f"{HOST}:{PORT}"))
    assert transport.is_closing()


@pytest.mark.parametrize(
    ("former", "policy", "narrower"),
    [
        (rules("a.test"), rules("b.test"), False),
        (rules("a.test"), rules("a.test", deny="10.0.0.0/8"), True),
        (rules("a.test", deny="10.0.0.0/8"), rules("a.test", "b.test", deny="10.0.0.0/8"), False),
        (rules("a.test", deny="10.0.0.0/8"), rules("a.test"), False),
        (rules("private:a.test:80"), rules("a.test:80"), True),
        (rules("a.test"), rules("private:a.test:80"), False),
        (EgressPolicy((), ("10.0.0.0/8",)), EgressPolicy(), True),
        (EgressPolicy(), EgressPolicy((), ("10.0.0.0/8",)), False),
    ],
)
def test_a_policy_that_lets_names_lead_to_fewer_addresses(
    former: EgressPolicy, policy: EgressPolicy, narrower: bool
) -> None:
    """G-62 to G-65, G-308."""
    assert narrows(former, policy) is narrower


class Renewed:
    """Connections to servers, of which it is counted how often they were closed."""

    def __init__(self) -> None:
        self.times = 0

    async def renew(self) -> None:
        self.times += 1


async def test_connections_that_wait_are_closed_where_they_might_not_be_made(passing: World) -> None:
    """G-62 to G-65, G-308: when a policy or the operator lets names lead to fewer addresses."""
    transport = await passing.pass_through()
    service = Service(passing.servers, SimpleNamespace(audit=passing.records.append), None, None, None)  # type: ignore[arg-type]
    forwarder, git = Renewed(), Renewed()
    service._served[passing.box.id] = _Served(passing.box, forwarder, None, git, None)  # type: ignore[arg-type]

    async def configure(networks: tuple[str, ...], bypass: tuple[str, ...] = ()) -> None:
        await service.handle(SetConfig(0, networks, bypass, 1, 1, (), ModelRules()), [])

    await configure(("10.0.0.0/8",))
    await configure(("10.0.0.0/8", "192.168.0.0/16"))
    assert (forwarder.times, git.times, transport.is_closing()) == (0, 0, False)
    await configure(("192.168.0.0/16",))
    assert (forwarder.times, git.times, transport.is_closing()) == (1, 1, True)
    await service.handle(SetPolicy(0, passing.box.id, OPEN, Route(), ()), [])
    assert (forwarder.times, git.times) == (1, 1)
    await service.handle(SetPolicy(0, passing.box.id, rules(HOST, deny="10.0.0.0/8"), Route(), ()), [])
    assert (forwarder.times, git.times) == (2, 2)

"""A sandbox with a proxy and DNS servers of its own: everything goes that way, and nowhere that it may not go."""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.certificates import make_certificate
from tests.faraway import (
    LOOPBACK,
    NEAR,
    PRIVATE,
    PROXY,
    RESOLVER,
    SERVER,
    Far,
    Resolver,
    SocksProxy,
    far_host,
)
from tests.system.gateway.conftest import Bed, BoxEnd, loopback_listeners
from tests.system.gateway.test_gateway_egress import hello

from corral.daemon.authority import load_authority
from corral.engine.ports import Listener
from corral.errors import InvalidInput
from corral.host import namespaces
from corral.model.egress import EgressPolicy, HostRule
from corral.model.listeners import ListenerKind
from corral.model.route import EgressProxy, HeaderField, HeaderRule, Route
from corral.model.secrets import Secret

pytestmark = pytest.mark.root

HOST = "api.example.test"


@dataclass
class Outward:
    """A gateway, and far away a server that says from where it was asked, a proxy and a resolver."""

    bed: Bed
    far: Far
    port: int
    resolver: Resolver
    proxy: SocksProxy
    pem: Path
    trust: ssl.SSLContext
    seen: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    end: BoxEnd | None = None

    async def attach(self, route: Route, *rules: HostRule) -> None:
        """Serve a sandbox whose HTTP and TLS go to the server's port."""
        listeners = [
            Listener(item.kind, self.port, item.sock)
            if item.kind in (ListenerKind.TLS, ListenerKind.HTTP)
            else item
            for item in loopback_listeners()
        ]
        own = rules or (HostRule(HOST, (self.port,)),)
        self.end = await self.bed.attach(policy=EgressPolicy(own), listeners=listeners, route=route)

    def by_proxy(self, **changes: Any) -> Route:
        options = {"host": PROXY, "port": self.proxy.port, **changes}
        return Route(proxy=EgressProxy(**options), resolvers=(RESOLVER,))

    async def tls(self, name: str = HOST) -> bytes:
        """What a GET inside of TLS gives; nothing if the connection is refused."""
        assert self.end is not None
        port = self.end.ports[ListenerKind.TLS]
        try:
            async with asyncio.timeout(30):
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", port, ssl=self.trust, server_hostname=name
                )
                writer.write(
                    f"GET / HTTP/1.1\r\nHost: {name}:{self.port}\r\nConnection: close\r\n\r\n".encode()
                )
                answer = await reader.read()
        except (ssl.SSLError, ConnectionError):
            return b""
        writer.close()
        return answer


@pytest.fixture
async def outward(tmp_path: Path, make_gateway: Any) -> AsyncIterator[Outward]:
    context, pem = make_certificate(tmp_path, [HOST, "proxy.example.test"])
    authority = load_authority(tmp_path / "authority.pem", "test")
    trust = ssl.create_default_context(cadata=authority.certificate)
    trust.load_verify_locations(pem)
    with far_host() as far, Resolver().running(far) as resolver, SocksProxy().running(far) as proxy:
        async with make_gateway(environment={"SSL_CERT_FILE": str(pem)}) as bed:
            await bed.client.set_authority(authority.certificate, authority.key)
            sock = far.listen(SERVER)
            found = Outward(bed, far, sock.getsockname()[1], resolver, proxy, pem, trust)
            resolver.answers[HOST] = [SERVER]

            async def handle(request: web.Request) -> web.StreamResponse:
                found.seen.append((str(request.remote), dict(request.headers)))
                return web.Response(text="hello")

            runner = web.AppRunner(app := web.Application(), shutdown_timeout=0.1)
            app.router.add_route("*", "/{path:.*}", handle)
            await runner.setup()
            await web.SockSite(runner, sock, ssl_context=context).start()
            try:
                yield found
            finally:
                await runner.cleanup()


async def test_what_is_passed_through_goes_by_the_proxy(outward: Outward) -> None:
    """G-62, G-71: it is asked for an address that was looked up by the sandbox's own server, never for a name."""
    await outward.attach(outward.by_proxy())
    assert (await outward.tls()).endswith(b"hello")
    assert outward.proxy.asked == [(SERVER, outward.port)]
    assert outward.resolver.asked == [f"{HOST} A"]
    assert [remote for remote, _ in outward.seen] != [str(NEAR.ip)]


async def test_what_is_looked_into_goes_by_the_proxy(outward: Outward) -> None:
    """G-57: also after the route has changed, when connections by the former one are not used again."""
    rule = HeaderRule(HOST, (HeaderField("X-Key", Secret("canary-0123456789")),))
    outward.proxy.login = ("me", "word")
    direct = Route((rule,), resolvers=(RESOLVER,))
    await outward.attach(direct)
    assert (await outward.tls()).endswith(b"hello")
    assert outward.proxy.asked == []
    policy = EgressPolicy((HostRule(HOST, (outward.port,)),))
    login = outward.by_proxy(username="me", password=Secret("word")).proxy
    assert outward.end is not None
    await outward.bed.client.set_policy(outward.end.id, policy, (), Route((rule,), login, (RESOLVER,)))
    assert (await outward.tls()).endswith(b"hello")
    assert outward.proxy.asked == [(SERVER, outward.port)]
    assert outward.proxy.logins == [("me", "word")]
    assert [headers.get("X-Key") for _, headers in outward.seen] == ["canary-0123456789"] * 2
    assert outward.seen[0][0] == str(NEAR.ip) != outward.seen[1][0]


async def test_plain_http_goes_by_the_proxy(outward: Outward) -> None:
    """G-71."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nplain")
        writer.close()

    sock = outward.far.listen(SERVER)
    outward.port = sock.getsockname()[1]
    async with await asyncio.start_server(serve, sock=sock):
        await outward.attach(outward.by_proxy())
        assert outward.end is not None
        headers = {"Host": f"{HOST}:{outward.port}"}
        async with outward.bed.http.get(outward.end.url, headers=headers) as answer:
            assert await answer.read() == b"plain"
    assert outward.proxy.asked == [(SERVER, outward.port)]


async def test_the_proxy_may_want_tls(outward: Outward) -> None:
    """G-56: checked by the authorities that its creator gave, and by no others."""
    tunnel, _ = make_certificate(outward.pem.parent, ["proxy.example.test"])
    await outward.attach(Route(resolvers=(RESOLVER,)))
    pem = outward.pem.read_text()
    ending = outward.far.listen(PROXY)

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def end_tls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(PROXY, outward.proxy.port)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(pump(reader, back))
            tasks.create_task(pump(there, writer))

    async with await asyncio.start_server(end_tls, sock=ending, ssl=tunnel):
        given = {"port": ending.getsockname()[1], "tls": True, "authorities": pem}
        await outward.attach(outward.by_proxy(**given, server_name="proxy.example.test"))
        assert (await outward.tls()).endswith(b"hello")
        await outward.attach(outward.by_proxy(**given, server_name="other.example.test"))
        assert await outward.tls() == b""
        await outward.attach(outward.by_proxy(**given, server_name=HOST))
        assert await outward.tls() == b""
    assert len(outward.proxy.asked) == 1


@pytest.mark.parametrize("fault", ["closed", "login", "refuses"])
async def test_without_the_proxy_there_is_no_connection(outward: Outward, fault: str) -> None:
    """G-342: nothing goes around it."""
    rule = HeaderRule("inspected.example.test", (HeaderField("X-Key", Secret("canary-0123456789")),))
    outward.resolver.answers["inspected.example.test"] = [SERVER]
    route = outward.by_proxy(port=1) if fault == "closed" else outward.by_proxy()
    if fault == "login":
        outward.proxy.login = ("me", "word")
    if fault == "refuses":
        outward.resolver.answers = {name: [RESOLVER] for name in outward.resolver.answers}
    hosts = (HOST, "inspected.example.test")
    await outward.attach(
        Route((rule,), route.proxy, route.resolvers), *(HostRule(host, (outward.port,)) for host in hosts)
    )
    for host in hosts:
        answer = await outward.tls(host)
        assert b"hello" not in answer
        assert b"own proxy cannot be used" in answer or host == HOST
    assert outward.seen == []


@pytest.mark.parametrize(
    "answer",
    [
        "10.0.0.1",
        "127.0.0.1",
        "169.254.169.254",
        pytest.param(str(NEAR.ip), id="near"),
        "::1",
        "64:ff9b::a9fe:a9fe",
        "198.18.0.1",
    ],
)
async def test_a_server_of_names_leads_into_no_private_range(outward: Outward, answer: str) -> None:
    """G-62 to G-67, G-70: whatever it says, by the proxy and without, and however the name comes to be asked again."""
    for route in (Route(resolvers=(RESOLVER,)), outward.by_proxy()):
        outward.resolver.answers[HOST] = [answer]
        await outward.attach(route)
        assert await outward.tls() == b""
        outward.resolver.answers[HOST] = [answer, SERVER]
        found = await outward.tls()
        assert found.endswith(b"hello") or ":" in answer
    assert {host for host, _ in outward.proxy.asked} <= {SERVER}
    assert (await outward.bed.audit("tls", "denied")).reason in ("address-not-allowed", "unresolved")


@pytest.mark.parametrize("address", [LOOPBACK, PRIVATE, str(NEAR.ip)], ids=["loopback", "private", "near"])
async def test_neither_is_where_it_may_not_be(outward: Outward, address: str) -> None:
    """G-63 to G-65: a proxy and a resolver are reached as any destination is, also by a name that leads elsewhere."""
    outward.resolver.answers["proxy.example.test"] = [address]
    near = Far(namespaces.own_netns_fd())
    place = outward.far if address == PRIVATE else near
    with (
        SocksProxy().running(place, address) as proxy,
        Resolver({HOST: [SERVER]}).running(place, address) as resolver,
    ):
        for route in (
            outward.by_proxy(host="proxy.example.test", port=proxy.port),
            outward.by_proxy(host=address, port=proxy.port),
            Route(resolvers=(address,)),
        ):
            try:
                await outward.attach(route)
            except InvalidInput as error:
                assert "cannot be at a" in error.message  # noqa: PT017 - some are refused before they are asked
                continue
            assert await outward.tls() == b""
    os.close(near.fd)
    assert (outward.seen, proxy.asked, resolver.asked) == ([], [], [])


async def test_a_denied_name_is_not_told_to_the_server_of_names(outward: Outward) -> None:
    """G-281."""
    await outward.attach(Route(resolvers=(RESOLVER,)))
    await outward.tls("evil.example.test")
    assert outward.end is not None
    await outward.end.raw(hello("data.evil.example.test"), kind=ListenerKind.TLS)
    assert outward.resolver.asked == []


async def test_what_the_server_says_first_is_passed_on(outward: Outward) -> None:
    """G-299: of a protocol in which servers speak first, through the proxy."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 hello\r\n")
        writer.write(await reader.readline())
        writer.close()

    sock, entrance = outward.far.listen(SERVER), outward.far.listen(SERVER)
    port, where = sock.getsockname()[1], entrance.getsockname()
    async with await asyncio.start_server(greet, sock=sock):
        policy = EgressPolicy((HostRule(SERVER, (port,), tcp=True),))
        listeners = [Listener(ListenerKind.TLS, port, entrance)]
        await outward.bed.attach(policy=policy, listeners=listeners, route=outward.by_proxy())
        reader, writer = await asyncio.open_connection(*where)
        writer.write(b"EHLO\n")
        async with asyncio.timeout(30):
            assert await reader.read() == b"220 hello\r\nEHLO\n"
        writer.close()
    assert outward.proxy.asked == [(SERVER, port)]

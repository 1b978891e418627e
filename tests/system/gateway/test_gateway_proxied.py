"""A host that goes out through a proxy: the gateway uses it, for what may go that way."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from corral.model.egress import EgressPolicy, HostRule
from corral.model.listeners import ListenerKind

if TYPE_CHECKING:
    from tests.system.gateway.conftest import Bed

    MakeGateway = Callable[..., contextlib.AbstractAsyncContextManager[Bed]]

POLICY = EgressPolicy((HostRule("allowed.test"), HostRule("*.wild.test"), HostRule("8.8.8.8")))


@dataclass
class Proxy:
    """A proxy on loopback that records what it is asked and answers every tunnel with an echo."""

    asked: list[bytes] = field(default_factory=list)
    answer: bytes = b"HTTP/1.1 200 Connection established\r\n\r\n"
    port: int = 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = await reader.readuntil(b"\r\n\r\n")
            self.asked.append(head)
            if not head.startswith(b"CONNECT "):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nproxied")
            else:
                writer.write(self.answer)
                while data := await reader.read(65536):
                    writer.write(data)
            await writer.drain()
        writer.close()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Proxy"]:
        """Serve meanwhile."""
        async with await asyncio.start_server(self._serve, "127.0.0.1", 0) as server:
            self.port = server.sockets[0].getsockname()[1]
            yield self


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    async with Proxy().running() as found:
        yield found


@pytest.fixture
async def proxied(proxy: Proxy, make_gateway: "MakeGateway") -> AsyncIterator["Bed"]:
    url = f"http://user:secret@localhost:{proxy.port}"
    async with make_gateway(
        environment={"HTTPS_PROXY": url, "http_proxy": url, "NO_PROXY": "direct.test"}
    ) as bed:
        yield bed


def hello(name: str) -> bytes:
    """What a TLS client sends first."""
    outgoing = ssl.MemoryBIO()
    connection = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        connection.do_handshake()
    return outgoing.read()


async def test_tls_goes_through_a_tunnel(proxied: "Bed", proxy: Proxy) -> None:
    """G-71."""
    box = await proxied.attach(policy=POLICY)
    reader, writer = await asyncio.open_connection("127.0.0.1", box.ports[ListenerKind.TLS])
    first = hello("allowed.test")
    writer.write(first)
    async with asyncio.timeout(30):
        assert await reader.readexactly(len(first)) == first
        writer.write(b"and more")
        assert await reader.readexactly(8) == b"and more"
    writer.close()
    lines = proxy.asked[0].split(b"\r\n")
    assert lines[:2] == [b"CONNECT allowed.test:443 HTTP/1.1", b"Host: allowed.test:443"]
    assert b"Proxy-Authorization: Basic dXNlcjpzZWNyZXQ=" in lines


@pytest.mark.parametrize("name", ["sub.wild.test", "evil.test"])
async def test_only_names_that_a_rule_spells_out_go_there(proxied: "Bed", proxy: Proxy, name: str) -> None:
    """G-71."""
    box = await proxied.attach(policy=POLICY)
    answer = await box.raw(hello(name), kind=ListenerKind.TLS)
    assert answer[:1] == b"\x15"
    assert proxy.asked == []


@pytest.mark.parametrize(
    "answer",
    [b"HTTP/1.1 407 No\r\n\r\n", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\nsurprise", b"x" * 20_000],
)
async def test_a_proxy_that_refuses_ends_the_connection(proxied: "Bed", proxy: Proxy, answer: bytes) -> None:
    """G-342."""
    proxy.answer = answer
    box = await proxied.attach(policy=POLICY)
    found = await box.raw(hello("allowed.test"), kind=ListenerKind.TLS)
    assert found[:1] == b"\x15"


async def test_plain_http_goes_there_in_absolute_form(proxied: "Bed", proxy: Proxy) -> None:
    """G-71, G-87."""
    box = await proxied.attach(policy=POLICY)
    async with proxied.http.get(box.url + "/a?b=c", headers={"Host": "allowed.test"}) as answer:
        assert await answer.read() == b"proxied"
    lines = proxy.asked[0].split(b"\r\n")
    assert lines[0] in (
        b"GET http://allowed.test/a?b=c HTTP/1.1",
        b"GET http://allowed.test:80/a?b=c HTTP/1.1",
    )
    assert b"Proxy-Authorization: Basic dXNlcjpzZWNyZXQ=" in lines
    for host in ("sub.wild.test", "8.8.8.8"):
        async with proxied.http.get(box.url, headers={"Host": host}) as answer:
            assert answer.status in (403, 421)
    assert len(proxy.asked) == 1


async def test_model_calls_go_there_unless_they_are_local(proxied: "Bed", proxy: Proxy) -> None:
    box = await proxied.attach()
    headers = {"Host": "gateway.corral", "x-api-key": box.token}
    async with proxied.http.get(box.url + "/s/anthropic/v1/models", headers=headers) as answer:
        assert answer.status == 200
    assert (len(proxied.upstream.seen), proxy.asked) == (1, [])
    await proxied.secrets(base="http://llm.example")
    async with proxied.http.get(box.url + "/s/anthropic/v1/models", headers=headers) as answer:
        assert await answer.read() == b"proxied"
    assert b"x-api-key: sk-ant-canary" in proxy.asked[0]

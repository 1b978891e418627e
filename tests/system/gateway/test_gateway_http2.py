"""Clients that speak HTTP/2 and nothing else, at hosts whose TLS the gateway ends: real ones of gRPC, and hostile ones."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import pytest
from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from tests.certificates import make_certificate
from tests.system.gateway.test_gateway_inside import HOST, NAME, SECRET, Inside
from tests.system.gateway.test_gateway_inside import inside as inside

from corral.daemon.authority import load_authority
from corral.model.binding import Binding, Mode, Place
from corral.model.egress import EgressPolicy, HostRule
from corral.model.ids import SandboxId

LARGE = bytes(range(256)) * 12_000  # more than all windows


class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Says what it was sent. `/s/Both` answers each message while others come."""

    def __init__(self) -> None:
        self.seen: list[tuple[dict[str, Any], bytes]] = []

    def service(self, details: Any) -> Any:
        metadata = dict(details.invocation_metadata)

        def one(message: bytes, context: Any) -> bytes:
            self.seen.append((metadata, message))
            if details.method == "/s/Packed":
                context.set_compression(grpc.Compression.Gzip)
            context.set_trailing_metadata(
                (("x-echo", metadata.get("authorization", "")), ("x-bin", b"\x00\xff"))
            )
            if details.method == "/s/Fail":
                context.abort(grpc.StatusCode.NOT_FOUND, "nothing: 100 % é")
            return message.replace(b"SECRET", SECRET.encode())

        def both(messages: Iterator[bytes], _: Any) -> Iterator[bytes]:
            yield from messages

        if details.method == "/s/Both":
            return grpc.stream_stream_rpc_method_handler(both)
        return grpc.unary_unary_rpc_method_handler(one)


@dataclass
class Raw:
    """A client of HTTP/2 that sends what a test says."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    port: int
    h2: H2Connection = field(
        default_factory=lambda: H2Connection(H2Configuration(validate_outbound_headers=False))
    )

    def fields(self, path: str = "/", **more: str) -> list[tuple[str, str]]:
        """A request's fields; `more` with `_` in place of `:`."""
        pseudo = {":method": "GET", ":scheme": "https", ":authority": f"{HOST}:{self.port}", ":path": path}
        return list({**pseudo, **{name.replace("_", ":", 1): value for name, value in more.items()}}.items())

    def flush(self) -> None:
        self.writer.write(self.h2.data_to_send())

    async def events(self) -> AsyncIterator[Any]:
        """What the gateway sends until it closes."""
        while data := await self.reader.read(65536):
            for event in self.h2.receive_data(data):
                yield event
            self.flush()

    async def ask(self, fields: list[tuple[str, str]]) -> tuple[str, bytes]:
        """The status of an answer, or `reset`, and its body."""
        stream = self.h2.get_next_available_stream_id()
        self.h2.send_headers(stream, fields, end_stream=True)
        self.flush()
        status, body = "", b""
        async with asyncio.timeout(60):
            async for event in self.events():
                if getattr(event, "stream_id", None) != stream:
                    continue
                if isinstance(event, events.ResponseReceived):
                    status = dict(event.headers)[b":status"].decode()
                elif isinstance(event, events.DataReceived):
                    body += event.data
                elif isinstance(event, events.StreamReset):
                    return "reset", body
                elif isinstance(event, events.StreamEnded):
                    return status, body
        return "closed", body


@dataclass
class Grpc:
    """A sandbox's end, and a server of gRPC that only it is served."""

    inside: Inside
    handler: Handler
    credentials: Any

    @asynccontextmanager
    async def channel(self) -> AsyncIterator[Any]:
        """A channel to the server by way of the gateway."""
        options = (
            ("grpc.ssl_target_name_override", HOST),
            ("grpc.default_authority", f"{HOST}:{self.inside.server}"),
            ("grpc.use_local_subchannel_pool", 1),
        )
        target = f"127.0.0.1:{self.inside.port}"
        async with grpc.aio.secure_channel(target, self.credentials, options) as channel:
            yield channel

    @asynccontextmanager
    async def raw(self) -> AsyncIterator[Raw]:
        context = ssl.create_default_context(cadata=self.inside.authority)
        context.set_alpn_protocols(["h2"])
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.inside.port, ssl=context, server_hostname=HOST
        )
        client = Raw(reader, writer, self.inside.server)
        client.h2.initiate_connection()
        client.flush()
        try:
            yield client
        finally:
            writer.close()


@contextmanager
def serving(folder: Path, clients: bytes | None = None) -> Iterator[tuple[Handler, int]]:
    """A server of gRPC with the certificate in a folder; `clients`: the only one that it takes of clients."""
    handler = Handler()
    server = grpc.server(ThreadPoolExecutor(4), handlers=(handler,))
    pair = (folder / "key.pem").read_bytes(), (folder / "certificate.pem").read_bytes()
    port = server.add_secure_port(
        "127.0.0.1:0", grpc.ssl_server_credentials((pair,), clients, clients is not None)
    )
    server.start()
    try:
        yield handler, port
    finally:
        server.stop(0).wait()


@pytest.fixture
async def service(tmp_path: Path, make_gateway: Callable[..., Any]) -> AsyncIterator[Grpc]:
    _, pem = make_certificate(tmp_path, [HOST])
    authority = load_authority(tmp_path / "authority.pem", "test")
    trust = ssl.create_default_context(cadata=authority.certificate)
    with serving(tmp_path) as (handler, port):
        async with make_gateway(environment={"SSL_CERT_FILE": str(pem)}) as bed:
            inside = Inside(bed, trust, authority.certificate, server=port)
            await bed.client.set_authority(authority.certificate, authority.key)
            await inside.attach(HostRule(HOST, (port,), paths=("/s/*",), private=True))
            yield Grpc(inside, handler, grpc.ssl_channel_credentials(authority.certificate.encode()))


async def one(
    channel: Any, name: str, message: bytes = b"hello", **metadata: str
) -> tuple[bytes, dict[str, Any]]:
    """A call's answer and its trailing metadata. Raises grpc.RpcError."""
    call = channel.unary_unary(f"/s/{name}")(message, metadata=tuple(metadata.items()), timeout=60)
    return await call, dict(await call.trailing_metadata())


async def test_calls_go_both_ways(service: Grpc) -> None:
    """G-108, G-110: messages larger than every window, both ways at once, and the server's own errors."""
    async with service.channel() as channel:
        answer, trailers = await one(channel, "Echo", LARGE)
        assert answer == LARGE
        assert trailers["x-bin"] == b"\x00\xff"
        both = channel.stream_stream("/s/Both")(timeout=60)
        for number in range(20):
            await both.write(b"%d" % number)
            assert await both.read() == b"%d" % number
        await both.done_writing()
        assert await both.read() is grpc.aio.EOF
        with pytest.raises(grpc.RpcError) as failed:
            await one(channel, "Fail")
        assert failed.value.code() is grpc.StatusCode.NOT_FOUND
        assert failed.value.details() == "nothing: 100 % é"
    record = await service.inside.bed.audit("https", "allowed")
    assert (record.method, record.path, record.status) == ("POST", "/s/Echo", 200)


async def test_a_secret_goes_into_metadata_and_does_not_come_back(service: Grpc) -> None:
    """G-32, G-33, G-137: not in a message either, nor in a trailer; what cannot be searched is not passed."""
    stand = await service.inside.bind(Binding((HOST,), (service.inside.server,)))
    async with service.channel() as channel:
        answer, trailers = await one(channel, "Echo", b"<SECRET>" * 100, authorization=f"Bearer {stand}")
        with pytest.raises(grpc.RpcError) as failed:
            await one(channel, "Packed", b"<SECRET>" * 100, authorization=f"Bearer {stand}")
    assert "compresses" in failed.value.details()
    metadata, message = service.handler.seen[0]
    assert metadata["authorization"] == f"Bearer {SECRET}"
    assert message == b"<SECRET>" * 100
    assert SECRET.encode() not in answer
    assert answer.startswith(b"<[redacted:")
    assert len(answer) == 100 * (len(SECRET) + 2)
    assert SECRET not in str(trailers)
    assert "redacted" in trailers["x-echo"]
    assert (await service.inside.bed.audit("redaction", "redacted")).secret == NAME


async def test_a_secret_itself_never_leaves(service: Grpc) -> None:
    """G-44: in metadata and in a message."""
    await service.inside.bind(Binding((HOST,), (service.inside.server,)))
    async with service.channel() as channel:
        for message, metadata in ((b"x", {"x-note": SECRET}), (b"a" + SECRET.encode(), {})):
            with pytest.raises(grpc.RpcError) as failed:
                await one(channel, "Echo", message, **metadata)
            assert failed.value.code() is grpc.StatusCode.PERMISSION_DENIED, failed.value
            assert "holds a secret" in failed.value.details()
    assert not any(SECRET in str(seen) for seen in service.handler.seen)


async def test_a_message_gets_a_secret_of_its_own_length_only(service: Grpc) -> None:
    """G-36: a placeholder in a message is exchanged, since it is as long as the secret."""
    places = (Place.HEADER, Place.BODY)
    stand = await service.inside.bind(Binding((HOST,), (service.inside.server,), places=places))
    async with service.channel() as channel:
        await one(channel, "Echo", stand.encode())
    assert service.handler.seen[0][1] == SECRET.encode()


async def test_refusals_are_told_as_grpc_tells_them(service: Grpc) -> None:
    """G-110: with the reason."""
    async with service.channel() as channel:
        call = channel.unary_unary("/other/Method")(b"x", timeout=60)
        with pytest.raises(grpc.RpcError) as failed:
            await call
    assert failed.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert "not to POST /other/Method" in failed.value.details()
    assert not service.handler.seen


async def test_each_request_is_decided_on(service: Grpc) -> None:
    """G-47, G-49, G-60, G-77, G-108: whatever the first one on the connection was."""
    async with service.raw() as client:
        status, body = await client.ask(client.fields("/no"))
        assert (status, json.loads(body)["rule"]) == ("403", "request-not-allowed")
        for fields, wanted in (
            (client.fields("/s/x", _authority="other.example"), "421"),
            (client.fields("/s/x", _authority=f"{HOST}:1"), "421"),
            (client.fields("/s/x", host="other.example"), "reset"),
            (client.fields("/s/%2e%2e/x"), "400"),
            (client.fields("/s/x", _scheme="http"), "400"),
            ([*client.fields("/s/x"), ("x-http-method-override", "DELETE")], "403"),
        ):
            async with service.raw() as fresh:
                assert (await fresh.ask(fields))[0] in (wanted, "reset", "closed"), fields
                assert not service.handler.seen


async def test_the_policy_is_asked_again(service: Grpc) -> None:
    """G-308: a call that is under way ends when its host is no longer allowed."""
    async with service.channel() as channel:
        both = channel.stream_stream("/s/Both")(timeout=60)
        await both.write(b"x")
        assert await both.read() == b"x"
        policy = EgressPolicy((HostRule("other.example"),))
        await service.inside.bed.client.set_policy(SandboxId(f"{1:016x}"), policy, ())
        with pytest.raises(grpc.RpcError) as failed:
            await both.read()
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_streams_that_are_given_up_without_end_end_the_connection(service: Grpc) -> None:
    """G-108: rapid reset; others are served meanwhile."""
    async with service.raw() as client, service.channel() as channel:
        for _ in range(1000):
            stream = client.h2.get_next_available_stream_id()
            client.h2.send_headers(stream, client.fields("/s/x"))
            client.h2.reset_stream(stream)
        client.flush()
        found = [event async for event in client.events() if isinstance(event, events.ConnectionTerminated)]
        assert [event.error_code for event in found] == [ErrorCodes.ENHANCE_YOUR_CALM]
        assert (await one(channel, "Echo"))[0] == b"hello"


async def test_a_server_that_does_not_speak_it_is_named(inside: Inside) -> None:
    """G-109, G-111: nothing is translated; the client is told, and HTTP/1.1 works there as before."""
    await inside.bind(Binding((HOST,), (inside.server,)))
    service = Grpc(inside, Handler(), grpc.ssl_channel_credentials(inside.authority.encode()))
    async with service.channel() as channel:
        with pytest.raises(grpc.RpcError) as failed:
            await one(channel, "Echo")
    assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "over HTTP/2" in failed.value.details()
    async with inside.client() as http, http.get(inside.url()) as answer:
        assert answer.status == 200


async def test_a_server_of_grpc_is_shown_a_certificate(service: Grpc, tmp_path: Path) -> None:
    """G-134: as in HTTP/1.1, and none once the secret is gone, on the connections that are open too."""
    (tmp_path / "client").mkdir()
    _, pem = make_certificate(tmp_path / "client", ["client"])
    both = pem.read_text() + pem.with_name("key.pem").read_text()
    with serving(tmp_path, pem.read_bytes()) as (_, port):
        service.inside.server = port
        await service.inside.attach(HostRule(HOST, (port,), paths=("/s/*",), private=True))
        binding = Binding((HOST,), (port,), mode=Mode.CERTIFICATE)
        await service.inside.bind(binding, value=json.dumps({"pem": both}))
        async with service.channel() as channel:
            assert (await one(channel, "Echo"))[0] == b"hello"
            await service.inside.bed.client.set_secrets([])
            with pytest.raises(grpc.RpcError):
                await one(channel, "Echo")

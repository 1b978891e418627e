"""Requests inside of TLS that the gateway ends: the policy on each, secrets in, secrets out, and what never gets that far."""

import asyncio
import base64
import gzip
import hashlib
import json
import socket
import ssl
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import aiohttp
import brotli  # type: ignore[import-untyped]
import pytest
import zstandard
from aiohttp import web
from cryptography import x509
from tests.certificates import make_certificate
from tests.system.gateway.conftest import loopback_listeners
from tests.system.gateway.test_gateway_egress import hello
from yarl import URL

from corral.daemon.authority import load_authority
from corral.engine.ports import Listener, OpenedSecret
from corral.model.binding import Absent, Binding, Mode, Place
from corral.model.egress import EgressPolicy, HostRule
from corral.model.ids import SandboxId, TenantId
from corral.model.listeners import ListenerKind
from corral.model.route import Route
from corral.model.secrets import Provider, Secret
from corral.policy.bindings import complete_binding
from corral.policy.placeholder import placeholders
from corral.wire import sigv4

if TYPE_CHECKING:
    from tests.system.gateway.conftest import Bed

HOST = "host.corral"
SECRET = "sk_live_Real+Secret/Value=0123456789"
NAME = "stripe"


@dataclass
class Inside:
    """A sandbox's end: a client that connects to the gateway for whatever host it names."""

    bed: "Bed"
    trust: ssl.SSLContext
    authority: str
    port: int = 0
    server: int = 0
    stands: dict[str, str] = field(default_factory=dict)
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]] | None = None
    seen: list[tuple[str, list[tuple[str, str]], bytes]] = field(default_factory=list)

    async def bind(self, binding: Binding, *, name: str = NAME, value: str = SECRET) -> str:
        """Bind a secret to the host; the sandbox's placeholder."""
        complete = complete_binding(name, Secret(value), binding, None)
        await self.bed.client.set_secrets(
            [OpenedSecret(TenantId("default"), name, Provider.HOST, "https://x", Secret(value), complete)]
        )
        return placeholders(name, complete, Secret("seed-1"), 1)[0]

    async def attach(self, *rules: HostRule, route: Route | None = None) -> None:
        """Serve the sandbox with these rules."""
        listeners = [
            Listener(item.kind, self.server, item.sock) if item.kind is ListenerKind.TLS else item
            for item in loopback_listeners()
        ]
        end = await self.bed.attach(
            1, policy=EgressPolicy(rules), secrets=(NAME, "other"), listeners=listeners, route=route
        )
        self.port = end.ports[ListenerKind.TLS]

    async def open(self, name: str = HOST) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=self.trust, server_hostname=name)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[aiohttp.ClientSession]:
        """An HTTP client whose every connection goes to the gateway."""

        class Resolver(aiohttp.abc.AbstractResolver):
            async def resolve(_, host: str, port: int = 0, family: int = 0) -> list[Any]:  # noqa: N805
                return [
                    {
                        "hostname": host,
                        "host": "127.0.0.1",
                        "port": self.port,
                        "family": 2,
                        "proto": 0,
                        "flags": 0,
                    }
                ]

            async def close(_) -> None:  # noqa: N805
                """Nothing to close."""

        connector = aiohttp.TCPConnector(resolver=Resolver(), ssl=self.trust)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:
            yield session

    def url(self, path: str = "/") -> str:
        return f"https://{HOST}:{self.server}{path}"

    async def raw(self, data: bytes) -> bytes:
        """What comes back for some bytes inside of TLS until the gateway closes."""
        reader, writer = await self.open()
        writer.write(data)
        try:
            async with asyncio.timeout(30):
                return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()

    def request(self, text: str) -> bytes:
        """A request with the right Host in place of `H`."""
        return text.replace("\n", "\r\n").replace("Host: H", f"Host: {HOST}:{self.server}").encode()


@pytest.fixture
async def inside(tmp_path: Path, make_gateway: Any) -> AsyncIterator[Inside]:
    server, pem = make_certificate(tmp_path, [HOST])
    authority = load_authority(tmp_path / "authority.pem", "test")
    trust = ssl.create_default_context(cadata=authority.certificate)
    async with make_gateway(environment={"SSL_CERT_FILE": str(pem)}) as bed:
        found = Inside(bed, trust, authority.certificate)
        await bed.client.set_authority(authority.certificate, authority.key)

        async def handle(request: web.Request) -> web.StreamResponse:
            body = await request.read()
            fields = [(k.decode(), v.decode()) for k, v in request.raw_headers]
            found.seen.append((f"{request.method} {request.raw_path}", fields, body))
            if found.handler is not None:
                return await found.handler(request)
            return web.json_response({"ok": True})

        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", handle)
        runner = web.AppRunner(app, auto_decompress=False, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=server)
        await site.start()
        found.server = runner.addresses[0][1]
        try:
            await found.attach(HostRule(HOST, (found.server,), private=True))
            yield found
        finally:
            await runner.cleanup()


async def done(call: AbstractAsyncContextManager[aiohttp.ClientResponse]) -> None:
    """Make a request and read its answer to the end."""
    async with call as answer:
        await answer.read()


def fields_of(inside: Inside, name: str) -> list[str]:
    return [value for key, value in inside.seen[-1][1] if key.lower() == name.lower()]


async def test_a_secret_takes_the_place_of_its_placeholder(inside: Inside) -> None:
    """G-25, G-32 to G-34, G-81, G-87."""
    stand = await inside.bind(Binding((HOST,), (inside.server,)))
    assert stand.startswith("sk_live_")
    assert len(stand) == len(SECRET)
    basic = base64.b64encode(f"{stand}:".encode()).decode()
    async with inside.client() as http:
        for headers in (
            {"Authorization": f"Bearer {stand}"},
            {"X-Api-Key": stand},
            {"Authorization": f"Basic {basic}"},
        ):
            async with http.post(
                inside.url("/x?a=1"), headers={**headers, "X-Corral-Own": "x"}, data=b"body"
            ) as answer:
                assert answer.status == 200
    bearer, key, coded = inside.seen
    assert dict(bearer[1])["Authorization"] == f"Bearer {SECRET}"
    assert dict(key[1])["X-Api-Key"] == SECRET
    assert base64.b64decode(dict(coded[1])["Authorization"].split()[1]) == f"{SECRET}:".encode()
    assert bearer[0] == "POST /x?a=1"
    assert fields_of(inside, "Content-Length") == ["4"]
    assert not {name.lower() for name, _ in coded[1]} & {
        "via",
        "forwarded",
        "x-forwarded-for",
        "x-corral-own",
    }
    assert (await inside.bed.audit("secret", "used")).secret == NAME


async def test_other_places_keep_the_placeholder(inside: Inside) -> None:
    """G-33, G-348: what a binding does not name is carried through unchanged."""
    stand = await inside.bind(Binding((HOST,), (inside.server,)))
    async with inside.client() as http:
        await done(
            http.post(
                inside.url(f"/{stand}?k={stand}"),
                headers={"X-Note": stand, "Cookie": f"a={stand}"},
                data=stand,
            )
        )
    line, fields, body = inside.seen[-1]
    assert line == f"POST /{stand}?k={stand}"
    assert dict(fields)["X-Note"] == stand
    assert dict(fields)["Cookie"] == f"a={stand}"
    assert body.decode() == stand
    assert SECRET not in json.dumps(fields)


async def test_query_path_and_body_are_replaced_where_bound(inside: Inside) -> None:
    """G-35, G-36, G-79, G-81: encoded for where it stands, with the right length."""
    places = (Place.QUERY, Place.PATH, Place.BODY)
    stand = await inside.bind(Binding((HOST,), (inside.server,), places=places, parameters=("key",)))
    quoted = "sk_live_Real%2BSecret%2FValue%3D0123456789"
    async with inside.client() as http:
        await done(
            http.post(
                inside.url(f"/bot{stand}/x?key={stand}&other={stand}"),
                data=json.dumps({"token": stand}),
                headers={"Content-Type": "application/json", "Authorization": f"Bearer {stand}"},
            )
        )
        line, fields, body = inside.seen[-1]
        assert line == f"POST /bot{quoted}/x?key={quoted}&other={stand}"
        assert json.loads(body) == {"token": SECRET}
        assert fields_of(inside, "Content-Length") == [str(len(body))]
        assert dict(fields)["Authorization"] == f"Bearer {stand}"
        await done(http.post(inside.url("/form"), data={"t": stand}))
        assert inside.seen[-1][2].decode() == f"t={quoted}"
        packed = gzip.compress(stand.encode())
        await done(http.post(inside.url("/z"), data=packed, headers={"Content-Encoding": "gzip"}))
        assert inside.seen[-1][2].decode() == SECRET
        assert not fields_of(inside, "Content-Encoding")

        async def pieces() -> AsyncIterator[bytes]:
            yield b"x" * 3_000_000
            for byte in stand.encode():
                yield bytes((byte,))
            yield b"y"

        await done(http.post(inside.url("/big"), data=pieces()))
        assert inside.seen[-1][2] == b"x" * 3_000_000 + SECRET.encode() + b"y"
        async with http.post(inside.url("/odd"), data=b"x", headers={"Content-Encoding": "lzma"}) as answer:
            assert answer.status == 415


async def test_mode_set_writes_a_field_for_its_requests_only(inside: Inside) -> None:
    """G-26, G-28, G-38."""
    await inside.bind(
        Binding(
            (HOST,), (inside.server,), mode=Mode.SET, fields=("Authorization",), form="Bearer {}",
            methods=("GET",), paths=("/api/**",),
        )
    )  # fmt: skip
    async with inside.client() as http:
        await done(
            http.get(inside.url("/api/x"), headers={"Connection": "keep-alive, X-Note", "X-Note": "1"})
        )
        assert fields_of(inside, "Authorization") == [f"Bearer {SECRET}"]
        await done(http.get(inside.url("/other")))
        await done(http.post(inside.url("/api/x")))
        assert fields_of(inside, "Authorization") == []
        async with http.get(inside.url("/api/x"), headers={"authorization": "Bearer own"}) as answer:
            assert answer.status == 403
    assert len(inside.seen) == 3


async def test_a_key_of_its_own_is_no_way_around(inside: Inside) -> None:
    """G-27: with `reject`, a request without the placeholder is not sent."""
    await inside.bind(Binding((HOST,), (inside.server,), absent=Absent.REJECT))
    async with (
        inside.client() as http,
        http.get(inside.url(), headers={"Authorization": "Bearer own"}) as answer,
    ):
        assert answer.status == 403
        assert (await answer.json())["rule"] == "no-placeholder"
    assert not inside.seen


async def test_a_host_on_the_operators_list_is_not_looked_into(inside: Inside, tmp_path: Path) -> None:
    """G-132, G-133: passed through to the server's own certificate, no secret put in, no rule about requests taken for kept."""
    stand = await inside.bind(Binding((HOST,), (inside.server,)))
    await inside.bed.client.set_config(bypass=(HOST,))
    headers = {"Authorization": f"Bearer {stand}"}
    async with inside.client() as http:
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await http.get(inside.url(), headers=headers)
    own = inside.trust
    inside.trust = ssl.create_default_context(cafile=str(tmp_path / "certificate.pem"))
    async with inside.client() as http, http.get(inside.url("/%2e%2e/x"), headers=headers) as answer:
        assert answer.status == 200
    assert dict(inside.seen[-1][1])["Authorization"] == f"Bearer {stand}"
    assert (await inside.bed.audit("tls", "allowed")).host == HOST
    assert (await inside.bed.audit("secret", "kept")).reason == "host-bypassed"
    count = len(inside.seen)
    inside.trust = own
    rules = (
        HostRule(HOST, (inside.server,), private=True),
        HostRule(HOST, (inside.server,), ("DELETE",), deny=True),
    )
    for policy in ((HostRule(HOST, (inside.server,), ("GET",), private=True),), rules):
        await inside.attach(*policy)
        async with inside.client() as http, http.get(inside.url()) as answer:
            assert answer.status == 403
            assert "never looked into" in await answer.text()
    assert len(inside.seen) == count
    await inside.bed.client.set_config()
    async with inside.client() as http, http.get(inside.url(), headers=headers) as answer:
        assert answer.status == 200
    assert dict(inside.seen[-1][1])["Authorization"] == f"Bearer {SECRET}"


async def test_a_server_is_shown_a_certificate(inside: Inside, tmp_path: Path) -> None:
    """G-134, G-137, G-334: the sandbox has neither it nor its key, and the server none from a sandbox without the secret."""
    (tmp_path / "client").mkdir()
    _, pem = make_certificate(tmp_path / "client", ["client"])
    key = pem.with_name("key.pem").read_text()
    wanted = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(pem))
    wanted.verify_mode = ssl.CERT_REQUIRED
    wanted.load_cert_chain(tmp_path / "certificate.pem", tmp_path / "key.pem")

    async def told(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        peer = request.transport.get_extra_info("peercert")
        return web.json_response({"peer": peer["subject"], "key": key})

    app = web.Application()
    app.router.add_get("/", told)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=wanted).start()
    inside.server = runner.addresses[0][1]
    await inside.attach(HostRule(HOST, (inside.server,), ("GET",), private=True))
    value = json.dumps({"pem": pem.read_text() + key})
    try:
        await inside.bind(Binding((HOST,), (inside.server,), mode=Mode.CERTIFICATE), value=value)
        async with inside.client() as http, http.get(inside.url()) as answer:
            assert answer.status == 200
            body = await answer.text()
            assert '"test"' in body
            assert key.splitlines()[2] not in body
        assert (await inside.bed.audit("secret", "used")).secret == NAME
        await inside.bed.client.set_secrets([])
        async with inside.client() as http, http.get(inside.url()) as answer:
            assert answer.status == 502
    finally:
        await runner.cleanup()


async def test_a_secret_itself_never_leaves(inside: Inside) -> None:
    """G-44: in the head, as addresses and credentials spell it too, in the body, cut in two."""
    await inside.bind(Binding((HOST,), (inside.server,)))

    async def halves() -> AsyncIterator[bytes]:
        yield b"a" * 100_000 + SECRET[:10].encode()
        await asyncio.sleep(0)
        yield SECRET[10:].encode() + b"b"

    async with inside.client() as http:
        basic = base64.b64encode(f"ab:{SECRET}".encode()).decode()
        heads: list[dict[str, Any]] = [
            {"headers": {"X-Note": quote(SECRET, safe="")}},
            {"headers": {"Authorization": f"Basic {basic}"}},
        ]
        for options in ({"headers": {"X-Note": SECRET}}, *heads, {"data": f"x{SECRET}"}, {"data": halves()}):
            async with http.post(inside.url(), **options) as answer:
                assert answer.status == 403
                assert (await answer.json())["rule"] == "secret-in-request"
        async with http.post(inside.url(f"/{SECRET}")) as answer:
            assert answer.status == 403
    assert not any(SECRET.encode() in body for _, _, body in inside.seen)
    assert (await inside.bed.audit("leak", "denied")).secret == NAME
    await inside.bed.audit("http", "denied")
    spelled = (SECRET, quote(SECRET, safe=""), quote(SECRET))
    assert not any(form in record.path for record in inside.bed.audits for form in spelled)


CODINGS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda data: data,
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": zstandard.ZstdCompressor().compress,
}


@pytest.mark.parametrize("coding", CODINGS)
async def test_echoes_are_taken_out(inside: Inside, coding: str) -> None:
    """G-137 to G-141, G-148: whatever the spelling, the coding and the cuts."""
    stand = await inside.bind(Binding((HOST,), (inside.server,)))
    spellings = [
        SECRET, base64.b64encode(SECRET.encode()).decode(), base64.b64encode(b"a" + SECRET.encode()).decode(),
        base64.urlsafe_b64encode(b"ab" + SECRET.encode()).decode(), SECRET.encode().hex(),
        "sk_live_Real%2BSecret%2FValue%3D0123456789", SECRET.replace("/", "\\/"),
        SECRET.replace("+", "\\u002b").replace("=", "\\u003d"),
    ]  # fmt: skip
    text = ("before " + " | ".join(spellings) + " after").encode()

    async def echo(request: web.Request) -> web.StreamResponse:
        headers = {
            "X-Echo": SECRET,
            "Set-Cookie": f"s={SECRET}",
            "WWW-Authenticate": f'Basic realm="{SECRET}"',
        }
        if coding:
            headers["Content-Encoding"] = coding
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        data = CODINGS[coding](text)
        for start in range(0, len(data), 7):
            await response.write(data[start : start + 7])
        return response

    inside.handler = echo
    async with inside.client() as http:
        headers = {
            "Authorization": f"Bearer {stand}",
            "Accept-Encoding": "gzip, deflate, br, zstd, lzma",
            "Range": "bytes=0-3",
        }
        async with http.get(inside.url(), headers=headers) as answer:
            body = await answer.read()
            shown = json.dumps(list(answer.headers.items()))
            assert "Content-Encoding" not in answer.headers
    assert body.startswith(b"before ")
    assert body.endswith(b" after")
    assert len(body) == len(text)
    assert not any(spelling.encode()[2:-3] in body for spelling in spellings)
    assert SECRET not in shown
    assert not fields_of(inside, "Range")
    assert fields_of(inside, "Accept-Encoding") == ["gzip, deflate, br, zstd"]
    assert (await inside.bed.audit("redaction", "redacted")).secret == NAME


async def test_a_secret_is_not_fetched_in_pieces(inside: Inside) -> None:
    """G-142: a host that gets a secret is asked for whole answers; others are asked as the client asks."""
    ranges = {"Range": "bytes=0-3", "If-Range": '"x"'}
    await inside.attach(HostRule(HOST, (inside.server,), ("GET",), private=True))
    async with inside.client() as http:
        await done(http.get(inside.url("/"), headers=ranges))
        assert fields_of(inside, "range") == ["bytes=0-3"]
        stand = await inside.bind(Binding((HOST,), (inside.server,)))
        await done(http.get(inside.url("/"), headers={**ranges, "Authorization": f"Bearer {stand}"}))
        assert fields_of(inside, "range") + fields_of(inside, "if-range") == []


async def test_a_secret_follows_no_redirect(inside: Inside) -> None:
    """G-26, G-58: the client is told where to, and goes there without it."""
    stand = await inside.bind(Binding((HOST,), (inside.server,)))

    async def redirect(_request: web.Request) -> web.StreamResponse:
        return web.Response(status=307, headers={"Location": f"https://{HOST}:{inside.server}/next"})

    inside.handler = redirect
    async with inside.client() as http:
        call = http.post(inside.url("/"), headers={"X-Api-Key": stand}, data=b"x", allow_redirects=False)
        async with call as answer:
            assert (answer.status, answer.headers["Location"]) == (307, inside.url("/next"))
    assert [line for line, _, _ in inside.seen] == ["POST /"]


async def test_a_server_that_is_not_trusted_is_told_of_inside_of_tls(inside: Inside, tmp_path: Path) -> None:
    """G-56, G-136: nothing goes to it, and the client learns why in an answer of the gateway's own."""
    (tmp_path / "other").mkdir()
    context, _ = make_certificate(tmp_path / "other", [HOST])
    reached: list[bytes] = []

    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.append(await reader.read(1))
        writer.close()

    async with await asyncio.start_server(server, "127.0.0.1", 0, ssl=context) as other:
        inside.server = other.sockets[0].getsockname()[1]
        await inside.attach(HostRule(HOST, (inside.server,), ("GET",), private=True))
        async with inside.client() as http, http.get(inside.url()) as answer:
            told = await answer.json()
            assert (answer.status, told["rule"]) == (502, "cannot-be-read")
            assert f"certificate of {HOST} is not accepted" in told["reason"]
            assert answer.headers["X-Corral-Decision"].startswith("denied")
    assert not any(reached)


async def test_what_cannot_be_read_is_not_passed_on(inside: Inside) -> None:
    """G-140, G-143."""
    await inside.bind(Binding((HOST,), (inside.server,)))

    async def odd(request: web.Request) -> web.StreamResponse:
        return web.Response(body=b"\x00" * 50, headers={"Content-Encoding": request.query["c"]})

    inside.handler = odd
    async with inside.client() as http:
        async with http.get(inside.url("/?c=lzma")) as answer:
            assert answer.status == 502
        with pytest.raises(aiohttp.ClientError):
            async with http.get(inside.url("/?c=gzip")) as answer:
                await answer.read()
        async with http.head(inside.url("/?c=lzma")) as answer:
            assert answer.status == 200


HEAD = b"HTTP/1.1 200 OK\r\n"
ECHO = SECRET.encode()
BROKEN = {
    "status": b"HTTP/1.1 200 " + ECHO + b"\r\nContent-Length: 0\r\n\r\n",
    "line": ECHO + b"\r\n\r\n",
    "name": HEAD + ECHO + b": x\r\nContent-Length: 0\r\n\r\n",
    "control": HEAD + b"X-Debug: \x01" + ECHO + b"\r\nContent-Length: 0\r\n\r\n",
    "folded": HEAD + b"X-Debug: a\r\n " + ECHO + b"\r\nContent-Length: 0\r\n\r\n",
    "length": HEAD + b"Content-Length: " + ECHO + b"\r\n\r\n",
    "lengths": HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\nX-Debug: " + ECHO + b"\r\n\r\nx",
    "coding": HEAD + b"Content-Encoding: " + ECHO + b"\r\nContent-Length: 1\r\n\r\nx",
    "type": HEAD + b"Content-Type: text/" + ECHO + b"\r\nContent-Length: 0\r\n\r\n",
    "upgrade": b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + ECHO + b"\r\n\r\n" + ECHO,
    "early": b"HTTP/1.1 103 Early Hints\r\nLink: <" + ECHO + b">\r\n\r\n" + HEAD + b"Content-Length: 0\r\n\r\n",
    "chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + ECHO + b"\r\n",
    "extension": HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;" + ECHO + b"\r\nx\r\n0\r\n\r\n",
    "trailer": HEAD + b"Transfer-Encoding: chunked\r\nTrailer: X\r\n\r\n1\r\nx\r\n0\r\nX: " + ECHO + b"\r\n\r\n",
    "short": HEAD + b"Content-Length: 1000\r\n\r\n" + ECHO[:-3],
}  # fmt: skip


@pytest.mark.parametrize("answer", BROKEN)
async def test_what_the_gateway_itself_answers_holds_no_secret(
    inside: Inside, tmp_path: Path, answer: str
) -> None:
    """G-144: nor does what is left of an answer that is broken, wherever in it the server says the secret again."""
    heard: list[bytes] = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(BROKEN[answer])
        writer.close()

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "certificate.pem", tmp_path / "key.pem")
    async with await asyncio.start_server(echo, "127.0.0.1", 0, ssl=context) as server:
        inside.server = server.sockets[0].getsockname()[1]
        stand = await inside.bind(Binding((HOST,), (inside.server,)))
        await inside.attach(HostRule(HOST, (inside.server,), private=True))
        request = inside.request(
            f"GET / HTTP/1.1\nHost: H\nAuthorization: Bearer {stand}\nConnection: close\n\n"
        )
        shown = await inside.raw(request)
    assert ECHO in heard[0]
    for spelled in (ECHO[:-3], base64.b64encode(ECHO)[:-4], quote(SECRET, safe="").encode()):
        assert spelled.lower() not in shown.lower()


async def test_no_moment_of_a_reload_is_without_a_policy(inside: Inside) -> None:
    """G-307, G-309: what both policies deny never passes, what both allow always does, and all of it is on record."""
    rules = [
        (HostRule(HOST, (inside.server,), ("GET",), ("/always", f"/{name}"), private=True),)
        for name in ("one", "other")
    ]
    await inside.attach(*rules[0])
    ended = asyncio.Event()
    asked: dict[str, list[int]] = {"/always": [], "/never": []}

    async def ask(http: aiohttp.ClientSession, path: str) -> None:
        while not ended.is_set():
            async with http.get(inside.url(path)) as answer:
                asked[path].append(answer.status)
                await answer.read()

    async with inside.client() as http, asyncio.TaskGroup() as tasks:
        for path in (*asked, *asked):
            tasks.create_task(ask(http, path))
        for number in range(1, 41):
            await inside.bed.client.set_policy(SandboxId(f"{1:016x}"), EgressPolicy(rules[number % 2]), [])
            await asyncio.sleep(0.02)
        ended.set()
    assert set(asked["/always"]) == {200}
    assert set(asked["/never"]) == {403}
    assert {line for line, _, _ in inside.seen} == {"GET /always"}
    sums = {"allowed": 0, "denied": 0}
    while sum(sums.values()) < sum(map(len, asked.values())):
        await asyncio.sleep(0.1)  # a record is let through by now
        async with inside.client() as http:
            await done(http.get(inside.url("/never")))  # and tells how many were left out
            asked["/never"].append(403)
        await asyncio.sleep(0.1)
        await inside.bed.client.ping()
        sums = dict.fromkeys(sums, 0)
        for record in inside.bed.audits:
            if record.kind in ("http", "https"):
                sums[record.decision] += 1
                sums["denied"] += record.suppressed


def peak_of(pid: int) -> int:
    """The most memory that a process had, in KiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


async def test_a_bomb_is_a_stream_like_any_other(inside: Inside) -> None:
    """G-92: a gigabyte in a megabyte goes through in pieces, and the gateway does not grow."""
    await inside.bind(Binding((HOST,), (inside.server,)))
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    block = bytes(1 << 20)
    bomb = b"".join(packer.compress(block) for _ in range(512)) + packer.flush()

    async def explode(request: web.Request) -> web.StreamResponse:
        return web.Response(body=bomb, headers={"Content-Encoding": "gzip"})

    inside.handler = explode
    assert inside.bed.process is not None
    size = 0
    async with inside.client() as http, http.get(inside.url()) as answer:
        async for chunk in answer.content.iter_any():
            size += len(chunk)
    assert size == 512 << 20
    assert peak_of(inside.bed.process.pid) < 400 * 1024


@pytest.mark.timeout(400)
@pytest.mark.parametrize("bound", [False, True], ids=["looked into", "searched"])
async def test_gigabytes_take_no_memory(inside: Inside, *, bound: bool) -> None:
    """G-92, G-114: each way, in chunks whose sum nobody knows beforehand."""
    gibibytes = 2 if not bound else 1
    if bound:
        await inside.bind(Binding((HOST,), (inside.server,)))
    else:
        await inside.attach(HostRule(HOST, (inside.server,), ("GET",), private=True))
    block = bytes(1 << 20)

    async def pour(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(gibibytes << 10):
            await response.write(block)
        return response

    inside.handler = pour
    assert inside.bed.process is not None
    before, size = peak_of(inside.bed.process.pid), 0
    async with inside.client() as http, http.get(inside.url()) as answer:
        async for chunk in answer.content.iter_any():
            size += len(chunk)
    assert size == gibibytes << 30
    assert peak_of(inside.bed.process.pid) - before < 64 * 1024


async def test_a_form_does_not_make_another_method_of_a_post(inside: Inside) -> None:
    """G-60: also where it comes late; what does not say so passes."""
    await inside.attach(HostRule(HOST, (inside.server,), ("POST",), private=True))
    filler = "x" * 300_000
    async with inside.client() as http:
        for form in ({"_method": "DELETE"}, {"a": filler, "_method": "DELETE"}):
            async with http.post(inside.url("/item"), data=form) as answer:
                assert (answer.status, "another method" in await answer.text()) == (403, True)
            async with http.post(inside.url("/item"), json=form) as answer:
                assert answer.status == 403
        async with http.post(inside.url("/item"), data={"a": filler}) as answer:
            assert answer.status == 200
    assert [body for _, _, body in inside.seen] == [b"a=" + filler.encode()]


async def test_each_request_is_decided_on_its_own(inside: Inside) -> None:
    """G-49, G-59, G-60, G-77, G-96."""
    await inside.attach(
        HostRule(HOST, (inside.server,), ("GET",), ("/read/**",), private=True),
        HostRule(HOST, (inside.server,), ("GET",), ("/read/secret",), deny=True),
    )
    async with inside.client() as http:
        wanted = {"/read/x": 200, "/write": 403, "/read/secret": 403, "/read/%73ecret": 403}
        for path, status in wanted.items():
            async with http.get(URL(inside.url(path), encoded=True)) as answer:
                assert answer.status == status, path
        async with http.post(inside.url("/read/x")) as answer:
            assert answer.status == 403
        async with http.get(inside.url("/read/x"), headers={"X-HTTP-Method-Override": "DELETE"}) as answer:
            assert answer.status == 403
        async with http.get(inside.url("/read/x?_method=delete")) as answer:
            assert answer.status == 403
    for path in (
        "/read/../write",
        "/read/%2e%2e/write",
        "/read/..;/write",
        "/read/..%5cwrite",
        "/read%2f..%2fwrite",
    ):
        answer_ = await inside.raw(inside.request(f"GET {path} HTTP/1.1\nHost: H\n\n"))
        assert answer_.startswith(b"HTTP/1.1 400"), path
    two = inside.request(
        "GET /read/1 HTTP/1.1\nHost: H\n\nGET /write HTTP/1.1\nHost: H\nConnection: close\n\n"
    )
    answers = await inside.raw(two)
    assert answers.index(b"200 OK") < answers.index(b"403 Forbidden")
    assert [line for line, _, _ in inside.seen] == ["GET /read/x", "GET /read/1"]


AMBIGUOUS = [
    "GET / HTTP/1.1\nHost: other.test\n\n",
    "GET / HTTP/1.1\nHost: H\nHost: other.test\n\n",
    "GET https://other.test/ HTTP/1.1\nHost: H\n\n",
    "CONNECT other.test:443 HTTP/1.1\nHost: H\n\n",
    "POST / HTTP/1.1\nHost: H\nContent-Length: 5\nTransfer-Encoding: chunked\n\n0\n\nGET /smuggled HTTP/1.1\nHost: H\n\n",
    "POST / HTTP/1.1\nHost: H\nContent-Length: 5\nContent-Length: 6\n\nabcdef",
    "POST / HTTP/1.1\nHost: H\nTransfer-Encoding: xchunked\n\n0\n\n",
    "GET / HTTP/1.1\nHost: H\n X: folded\n\n",
    "GET / HTTP/1.1\nHost: H\nX : 1\n\n",
    "GET / HTTP/1.1\nHost: H\nUpgrade: h2c\nConnection: Upgrade, HTTP2-Settings\nHTTP2-Settings: AAMA\n\n",
    "PRI * HTTP/2.0\n\nSM\n\n",
    "GET / HTTP/1.1\nHost: H\nUpgrade: other\nConnection: Upgrade\n\n",
    "GET / HTTP/1.1\nHost: H\nConnection: Authorization\nAuthorization: x\n\n",
    "GET / HTTP/1.1\nHost: H\nX: " + "a" * 70_000 + "\n\n",
    "GET /" + "a" * 20_000 + " HTTP/1.1\nHost: H\n\n",
]


async def test_what_two_parsers_read_differently_is_refused(inside: Inside) -> None:
    """G-47, G-74, G-76, G-86, G-89 to G-91: nothing of it reaches the server."""
    await inside.bind(Binding((HOST,), (inside.server,)))
    for text in AMBIGUOUS:
        answer = await inside.raw(inside.request(text))
        status = answer.split(b" ")[1:2]
        assert status in [[b"400"], [b"403"], [b"405"], [b"421"], [b"431"], [b"505"]], (text, answer)
        assert answer.count(b"\r\nServer: corral") == 1, (text, answer)
    assert not inside.seen


async def test_placeholders_inject_no_fields(inside: Inside) -> None:
    """G-37, G-39: what stands around a placeholder stays what it is."""
    stand = await inside.bind(Binding((HOST,), (inside.server,)))
    answer = await inside.raw(inside.request(f"GET / HTTP/1.1\nHost: H\nX-Api-Key: {stand}\rX-Evil: 1\n\n"))
    assert answer.split(b" ")[1] == b"400"
    assert not inside.seen


async def test_rotation_holds_from_the_next_request_on(inside: Inside) -> None:
    """G-42, G-334: on the same connection, with another length; removal too."""
    stand = await inside.bind(Binding((HOST,), (inside.server,)))
    async with inside.client() as http:
        await done(http.get(inside.url(), headers={"Authorization": f"Bearer {stand}"}))
        complete = complete_binding(NAME, Secret(SECRET), Binding((HOST,), (inside.server,)), None)
        new = OpenedSecret(
            TenantId("default"), NAME, Provider.HOST, "https://x", Secret("another-value"), complete
        )
        await inside.bed.client.set_secrets([new])
        await done(http.get(inside.url(), headers={"Authorization": f"Bearer {stand}"}))
        await inside.bed.client.set_secrets([])
        # No reason is left to end TLS at this host; the connection that is open goes on without the secret.
        async with http.get(inside.url(), headers={"Authorization": f"Bearer {stand}"}) as answer:
            assert answer.status == 200
    assert [dict(fields)["Authorization"] for _, fields, _ in inside.seen] == [
        f"Bearer {SECRET}", "Bearer another-value", f"Bearer {stand}",
    ]  # fmt: skip


async def test_certificates_are_as_clients_want_them(inside: Inside) -> None:
    """G-116 to G-119, G-107."""
    await inside.bind(Binding((HOST,), (inside.server,)))
    context = ssl.create_default_context(cadata=inside.authority)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.set_alpn_protocols(["h2", "http/1.1"])
    _, writer = await asyncio.open_connection("127.0.0.1", inside.port, ssl=context, server_hostname=HOST)
    tls = writer.get_extra_info("ssl_object")
    assert tls.selected_alpn_protocol() == "http/1.1"
    leaf = x509.load_der_x509_certificate(tls.getpeercert(binary_form=True))
    authority = x509.load_pem_x509_certificate(inside.authority.encode())
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [HOST]
    assert (leaf.not_valid_after_utc - leaf.not_valid_before_utc).days <= 398
    issuer = leaf.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value.key_identifier
    assert issuer == authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest
    writer.close()


async def test_a_refused_host_is_told_why_inside_of_tls(inside: Inside) -> None:
    """G-50, G-312."""
    reader, writer = await inside.open("evil.test")
    writer.write(b"GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n")
    async with asyncio.timeout(30):
        answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 403")
    assert b"host-not-allowed" in answer
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.open_connection("127.0.0.1", inside.port, ssl=unnamed(), server_hostname=None)


@pytest.mark.parametrize("rules", [(), ("auth.openai.com",), ("*",)], ids=["no rule", "a rule", "all"])
async def test_a_login_in_a_sandbox_is_answered_with_where_logins_are(
    inside: Inside, rules: tuple[str, ...]
) -> None:
    """G-165, G-170, G-172: by the gateway itself, whatever is allowed; nobody else is asked."""
    await inside.attach(*(HostRule(rule, (inside.server,)) for rule in rules))
    form = "grant_type=authorization_code&code=x"
    head = (
        f"POST /oauth/token HTTP/1.1\r\nHost: auth.openai.com:{inside.server}\r\nContent-Length: {len(form)}"
    )
    reader, writer = await inside.open("auth.openai.com")
    writer.write(f"{head}\r\nConnection: close\r\n\r\n{form}".encode())
    async with asyncio.timeout(30):
        answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 403")
    assert b"logins are made and kept on the host" in answer
    assert b"corral secret add" in answer
    assert (await inside.bed.audit("http", "denied")).host == "auth.openai.com"


def unnamed() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def test_a_client_that_does_not_trust_the_gateway_is_noticed(inside: Inside) -> None:
    """G-135."""
    await inside.bind(Binding((HOST,), (inside.server,)))

    def connect() -> None:
        plain = socket.create_connection(("127.0.0.1", inside.port), 30)
        with plain, pytest.raises(ssl.SSLCertVerificationError):
            ssl.create_default_context().wrap_socket(plain, server_hostname=HOST)

    await asyncio.to_thread(connect)
    record = await inside.bed.audit("tls", "failed")
    assert "client-distrusts-gateway" in record.reason


async def test_a_hello_that_may_hide_another_is_answered_by_the_gateway(inside: Inside) -> None:
    """G-50: it never reaches the server, although this host is passed through."""
    plain = hello(HOST)
    reader, writer = await asyncio.open_connection("127.0.0.1", inside.port)
    writer.write(with_extension(plain, 0xFE0D, b"\x00" * 40))
    async with asyncio.timeout(30):
        answer = await reader.readexactly(5)
    assert answer[0] == 22  # a handshake: the gateway's own
    writer.close()
    assert not [
        record for record in inside.bed.audits if record.kind == "tls" and record.decision == "allowed"
    ]


def with_extension(record: bytes, kind: int, body: bytes) -> bytes:
    """A client hello with one more extension."""
    message = bytearray(record[5:])
    at = 4 + 2 + 32
    at += 1 + message[at]
    at += 2 + int.from_bytes(message[at : at + 2], "big")
    at += 1 + message[at]
    added = kind.to_bytes(2, "big") + len(body).to_bytes(2, "big") + body
    size = int.from_bytes(message[at : at + 2], "big") + len(added)
    message[at : at + 2] = size.to_bytes(2, "big")
    message += added
    message[1:4] = (len(message) - 4).to_bytes(3, "big")
    return record[:3] + len(message).to_bytes(2, "big") + bytes(message)


async def test_continue_is_said_for_what_is_allowed(inside: Inside) -> None:
    """G-84: a refused request gets its answer without its body being read."""
    await inside.attach(HostRule(HOST, (inside.server,), ("POST",), ("/yes",), private=True))
    head = "POST {} HTTP/1.1\nHost: H\nContent-Length: 3\nExpect: 100-continue\nConnection: close\n\n"
    reader, writer = await inside.open()
    writer.write(inside.request(head.format("/yes")))
    async with asyncio.timeout(30):
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
        writer.write(b"abc")
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
    writer.close()
    assert (await inside.raw(inside.request(head.format("/no")))).startswith(b"HTTP/1.1 403")


async def test_handshakes_that_do_not_end_are_ended(inside: Inside) -> None:
    """G-340: half a handshake, many times, keeps nobody else out."""
    await inside.bind(Binding((HOST,), (inside.server,)))
    halves = [await asyncio.open_connection("127.0.0.1", inside.port) for _ in range(100)]
    for _, writer in halves:
        writer.write(hello(HOST))
    async with inside.client() as http, http.get(inside.url()) as answer:
        assert answer.status == 200
    for _, writer in halves:
        writer.close()


async def test_requests_to_aws_are_signed_again(inside: Inside) -> None:
    """G-149 to G-152, G-154, G-156, G-159: with the real key, over what is sent."""
    real = sigv4.Key("AKIAREALREALREALREAL", "real-secret-key-0123456789abcdef", "real-token-0123456789")
    binding = Binding((HOST,), (inside.server,), mode=Mode.AWS)
    value = ":".join((real.id, real.secret, real.token))
    complete = complete_binding(NAME, Secret(value), binding, None)
    assert complete.parts == 3
    await inside.bind(binding, value=value)
    fake = sigv4.Key(*placeholders(NAME, complete, Secret("seed-1"), 3))
    found = sigv4.Authorization(
        fake.id, "20261130", "us-east-1", "s3", ("host", "x-amz-content-sha256", "x-amz-date")
    )

    def signed(target: str, body: bytes, key: sigv4.Key = fake, digest: str = "") -> dict[str, str]:
        digest = digest or hashlib.sha256(body).hexdigest()
        fields = [
            ("Host", f"{HOST}:{inside.server}"),
            (sigv4.CONTENT_HASH, digest),
            (sigv4.DATE, "20261130T010203Z"),
        ]
        return dict(sigv4.resign("PUT", target, fields, found, key, digest))

    async with inside.client() as http:
        async with http.put(
            inside.url("/b/k?x=1"), data=b"body", headers=signed("/b/k?x=1", b"body")
        ) as answer:
            assert answer.status == 200
        sent = dict(inside.seen[-1][1])
        wanted = signed("/b/k?x=1", b"body", real)
        assert sent["Authorization"] == wanted["Authorization"]
        assert sent[sigv4.TOKEN] == real.token
        assert "real-secret" not in json.dumps(sent)
        count = len(inside.seen)
        for headers, body in (
            (signed("/", b"a"), b"b"),
            (signed("/", b"a", digest="STREAMING-AWS4-HMAC-SHA256-PAYLOAD"), b"a"),
        ):
            async with http.put(inside.url("/"), data=body, headers=headers) as answer:
                assert answer.status == 403, await answer.text()
        async with http.get(inside.url(f"/?X-Amz-Credential={fake.id}&X-Amz-Signature=0")) as answer:
            assert answer.status == 403
        assert len(inside.seen) == count
        other = signed("/", b"a", sigv4.Key("AKIAOTHEROTHEROTHERX", "x"))
        await done(http.put(inside.url("/"), data=b"a", headers=other))
        assert dict(inside.seen[-1][1])["Authorization"] == other["Authorization"]


@pytest.mark.parametrize("told", ["text", "binary", "ping", "parts"])
async def test_a_websocket_says_no_secret(inside: Inside, told: str) -> None:
    """G-44, G-104, G-313: it is cut, the client learns why, and the server has heard nothing of it."""
    await inside.bind(Binding(("elsewhere.example",), (443,)))
    await inside.attach(HostRule(HOST, (inside.server,), ("GET",), ("/ws",), private=True))
    heard: list[Any] = []

    async def listen(request: web.Request) -> web.StreamResponse:
        socket_ = web.WebSocketResponse(autoping=False)
        await socket_.prepare(request)
        async for message in socket_:
            heard.append(message.data)
            await socket_.send_str("heard")
        return socket_

    inside.handler = listen
    async with inside.client() as http, http.ws_connect(inside.url("/ws"), compress=15) as ws:
        assert not ws.compress
        await ws.send_str("hello")
        assert await ws.receive_str(timeout=30) == "heard"
        match told:
            case "text":
                await ws.send_str(f"it is {SECRET}")
            case "binary":
                await ws.send_bytes(SECRET.encode())
            case "ping":
                await ws.ping(SECRET.encode())
            case _:
                assert ws._conn is not None
                assert ws._conn.transport is not None
                for first, part in ((0x01, SECRET[:9]), (0x80, SECRET[9:])):
                    ws._conn.transport.write(bytes((first, 0x80 | len(part), 0, 0, 0, 0)) + part.encode())
        message = await ws.receive(timeout=30)
        assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, aiohttp.WSCloseCode.POLICY_VIOLATION)
        assert "secret of this host" in str(message.extra)
    assert SECRET[:5] not in str(heard)
    assert (await inside.bed.audit("leak", "denied")).secret == NAME
    assert (await inside.bed.audit("http", "denied")).reason == "secret-in-request"


async def test_a_websockets_control_frames_hold_no_secret(inside: Inside) -> None:
    """G-137: what a ping, a pong or a close says keeps its length."""
    places = (Place.HEADER, Place.WEBSOCKET)
    stand = await inside.bind(Binding((HOST,), (inside.server,), places=places))

    async def tell(request: web.Request) -> web.StreamResponse:
        socket_ = web.WebSocketResponse()
        await socket_.prepare(request)
        await socket_.ping(SECRET.encode())
        await socket_.pong(SECRET.encode())
        await socket_.close(code=4000, message=SECRET.encode())
        return socket_

    inside.handler = tell
    headers = {"Authorization": f"Bearer {stand}"}
    async with (
        inside.client() as http,
        http.ws_connect(inside.url("/ws"), headers=headers, autoping=False, autoclose=False) as ws,
    ):
        kinds, said = [], []
        for _ in range(3):
            message = await ws.receive(timeout=30)
            kinds.append(message.type)
            told = message.extra if message.type is aiohttp.WSMsgType.CLOSE else bytes(message.data).decode()
            said.append(told)
    assert kinds == [aiohttp.WSMsgType.PING, aiohttp.WSMsgType.PONG, aiohttp.WSMsgType.CLOSE]
    assert [len(one or "") for one in said] == [len(SECRET)] * 3
    assert SECRET not in str(said)


@pytest.mark.parametrize("bound", [False, True])
async def test_websockets_pass(inside: Inside, *, bound: bool) -> None:
    """G-103 to G-105, G-322: the handshake gets its secret; frames pass both ways and are counted; the server's text holds
    none.
    """
    stand = ""
    if bound:
        places = (Place.HEADER, Place.WEBSOCKET)
        stand = await inside.bind(Binding((HOST,), (inside.server,), places=places))
    else:
        await inside.attach(HostRule(HOST, (inside.server,), ("GET",), ("/ws",), private=True))

    async def talk(request: web.Request) -> web.StreamResponse:
        socket_ = web.WebSocketResponse(protocols=["key"], max_msg_size=0)
        await socket_.prepare(request)
        async for message in socket_:
            if message.type is aiohttp.WSMsgType.TEXT:
                await socket_.send_str(message.data.replace("SECRET", SECRET))
            elif message.type is aiohttp.WSMsgType.BINARY:
                await socket_.send_bytes(message.data)
        return socket_

    inside.handler = talk
    big = bytes(range(256)) * 8192
    headers = {"Authorization": f"Bearer {stand}"}
    async with inside.client() as http:
        async with http.ws_connect(
            inside.url("/ws"), protocols=["key"], headers=headers, max_msg_size=0
        ) as ws:
            assert ws.protocol == "key"
            for size in (1, 200, 70_000):
                await ws.send_str("x" * size)
                assert await ws.receive_str(timeout=30) == "x" * size
            await ws.send_bytes(big)
            assert await ws.receive_bytes(timeout=30) == big
            await ws.send_str("the SECRET is here")
            told = await ws.receive_str(timeout=30)
            assert (SECRET not in told) is bound
            assert told.startswith("the ")
            assert told.endswith(" is here")
            await ws.ping()
            await ws.send_str("end")
            assert await ws.receive_str(timeout=30) == "end"
        assert ws.close_code == 1000
    ended = await inside.bed.audit("https", "ended")
    assert min(ended.bytes_sent, ended.bytes_received) > 70_000 + len(big)
    if bound:
        assert dict(inside.seen[0][1])["Authorization"] == f"Bearer {SECRET}"
        assert not fields_of(inside, "Sec-WebSocket-Extensions")
    with pytest.raises(aiohttp.WSServerHandshakeError):
        async with inside.client() as http:
            await http.ws_connect(URL(inside.url("/%2e%2e/other"), encoded=True))

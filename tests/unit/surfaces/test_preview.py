"""The preview proxy's decisions, without a sandbox: which port a request names, what is passed on, where a login leads."""

import asyncio
import contextlib
import socket
from typing import Any
from urllib.parse import urlsplit

import dns.message
import dns.rcode
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.api.preview.access import COOKIE, HEADER, PARAMETER, cookies, forwarded, without_token
from corral.api.preview.hosts import Addresses, Target, target_of
from corral.api.preview.upstream import Broken, Upstream, end_to_end
from corral.api.preview.where import Where
from corral.daemon.names import answer

DOMAINS = ("sandboxes.test", "localhost")
ID = "0123456789abcdef"


@pytest.mark.parametrize(
    ("host", "target"),
    [
        (f"3000-{ID}.sandboxes.test", Target(ID, 3000)),
        (f"3000-{ID}.localhost", Target(ID, 3000)),
        (f"3000-{ID}-old.sandboxes.test", Target(ID, 3000)),
        ("sandboxes.test", None),
        ("localhost", None),
        (f"3000-{ID}.evil.test", None),
        (f"3000-{ID}.sub.sandboxes.test", None),
        (f"x-{ID}.sandboxes.test", None),
        (f"{ID}.sandboxes.test", None),
        (f"3000-{ID}.sandboxes.test.evil.test", None),
    ],
)
def test_host_names_of_ports(host: str, target: Target | None) -> None:
    assert target_of(host, DOMAINS) == target


@pytest.mark.parametrize("port", ["0", "65536", "99999"])
def test_a_port_that_is_none_is_refused(port: str) -> None:
    with pytest.raises(ValueError, match="is not a port"):
        target_of(f"{port}-{ID}.localhost", DOMAINS)


def _scope(host: str, **headers: str) -> dict[str, Any]:
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"headers": [(b"host", host.encode()), *pairs]}


def test_headers_name_a_sandbox_on_our_own_names_only() -> None:
    where = Where(Addresses("sandboxes.test", 443, 80), ())
    routing = {"e2b_sandbox_id": "other", "e2b_sandbox_port": "8000"}
    assert where.target(_scope("127.0.0.1:7070", **routing)) == Target("other", 8000)
    assert where.target(_scope(f"3000-{ID}.sandboxes.test", **routing)) == Target(ID, 3000)
    assert where.target(_scope("127.0.0.1", e2b_sandbox_id="other")) is None
    assert where.target(_scope("127.0.0.1", e2b_sandbox_id="other", e2b_sandbox_port="49983")) is None


@pytest.mark.parametrize(
    ("addresses", "url", "authority"),
    [
        (Addresses(), None, None),
        (Addresses(plain=7070), f"http://80-{ID}.localhost:7070/", None),
        (Addresses("d.test", 443, 7070), f"https://80-{ID}.d.test/", "d.test"),
        (Addresses("d.test", 7443, 7070), f"https://80-{ID}.d.test:7443/", "d.test:7443"),
        (Addresses("d.test", None, 7070), f"http://80-{ID}.d.test:7070/", "d.test:7070"),
    ],
)
def test_addresses_of_ports(addresses: Addresses, url: str | None, authority: str | None) -> None:
    assert addresses.url(ID, 80) == url
    assert addresses.authority == authority


def test_no_credential_of_ours_is_passed_on() -> None:
    """G-303."""
    kept = [(b"authorization", b"Basic dTpw"), (b"cookie", b"a=1; b=2"), (b"x-own", b"1")]
    given = [
        (HEADER.encode(), b"t"),
        (b"e2b-traffic-access-token", b"t"),
        (b"x-access-token", b"t"),
        (b"x-api-key", b"e2b_" + b"0" * 40),
        (b"authorization", b"Bearer e2b_" + b"0" * 40),
        (b"cookie", f"a=1; {COOKIE}=t; b=2".encode()),
        (b"cookie", f"{COOKIE}=t".encode()),
        *kept,
    ]
    assert forwarded(given) == [(b"cookie", b"a=1; b=2"), *kept]


def test_headers_of_the_connection_stay_on_it() -> None:
    given = [(b"connection", b"keep-alive, X-One"), (b"x-one", b"1"), (b"te", b"gzip"), (b"x-two", b"2")]
    assert end_to_end(given) == [(b"x-two", b"2")]


@given(st.text(), st.text())
def test_a_login_leads_to_this_host_without_the_token(path: str, rest: str) -> None:
    location = without_token("/" + path, f"{PARAMETER}=secret&{rest}")
    assert location.startswith("/")
    assert not location.startswith(("//", "/\\"))
    assert urlsplit(location).netloc == ""


@given(st.lists(st.binary(max_size=50)))
def test_cookies_of_any_bytes_are_read(values: list[bytes]) -> None:
    assert cookies([(b"cookie", value) for value in values], "none-of-these") == []
    forwarded([(b"cookie", value) for value in values])


async def _respond(data: bytes) -> tuple[int, bytes]:
    """Status and body of a response of these bytes. Raises Broken."""
    near, far = socket.socketpair()
    near.setblocking(False)
    upstream = await Upstream.open(near, tls=False)
    try:
        await upstream.send_head(b"GET", b"/", [(b"host", b"x")])
        await upstream.end_body()
        far.recv(65536)
        far.sendall(data[: 1 << 17])
        far.shutdown(socket.SHUT_WR)
        head = await upstream.head()
        return head.status_code, b"".join([piece async for piece in upstream.body()])
    finally:
        upstream.close()
        far.close()


async def test_a_response_is_read_to_its_end() -> None:
    assert await _respond(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nab") == (200, b"ab")
    assert await _respond(b"HTTP/1.1 100 Go\r\n\r\nHTTP/1.1 204 No\r\n\r\n") == (204, b"")
    assert await _respond(b"HTTP/1.0 200 OK\r\n\r\nuntil the end") == (200, b"until the end")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00\x01\x02",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n",
        b"HTTP/1.1 101 Up\r\nupgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"a" * 100_000,
    ],
)
async def test_what_is_no_response_is_an_error(data: bytes) -> None:
    with pytest.raises(Broken):
        await _respond(data)


@given(st.binary(max_size=400))
def test_any_bytes_are_a_response_or_an_error(data: bytes) -> None:
    async def read() -> None:
        with contextlib.suppress(Broken):
            await _respond(data)

    asyncio.run(read())


def test_the_name_server_knows_its_domain_only() -> None:
    def asked(name: str, kind: str = "A") -> dns.message.Message:
        told = answer(dns.message.make_query(name, kind).to_wire(), "sandboxes.test", "127.0.0.1")
        assert told is not None
        return dns.message.from_wire(told)

    assert "127.0.0.1" in asked("3000-x.sandboxes.test").answer[0].to_text()
    assert asked("sandboxes.test").answer
    assert asked("3000-x.sandboxes.test", "AAAA").answer == []
    assert asked("example.org").rcode() == dns.rcode.REFUSED
    assert asked("evilsandboxes.test").rcode() == dns.rcode.REFUSED


@given(st.binary(max_size=600))
def test_the_name_server_survives_any_bytes(data: bytes) -> None:
    answer(data, "sandboxes.test", "127.0.0.1")

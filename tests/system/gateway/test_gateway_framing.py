"""Hostile HTTP over raw sockets: what a request must look like to be read at all (block F of the rules)."""

import asyncio
import re
from typing import TYPE_CHECKING

import pytest

from corral.model.egress import EgressPolicy, HostRule
from corral.model.listeners import ListenerKind

if TYPE_CHECKING:
    from tests.system.gateway.conftest import Bed

_STATUS = re.compile(rb"HTTP/1\.[01] [0-9]{3} ")
GET = b"GET / HTTP/1.1\r\nHost: gateway.corral\r\n"
POST = b"POST / HTTP/1.1\r\nHost: gateway.corral\r\n"

REFUSED = {
    "both lengths (G-74)": POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths (G-74)": POST + b"Content-Length: 0\r\nContent-Length: 0\r\n\r\n",
    "length list (G-74)": POST + b"Content-Length: 0, 0\r\n\r\n",
    "signed length (G-74)": POST + b"Content-Length: +0\r\n\r\n",
    "length with underscore (G-74)": POST + b"Content-Length: 1_0\r\n\r\n0123456789",
    "hexadecimal length (G-74)": POST + b"Content-Length: 0x0\r\n\r\n",
    "negative length (G-74)": POST + b"Content-Length: -1\r\n\r\n",
    "two codings (G-74)": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "coding twice (G-74)": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "coding spelled oddly (G-74)": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "coding with a tab (G-74)": POST + b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
    "coding in 1.0 (G-74)": b"POST / HTTP/1.0\r\nHost: gateway.corral\r\nTransfer-Encoding: identity\r\n\r\n",
    "bad chunk size (G-74)": POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
    "chunk size with sign (G-74)": POST + b"Transfer-Encoding: chunked\r\n\r\n+1\r\na\r\n0\r\n\r\n",
    "bare LF (G-74)": b"GET / HTTP/1.1\nHost: gateway.corral\n\n",
    "bare CR (G-74)": b"GET / HTTP/1.1\r\nHost: gateway.corral\r\nA: b\rc\r\n\r\n",
    "NUL (G-74)": GET + b"A: b\x00c\r\n\r\n",
    "control character (G-74)": GET + b"A: b\x01c\r\n\r\n",
    "folded line (G-74)": GET + b"A: b\r\n c\r\n\r\n",
    "folded first line (G-74)": b"GET / HTTP/1.1\r\n Host: x\r\nHost: gateway.corral\r\n\r\n",
    "space before colon (G-74)": GET + b"Content-Length : 0\r\n\r\n",
    "name no token (G-74)": GET + b"A(b): c\r\n\r\n",
    "no name (G-74)": GET + b": c\r\n\r\n",
    "no colon (G-74)": GET + b"abc\r\n\r\n",
    "two hosts (G-74)": GET + b"Host: gateway.corral\r\n\r\n",
    "no host (G-74)": b"GET / HTTP/1.1\r\n\r\n",
    "no host in 1.0": b"GET / HTTP/1.0\r\n\r\n",
    "absolute form (G-76)": b"GET http://gateway.corral/ HTTP/1.1\r\nHost: gateway.corral\r\n\r\n",
    "CONNECT (G-76, G-90)": b"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n",
    "asterisk (G-76)": b"OPTIONS * HTTP/1.1\r\nHost: gateway.corral\r\n\r\n",
    "fragment (G-76)": b"GET /a#b HTTP/1.1\r\nHost: gateway.corral\r\n\r\n",
    "space in target": b"GET /a b HTTP/1.1\r\nHost: gateway.corral\r\n\r\n",
    "bytes in target": b"GET /\xc3\xa4 HTTP/1.1\r\nHost: gateway.corral\r\n\r\n",
    "connection names host (G-86)": GET + b"Connection: close, Host\r\n\r\n",
    "connection names authorization (G-86)": GET + b"Connection: authorization\r\n\r\n",
    "connection names length (G-86)": POST + b"Connection: content-length\r\nContent-Length: 0\r\n\r\n",
    "h2c (G-89)": GET + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n\r\n",
    "h2c alone (G-89)": GET + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
    "http/2 preface (G-89)": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "version 0.9": b"GET /\r\n\r\n",
    "version 1.2": b"GET / HTTP/1.2\r\nHost: gateway.corral\r\n\r\n",
    "version 3.0": b"GET / HTTP/3.0\r\nHost: gateway.corral\r\n\r\n",
    "long line (G-91)": b"GET /" + b"a" * 17_000 + b" HTTP/1.1\r\nHost: gateway.corral\r\n\r\n",
    "long field (G-91)": GET + b"A: " + b"a" * 33_000 + b"\r\n\r\n",
    "long head (G-91)": GET + b"".join(b"A%d: %s\r\n" % (i, b"a" * 30_000) for i in range(3)) + b"\r\n",
    "many fields (G-91)": GET + b"".join(b"A%d: b\r\n" % i for i in range(250)) + b"\r\n",
    "garbage": b"\x00\x01\x02\x03\r\n\r\n",
}  # fmt: skip


async def test_ambiguous_requests_are_refused_and_closed(bed: "Bed") -> None:
    """G-74, G-76, G-86, G-89 to G-91: refused, and nothing that follows on the connection is read."""
    box = await bed.attach()
    follow = b"GET /policy HTTP/1.1\r\nHost: gateway.corral\r\n\r\n"
    wrong = []
    for name, data in REFUSED.items():
        answer = await box.raw(data + follow)
        status = answer[9:12]
        good = answer.startswith(b"HTTP/1.") and status in (b"400", b"405", b"414", b"431", b"505")
        if not good or len(_STATUS.findall(answer)) != 1:
            wrong.append((name, answer[:200]))
    assert wrong == []
    await bed.client.ping()


@pytest.mark.parametrize(
    "data",
    [
        GET + b"Connection: close\r\n\r\n",
        GET + b"Connection: keep-alive, close\r\nTE: trailers\r\n\r\n",
        b"GET / HTTP/1.0\r\nHost: gateway.corral\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost:gateway.corral.:80\r\nConnection:close\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: GATEWAY.corral\r\nA: caf\xc3\xa9 \xff\r\nConnection: close\r\n\r\n",
    ],
)
async def test_ordinary_requests_are_answered(bed: "Bed", data: bytes) -> None:
    """G-51."""
    box = await bed.attach()
    answer = await box.raw(data)
    assert answer.startswith((b"HTTP/1.1 200 ", b"HTTP/1.0 200 "))
    assert b"This is the gateway of a Corral sandbox" in answer


async def test_pipelined_requests_are_answered_in_order_and_each_checked(bed: "Bed") -> None:
    """G-49, G-96."""
    box = await bed.attach()
    first = b"GET /policy HTTP/1.1\r\nHost: gateway.corral\r\n\r\n"
    other = b"GET / HTTP/1.1\r\nHost: not-allowed.example\r\n\r\n"
    answer = await box.raw(first + first + other + first)
    assert [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]] == [b"200", b"200", b"403"]


SOCKS = {
    "version 5": b"\x05\x01\x00",
    "a name by version 5": b"\x05\x01\x00\x05\x01\x00\x03\x0bexample.com\x01\xbb",
    "BIND": b"\x05\x01\x00\x05\x02\x00\x01\x08\x08\x08\x08\x00\x50",
    "UDP ASSOCIATE": b"\x05\x01\x00\x05\x03\x00\x01\x00\x00\x00\x00\x00\x00",
    "version 4": b"\x04\x01\x00\x50\x08\x08\x08\x08\x00",
}


@pytest.mark.parametrize("kind", [ListenerKind.HTTP, ListenerKind.TLS, ListenerKind.DNS_TCP])
async def test_no_port_speaks_socks(bed: "Bed", kind: ListenerKind) -> None:
    """G-72: there is none, and what comes back is no answer of one."""
    box = await bed.attach(1, policy=EgressPolicy((HostRule("*"),)))
    for name, data in SOCKS.items():
        if kind is ListenerKind.DNS_TCP:
            data += bytes(2048)  # it waits for the length that it read
        answer = await box.raw(data + b"\r\n\r\n", kind=kind)
        assert not answer.startswith((b"\x05", b"\x00\x5a")), (name, answer)


async def test_a_denial_explains_itself(bed: "Bed") -> None:
    """G-311, G-314, G-315."""
    box = await bed.attach()
    headers = {"Host": "not-allowed.example", "Accept": "application/json"}
    async with bed.http.get(box.url + "/path?secret=1", headers=headers) as answer:
        assert answer.status == 403
        assert answer.headers["X-Corral-Decision"] == "denied; reason=host-not-allowed"
        value = await answer.json()
    assert (value["host"], value["port"], value["method"], value["path"]) == (
        "not-allowed.example",
        80,
        "GET",
        "/path",
    )
    assert "corral create --allow not-allowed.example" in value["how_to_allow"]
    async with bed.http.get(box.url + "/", headers={**headers, "Accept": "text/plain"}) as answer:
        text = await answer.text()
    assert "not-allowed.example is not in this sandbox's list" in text
    async with bed.http.get(box.url + "/denials", headers={"Host": "gateway.corral"}) as answer:
        listed = (await answer.json())["denials"]
    assert [item["host"] for item in listed] == ["not-allowed.example", "not-allowed.example"]
    assert "secret=1" not in str(listed)
    record = await bed.audit("http", "denied")
    assert (record.host, record.path, record.reason) == ("not-allowed.example", "/path", "host-not-allowed")


async def test_the_policy_page_shows_no_more_than_is_needed(bed: "Bed") -> None:
    """G-318."""
    box = await bed.attach(secrets=("anthropic",))
    async with bed.http.get(box.url + "/policy", headers={"Host": "gateway.corral"}) as answer:
        value = await answer.json()
    assert value["model_apis"] == [
        {"name": "anthropic", "api": "anthropic", "base_url": "http://gateway.corral/s/anthropic"}
    ]
    assert "canary" not in str(value)
    for method, path, status in (("GET", "/nothing", 404), ("POST", "/policy", 405)):
        async with bed.http.request(method, box.url + path, headers={"Host": "gateway.corral"}) as answer:
            assert answer.status == status


async def test_a_sandbox_with_too_many_connections_harms_itself_only(bed: "Bed") -> None:
    """G-339, G-340."""
    greedy, other = await bed.attach(1), await bed.attach(2)
    writers = []
    for _ in range(1030):
        _, writer = await asyncio.open_connection("127.0.0.1", greedy.ports[ListenerKind.HTTP])
        writers.append(writer)
    assert (await other.raw(GET + b"Connection: close\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    assert not (await greedy.raw(GET + b"Connection: close\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    for writer in writers:
        writer.close()

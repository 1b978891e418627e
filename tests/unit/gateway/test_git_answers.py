"""What a git server says back is free of the credential that it was asked with."""

from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any

import pytest
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict

from corral.gateway.box import Box
from corral.gateway.git import GitService
from corral.gateway.gitlfs import LfsService
from corral.gateway.gitupstream import GitRefusedError, Target, authorization
from corral.gateway.redact import Forms
from corral.gateway.replies import Relayed
from corral.model.egress import EgressPolicy
from corral.model.git import Access, PushPolicy, RepoGrant
from corral.model.grants import ModelRules
from corral.model.ids import SandboxId, TenantId
from corral.model.route import Route as Way
from corral.model.secrets import Provider, Secret
from corral.policy.repos import Route, Service
from corral.wire.link import Attach, AuditRecord, GrantSpec
from corral.wire.pktline import FLUSH, encode

KEY = "ghp_0123456789abcdefghijABCDEFGHIJ012345"
BASIC = b64encode(f"x-access-token:{KEY}".encode())
TARGET = Target(
    RepoGrant("forge.example", "acme/app", Access.WRITE, "forge"),
    "https://forge.example",
    authorization(Provider.GITHUB, KEY),
    Forms(KEY, "forge"),
)


class Answer:
    """A server's answer."""

    def __init__(self, kind: str, data: bytes, fields: Mapping[str, str] = MappingProxyType({})) -> None:
        self.content_type = kind
        self.status = 200
        self.headers = CIMultiDict(fields)
        self.content = self
        self._data = data

    async def iter_any(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self._data), 7):
            yield self._data[start : start + 7]


class Upstream:
    """Gives one answer to all."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    @asynccontextmanager
    async def request(self, *_: object, **__: object) -> AsyncIterator[Answer]:
        yield self._answer


class Written(AbstractStreamWriter):
    """What a client gets."""

    def __init__(self) -> None:
        self.head = ""
        self.body = b""

    async def write(self, chunk: Any) -> None:
        self.body += bytes(chunk)

    async def write_eof(self, chunk: bytes = b"") -> None:
        self.body += chunk

    async def drain(self) -> None:
        """Nothing waits."""

    def enable_compression(self, encoding: str = "deflate", strategy: int | None = None) -> None:
        pytest.fail("nothing is compressed here")

    def enable_chunking(self) -> None:
        """As it is."""

    async def write_headers(self, status_line: str, headers: Any) -> None:
        self.head = "\n".join([status_line, *(f"{name}: {value}" for name, value in headers.items())])


def made(answer: Answer) -> tuple[GitService, list[AuditRecord]]:
    records: list[AuditRecord] = []
    attach = Attach(
        0, SandboxId("0" * 16), TenantId("t"), "b", GrantSpec("00", (), ModelRules()), EgressPolicy(), Secret("seed"), (),
        PushPolicy(), Way(), (),
    )  # fmt: skip
    box = Box(attach, records.append, lambda _: frozenset(), frozenset)
    service = GitService(box, None, dict, None, None, None, None)  # type: ignore[arg-type]  # the answer is here
    service._upstream = Upstream(answer)  # type: ignore[assignment]
    service._lfs = LfsService(box, service._upstream)
    return service, records


def redactions(records: list[AuditRecord]) -> list[tuple[str, str]]:
    return [(one.host, one.secret) for one in records if one.kind == "redaction"]


async def test_a_list_of_refs_holds_no_credential() -> None:
    """G-137, G-148."""
    line = encode(b"1" * 40 + b" refs/heads/" + KEY.encode() + b"\0agent=" + BASIC + b"\n")
    data = encode(b"# service=git-upload-pack\n") + FLUSH + line + FLUSH
    service, records = made(Answer("application/x-git-upload-pack-advertisement", data))
    written = Written()
    request = make_mocked_request("GET", "/", writer=written)
    await service._refs(
        request, Route("forge.example", "acme/app", Service.READ_REFS, "info/refs", ""), TARGET
    )
    assert len(written.body) == len(data)
    assert KEY.encode() not in written.body
    assert BASIC[24:60] not in written.body
    assert b"[redacted:forge]" in written.body
    assert redactions(records) == [("forge.example", "forge")]


async def test_the_text_of_a_fetch_holds_no_credential() -> None:
    """G-137, G-148."""
    pack = encode(b"\1PACK" + KEY.encode())
    data = encode(b"ERR " + KEY.encode()) + encode(b"\2" + BASIC) + pack + FLUSH
    service, records = made(Answer("application/x-git-upload-pack-result", data))
    written = Written()
    request = make_mocked_request("GET", "/", writer=written)
    await service._fetch(
        request, Route("forge.example", "acme/app", Service.FETCH, "git-upload-pack", ""), TARGET
    )
    assert len(written.body) == len(data)
    assert written.body.endswith(pack + FLUSH)
    assert written.body.count(KEY.encode()) == 1
    assert BASIC[24:60] not in written.body
    assert redactions(records) == [("forge.example", "forge")]


async def test_what_cannot_be_searched_is_refused() -> None:
    """G-140."""
    kind = "application/x-git-upload-pack-result"
    service, _ = made(Answer(kind, b"", {"Content-Encoding": "gzip"}))
    request = make_mocked_request("GET", "/", writer=Written())
    route = Route("forge.example", "acme/app", Service.FETCH, "git-upload-pack", "")
    with pytest.raises(GitRefusedError, match="compresses"):
        await service._fetch(request, route, TARGET)


@pytest.mark.parametrize("method", ["PUT", "GET"])
async def test_of_a_store_nothing_comes_back_but_objects(method: str) -> None:
    """G-137, G-244."""
    answer = Answer("text/plain", KEY.encode(), {"Content-Range": f"bytes 0-1/{KEY}"})
    service, _ = made(answer)
    action = {"href": "https://forge.example/x"}
    name = "upload" if method == "PUT" else "download"
    route = Route("forge.example", "acme/app", Service.LFS_BATCH, "info/lfs/objects/batch", "")
    href = service._lfs._action(name, action, route, TARGET, "")["href"]
    written = Written()
    request = make_mocked_request(method, "/", writer=written)
    route = Route("forge.example", "acme/app", Service.LFS_TRANSFER, href.rpartition("/")[2], "")
    response = await service._lfs._transfer(request, route, TARGET)
    await response.prepare(request)
    assert KEY not in written.head
    if method == "PUT":
        assert isinstance(response, web.Response)
        assert not response.body
    else:
        assert written.body == KEY.encode()  # a file is what it is


def test_a_reason_phrase_is_the_standards() -> None:
    """G-137."""

    class Upstream:
        status, reason = 404, KEY

    assert Relayed(Upstream(), CIMultiDict()).reason == "Not Found"  # type: ignore[arg-type]

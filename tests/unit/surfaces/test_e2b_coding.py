"""How files leave and enter by E2B's `/files`: packed for those who want that, and named as they are."""

import gzip
import random
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from tests.unit.surfaces.conftest import FakeEngine
from tests.unit.surfaces.test_e2b_box import box_of, files, root

from corral.api.e2b.coding import wants_gzip
from corral.api.e2b.failures import Refusal
from corral.api.e2b.transfer import download, upload
from corral.api.e2b.watching import Watchers
from corral.drivers.files import HostGuestFiles
from corral.errors import DiskFull

__all__ = ["files", "root"]


async def get(engine: FakeEngine, files: HostGuestFiles, path: str, **headers: str) -> tuple[Response, bytes]:
    """A download, and its body as it was sent."""
    sent = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "GET", "query_string": f"path={quote(path)}".encode(), "headers": sent}
    response: Any = await download(Request(scope), await box_of(engine, files))
    chunks = getattr(response, "body_iterator", None)
    return response, b"" if chunks is None else b"".join([chunk async for chunk in chunks])


@pytest.mark.parametrize(
    ("accepted", "packed"),
    [
        ("gzip", True),
        ("GZIP", True),
        ("gzip;q=1.0, identity; q=0.5", True),
        ("gzip, *;q=0.1", True),
        ("deflate, identity;q=0, gzip", True),
        ("*;q=0, gzip;q=0.2", True),
        ("identity;q=0, *", True),
        ("", False),
        ("identity", False),
        # What libraries send of themselves.
        ("gzip, deflate", False),
        ("gzip, deflate, br, zstd", False),
        ("br, gzip, deflate", False),
        ("*", False),
        ("gzip;q=0", False),
        ("gzip;q=0.5, identity", False),
        ("gzip;q=much", False),
    ],
)
def test_who_prefers_gzip_gets_it(accepted: str, packed: bool) -> None:
    assert wants_gzip(Headers({"accept-encoding": accepted})) is packed


@pytest.mark.parametrize("accepted", ["identity;q=0", "*;q=0", "gzip;q=0, identity;q=0.0", "br, *;q=0"])
def test_who_takes_neither_is_told_so(accepted: str) -> None:
    with pytest.raises(Refusal) as caught:
        wants_gzip(Headers({"accept-encoding": accepted}))
    assert caught.value.status == 406


async def test_a_packed_file_is_the_file(engine: FakeEngine, files: HostGuestFiles, root: Path) -> None:
    data = random.Random(0).randbytes(700_000) + bytes(700_000)
    (root / "data.bin").write_bytes(data)
    response, body = await get(engine, files, "/data.bin", accept_encoding="gzip")
    assert (response.status_code, response.headers["content-encoding"]) == (200, "gzip")
    assert response.headers["vary"] == "Accept-Encoding"
    assert len(body) < len(data)
    assert gzip.decompress(body) == data
    response, body = await get(engine, files, "/data.bin", accept_encoding="gzip, deflate")
    assert "content-encoding" not in response.headers
    assert body == data


@pytest.mark.parametrize(
    ("header", "value", "status"),
    [("range", "bytes=1-2", 206), ("if_modified_since", "Thu, 01 Jan 1970 00:00:00 GMT", 200)],
)
async def test_parts_and_former_versions_are_not_packed(
    engine: FakeEngine, files: HostGuestFiles, root: Path, header: str, value: str, status: int
) -> None:
    (root / "file").write_text("text")
    response, body = await get(engine, files, "/file", accept_encoding="gzip", **{header: value})
    assert (response.status_code, response.headers.get("content-encoding")) == (status, None)
    assert body == {206: b"ex", 200: b"text"}[status]
    with pytest.raises(Refusal) as caught:
        await get(engine, files, "/file", accept_encoding="gzip, identity;q=0", **{header: value})
    assert caught.value.status == 406


@pytest.mark.parametrize(
    ("name", "told", "kind"),
    [
        ("a b.txt", 'filename="a b.txt"', "text/plain"),
        ("x.tar.gz", 'filename="x.tar.gz"', "application/gzip"),
        ("x.json.xz", 'filename="x.json.xz"', "application/octet-stream"),
        ("none", 'filename="none"', "application/octet-stream"),
        ('"é.png', "filename*=utf-8''%22%C3%A9.png", "image/png"),
    ],
)
async def test_a_file_is_named_and_its_kind_told(
    engine: FakeEngine, files: HostGuestFiles, root: Path, name: str, told: str, kind: str
) -> None:
    (root / name).write_text("text")
    response, _ = await get(engine, files, f"/{name}")
    assert response.headers["content-disposition"] == f"inline; {told}"
    assert response.headers["content-type"].partition(";")[0] == kind


async def test_an_upload_without_room_tells_how_large_it_was(
    engine: FakeEngine, files: HostGuestFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object, **__: object) -> None:
        raise DiskFull("the disk is full")

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"x" * 9, "more_body": False}

    monkeypatch.setattr(files, "write", full)
    headers = [(b"content-type", b"application/octet-stream"), (b"content-length", b"9")]
    scope = {"type": "http", "method": "POST", "query_string": b"path=/file", "headers": headers}
    with pytest.raises(Refusal, match="not enough disk space available: 9 bytes") as caught:
        await upload(Request(scope, receive), await box_of(engine, files), Watchers())
    assert caught.value.status == 507

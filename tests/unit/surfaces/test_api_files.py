"""Files and archives over the API: bytes, names, limits."""

import io
import tarfile
from typing import Any

import httpx2
import pytest

from corral.wire.guest import PROGRAM

BOX = "/v1/sandboxes/box"


@pytest.fixture(autouse=True)
async def box(http: httpx2.AsyncClient) -> None:
    await http.post("/v1/sandboxes", json={"name": "box"})


def unpacked(body: bytes) -> tuple[dict[str, tarfile.TarInfo], dict[str, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(body), encoding="utf-8", errors="surrogateescape") as archive:
        members = {member.name: member for member in archive}
        files = {name: archive.extractfile(member) for name, member in members.items() if member.isreg()}
        return members, {name: file.read() for name, file in files.items() if file is not None}


async def test_bytes_come_back_as_they_went_in(http: httpx2.AsyncClient, engine: Any) -> None:
    data = bytes(range(256)) * 20
    written = await http.put(f"{BOX}/files?path=/home/user/x&mode=600", content=data)
    assert (written.json()["kind"], written.json()["mode"]) == ("file", 0o600)
    assert engine.files.owners["/home/user/x"] == "user"
    assert (await http.get(f"{BOX}/files?path=/home/user/x")).content == data
    assert (await http.get(f"{BOX}/files?path=/home/user/x&offset=10&size=5")).content == data[10:15]


async def test_a_missing_file_is_told_before_any_byte(http: httpx2.AsyncClient) -> None:
    response = await http.get(f"{BOX}/files?path=/absent")
    assert (response.status_code, response.json()["code"]) == (404, "not_found")


async def test_names_may_hold_any_bytes_and_line_breaks(http: httpx2.AsyncClient) -> None:
    for query, shown, raw in (
        ("/home/user/a%0Ab%20%C3%A9", "/home/user/a\nb é", None),
        ("/home/user/%FF", "/home/user/\ufffd", "L2hvbWUvdXNlci//"),
    ):
        await http.put(f"{BOX}/files?path={query}", content=b"1")
        entry = (await http.get(f"{BOX}/files/stat?path={query}")).json()
        assert (entry["path"], entry["raw_path"]) == (shown, raw)
    listed = (await http.get(f"{BOX}/files/list?path=/home/user")).json()["entries"]
    assert len(listed) == 2


async def test_directories(http: httpx2.AsyncClient, engine: Any) -> None:
    assert (await http.post(f"{BOX}/files/mkdir?path=/srv")).json() == {"created": True}
    assert (await http.post(f"{BOX}/files/mkdir?path=/srv")).json() == {"created": False}
    await http.put(f"{BOX}/files?path=/srv/a&user=root", content=b"1")
    moved = await http.post(f"{BOX}/files/move?source=/srv/a&target=/srv/b")
    assert moved.json()["path"] == "/srv/b"
    assert (await http.delete(f"{BOX}/files?path=/srv/b")).json() == {"ok": True}
    assert engine.files.content == {}


async def test_an_archive_holds_files_links_and_directories_below_one_name(
    http: httpx2.AsyncClient, engine: Any
) -> None:
    engine.files.dirs |= {"/srv", "/srv/d", "/srv/d/e"}
    engine.files.content |= {"/srv/d/f": b"x" * 1500, "/srv/d/e/\udcff": b"", "/srv/other": b"no"}
    engine.files.links["/srv/d/l"] = "e/g"
    body = (await http.get(f"{BOX}/archive?path=/srv/d")).content
    members, contents = unpacked(body)
    assert set(members) == {"d", "d/e", "d/e/\udcff", "d/f", "d/l"}
    assert members["d"].isdir()
    assert members["d/l"].linkname == "e/g"
    assert contents["d/f"] == b"x" * 1500


@pytest.mark.parametrize("claimed", [0, 700, 5000, 10240])
async def test_an_archive_stays_whole_when_a_file_changes_while_it_is_read(
    http: httpx2.AsyncClient, engine: Any, claimed: int
) -> None:
    engine.files.dirs.add("/srv")
    engine.files.content |= {"/srv/a": b"x" * 1500, "/srv/b": b"after"}
    engine.files.sizes["/srv/a"] = claimed
    body = (await http.get(f"{BOX}/archive?path=/srv")).content
    members, contents = unpacked(body)
    sizes = {name: member.size for name, member in members.items()}
    assert sizes == {"srv": 0, "srv/a": claimed, "srv/b": 5}
    assert contents["srv/b"] == b"after"


async def test_an_archive_is_unpacked_in_the_sandbox(http: httpx2.AsyncClient, engine: Any) -> None:
    response = await http.put(f"{BOX}/archive?path=/srv/new", content=b"archive")
    assert response.status_code == 200, response.text
    process = engine.processes.all[1]
    assert process.info.spec.argv == (PROGRAM, "unpack", "/srv/new")
    assert process.info.spec.user == "user"
    assert bytes(process.stdin) == b"\0\0\0\x07archive\0\0\0\0"
    assert "/srv/new" in engine.files.dirs

"""A sandbox as E2B's data plane sees it: users' directories, paths, links, variables."""

import base64
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from starlette.datastructures import Headers
from starlette.requests import Request
from tests.unit.surfaces.conftest import NOW, TENANT, FakeEngine

from corral.api.e2b import shapes
from corral.api.e2b.box import Box, permissions
from corral.api.e2b.identity import variables_of, with_files, with_variables
from corral.api.e2b.transfer import download
from corral.drivers.files import HostGuestFiles
from corral.engine.engine import Engine
from corral.engine.plan import CreateRequest
from corral.engine.ports import Entry, EntryKind
from corral.errors import HostError
from corral.model.ids import SandboxId
from corral.model.lifecycle import State
from corral.model.sandbox import Sandbox, SandboxSpec

PASSWD = (
    "root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\nguest:x:7:7::/nonexistent:/bin/sh\n"
)
NOTES = {shapes.ALIAS: "app", shapes.TIMEOUT: "300"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for directory in ("etc", "root", "home/user", "srv/app"):
        (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "etc" / "passwd").write_text(PASSWD)
    return tmp_path


@pytest.fixture
def files(root: Path) -> Iterator[HostGuestFiles]:
    with ThreadPoolExecutor(2) as threads:
        yield HostGuestFiles(lambda: os.open(root, os.O_PATH | os.O_DIRECTORY), 0, threads)


async def box_of(engine: FakeEngine, files: HostGuestFiles, user: str = "", **request: Any) -> Box:
    engine.files = cast(Any, files)
    sandbox = await engine.sandboxes.create(TENANT, CreateRequest(**request))
    login = base64.b64encode(f"{user}:".encode()).decode()
    headers = Headers({"authorization": f"Basic {login}"} if user else {})
    return Box(cast(Engine, engine), sandbox, headers)


@pytest.mark.parametrize(
    ("workdir", "user", "cwd", "found"),
    [
        ("/srv/app", "", "", "/srv/app"),
        ("/srv/app", "root", "", "/srv/app"),
        ("/srv/app", "", "x", "/home/user/x"),
        ("/srv/app", "root", "x/../y", "/root/y"),
        ("/srv/app", "", "~/x", "/home/user/x"),
        ("/", "", "", "/home/user"),
        ("/", "root", "", "/root"),
        ("/", "guest", "", "/"),
        ("/srv/app", "root", "/tmp", "/tmp"),
    ],
)
async def test_directories_start_where_the_template_works_or_at_home(
    engine: FakeEngine, files: HostGuestFiles, workdir: str, user: str, cwd: str, found: str
) -> None:
    box = await box_of(engine, files, user, workdir=workdir)
    assert await box.path(cwd, await box.user()) == found


async def test_a_user_by_number_is_at_home_too(engine: FakeEngine, files: HostGuestFiles) -> None:
    box = await box_of(engine, files, workdir="/")
    assert [await box.workdir(user) for user in ("1000:1000", "1000", "55:55")] == [
        "/home/user",
        "/home/user",
        "/",
    ]


async def test_links_are_resolved_where_they_lie(
    engine: FakeEngine, files: HostGuestFiles, root: Path
) -> None:
    (root / "data" / "v2").mkdir(parents=True)
    (root / "data" / "real").write_text("found")
    (root / "data" / "v2" / "link").symlink_to("../real")
    (root / "srv" / "current").symlink_to("/data/v2")
    box = await box_of(engine, files)
    found = await box.resolved("/srv/current/link")
    assert found is not None
    assert (found.path, found.size) == ("/data/real", 5)
    told = await box.info(await files.stat("/srv/current/link"))
    assert (told.path, told.symlink_target, told.type) == (
        "/srv/current/link",
        "/data/real",
        "FILE_TYPE_FILE",
    )


@pytest.mark.parametrize(
    ("since", "status"),
    [
        (None, 200),
        ("Thu, 01 Jan 2026 00:00:00 GMT", 304),
        ("Thu, 01 Jan 2026 02:00:00 +0200", 304),
        ("Wed, 31 Dec 2025 23:59:59 GMT", 200),
        ("yesterday", 200),
        ("", 200),
        ("Thu, 01 Jan 0000 00:00:00 GMT", 200),
        ("Thu, 01 Jan 2026 00:00:00 -9999999999", 200),
    ],
)
async def test_a_file_that_was_not_changed_since_is_not_sent(
    engine: FakeEngine, files: HostGuestFiles, root: Path, since: str | None, status: int
) -> None:
    (root / "file").write_text("text")
    os.utime(root / "file", (0, datetime(2026, 1, 1, tzinfo=UTC).timestamp() + 0.9))
    headers = [(b"if-modified-since", since.encode())] if since is not None else []
    scope = {"type": "http", "method": "GET", "query_string": b"path=/file", "headers": headers}
    response = await download(Request(scope), await box_of(engine, files))
    assert (response.status_code, response.headers["last-modified"]) == (
        status,
        "Thu, 01 Jan 2026 00:00:00 GMT",
    )


@pytest.mark.parametrize("target", ["loop", "/none", "../../../../none"])
async def test_a_link_to_nothing_leads_to_itself(
    engine: FakeEngine, files: HostGuestFiles, root: Path, target: str
) -> None:
    (root / "loop").symlink_to(target)
    box = await box_of(engine, files)
    told = await box.info(await files.stat("/loop"))
    assert (told.symlink_target, told.type, told.is_symlink) == ("/loop", "FILE_TYPE_UNSPECIFIED", True)


@pytest.mark.parametrize(
    ("kind", "mode", "told"),
    [
        (EntryKind.FILE, 0o644, "-rw-r--r--"),
        (EntryKind.FILE, 0o4755, "urwxr-xr-x"),
        (EntryKind.FILE, 0o6711, "ugrwx--x--x"),
        (EntryKind.DIRECTORY, 0o755, "drwxr-xr-x"),
        (EntryKind.DIRECTORY, 0o1777, "dtrwxrwxrwx"),
        (EntryKind.SYMLINK, 0o777, "Lrwxrwxrwx"),
        (EntryKind.OTHER, 0o600, "-rw-------"),
    ],
)
def test_permissions_are_written_as_go_does(kind: EntryKind, mode: int, told: str) -> None:
    assert permissions(Entry("/x", "x", kind, 0, mode, 0, 0, 0.0)) == told


async def test_variables_say_what_the_control_plane_says(engine: FakeEngine, files: HostGuestFiles) -> None:
    box = await box_of(engine, files)
    box.sandbox = noted(box.sandbox)
    assert box.environment() == {
        "E2B_SANDBOX": "true",
        "E2B_SANDBOX_ID": box.sandbox.id,
        "E2B_TEMPLATE_ID": shapes.listed(box.sandbox).template_id,
    }


async def test_all_processes_have_the_variables_of_their_own_sandbox(engine: FakeEngine) -> None:
    async def given(sandbox: Sandbox) -> dict[str, str]:
        return {"A": "b", **sandbox.spec.env}

    whole = with_variables(given)
    plain = Sandbox((await engine.sandboxes.create(TENANT, CreateRequest())).spec, State.RUNNING, NOW)
    assert await whole(plain) == {"A": "b"}
    # What it was made from carried variables of another one.
    parent = {"E2B_SANDBOX_ID": "0" * 16, "E2B_TEMPLATE_ID": "other"}
    sandbox = noted(replace(plain, spec=replace(plain.spec, id=SandboxId("1" * 16), env=parent)))
    assert await whole(sandbox) == {"A": "b", **variables_of(sandbox)}
    assert variables_of(sandbox)["E2B_SANDBOX_ID"] == "1" * 16


async def test_files_mirror_the_variables_of_what_e2b_made(engine: FakeEngine) -> None:
    turns: list[Any] = []

    async def ready(sandbox: Sandbox) -> None:
        turns.append(sandbox.id)

    async def announce(spec: SandboxSpec, files: Mapping[str, bytes]) -> None:
        turns.append((spec.id, dict(files)))

    whole = with_files(ready, announce)
    plain = Sandbox((await engine.sandboxes.create(TENANT, CreateRequest())).spec, State.RUNNING, NOW)
    await whole(plain)
    await whole(replace(noted(plain), state=State.PAUSED))
    assert turns == [plain.id] * 2
    for id in ("1" * 16, "2" * 16):  # it goes on as another one
        turns.clear()
        sandbox = noted(replace(plain, spec=replace(plain.spec, id=SandboxId(id))))
        await whole(sandbox)
        said = {f"/run/e2b/.{name}": value.encode() for name, value in variables_of(sandbox).items()}
        assert turns == [id, (id, said)]


async def test_a_guest_that_is_in_the_way_of_the_files_runs_on(engine: FakeEngine) -> None:
    turns: list[str] = []

    async def ready(sandbox: Sandbox) -> None:
        turns.append(sandbox.id)

    async def announce(*_: object) -> None:
        turns.append("refused")
        raise HostError("the sandbox's first process does not take what it is told")

    sandbox = await engine.sandboxes.create(TENANT, CreateRequest())
    await with_files(ready, announce)(noted(sandbox))
    assert turns == [sandbox.id, "refused"]


def noted(sandbox: Sandbox) -> Sandbox:
    return replace(sandbox, spec=replace(sandbox.spec, attributes=NOTES))

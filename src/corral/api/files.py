"""Routes of a sandbox's files. Contents are raw bodies, streamed; paths are in the query."""

from collections.abc import AsyncGenerator
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response
from starlette.requests import Request

from corral.api import archive, shapes
from corral.api.bodies import BINARY_REQUEST, body_of, streamed
from corral.api.context import Caller, CallerDep, PathQuery, RefPath, SourceQuery, TargetQuery
from corral.api.failures import documented
from corral.api.sandboxes import EVENT_STREAM
from corral.api.streams import event, stream
from corral.engine.ports import GuestFiles
from corral.errors import DiskFull
from corral.model.ids import check_user
from corral.protocol import files as protocol
from corral.protocol.base import Done

router = APIRouter(prefix="/v1/sandboxes/{ref}", tags=["files"])

UserQuery = Annotated[str | None, Query(max_length=40, description="Owner. Default: the sandbox's user.")]
ModeQuery = Annotated[str | None, Query(pattern="^[0-7]{3,4}$", description="Permission bits in octal.")]
KeptModeQuery = Annotated[
    str | None,
    Query(
        pattern="^[0-7]{3,4}$",
        description="Permission bits in octal. Default: those of the file that is replaced, 644 for a new one.",
    ),
]


async def _files(caller: Caller, ref: str) -> GuestFiles:
    return await caller.engine.files_of(caller.tenant, ref)


def _owner(caller: Caller, ref: str, user: str | None) -> str:
    return check_user(user) if user else caller.engine.sandboxes.get(caller.tenant, ref).spec.user


@router.get("/files", response_class=Response, responses=documented())
async def read_file(
    caller: CallerDep,
    ref: RefPath,
    path: PathQuery,
    offset: Annotated[int, Query(ge=0, le=protocol.MAX_FILE)] = 0,
    size: Annotated[int | None, Query(ge=0, le=protocol.MAX_FILE)] = None,
) -> Response:
    """The bytes of a regular file. A failure in the middle cuts the connection: a whole body is a whole file."""
    files = await _files(caller, ref)
    return await streamed(files.read(path, offset, size), "application/octet-stream")


@router.put(
    "/files",
    responses=documented(DiskFull),
    openapi_extra=BINARY_REQUEST,
    max_body_size=protocol.MAX_FILE,
)
async def write_file(
    request: Request,
    caller: CallerDep,
    ref: RefPath,
    path: PathQuery,
    mode: KeptModeQuery = None,
    user: UserQuery = None,
) -> protocol.FileEntry:
    """Replace or create a regular file by the raw body, at once; parents are created. A failed write changes nothing."""
    files = await _files(caller, ref)
    entry = await files.write(
        path, body_of(request), _owner(caller, ref, user), int(mode, 8) if mode else None
    )
    return shapes.file_entry(entry)


@router.delete("/files", responses=documented())
async def remove_file(caller: CallerDep, ref: RefPath, path: PathQuery) -> Done:
    """Remove a file, or a directory with all below it."""
    await (await _files(caller, ref)).remove(path)
    return Done()


@router.get("/files/stat", responses=documented())
async def stat_file(caller: CallerDep, ref: RefPath, path: PathQuery) -> protocol.FileEntry:
    """The entry itself; a symlink is not followed."""
    return shapes.file_entry(await (await _files(caller, ref)).stat(path))


@router.get("/files/list", responses=documented())
async def list_files(
    caller: CallerDep,
    ref: RefPath,
    path: PathQuery,
    depth: Annotated[int, Query(ge=1, le=protocol.MAX_DEPTH, description="Levels below the directory.")] = 1,
) -> protocol.FileList:
    """Entries below a directory, in order of path; at most 100,000."""
    entries = await (await _files(caller, ref)).list(path, depth)
    return protocol.FileList(entries=[shapes.file_entry(entry) for entry in entries])


@router.post("/files/mkdir", responses=documented())
async def make_dir(
    caller: CallerDep, ref: RefPath, path: PathQuery, mode: ModeQuery = None, user: UserQuery = None
) -> protocol.Created:
    """Create a directory and its parents, where it is missing."""
    files = await _files(caller, ref)
    made = await files.make_dir(path, _owner(caller, ref, user), int(mode or "755", 8))
    return protocol.Created(created=made)


@router.post("/files/move", responses=documented())
async def move_file(
    caller: CallerDep, ref: RefPath, source: SourceQuery, target: TargetQuery
) -> protocol.FileEntry:
    """Rename within the sandbox."""
    return shapes.file_entry(await (await _files(caller, ref)).move(source, target))


@router.get("/files/watch", response_class=Response, responses={**documented(), **EVENT_STREAM})
async def watch_files(
    caller: CallerDep,
    ref: RefPath,
    path: PathQuery,
    recursive: Annotated[bool, Query(description="Everything below, not only the directory itself.")] = False,
) -> Response:
    """Changes below a directory (events `change`), without end. `ready` is sent once the watch is in place."""
    files = await _files(caller, ref)

    async def events() -> AsyncGenerator[bytes, None]:
        async with files.watch(path, recursive=recursive) as changes:
            yield event("ready", Done())
            async for change in changes:
                yield event("change", shapes.watch_event(change))

    return await stream(events())


@router.get("/archive", response_class=Response, responses=documented())
async def read_archive(caller: CallerDep, ref: RefPath, path: PathQuery) -> Response:
    """A file or directory as a tar stream (POSIX pax), symlinks as links, special files left out."""
    return await streamed(archive.pack(await _files(caller, ref), path), "application/x-tar")


@router.put(
    "/archive", responses=documented(DiskFull), openapi_extra=BINARY_REQUEST, max_body_size=protocol.MAX_FILE
)
async def write_archive(
    request: Request, caller: CallerDep, ref: RefPath, path: PathQuery, user: UserQuery = None
) -> Done:
    """Unpack a tar stream below a directory of a running sandbox; the directory is created where it is missing."""
    sandbox = caller.engine.sandboxes.get(caller.tenant, ref)
    owner = _owner(caller, ref, user)
    await (await _files(caller, ref)).make_dir(path, owner)
    await archive.unpack(caller.engine.processes, caller.tenant, sandbox.id, owner, path, body_of(request))
    return Done()

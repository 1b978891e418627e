"""Volumes on the control plane, and what is in them.

The content is another API, which knows no keys: who has a volume's token, which the control plane gives, may read and change
all of it. Its errors have a word as their code.
"""

import hmac
import json
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from corral.api.bodies import body_of, streamed
from corral.api.e2b.calls import Call, digits
from corral.api.failures import public_error
from corral.engine.engine import Engine
from corral.engine.ports import Entry, EntryKind, VolumeFiles
from corral.errors import Conflict, CorralError, InvalidInput, NotFound, Unauthenticated
from corral.model.ids import VolumeId
from corral.model.volume import Volume
from corral.protocol.e2b import volumes as wire

OWNER = 1000
"""Whose what is made becomes, where nobody is named: the user of Corral's own templates."""
MAX_DEPTH = 64
_MAX_BODY = 64 * 1024
_TYPES = {EntryKind.FILE: "file", EntryKind.DIRECTORY: "directory", EntryKind.SYMLINK: "symlink"}


async def create(call: Call) -> Response:
    """A new volume, of the size that volumes have unless somebody says otherwise."""
    body = await call.body(wire.NewVolume)
    made = await call.engine.volumes.create(call.tenant, body.name)
    return JSONResponse((await _with_token(call.engine, made)).to_dict(), 201)


async def list_all(call: Call) -> Response:
    """The tenant's volumes."""
    found = call.engine.volumes.list(call.tenant)
    return JSONResponse([wire.Volume(volume_id=item.id, name=item.name).to_dict() for item in found])


async def get(call: Call) -> Response:
    """One, with its token."""
    found = call.engine.volumes.get(call.tenant, call.parameter("id"))
    return JSONResponse((await _with_token(call.engine, found)).to_dict())


async def delete(call: Call) -> Response:
    """Remove one; refused while a sandbox mounts it."""
    await call.engine.volumes.remove(call.tenant, call.parameter("id"))
    return Response(status_code=204)


async def _with_token(engine: Engine, volume: Volume) -> wire.VolumeAndToken:
    token = (await engine.volume_token(volume.id)).reveal()
    return wire.VolumeAndToken(volume_id=volume.id, name=volume.name, token=token)


class Content:
    """The files of volumes."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def routes(self) -> list[Route]:
        """All of the content's API."""
        handlers: Mapping[str, Mapping[str, _Handler]] = {
            "path": {"GET": _stat, "PATCH": _change, "DELETE": _remove},
            "dir": {"GET": _list, "POST": _make_dir},
            "file": {"GET": _read, "PUT": _write},
        }
        return [
            Route(f"/volumecontent/{{id}}/{name}", self._endpoint(by_method), methods=list(by_method))
            for name, by_method in handlers.items()
        ]

    def _endpoint(self, handlers: Mapping[str, "_Handler"]) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            try:
                files = await self._open(request)
                return await handlers["GET" if request.method == "HEAD" else request.method](request, files)
            except ValidationError as error:
                problem: CorralError = InvalidInput(f"the request is not valid: {error.errors()[0]['msg']}")
            except Exception as error:  # noqa: BLE001  the boundary: told to the client and logged
                problem = public_error(error)
            body = {"code": problem.code, "message": f"{problem.message} ({problem.hint})"}
            return JSONResponse(body, problem.status)

        return endpoint

    async def _open(self, request: Request) -> VolumeFiles:
        """The files of the volume that the path names, if the token is that volume's."""
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        id = VolumeId(request.path_params["id"])
        token = (await self._engine.volume_token(id)).reveal()
        if not hmac.compare_digest(token.encode(), given.encode("utf-8", "surrogateescape")):
            raise Unauthenticated("the token is not that of this volume", "get the volume again")
        return await self._engine.volumes.files(self._engine.volumes.by_id(id))


_Handler = Callable[[Request, VolumeFiles], Awaitable[Response]]


async def _stat(request: Request, files: VolumeFiles) -> Response:
    return JSONResponse(_shown(await files.stat(_path(request))))


async def _change(request: Request, files: VolumeFiles) -> Response:
    raw = bytearray()
    async for chunk in body_of(request):
        raw += chunk
        if len(raw) > _MAX_BODY:
            raise InvalidInput("the request's body is too large")
    try:
        wanted = wire.Change.model_validate(json.loads(bytes(raw) or b"{}"))
    except (ValueError, RecursionError):
        raise InvalidInput("the request's body is not valid", "send uid, gid and mode as numbers") from None
    return JSONResponse(_shown(await files.change(_path(request), wanted.uid, wanted.gid, wanted.mode)))


async def _remove(request: Request, files: VolumeFiles) -> Response:
    await files.remove(_path(request))
    return Response(status_code=204)


async def _list(request: Request, files: VolumeFiles) -> Response:
    depth = digits(request.query_params.get("depth", "1"), 3)
    if not depth:
        raise InvalidInput("the depth is not valid", f"give 1 to {MAX_DEPTH}")
    found = await files.list(_path(request), min(depth, MAX_DEPTH))
    return JSONResponse([_shown(entry) for entry in found])


async def _make_dir(request: Request, files: VolumeFiles) -> Response:
    path = await _with_parent(request, files)
    made = await files.make_dir(path, _owner(request), _number(request, "mode", 0o755))
    if not made and not _forced(request):
        raise Conflict(f"there is a directory {path!r} already", "say `force` to go on with it")
    return JSONResponse(_shown(await files.stat(path)), 201)


async def _read(request: Request, files: VolumeFiles) -> Response:
    return await streamed(files.read(_path(request)), "application/octet-stream")


async def _write(request: Request, files: VolumeFiles) -> Response:
    path = await _with_parent(request, files)
    mode = _number(request, "mode", 0) if "mode" in request.query_params else None
    written = await files.write(path, body_of(request), _owner(request), mode)
    return JSONResponse(_shown(written), 201)


def _path(request: Request) -> str:
    path = request.query_params.get("path", "")
    if not path:
        raise InvalidInput("the query `path` is missing", "name an entry of the volume")
    return path if path.startswith("/") else f"/{path}"


async def _with_parent(request: Request, files: VolumeFiles) -> str:
    """The path, whose parent is there, or will be made. Raises NotFound."""
    path = _path(request)
    if not _forced(request):
        parent = path.rstrip("/").rpartition("/")[0] or "/"
        if (await files.stat(parent)).kind is EntryKind.FILE:
            raise NotFound(f"{parent!r} is no directory")
    return path


def _forced(request: Request) -> bool:
    return request.query_params.get("force", "").lower() in ("true", "1")


def _owner(request: Request) -> str:
    return f"{_number(request, 'uid', OWNER)}:{_number(request, 'gid', OWNER)}"


def _number(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name)
    value = default if text is None else digits(text, 5)
    if value is None:
        raise InvalidInput(f"{name} is not valid", "give a number")
    return value


def _shown(entry: Entry) -> dict[str, object]:
    atime, mtime, ctime = (datetime.fromtimestamp(at, UTC) for at in (entry.atime, entry.mtime, entry.ctime))
    return wire.EntryStat(
        name=entry.name,
        type=_TYPES.get(entry.kind, "unknown"),
        path=entry.path,
        size=entry.size,
        mode=entry.mode,
        uid=entry.uid,
        gid=entry.gid,
        atime=atime,
        mtime=mtime,
        ctime=ctime,
        target=entry.target,
    ).to_dict()

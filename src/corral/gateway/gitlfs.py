"""Git LFS through the gateway (G-244): the same repositories, read or write, and the host's credential.

A server answers a batch with an address for each object, often at another host and with an authorization of its own. The
sandbox gets neither: each becomes an address of the gateway's, that leads there for as long as the server said, for the
one sandbox that asked. So nothing else of that host is open, and the credential of the repository never goes there.
"""

import asyncio
import json
import logging
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp import hdrs, web
from multidict import CIMultiDict

from corral.gateway.box import Box
from corral.gateway.buffered import HINT, MESSAGE, Buffered, TooManyBytesError
from corral.gateway.forward import continue_if_asked, pump
from corral.gateway.gitupstream import GitRefusedError, GitUpstream, Target, refused_by_server
from corral.gateway.rewrite import Guard, Outgoing
from corral.gateway.upstream import body_of
from corral.model.git import Access
from corral.policy.egress import GATEWAY_HOST, Reason
from corral.policy.repos import PREFIX, Route, Service
from corral.wire.crowding import crowded

KIND = "application/vnd.git-lfs+json"
MAX_OBJECTS = 1_000
"""Objects of a batch; git lfs asks for a hundred at a time."""
_MAX_REQUEST = 1024 * 1024
_MAX_ANSWER = 4 * 1024 * 1024
_MAX_CONTAINERS, _MAX_ITEMS = 20_000, 100_000
"""Of an answer: an object of a batch has ten lists and objects, a lock two."""
_AT_ONCE = 8
_FIELDS = frozenset({"operation", "hash_algo", "path", "cursor", "limit", "force"})
_OBJECT_FIELDS = frozenset({"oid", "size"})
_MAX_TRANSFERS = 20_000
_LONGEST = 3600.0
_ACTIONS = {"download": "GET", "upload": "PUT", "verify": "POST"}
_MAX_HEADERS = 32
_NEVER = frozenset({"host", "content-length", "transfer-encoding", "connection", "cookie"})

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Transfer:
    """Where one object goes or comes from. `repo` is the grant's name, by which it was asked for."""

    repo: str
    method: str
    url: str
    headers: tuple[tuple[str, str], ...]
    public: bool
    until: float


class LfsService:
    """Serves one box's LFS."""

    def __init__(self, box: Box, upstream: GitUpstream) -> None:
        self._box = box
        self._upstream = upstream
        self._transfers: OrderedDict[str, _Transfer] = OrderedDict()
        self._turn = asyncio.Semaphore(_AT_ONCE)

    async def serve(self, request: web.BaseRequest, route: Route, target: Target) -> web.StreamResponse:
        """Answer a request."""
        await continue_if_asked(request, CIMultiDict(request.headers))
        match route.service:
            case Service.LFS_TRANSFER:
                return await self._transfer(request, route, target)
            case _:
                return await self._ask_about(request, route, target)

    async def _ask_about(self, request: web.BaseRequest, route: Route, target: Target) -> web.StreamResponse:
        """Answer a JSON request, few of them at a time: what is parsed takes many times its bytes (G-340)."""
        with Buffered(self._box) as buffered:
            raw = await self._read(request, route.host, buffered) if request.method == "POST" else None
            async with self._turn:
                body = None if raw is None else known_fields(raw)
                if body is not None and route.service is Service.LFS_BATCH:
                    return await self._batch(request, route, target, body)
                return _answer(*await self._ask(request.method, target.url(route), target, body))

    async def _read(self, request: web.BaseRequest, host: str, buffered: Buffered) -> bytes:
        raw, guard = bytearray(), self._guard()
        try:
            async for data in body_of(request):
                buffered.add(len(data))
                raw += data
                if len(raw) > _MAX_REQUEST:
                    raise _too_much()
        except TooManyBytesError:
            raise GitRefusedError(429, MESSAGE, HINT, "too-many-bytes") from None
        if guard is not None and (name := guard.forms.first_in(bytes(raw))) is not None:
            raise self._leaked(host, name)
        return bytes(raw)

    def _guard(self) -> Guard | None:
        """What looks for secrets themselves that can be no word of a file (G-44)."""
        forms = self._box.tenants_secrets and self._box.tenants_secrets.distinct()
        return Guard(forms) if forms is not None else None

    def _leaked(self, host: str, name: str) -> GitRefusedError:
        self._box.leak("a use of LFS", name, host)
        return GitRefusedError(
            403, "it holds a secret of this host, which no sandbox is given",
            "take it out; on the host, replace the secret: it has leaked", Reason.SECRET.value,
        )  # fmt: skip

    async def _batch(
        self, request: web.BaseRequest, route: Route, target: Target, body: dict[str, Any]
    ) -> web.StreamResponse:
        operation = body.get("operation")
        if operation not in ("download", "upload"):
            raise GitRefusedError(
                422, "the LFS operation is neither download nor upload", "use git lfs", "bad-lfs"
            )
        if operation == "upload" and target.grant.access is not Access.WRITE:
            raise GitRefusedError(
                403, f"this sandbox may read {target.grant.name} but not push to it",
                f"ask the person who runs it to open it: corral create --git-repo {target.grant.name}:write", "read-only",
            )  # fmt: skip
        body["transfers"] = ["basic"]
        status, answer = await self._ask("POST", target.url(route), target, body)
        if answer.get("transfer", "basic") != "basic":
            raise GitRefusedError(
                502, "the LFS server wants another way of transfer", "it cannot be used", "bad-lfs"
            )
        mine = request.headers.get(hdrs.AUTHORIZATION, "")
        objects = [self._object(one, route, target, mine) for one in _list(answer.get("objects"))]
        self._note(operation, target, objects)
        return _answer(status, {"transfer": "basic", "objects": objects})

    def _note(self, operation: str, target: Target, objects: list[dict[str, Any]]) -> None:
        named = " ".join(f"{one.get('oid')}:{one.get('size')}" for one in objects)
        self._box.note(
            "git", "allowed", host=target.grant.host, method=f"lfs-{operation}", path=target.grant.path,
            secret=target.grant.secret or "", refs=named if operation == "upload" else "",
        )  # fmt: skip

    def _object(self, one: object, route: Route, target: Target, mine: str) -> dict[str, Any]:
        """An object of the answer, its addresses replaced."""
        if not isinstance(one, dict):
            raise _strange()
        kept = {key: one[key] for key in ("oid", "size", "error") if key in one}
        actions = one.get("actions")
        if isinstance(actions, dict):
            kept["actions"] = {
                name: self._action(name, action, route, target, mine)
                for name, action in actions.items()
                if name in _ACTIONS
            }
        return kept

    def _action(self, name: str, action: object, route: Route, target: Target, mine: str) -> dict[str, Any]:
        if not isinstance(action, dict) or not isinstance(action.get("href"), str):
            raise _strange()
        url, lasts = str(action["href"]), _seconds(action.get("expires_in"))
        if not (url.isascii() and url.isprintable()) or " " in url:
            raise _strange()
        public = not _same_origin(url, target.base)
        if urlsplit(url).scheme != "https" and public:
            raise GitRefusedError(
                502, "the LFS server names an address without TLS", "it cannot be used", "bad-lfs"
            )
        headers = transfer_headers(_headers(action.get("header")), target, public=public)
        key = secrets.token_hex(16)
        now = asyncio.get_running_loop().time()
        self._transfers[key] = _Transfer(
            target.grant.name,
            _ACTIONS[name],
            url,
            headers,
            public or target.grant.secret is None,
            now + lasts,
        )
        while len(self._transfers) > _MAX_TRANSFERS:
            self._transfers.popitem(last=False)
        here = f"http://{GATEWAY_HOST}{PREFIX}{route.host}/{route.path}/info/lfs/transfer/{key}"
        return {"href": here, "header": {hdrs.AUTHORIZATION: mine}, "expires_in": int(lasts)}

    async def _transfer(self, request: web.BaseRequest, route: Route, target: Target) -> web.StreamResponse:
        found = self._transfers.get(route.service_path)
        now = asyncio.get_running_loop().time()
        if (
            found is None
            or found.until < now
            or found.repo != target.grant.name
            or found.method != request.method
        ):
            raise GitRefusedError(
                404, "there is no such LFS transfer, or its time is over", "run git lfs again", "lfs-gone"
            )
        headers = CIMultiDict(found.headers)
        data: AsyncIterator[bytes] | None = None
        guard: Guard | None = None
        if request.method != "GET":
            for name in (hdrs.CONTENT_TYPE, hdrs.ACCEPT):
                if name in request.headers:
                    headers.setdefault(name, request.headers[name])
            if request.content_length is not None:
                headers[hdrs.CONTENT_LENGTH] = str(request.content_length)
            guard = self._guard()
            data = Outgoing(guard, (), "", "").stream(body_of(request))
        elif "Range" in request.headers:
            headers["Range"] = request.headers["Range"]
        try:
            async with self._upstream.request(
                request.method, found.url, headers, public=found.public, data=data
            ) as answer:
                return await _given(request, answer, target)
        except (aiohttp.ClientError, TimeoutError):
            if guard is not None and guard.leaked is not None:
                raise self._leaked(route.host, guard.leaked) from None
            raise GitRefusedError(502, "the LFS store broke off", "run git lfs again", "upstream") from None

    async def _ask(
        self, method: str, url: str, target: Target, body: Mapping[str, Any] | None
    ) -> tuple[int, dict[str, Any]]:
        """A JSON call to the repository's LFS server."""
        headers = CIMultiDict({hdrs.ACCEPT: KIND})
        if target.authorization:
            headers[hdrs.AUTHORIZATION] = target.authorization
        data = None if body is None else json.dumps(body).encode()
        if data is not None:
            headers[hdrs.CONTENT_TYPE] = KIND
        async with self._upstream.request(
            method, url, headers, public=target.grant.secret is None, data=data
        ) as answer:
            if answer.status not in (200, 201, 409):
                raise refused_by_server(target, answer) or _strange()
            raw = await _bounded(answer)
        if (redactor := target.redactor()) is not None:
            raw = redactor.whole(raw)
        return answer.status, _parsed(raw)


async def _given(
    request: web.BaseRequest, answer: aiohttp.ClientResponse, target: Target
) -> web.StreamResponse:
    """A store's answer: an object as it is, which is a file of the repository's; of what it says to an upload, the status
    (G-137).
    """
    if answer.status not in (200, 201, 204, 206):
        raise GitRefusedError(502, f"the LFS store answered {answer.status}", "run git lfs again", "upstream")
    if request.method != "GET":
        return web.Response(status=answer.status, headers={"Server": "corral"})
    response = web.StreamResponse(status=answer.status, headers={"Server": "corral"})
    response.content_type = "application/octet-stream"
    redactor = target.redactor()
    for field in ("Content-Length", "Content-Range"):
        if field in answer.headers:
            value = answer.headers[field]
            response.headers[field] = redactor.text(value) if redactor else value
    await response.prepare(request)
    await pump(answer.content.iter_any(), response, request)
    return response


def _answer(status: int, value: Mapping[str, Any]) -> web.Response:
    return web.Response(
        status=status, body=json.dumps(value).encode(), content_type=KIND, headers={"Server": "corral"}
    )


async def _bounded(answer: aiohttp.ClientResponse) -> bytes:
    raw = bytearray()
    async for data in answer.content.iter_any():
        raw += data
        if len(raw) > _MAX_ANSWER:
            raise _strange()
    return bytes(raw)


def known_fields(raw: bytes) -> dict[str, Any]:
    """A request with what LFS knows of, and nothing else. Raises GitRefusedError."""
    if crowded(raw, MAX_OBJECTS + 10, 10 * MAX_OBJECTS):
        raise _too_much()
    try:
        value = _parsed(raw)
    except GitRefusedError:
        raise GitRefusedError(422, "the LFS request is not a JSON object", "use git lfs", "bad-lfs") from None
    kept = _scalars(value, _FIELDS)
    if isinstance(ref := value.get("ref"), dict):
        kept["ref"] = _scalars(ref, frozenset({"name"}))
    if isinstance(objects := value.get("objects"), list):
        if len(objects) > MAX_OBJECTS:
            raise _too_much()
        kept["objects"] = [_scalars(one, _OBJECT_FIELDS) for one in objects if isinstance(one, dict)]
    return kept


def _scalars(value: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {name: value[name] for name in names if name in value and not isinstance(value[name], dict | list)}


def _too_much() -> GitRefusedError:
    return GitRefusedError(413, "the LFS request is too large", "ask for fewer objects", "bad-lfs")


def _parsed(raw: bytes) -> dict[str, Any]:
    if crowded(raw, _MAX_CONTAINERS, _MAX_ITEMS):
        raise _strange()
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        raise _strange() from None
    if not isinstance(value, dict):
        raise _strange()
    return value


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise _strange()
    return value


def _headers(value: object) -> tuple[tuple[str, str], ...]:
    if value is None:
        return ()
    if not isinstance(value, dict) or len(value) > _MAX_HEADERS:
        raise _strange()
    pairs = [(str(name), str(text)) for name, text in value.items() if str(name).lower() not in _NEVER]
    for name, text in pairs:
        if (
            not name.replace("-", "").replace("_", "").isalnum()
            or not name.isascii()
            or not text.isprintable()
        ):
            raise _strange()
    return tuple(pairs)


def _seconds(value: object) -> float:
    return float(max(1, min(value, int(_LONGEST)))) if isinstance(value, int) and value else _LONGEST


def _same_origin(url: str, base: str) -> bool:
    try:
        one, other = urlsplit(url), urlsplit(base)
        return (one.scheme, one.hostname, one.port) == (other.scheme, other.hostname, other.port)
    except ValueError:
        raise _strange() from None


def transfer_headers(
    given: tuple[tuple[str, str], ...], target: Target, *, public: bool
) -> tuple[tuple[str, str], ...]:
    """What a transfer is asked for with: what the server gave for it, and else the repository's credential, which never goes
    to another (`public`) address than the repository's own (G-244).
    """
    authorized = hdrs.AUTHORIZATION.lower() in {name.lower() for name, _ in given}
    if public or authorized or not target.authorization:
        return given
    return (*given, (hdrs.AUTHORIZATION, target.authorization))


def _strange() -> GitRefusedError:
    return GitRefusedError(
        502, "the LFS server gave an answer that makes no sense", "it cannot be used", "bad-lfs"
    )

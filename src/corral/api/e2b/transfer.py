"""`/files`: contents of files, streamed in and out."""

import base64
import contextlib
import hashlib
import hmac
import mimetypes
import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from typing import Any
from urllib.parse import quote

from pydantic import ValidationError
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from corral.api.bodies import streamed
from corral.api.e2b.box import Box, modified_at
from corral.api.e2b.calls import digits, read_body
from corral.api.e2b.coding import packed, unpacked, wants_gzip
from corral.api.e2b.failures import Refusal
from corral.api.e2b.rpc import RpcError
from corral.api.e2b.watching import Watchers
from corral.engine.ports import Entry, EntryKind
from corral.errors import Conflict, DiskFull, NotFound
from corral.protocol.base import MAX_JSON_BODY
from corral.protocol.e2b.filesystem import ComposeRequest

_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")
MAX_HEADER = 16 * 1024
MAX_METADATA = 4096
MAX_METADATA_KEY = 246
_METADATA = "x-metadata-"
_METADATA_PREFIX = len("user.e2b.")
_PRINTABLE = re.compile(r"[ -~]*")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9._ ()+,@=~-]+")
_FORM_EVENTS = (
    *("part_begin", "part_data", "part_end", "end"),
    *("header_begin", "header_field", "header_value", "header_end", "headers_finished"),
)


def check_signature(request: Request, token: str) -> None:
    """Raise Refusal unless the query is signed with the sandbox's token, and in time."""
    query = request.query_params
    if not query.get("signature"):
        raise Refusal(401, "missing signature query parameter")
    if not is_signed(request, token):
        raise Refusal(401, "invalid signature")
    expiration = query.get("signature_expiration")
    if expiration is not None and (not _number(expiration) or int(expiration) < time.time()):
        raise Refusal(401, "signature is already expired")


def is_signed(request: Request, token: str) -> bool:
    """Whether the query's signature was made with this token for this path, user, method and end."""
    query = request.query_params
    operation = "read" if request.method == "GET" else "write"
    text = f"{query.get('path', '')}:{operation}:{query.get('username', '')}:{token}"
    if "signature_expiration" in query:
        text += f":{query['signature_expiration']}"
    digest = base64.b64encode(hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()).rstrip(b"=")
    given = query.get("signature", "").encode("utf-8", "surrogateescape")
    return hmac.compare_digest(b"v1_" + digest, given)


def _number(text: str) -> bool:
    return re.fullmatch(r"-?[0-9]{1,18}", text) is not None


async def download(request: Request, box: Box) -> Response:
    """A file's bytes, or a range of them."""
    user = await _user(request, box)
    path = await _path(box, request.query_params.get("path", ""), user)
    files = await box.files()
    entry = await box.resolved(path)
    if entry is None:
        raise Refusal(404, f"path '{path}' does not exist")
    if entry.kind is EntryKind.DIRECTORY:
        raise Refusal(400, f"path '{path}' is a directory")
    gzip = wants_gzip(request.headers)
    kind = _kind(entry.name)
    headers = {
        "content-disposition": f"inline; {_named(entry.name)}",
        "vary": "Accept-Encoding",
        "last-modified": format_datetime(_modified(entry), usegmt=True),
    }
    if entry.kind is EntryKind.FILE and _is_unchanged(request.headers.get("if-modified-since"), entry):
        return Response(status_code=304, headers=headers)
    wanted = _range(request.headers.get("range"), entry)
    if gzip:
        response = await streamed(packed(files.read(path)), kind)
        headers["content-encoding"] = "gzip"
    elif wanted is None:
        response = await streamed(files.read(path), kind)
    else:
        start, size = wanted
        response = await streamed(files.read(path, start, size), kind)
        response.status_code = 206
        headers["content-range"] = f"bytes {start}-{start + size - 1}/{entry.size}"
    response.headers.update(headers)
    return response


def _kind(name: str) -> str:
    """What a file holds, as far as its name tells."""
    kind, coding = mimetypes.guess_type(name)
    return {None: kind, "gzip": "application/gzip"}.get(coding) or "application/octet-stream"


def _named(name: str) -> str:
    """A file's name as a parameter of a header."""
    if _PLAIN_NAME.fullmatch(name):
        return f'filename="{name}"'
    return f"filename*=utf-8''{quote(name.encode('utf-8', 'surrogateescape'))}"


def _is_unchanged(since: str | None, entry: Entry) -> bool:
    """Whether a file was not changed since a header's time, in whole seconds as it is; what is no time counts as none."""
    try:
        return since is not None and _modified(entry) <= parsedate_to_datetime(since).astimezone(UTC)
    except (ValueError, OverflowError):
        return False


def _modified(entry: Entry) -> datetime:
    return modified_at(entry).replace(microsecond=0)


def _range(text: str | None, entry: Entry) -> tuple[int, int] | None:
    """Where to begin and how much; None for the whole file. Raises Refusal."""
    found = _RANGE.fullmatch(text or "")
    if found is None or not any(found.groups()):
        return None
    first, last = found.groups()
    start = int(first) if first else max(entry.size - int(last), 0)
    end = min(int(last) + 1, entry.size) if first and last else entry.size
    if start >= entry.size or end <= start:
        raise Refusal(416, f"the file has {entry.size} bytes")
    return start, end - start


async def upload(request: Request, box: Box, watchers: Watchers) -> Response:
    """Write one file, or several of a form."""
    user = await _user(request, box)
    size = digits(request.headers.get("content-length", ""), 18)
    target = _Target(box, user, file_metadata(request.headers), watchers, size)
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    body = unpacked(request)
    path = request.query_params.get("path")
    if kind == b"application/octet-stream":
        if not path:
            raise Refusal(400, "path query parameter is required for raw body upload")
        written = [await target.write(path, body)]
    elif kind == b"multipart/form-data" and options.get(b"boundary"):
        written = await _write_form(target, path, options[b"boundary"], body)
    else:
        raise Refusal(400, f"unsupported content type: {kind.decode('latin-1')[:100]}")
    return JSONResponse(written)


def file_metadata(headers: Headers) -> dict[str, str]:
    """Metadata that an upload's headers give its files; of a key that is there twice the first value. Raises Refusal."""
    found: dict[str, str] = {}
    for name, value in headers.items():
        if name.startswith(_METADATA):
            found.setdefault(name.removeprefix(_METADATA), value)
    for key, value in found.items():
        if not 1 <= len(key) <= MAX_METADATA_KEY or not (
            _PRINTABLE.fullmatch(key) and _PRINTABLE.fullmatch(value)
        ):
            raise Refusal(
                400, f"invalid metadata: {key[:40]!r} or its value is too long or not printable ASCII"
            )
    if sum(len(key) + len(value) + _METADATA_PREFIX for key, value in found.items()) > MAX_METADATA:
        raise Refusal(400, f"invalid metadata: keys and values are over {MAX_METADATA} bytes in all")
    return found


async def _write_form(
    target: "_Target", path: str | None, boundary: bytes, body: AsyncIterator[bytes]
) -> list[dict[str, Any]]:
    form = _Form(boundary, body)
    written: list[dict[str, Any]] = []
    async for name, filename in form.parts():
        if name != "file":
            continue
        place = path or filename
        if not place:
            raise Refusal(400, "a part of the form has no filename, and the query no path")
        place = await target.path(place)
        if any(item["path"] == place for item in written):
            raise Refusal(400, f"you cannot upload multiple files to the same path '{place}'")
        written.append(await target.write(place, form.content()))
    return written


@dataclass(frozen=True, slots=True)
class _Target:
    """Where the files of a request go: whose they are, what is attached to them, and who watches."""

    box: Box
    user: str
    metadata: dict[str, str]
    watchers: Watchers
    size: int | None = None
    """Bytes of the request's body, where it tells them."""

    async def path(self, text: str) -> str:
        return await _path(self.box, text, self.user)

    async def write(self, place: str, data: AsyncIterator[bytes]) -> dict[str, Any]:
        path = await self.path(place)
        files = await self.box.files()
        with self.watchers.uploading(self.box.sandbox.id, path) as upload:
            try:
                entry = await files.write(path, upload.counted(data), self.user, metadata=self.metadata)
            except Conflict as error:
                raise Refusal(400, f"path is a directory: {path} ({error.message})") from None
            except DiskFull:
                size = f": {self.size} bytes were to be written" if self.size else ""
                raise Refusal(507, f"not enough disk space available{size}") from None
        told = {"path": path, "name": entry.name, "type": "file"}
        return {**told, "metadata": entry.metadata} if entry.metadata else told


async def compose(request: Request, box: Box, watchers: Watchers) -> Response:
    """One file of several, which are removed once it is there."""
    body = await _compose_request(request)
    try:
        user = await box.user(body.username)
    except RpcError as error:
        raise Refusal(401, error.message) from None
    destination = await _path(box, body.destination, user)
    sources = [await _path(box, item, user) for item in body.source_paths]
    if destination in sources:
        raise Refusal(400, f"the destination '{destination}' is a source too")
    files = await box.files()
    for source in sources:
        try:
            kind = (await files.stat(source)).kind
        except (NotFound, Conflict):
            raise Refusal(404, f"path '{source}' does not exist") from None
        if kind is not EntryKind.FILE:
            raise Refusal(400, f"path '{source}' is not a regular file")

    async def joined() -> AsyncIterator[bytes]:
        for source in sources:
            async for chunk in files.read(source):
                yield chunk

    await _Target(box, user, {}, watchers).write(destination, joined())
    for source in dict.fromkeys(sources):
        with contextlib.suppress(NotFound):
            await files.remove(source)
    return JSONResponse((await box.info(await files.stat(destination))).to_dict())


async def _compose_request(request: Request) -> ComposeRequest:
    raw = await read_body(request, MAX_JSON_BODY)
    try:
        body = ComposeRequest.model_validate_json(raw)
    except ValidationError:
        raise Refusal(400, "Error when parsing request: source_paths and destination are not there") from None
    if not body.source_paths or not body.destination:
        raise Refusal(400, "source_paths and destination cannot be empty")
    return body


async def _user(request: Request, box: Box) -> str:
    name = request.query_params.get("username")
    try:
        return await box.user(name)
    except RpcError:
        raise Refusal(401, f"error looking up user '{(name or '')[:80]}': it does not exist") from None


async def _path(box: Box, text: str, user: str) -> str:
    try:
        return await box.path(text, user)
    except RpcError as error:
        raise Refusal(400, error.message) from None


class _Form:
    """Parts of a form, one after another: `content` gives the bytes of the part that `parts` gave last."""

    def __init__(self, boundary: bytes, body: AsyncIterator[bytes]) -> None:
        self._body = body
        self._events: list[tuple[str, bytes]] = []
        self._fields: dict[bytes, bytes] = {}
        self._ended = False
        callbacks: Any = {f"on_{name}": self._note(name) for name in _FORM_EVENTS}
        self._parser = MultipartParser(boundary, callbacks)

    def _note(self, name: str) -> Any:
        def callback(data: bytes = b"", start: int = 0, end: int = 0) -> None:
            self._events.append((name, bytes(data[start:end])))

        return callback

    async def parts(self) -> AsyncIterator[tuple[str, str]]:
        """Name and filename of each part; what is left of the former's content is skipped."""
        header = value = b""
        while (event := await self._next()) is not None:
            name, data = event
            if len(header) + len(value) > MAX_HEADER:
                raise Refusal(400, "a header of the form is too long")
            if name == "part_begin":
                self._fields = {}
            elif name == "header_begin":
                header, value = b"", b""
            elif name == "header_field":
                header += data
            elif name == "header_value":
                value += data
            elif name == "header_end":
                self._fields[header.lower()] = value
            elif name == "headers_finished":
                yield self._described()

    def _described(self) -> tuple[str, str]:
        _, options = parse_options_header(
            self._fields.get(b"content-disposition", b"").decode("utf-8", "replace")
        )
        return options.get(b"name", b"").decode("utf-8", "replace"), options.get(b"filename", b"").decode(
            "utf-8", "replace"
        )

    async def content(self) -> AsyncIterator[bytes]:
        """The part's bytes."""
        while (event := await self._next()) is not None and event[0] != "part_end":
            if event[0] == "part_data":
                yield event[1]

    async def _next(self) -> tuple[str, bytes] | None:
        while not self._events:
            if self._ended:
                return None
            chunk = await anext(self._body, None)
            if chunk is None:
                raise Refusal(400, "the form breaks off")
            try:
                self._parser.write(chunk)
            except FormParserError:
                raise Refusal(400, "the form is malformed") from None
        event = self._events.pop(0)
        self._ended = event[0] == "end"
        return event

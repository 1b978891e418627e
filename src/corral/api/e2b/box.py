"""One sandbox, as a request of the data plane sees it: whose user, which paths."""

import base64
import binascii
import posixpath
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from starlette.datastructures import Headers

from corral.api.e2b.identity import variables_of
from corral.api.e2b.rpc import RpcError
from corral.engine.engine import Engine
from corral.engine.ports import Entry, EntryKind, GuestFiles
from corral.errors import Conflict, CorralError, Forbidden, InvalidInput, NotFound
from corral.model.ids import TenantId, check_guest_path
from corral.model.sandbox import Sandbox
from corral.protocol.e2b.filesystem import EntryInfo
from corral.wire.connect import Code

MAX_TABLE = 1024 * 1024
NO_WORKDIR = "/"
"""The working directory of sandboxes whose image names none."""
DIRECTORY_SIZE = 4096
_KINDS = {EntryKind.FILE: "FILE_TYPE_FILE", EntryKind.DIRECTORY: "FILE_TYPE_DIRECTORY"}
_BITS = "rwxrwxrwx"
_SPECIAL = ((stat.S_ISUID, "u"), (stat.S_ISGID, "g"), (stat.S_ISVTX, "t"))


@dataclass(frozen=True, slots=True)
class Account:
    """A line of the guest's list of users."""

    name: str
    uid: int
    home: str


class Box:
    """A sandbox and the user that a request acts as. Tables of names are read when first needed, once a request."""

    def __init__(self, engine: Engine, sandbox: Sandbox, headers: Headers) -> None:
        self.engine = engine
        self.sandbox = sandbox
        self._headers = headers
        self._tables: dict[str, bytes] = {}

    @property
    def tenant(self) -> TenantId:
        """Whose sandbox it is."""
        return self.sandbox.spec.tenant

    @property
    def id(self) -> str:
        """The sandbox's id."""
        return self.sandbox.id

    async def files(self) -> GuestFiles:
        """The sandbox's files."""
        return await self.engine.files_of(self.tenant, self.id)

    def environment(self) -> Mapping[str, str]:
        """What tells a process that it is in a sandbox, and in which."""
        return variables_of(self.sandbox)

    # -- users ------------------------------------------------------------------------------------------------------

    async def user(self, name: str | None = None) -> str:
        """The user of `name`, or else of the request's authorization, or else the sandbox's own. Raises RpcError."""
        wanted = name or _basic_user(self._headers.get("authorization", ""))
        if wanted is None or wanted == self.sandbox.spec.user:
            return self.sandbox.spec.user
        if await self._account(wanted) is None:
            raise RpcError(Code.UNAUTHENTICATED, f"invalid username: '{wanted[:80]}'")
        return wanted

    async def home(self, user: str) -> str:
        """Where a user's relative paths start."""
        account = await self._account(user.partition(":")[0])
        return account.home if account else "/"

    async def workdir(self, user: str) -> str:
        """Where a user is who names no directory: where the sandbox works, if its image says so and means no home, else at
        the user's home."""
        spec = self.sandbox.spec
        workdir = spec.workdir
        if workdir not in (NO_WORKDIR, await self.home(spec.user)):
            return workdir
        home = await self.home(user)
        try:
            there = (await (await self.files()).resolve(home)).kind is EntryKind.DIRECTORY
        except (NotFound, Conflict, Forbidden):
            there = False
        return home if there else workdir

    async def path(self, text: str, user: str) -> str:
        """An absolute path of what a client wrote. Raises RpcError."""
        if text.startswith("~") and not (text == "~" or text.startswith("~/")):
            raise RpcError(Code.INVALID_ARGUMENT, f"cannot expand '{text[:80]}': only ~ and ~/ are")
        if not text:
            text = await self.workdir(user)
        elif text.startswith("~"):
            text = await self.home(user) + text[1:]
        elif not text.startswith("/"):
            text = f"{await self.home(user)}/{text}"
        try:
            return check_guest_path(posixpath.normpath("/" + text.lstrip("/")))
        except CorralError as error:
            raise RpcError(Code.INVALID_ARGUMENT, error.message) from None

    async def _account(self, user: str) -> Account | None:
        for line in (await self._table("/etc/passwd")).split("\n"):
            fields = line.split(":")
            if len(fields) >= 6 and user in (fields[0], fields[2]) and fields[2].isdecimal():
                return Account(fields[0], int(fields[2][:9]), fields[5] or "/")
        return None

    async def _names(self, table: str) -> dict[int, str]:
        names: dict[int, str] = {}
        for line in (await self._table(table)).split("\n"):
            fields = line.split(":")
            if len(fields) >= 3 and fields[2].isdecimal() and len(fields[2]) < 10:
                names.setdefault(int(fields[2]), fields[0])
        return names

    async def _table(self, path: str) -> str:
        if path not in self._tables:
            kept = bytearray()
            try:
                async for chunk in (await self.files()).read(path, 0, MAX_TABLE):
                    kept += chunk
            except (NotFound, Conflict, Forbidden):
                kept.clear()
            self._tables[path] = bytes(kept)
        return self._tables[path].decode("utf-8", "replace")

    # -- entries ----------------------------------------------------------------------------------------------------

    async def info(self, entry: Entry) -> EntryInfo:
        """What clients are told of a file."""
        shown, target = entry, None
        kind = _KINDS.get(entry.kind, "FILE_TYPE_UNSPECIFIED")
        if entry.kind is EntryKind.SYMLINK:
            found = await self.resolved(entry.path)
            target = found.path if found else entry.path
            kind = _KINDS.get(found.kind, "FILE_TYPE_UNSPECIFIED") if found else "FILE_TYPE_UNSPECIFIED"
            shown = found or entry
        # btrfs counts a directory's names only; clients take a size of zero for a missing one.
        size = max(entry.size, DIRECTORY_SIZE) if entry.kind is EntryKind.DIRECTORY else entry.size
        users, groups = await self._names("/etc/passwd"), await self._names("/etc/group")
        return EntryInfo(
            name=_text(entry.name),
            type=kind,
            path=_text(entry.path),
            size=str(size),
            mode=shown.mode & 0o777,
            permissions=permissions(entry),
            owner=users.get(entry.uid, str(entry.uid)),
            group=groups.get(entry.gid, str(entry.gid)),
            modified_time=modified_at(entry).isoformat().replace("+00:00", "Z"),
            symlink_target=None if target is None else _text(target),
            is_symlink=True if entry.kind is EntryKind.SYMLINK else None,
            metadata=entry.metadata or None,
        )

    async def resolved(self, path: str) -> Entry | None:
        """What is at a path, or at the end of the symlinks there; None for nothing or a circle."""
        try:
            return await (await self.files()).resolve(path)
        except (NotFound, Conflict, Forbidden, InvalidInput):
            return None


def modified_at(entry: Entry) -> datetime:
    """When it was changed last, as near as a date can say it."""
    return datetime.fromtimestamp(max(min(entry.mtime, 2.5e11), -6e10), UTC)


def permissions(entry: Entry) -> str:
    """As Go writes them: letters for what it is and for setuid, setgid and sticky, and three for each class of users."""
    kind = {EntryKind.DIRECTORY: "d", EntryKind.SYMLINK: "L"}.get(entry.kind, "")
    special = "".join(letter for bit, letter in _SPECIAL if entry.mode & bit)
    rights = "".join(c if entry.mode & (1 << (8 - i)) else "-" for i, c in enumerate(_BITS))
    return (kind + special or "-") + rights


def _basic_user(header: str) -> str | None:
    scheme, _, value = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        return base64.b64decode(value, validate=True).decode().partition(":")[0] or None
    except (binascii.Error, ValueError):
        raise RpcError(Code.UNAUTHENTICATED, "the authorization header is malformed") from None


def _text(name: str) -> str:
    """A name as JSON can hold it: bytes that are not UTF-8 are replaced."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")

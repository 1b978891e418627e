"""Reading a push before it goes upstream.

A pack is the sandbox's word in the least readable form there is, and whatever parses one is exposed. So git reads it in
a sandbox of its own: made for this push, with the base template, limits, and no network but its gateway, which lets it
read the one repository that is pushed to. What it lacks of the repository (the commits that the push builds on, trees
and contents before the changes), it fetches from there, as any partial clone does. What it prints is parsed here by
bounded readers, and judged by pure functions (`findings`). Nothing is checked out, and no git of the host has a part.
"""

import asyncio
import contextlib
import os
import secrets as randomness
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from corral.engine.plan import CreateRequest
from corral.engine.ports import Driver
from corral.engine.processes import Processes
from corral.engine.sandboxes import Sandboxes
from corral.engine.shell import Shell
from corral.engine.templates import BASE
from corral.errors import (
    Conflict,
    CorralError,
    DiskFull,
    Forbidden,
    HostError,
    NoCapacity,
)
from corral.model.git import Access, RepoGrant
from corral.model.ids import SandboxId, TenantId
from corral.model.push import Command, PushReport, PushToInspect
from corral.model.sandbox import GIB, Limits, Sandbox
from corral.model.secrets import Secret
from corral.policy.needles import Needles
from corral.wire.gitobjects import ChangeReader, CommitReader, ObjectReader, PatchReader
from corral.work import guest
from corral.work.findings import (
    LARGE,
    Gathered,
    LeakSearch,
    follows,
    look_at,
    missing_parents,
    old_blobs,
    report,
    take_objects,
)
from corral.work.names import clean_text

LABEL = "corral/inspection"
SECONDS = 1200.0
"""For the whole inspection."""
MAX_COMMITS = 20_000
MAX_CHANGES = 200_000
MAX_OLD_BLOBS = 10_000
MAX_COMMIT_BYTES = 64 * 1024 * 1024
MAX_PATCH = 256 * 1024 * 1024
MAX_CONTENT = 2 * GIB
_CHUNK = 1024 * 1024
_USER = "user"
_HOME = "/home/user"
_PACK = f"{_HOME}/push.pack"
_IDS = f"{_HOME}/ids"
_GIT = f"{_HOME}/push.git"

_INDEX = """
set -eu
umask 077
git init --quiet --bare --object-format="$1" "$3"
cd "$3"
git config core.repositoryFormatVersion 1
git config extensions.partialClone origin
git config remote.origin.url "$2"
git config remote.origin.promisor true
git config remote.origin.partialCloneFilter blob:none
git config core.bigFileThreshold 16m
git config core.quotePath false
git config pack.threads 2
git config fetch.negotiationAlgorithm noop
git config gc.auto 0
[ ! -e "$4" ] || git index-pack --fsck-objects --fix-thin --stdin <"$4" >/dev/null
rm -f "$4"
"""
_OBJECTS = """
set -eu
cd "$1"
git cat-file --batch-all-objects --unordered --batch-check='%(objecttype) %(objectname) %(objectsize)' >../objects
awk -v large="$2" '
    { total++ }
    $1 == "blob" && $3 >= large { print "large", $2, $3 }
    $1 == "commit" || $1 == "tag" { commits++; if (commits <= '"$3"') print $2 > "../commits" }
    END { print "total", total + 0, commits + 0; close("../commits") }' ../objects
echo content "$(sort ../objects | sha256sum | cut -c -64)"
: >>../commits
"""
_COMMITS = 'cd "$1" && exec git cat-file --batch <../commits'
_FETCH_COMMITS = """
cd "$1" && exec git fetch --quiet --no-tags --no-write-fetch-head --depth=1 --filter=blob:none --stdin origin <"$2"
"""
_FETCH_HISTORY = """
cd "$1" && exec git fetch --quiet --no-tags --no-write-fetch-head --unshallow --filter=tree:0 --stdin origin <"$2"
"""
_FETCH_BLOBS = """
cd "$1" && exec git fetch --quiet --no-tags --no-write-fetch-head --filter=blob:none --stdin origin <"$2"
"""
# Of what was there before anything was fetched: what the push takes out of the repository may have held a secret.
_CONTENTS = 'cd "$1" && cut -d " " -f 2 ../objects | git cat-file --batch --buffer'
_ANCESTOR = 'cd "$1" && exec git merge-base --is-ancestor "$2" "$3"'
_CHANGES = """
cd "$1" && exec git diff-tree --stdin -c -r --root --raw -z --no-renames --no-abbrev <../commits
"""
_PATCHES = """
cd "$1" && exec git diff-tree --stdin -c -r --root -p -U0 --no-renames --no-ext-diff --no-textconv --no-color \\
    --diff-filter=ACMT --ignore-submodules=none --submodule=short <../commits
"""


class PushInspector:
    """Inspects pushes. `scratch` is a directory for packs that wait; `secrets` gives what no push of a tenant may hold."""

    def __init__(
        self,
        *,
        sandboxes: Callable[[], Sandboxes],
        processes: Processes,
        driver: Driver,
        secrets: Callable[[TenantId], Awaitable[Mapping[str, Secret]]],
        scratch: Path,
    ) -> None:
        self._sandboxes = sandboxes
        self._processes = processes
        self._driver = driver
        self._secrets = secrets
        self._scratch = scratch

    async def recover(self) -> None:
        """Remove the sandboxes of inspections that a crash cut: nobody waits for what they would say."""
        for sandbox in self._sandboxes().all():
            if LABEL in sandbox.spec.labels and sandbox.spec.name.startswith("push-"):
                with contextlib.suppress(CorralError):
                    await self._sandboxes().remove(sandbox.spec.tenant, sandbox.id)

    def spool(self) -> int:
        """A descriptor of a new file that has no name: when the last one is closed, it is gone. Raises DiskFull."""
        try:
            return os.open(self._scratch, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise DiskFull(f"there is no room for a push: {error.strerror}") from error

    async def inspect(self, tenant: TenantId, sandbox: SandboxId, push: PushToInspect, fd: int) -> PushReport:
        """What the pack in `fd` brings. Raises Forbidden for one that is not what it should be, and CorralError where it
        cannot be looked at."""
        asking = self._sandboxes().by_id(sandbox)
        if asking is None:
            raise Conflict("the sandbox is gone", "nothing is to be done")
        async with asyncio.timeout(SECONDS):
            values = {name: value.reveal() for name, value in (await self._secrets(tenant)).items()}
            async with self._box(tenant, asking, push) as box:
                return await self._read(box, push, fd, Needles.of_secrets(values))

    @asynccontextmanager
    async def _box(self, tenant: TenantId, asking: Sandbox, push: PushToInspect) -> AsyncIterator["_Box"]:
        """The sandbox that reads it, as strong as the one that pushes."""
        sandboxes = self._sandboxes()
        request = CreateRequest(
            template=BASE,
            name=f"push-{randomness.token_hex(4)}",
            isolation=asking.spec.isolation,
            limits=_limits(push),
            labels={LABEL: asking.spec.name},
            ttl=int(SECONDS) + 60,
            secrets=() if push.secret is None else (push.secret,),
            repos=(RepoGrant(push.host, push.path, Access.READ),),
        )
        made = await sandboxes.create(tenant, request)
        try:
            shell = Shell(self._processes, tenant, made.id, _USER)
            yield _Box(shell, self._driver, made)
        finally:
            await asyncio.shield(sandboxes.remove(tenant, made.id))

    async def _read(self, box: "_Box", push: PushToInspect, fd: int, needles: Needles | None) -> PushReport:
        gathered = Gathered()
        if push.size:
            await box.write(_PACK, _pieces(fd, push.size))
        await box.index(push)
        await box.objects(gathered)
        await box.commits(gathered)
        boundary = missing_parents(gathered.commits, push.commands)
        if boundary:
            await box.fetch(_FETCH_COMMITS, boundary, _no_base)
        forward = {one.ref: await box.follows(gathered, one, boundary) for one in push.commands}
        await box.changes(gathered)
        await box.patches(gathered)
        if needles is not None:
            await box.contents(gathered, LeakSearch(needles))
        await asyncio.to_thread(look_at, gathered, push.authors, signed=push.signed)
        return report(gathered, push.commands, forward)


def _limits(push: PushToInspect) -> Limits:
    """Memory for git's windows, disk for the pack, its index and what is fetched beside it."""
    return Limits(memory=2 * GIB, cpus=2.0, pids=256, disk=4 * push.size + 4 * GIB)


async def _pieces(fd: int, size: int) -> AsyncIterator[bytes]:
    at = 0
    while at < size:
        data = await asyncio.to_thread(os.pread, fd, min(_CHUNK, size - at), at)
        if not data:
            raise HostError("the push was cut while it was read", "push again")
        yield data
        at += len(data)


def _no_base(text: str) -> CorralError:
    return Forbidden(
        f"the push does not bring all that it refers to, and the server does not have it: {text}",
        "fetch, then push again",
    )


@dataclass(frozen=True, slots=True)
class _Box:
    """Git in the sandbox that reads a push."""

    shell: Shell
    driver: Driver
    sandbox: Sandbox

    async def write(self, path: str, data: AsyncIterator[bytes]) -> None:
        await self.driver.files(self.sandbox.spec).write(path, data, _USER)

    async def run(self, script: str, *args: str, seconds: float = SECONDS) -> tuple[int, bytes, bytes]:
        argv = ("sh", "-c", script, "sh", *args)
        return await self.shell.run(argv, env=guest.ENV, cwd=_HOME, timeout=seconds)

    def stream(self, script: str) -> AsyncIterator[bytes]:
        return self.shell.stream_out(
            ("sh", "-c", script, "sh", _GIT), env=guest.ENV, cwd=_HOME, timeout=SECONDS
        )

    async def index(self, push: PushToInspect) -> None:
        format = "sha256" if len(push.commands[0].new) == 64 else "sha1"
        url = f"https://{push.host}/{push.path}"
        code, _, err = await self.run(_INDEX, format, url, _GIT, _PACK)
        if code != 0:
            raise _refused(code, err)

    async def objects(self, gathered: Gathered) -> None:
        code, out, err = await self.run(_OBJECTS, _GIT, str(LARGE), str(MAX_COMMITS))
        if code != 0:
            raise _refused(code, err)
        take_objects(gathered, out, MAX_COMMITS)

    async def commits(self, gathered: Gathered) -> None:
        reader, size = CommitReader(), 0
        async for data in self.stream(_COMMITS):
            size += len(data)
            if size > MAX_COMMIT_BYTES:
                gathered.truncated = "its commits are too large"
                return
            for one in reader.feed(data):
                gathered.commits[one.id] = one
        reader.finish()

    async def fetch(
        self, script: str, ids: Sequence[str], failed: Callable[[str], CorralError] | None
    ) -> bool:
        """Fetch objects; False where that failed and `failed` makes no error of it."""

        async def lines() -> AsyncIterator[bytes]:
            yield "".join(f"{one}\n" for one in ids).encode()

        await self.write(_IDS, lines())
        code, _, err = await self.run(script, _GIT, _IDS)
        if code != 0 and failed is not None:
            said = [line for line in err.split(b"\n") if not line.startswith(b"warning:")]
            raise failed(clean_text(b" ".join(said)))
        return code == 0

    async def follows(self, gathered: Gathered, one: Command, boundary: Sequence[str]) -> bool:
        """Whether a command's new commit is known to follow from its old one."""
        if one.creates or one.deletes:
            return False
        if await asyncio.to_thread(follows, gathered.commits, one.old, one.new):
            return True
        if not boundary or not one.ref.startswith("refs/heads/"):
            return False
        # The way from one to the other leads through commits that the server has: their history, without trees.
        await self.fetch(_FETCH_HISTORY, boundary, None)
        code, _, _ = await self.run(_ANCESTOR, _GIT, one.old, one.new)
        return code == 0

    async def changes(self, gathered: Gathered) -> None:
        reader = ChangeReader()
        async for data in self.stream(_CHANGES):
            gathered.changes += reader.feed(data)
            if len(gathered.changes) > MAX_CHANGES:
                gathered.truncated = f"it changes more than {MAX_CHANGES} files"
                return
        reader.finish()

    async def patches(self, gathered: Gathered) -> None:
        if gathered.truncated:
            return
        blobs = old_blobs(gathered.changes)
        if len(blobs) > MAX_OLD_BLOBS:
            gathered.truncated = f"it changes {len(blobs)} files that were there before"
            return
        if blobs:
            await self.fetch(_FETCH_BLOBS, blobs, _no_base)
        reader, size = PatchReader(), 0
        async for data in self.stream(_PATCHES):
            size += len(data)
            if size > MAX_PATCH:
                gathered.truncated = f"it adds more than {MAX_PATCH // 1024**2} MiB of text"
                break
            await asyncio.to_thread(_scan, gathered, reader, data)
        gathered.totals = reader.totals

    async def contents(self, gathered: Gathered, search: LeakSearch) -> None:
        reader, size = ObjectReader(), 0
        async for data in self.stream(_CONTENTS):
            size += len(data)
            if size > MAX_CONTENT:
                gathered.truncated = f"it brings more than {MAX_CONTENT // GIB} GiB"
                break
            await asyncio.to_thread(_search, search, reader, data)
        else:
            reader.finish()
        gathered.leaks = search.found


def _search(search: LeakSearch, reader: ObjectReader, data: bytes) -> None:
    for part in reader.feed(data):
        search.feed(part)


def _scan(gathered: Gathered, reader: PatchReader, data: bytes) -> None:
    gathered.scan(reader.feed(data))


def _refused(code: int, err: bytes) -> CorralError:
    text = clean_text(err)
    if "No space left" in text or "Disk quota" in text:
        return NoCapacity(f"the push is too large to be looked at: {text}", "push less at once")
    return Forbidden(f"the pack is not accepted: {text or f'git ended with {code}'}", "see `git fsck`")

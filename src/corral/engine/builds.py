"""Builds of templates: started, followed, given up. Each runs in the background, a few at a time.

What is known of a build is held in memory: a daemon that ends gives up its builds, and what they had running is removed
at the next start. The layers of steps that were done are found again by the next build.
"""

import asyncio
import logging
import secrets as randomness
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import replace

from corral.engine.building import Builder, Tally
from corral.engine.plan import MAX_ALLOW, egress_policy
from corral.engine.ports import ArchiveInfo, Archives, Clock
from corral.errors import CorralError, InternalError, InvalidInput, NoCapacity, NotFound, all_errors
from corral.host.tasks import TaskOwner
from corral.model.build import Build, BuildLine, BuildRequest, BuildStatus
from corral.model.ids import TenantId, check_env
from corral.model.template import Template
from corral.policy.building import stages_needed
from corral.policy.models import checked_rules

log = logging.getLogger(__name__)

AT_ONCE = 2
"""Builds under way at the same time; further ones wait."""
MAX_WAITING = 100
KEPT = 200
"""Ended builds that are remembered."""
KEPT_LINES = 20_000
"""Lines of a build's log; what comes after is counted only."""
KEPT_TEXT = 8 << 20


class _Entry:
    """A build, its log, and whoever follows it."""

    def __init__(self, build: Build, request: BuildRequest) -> None:
        self.build = build
        self.request = request
        self.lines: list[BuildLine] = []
        self.size = 0
        self.dropped = 0
        self.tally = Tally()
        self.changed = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    def wake(self) -> None:
        """Tell followers that there is something new."""
        self.changed.set()
        self.changed = asyncio.Event()


class Builds:
    """The builds of every tenant."""

    def __init__(self, builder: Builder, archives: Archives, clock: Clock, tasks: TaskOwner) -> None:
        self._builder = builder
        self._archives = archives
        self._clock = clock
        self._tasks = tasks
        self._entries: dict[str, _Entry] = {}
        self._ended: deque[str] = deque()
        self._turns = asyncio.Semaphore(AT_ONCE)

    # -- contexts

    async def upload(self, tenant: TenantId, data: AsyncIterator[bytes]) -> ArchiveInfo:
        """Keep an archive as the context of builds, for a day after its last use. Raises InvalidInput, TooLarge, DiskFull."""
        return await self._archives.save(tenant, data)

    async def uploaded(self, tenant: TenantId, context: str) -> bool:
        """Whether a context is still there; it is then kept for another day."""
        return await self._archives.has(tenant, context)

    # -- builds

    async def start(self, tenant: TenantId, request: BuildRequest) -> Build:
        """A new build, waiting for its turn. Raises InvalidInput, Conflict (a name), NotFound (its context), NoCapacity."""
        checked(request)
        for name in (request.name, *request.tags):
            await self._builder.templates.check_replaceable(tenant, name)
        if request.context and not await self._archives.has(tenant, request.context):
            raise NotFound("the build's context is not there any more", "upload it again")
        waiting = sum(1 for entry in self._entries.values() if not entry.build.ended)
        if waiting >= MAX_WAITING:
            raise NoCapacity(
                f"{waiting} builds wait already", "try again when some have ended: `corral build ls`"
            )
        build = Build(
            id=randomness.token_hex(8),
            tenant=tenant,
            name=request.name,
            status=BuildStatus.WAITING,
            created_at=self._clock.now(),
        )
        entry = _Entry(build, request)
        self._entries[build.id] = entry
        entry.task = self._tasks.start(self._carry_out(entry), name=f"build-{build.id}")
        await asyncio.sleep(0)  # a task that was cancelled before it began could not say so
        return build

    def get(self, tenant: TenantId, id: str) -> Build:
        """A build as it stands. Raises NotFound."""
        return self._now(self._find(tenant, id))

    def lines(self, tenant: TenantId, id: str, after: int = 0) -> list[BuildLine]:
        """Lines of its log so far, from the one numbered `after` (the first is 0)."""
        return self._find(tenant, id).lines[max(after, 0) :]

    async def follow(self, tenant: TenantId, id: str, after: int = 0) -> AsyncIterator[BuildLine]:
        """Lines of its log from the one numbered `after`, as they come, until the build has ended."""
        entry = self._find(tenant, id)
        position = max(after, 0)
        while True:
            changed = entry.changed
            for line in entry.lines[position:]:
                position += 1
                yield line
            if entry.build.ended and position >= len(entry.lines):
                return
            await changed.wait()

    async def wait(self, tenant: TenantId, id: str) -> Build:
        """The build once it has ended."""
        async for _ in self.follow(tenant, id):
            pass
        return self.get(tenant, id)

    async def build(self, tenant: TenantId, request: BuildRequest) -> Template:
        """Build, and wait for the template. A cancelled call gives the build up. Raises the error it failed with."""
        started = await self.start(tenant, request)
        entry = self._entries[started.id]
        try:
            done = await self.wait(tenant, started.id)
        except asyncio.CancelledError:
            await asyncio.shield(self.cancel(tenant, started.id))
            raise
        if done.template is None:
            raise entry_error(entry.build)
        return await self._builder.templates.get(tenant, done.template)

    async def cancel(self, tenant: TenantId, id: str) -> Build:
        """Give a build up and wait until nothing of it runs. Without effect on one that has ended."""
        entry = self._find(tenant, id)
        if entry.task is not None and not entry.build.ended:
            entry.task.cancel()
            async for _ in self.follow(tenant, id, len(entry.lines)):
                pass
        return self._now(entry)

    async def forget_steps(self) -> int:
        """Forget the layers of steps that no template has; how many. They are removed at once."""
        return await self._builder.templates.forget_steps()

    def list(self, tenant: TenantId) -> list[Build]:
        """A tenant's builds that are remembered, oldest first."""
        return [self._now(entry) for entry in self._entries.values() if entry.build.tenant == tenant]

    # -- parts

    def _find(self, tenant: TenantId, id: str) -> _Entry:
        entry = self._entries.get(id)
        if entry is None or entry.build.tenant != tenant:
            raise NotFound(
                f"there is no build {id[:40]!r}", "see those that are remembered: `corral build ls`"
            )
        return entry

    @staticmethod
    def _now(entry: _Entry) -> Build:
        tally = entry.tally
        return replace(entry.build, step=tally.step, steps=tally.steps, cached=tally.cached)

    async def _carry_out(self, entry: _Entry) -> None:
        try:
            async with self._turns:
                entry.build = replace(entry.build, status=BuildStatus.BUILDING)
                template = await self._builder.build(
                    entry.build.tenant,
                    entry.build.id,
                    entry.request,
                    entry.tally,
                    lambda step, text, output: self._note(entry, step, text, output=output),
                )
        except asyncio.CancelledError:
            self._note(entry, entry.tally.step, "given up", failure=True)
            self._end(entry, BuildStatus.CANCELLED)
        except CorralError as error:
            self._fail(entry, error)
        except Exception:
            log.exception("build %s failed", entry.build.id)
            self._fail(entry, InternalError("the build failed by a defect of Corral"))
        else:
            entry.build = replace(entry.build, template=template.id)
            self._end(entry, BuildStatus.READY)

    def _fail(self, entry: _Entry, error: CorralError) -> None:
        self._note(entry, entry.tally.step, f"failed: {error.message}", failure=True)
        entry.build = replace(entry.build, error={k: str(v) for k, v in error.to_dict().items()})
        self._end(entry, BuildStatus.FAILED)

    def _end(self, entry: _Entry, status: BuildStatus) -> None:
        entry.build = replace(entry.build, status=status, finished_at=self._clock.now())
        entry.wake()
        self._ended.append(entry.build.id)
        while len(self._ended) > KEPT:
            self._entries.pop(self._ended.popleft(), None)

    def _note(
        self, entry: _Entry, step: int, text: str, *, output: bool = False, failure: bool = False
    ) -> None:
        if not failure and (len(entry.lines) >= KEPT_LINES or entry.size >= KEPT_TEXT):
            entry.dropped += 1
            if entry.dropped > 1:
                return
            text, output = "more lines came, and were dropped", False
        entry.size += len(text)
        entry.lines.append(BuildLine(len(entry.lines), self._clock.now(), step, text, output, failure))
        entry.wake()


def entry_error(build: Build) -> CorralError:
    """The error that a build failed with."""
    if build.status is BuildStatus.CANCELLED:
        return NotFound(f"the build of {build.name} was given up", "start it again")
    body = build.error
    return all_errors().get(body.get("code", ""), CorralError)(
        body.get("message", "the build failed"), body.get("hint")
    )


def checked(request: BuildRequest) -> BuildRequest:
    """`request` itself, or InvalidInput that names what is wrong with it."""
    stages_needed(request.recipe)
    check_env(request.args)
    request.limits.checked()
    if request.sandbox_limits is not None:
        request.sandbox_limits.checked()
    if request.models is not None:
        checked_rules(request.models)
    if len(request.allow) > MAX_ALLOW:
        raise InvalidInput(f"{len(request.allow)} allowed hosts are too many", f"give at most {MAX_ALLOW}")
    egress_policy(request.allow)
    return request

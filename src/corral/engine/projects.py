"""Setups of repositories: done once in a sandbox, kept as layers, and the beginning of every later sandbox.

Each step of a setup is a layer, known by what is below it, the step's text, and the content of the files that it names
at the commit that a sandbox starts from. So a changed lock file repeats its own step and those after it, a branch that
was set up before is found again, and one whose files are the same as another's shares its layers.

A step runs in a sandbox like the one to come: with the repository at its place. What is kept of the repository itself is
only what git ignores there (dependencies, build results): the rest comes in again with each sandbox, at its own commit.
"""

import asyncio
import hashlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from corral.engine.commands import STEP_SECONDS, CommandLines, check_exit
from corral.engine.leaks import LeakCheck
from corral.engine.plan import CreateRequest, egress_policy
from corral.engine.ports import Driver, Layers, Progress
from corral.engine.processes import Chunk, Ended, Processes, StartRequest
from corral.engine.recovery import BUILD
from corral.engine.sandboxes import Sandboxes
from corral.engine.templates import Templates
from corral.errors import CorralError, InvalidInput, NotFound
from corral.host.tasks import TaskOwner
from corral.model.ids import LayerDigest, TenantId
from corral.model.process import OWN_TAG
from corral.model.project import Setup, SetupStep
from corral.model.sandbox import Sandbox
from corral.model.template import Template
from corral.policy.building import layer_key

log = logging.getLogger(__name__)

Strip = Callable[[Sandbox], Awaitable[Sequence[str]]]
"""Takes all of a sandbox's repository away but what git ignores there; what else was new there."""
_HINT = "change the step, or what it copies: a setup gets no secret, and all that git ignores is kept"
_IGNORE_RULES = ("**/.gitignore",)
FIRST_WAIT, LONGEST_WAIT = 60.0, 3600.0
"""Seconds until a renewal that failed is tried again: the first one, doubled with each failure up to the longest."""


class FilesDigest(Protocol):
    """A digest of the files of a repository that a sandbox would start from."""

    async def __call__(
        self, path: str, branch: str | None, patterns: tuple[str, ...], *, required: bool = True
    ) -> str:
        """Raises InvalidInput where none matches and some are `required`."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a setup is for: the request that asks for it, its base, and the digests of its steps' files."""

    tenant: TenantId
    request: CreateRequest
    setup: Setup
    base: Template
    digests: tuple[str, ...]

    @property
    def name(self) -> str:
        """Of the template that it becomes: one for each repository and base."""
        told = f"{self.request.repo}\0{self.request.workdir}\0{self.base.name}"
        return f"setup-{self.setup.name[:40].rstrip('-')}-{hashlib.sha256(told.encode()).hexdigest()[:8]}"


@dataclass(frozen=True, slots=True)
class _Failure:
    """How often a step of a renewal has failed in a row, last `at` a steady time, and why."""

    times: int
    at: float
    why: str

    @property
    def until(self) -> float:
        return self.at + min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** min(self.times - 1, 10))

    def told(self, now: float) -> str:
        times = "once" if self.times == 1 else f"{self.times} times"
        wait = max(1, math.ceil((self.until - now) / 60))
        return f"a new one failed {times}, and is tried again in {wait} min at the earliest: {self.why}"


class Projects:
    """The setups of all tenants' repositories."""

    def __init__(
        self,
        *,
        layers: Layers,
        templates: Templates,
        sandboxes: Callable[[], Sandboxes],
        processes: Processes,
        driver: Driver,
        leaks: LeakCheck,
        tasks: TaskOwner,
        digest: FilesDigest,
        strip: Strip,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._layers = layers
        self._templates = templates
        self._sandboxes = sandboxes
        self._processes = processes
        self._driver = driver
        self._leaks = leaks
        self._tasks = tasks
        self._digest = digest
        self._strip = strip
        self._locks: dict[tuple[TenantId, str], asyncio.Lock] = {}
        self._steady = steady
        self._renewing: set[tuple[TenantId, str]] = set()
        self._failures: dict[str, _Failure] = {}
        """Of renewals, by the key of the step: other text or other files are tried at once."""

    async def complete(self, tenant: TenantId, request: CreateRequest) -> CreateRequest:
        """The request with the template of its repository's setup, which is done now where that is needed.

        Raises CommandFailed where a step fails.
        """
        setup = request.setup
        if setup is None:
            return request
        plan = await self._plan(tenant, request, setup)
        layers = await self._known(plan)
        if layers is None:
            former = await self._former(plan) if setup.serve_stale else None
            if former is not None:
                _tell(request, f"starting from the setup as it was; {await self._renew(plan)}")
                return replace(request, template=former.id, setup=None)
            template = await self._make(plan, request.progress)
        else:
            template = await self._publish(plan, layers)
        return replace(request, template=template.id, setup=None)

    # -- parts ------------------------------------------------------------------------------------------------------

    async def _plan(self, tenant: TenantId, request: CreateRequest, setup: Setup) -> _Plan:
        setup.checked()
        egress_policy(setup.allow)
        if request.repo is None or "://" in request.repo:
            raise InvalidInput(
                "a setup is of a repository on this host", "give the path of a clone: --repo PATH"
            )
        base = await self._templates.resolve(tenant, request.template, request.agent, request.progress)
        repo, branch = request.repo, request.branch
        # They decide what is kept.
        rules = await self._digest(repo, branch, _IGNORE_RULES, required=False)
        digests = [
            f"{rules} {await self._digest(repo, branch, step.files)}" if step.files else rules
            for step in setup.steps
        ]
        return _Plan(tenant, request, setup, base, tuple(digests))

    def _key(self, plan: _Plan, number: int, below: tuple[LayerDigest, ...]) -> str:
        step, request = plan.setup.steps[number], plan.request
        parts = (
            step.run,
            step.user,
            plan.digests[number],
            request.workdir,
            request.user,
            sorted(request.env.items()),
        )
        return layer_key(plan.tenant, below, (), "setup", *parts)

    async def _known(self, plan: _Plan) -> tuple[LayerDigest, ...] | None:
        """The layers of the whole setup, if all are known."""
        layers, missing = await self._reached(plan)
        return layers if missing is None else None

    async def _reached(self, plan: _Plan) -> tuple[tuple[LayerDigest, ...], str | None]:
        """The layers that are known, and the key of the first step that is not."""
        layers = plan.base.layers
        for number in range(len(plan.setup.steps)):
            key = self._key(plan, number, layers)
            layer = await self._layers.known(key)
            if layer is None:
                return layers, key
            layers = (*layers, layer)
        return layers, None

    async def _former(self, plan: _Plan) -> Template | None:
        try:
            return await self._templates.get(plan.tenant, plan.name)
        except NotFound:
            return None

    async def _publish(self, plan: _Plan, layers: tuple[LayerDigest, ...]) -> Template:
        await self._check(plan, layers[len(plan.base.layers) :])
        return await self._templates.publish(
            plan.tenant, (plan.name,), layers, plan.base.config, source=f"setup:{plan.request.repo}"[:200]
        )

    async def _check(self, plan: _Plan, layers: Sequence[LayerDigest]) -> None:
        await self._leaks.check_steps(plan.tenant, layers, {}, _HINT)

    async def _make(self, plan: _Plan, progress: Progress | None) -> Template:
        """Do the steps that are not known. Of several that want the same, one does it."""
        key = (plan.tenant, plan.name)
        async with self._locks.setdefault(key, asyncio.Lock()), self._templates.holding_layers():
            layers = plan.base.layers
            for number, step in enumerate(plan.setup.steps):
                step_key = self._key(plan, number, layers)
                layer = await self._layers.known(step_key)
                if layer is None:
                    if progress is not None:
                        progress(f"setup {number + 1}/{len(plan.setup.steps)}: {_shown(step)}")
                    layer = await self._do(plan, step, layers, progress)
                    await self._check(plan, (layer,))
                    await self._layers.remember(step_key, layer)
                layers = (*layers, layer)
            return await self._publish(plan, layers)

    async def _renew(self, plan: _Plan) -> str:
        """Have the setup done in the background, unless its next step failed a short while ago; what to say of that."""
        _, step = await self._reached(plan)
        key, failure = (plan.tenant, plan.name), self._failures.get(step or "")
        if key not in self._renewing:
            if failure is not None and (now := self._steady()) < failure.until:
                return failure.told(now)
            self._renewing.add(key)
            self._tasks.start(self._make_quietly(plan), name=f"setup-{plan.name}")
        return "a new one is being made"

    async def _make_quietly(self, plan: _Plan) -> None:
        try:
            await self._make(plan, None)
        except CorralError as error:
            log.warning("the setup of %s failed, and the former one goes on: %s", plan.request.repo, error)
            await self._note_failure(plan, error)
        finally:
            self._renewing.discard((plan.tenant, plan.name))

    async def _note_failure(self, plan: _Plan, error: CorralError) -> None:
        _, step = await self._reached(plan)
        if step is None:
            return
        now, former = self._steady(), self._failures.get(step)
        # What nobody has tried for long is forgotten: there is one for each state of each repository's files.
        self._failures = {
            key: failure
            for key, failure in self._failures.items()
            if now < failure.until + LONGEST_WAIT and key != step
        }
        why = " ".join(error.message.split())[:200]
        self._failures[step] = _Failure(former.times + 1 if former else 1, now, why)

    async def _do(
        self, plan: _Plan, step: SetupStep, layers: tuple[LayerDigest, ...], progress: Progress | None
    ) -> LayerDigest:
        sandboxes = self._sandboxes()
        config = replace(plan.base.config, start_command=(), ready_command=())
        async with self._templates.hidden(plan.tenant, layers, config) as template:
            sandbox = await sandboxes.create(plan.tenant, _request(plan, template))
            try:
                await self._run(sandbox, step, progress)
                left_out = await self._strip(sandbox)
                if left_out and progress is not None:
                    progress(
                        f"note: not kept, since git does not ignore it: {', '.join(left_out)[:200]} (.gitignore decides)"
                    )
                await sandboxes.stop(plan.tenant, sandbox.id, 5.0)
                return await self._driver.commit(sandbox.id)
            finally:
                await asyncio.shield(sandboxes.remove(plan.tenant, sandbox.id))

    async def _run(self, sandbox: Sandbox, step: SetupStep, progress: Progress | None) -> None:
        request = StartRequest(
            ("/bin/sh", "-ec", step.run), step.user or None, timeout=STEP_SECONDS, tag=OWN_TAG
        )
        info = await self._processes.start(sandbox.spec.tenant, sandbox.id, request)
        lines = CommandLines(lambda text: progress(f"  {text}") if progress is not None else None)
        async for item in self._processes.output(sandbox.spec.tenant, sandbox.id, info.id):
            match item:
                case Chunk(data=data):
                    lines.feed(data)
                case Ended(exit=exit):
                    lines.end()
                    check_exit(request, exit, last=lines.last)


def _request(plan: _Plan, template: Template) -> CreateRequest:
    """A sandbox as the one to come will be, but for what only that one needs."""
    asked = plan.request
    return CreateRequest(
        template=template.id,
        isolation=asked.isolation,
        runtime=asked.runtime,
        limits=asked.limits,
        env=asked.env,
        labels={"corral/setup": plan.setup.name},
        user=asked.user,
        workdir=asked.workdir,
        allow=plan.setup.allow,
        secrets=(),
        repo=asked.repo,
        branch=asked.branch,
        attributes={BUILD: plan.name},
        progress=None,
    )


def _shown(step: SetupStep) -> str:
    return step.run.strip().split("\n", 1)[0][:100]


def _tell(request: CreateRequest, line: str) -> None:
    if request.progress is not None:
        request.progress(line)

"""After a time without a daemon: what a crash left between an intent and its outcome is finished or undone, from the state in
the store and what the kernel shows; what runs is taken up again.
"""

import logging

from corral.engine.hooks import Hooks
from corral.engine.ports import Driver, DriverStatus
from corral.engine.registry import Registry
from corral.engine.running import Running, own_image
from corral.engine.suspension import Suspension
from corral.engine.templates import Templates
from corral.errors import CorralError
from corral.model.lifecycle import State
from corral.model.sandbox import Sandbox

log = logging.getLogger(__name__)

BUILD = "build"
"""Attribute of a sandbox that is a step of a template's build, and goes with it."""


class Recovery:
    """Used once, before anything else is."""

    def __init__(
        self,
        *,
        driver: Driver,
        templates: Templates,
        registry: Registry,
        hooks: Hooks,
        running: Running,
        suspension: Suspension,
    ) -> None:
        self._driver = driver
        self._templates = templates
        self._registry = registry
        self._hooks = hooks
        self._running = running
        self._suspension = suspension

    async def recover(self) -> None:
        """Bring store and kernel to agreement: finish or undo what was cut, re-adopt what runs, sweep what nobody owns."""
        await self._registry.load()
        for sandbox in self._registry.all():
            async with self._registry.lock(sandbox.id):
                try:
                    await self._recover_one(sandbox)
                    # A stop that was cut and did not come to pass leaves the end of its life as it was.
                    await self._registry.set_rests(sandbox.id, rests=False)
                except CorralError as error:
                    log.error("sandbox %s could not be recovered: %s", sandbox.spec.name, error)
        owned = {sandbox.id for sandbox in self._registry.all()}
        for orphan in await self._driver.known() - owned:
            log.warning("removing %s, which no sandbox owns", orphan)
            await self._driver.remove(orphan)
        await self._driver.tidy_files()
        await self._templates.prune()

    async def _recover_one(self, sandbox: Sandbox) -> None:
        if BUILD in sandbox.spec.attributes:  # nobody is there any more to go on with it
            await self._running.discard(sandbox.id)
            return
        match sandbox.state:
            case State.CREATING | State.REMOVING:
                await self._running.discard(sandbox.id)
            case State.STARTING:
                await self._running.failed_start(sandbox.id, "the daemon ended while it started")
            case State.RUNNING | State.PAUSED:
                await self._readopt(sandbox)
            case State.SUSPENDING:
                await self._recover_suspending(sandbox)
            case State.RESUMING:
                await self._recover_resuming(sandbox)
            case State.STOPPED | State.FAILED | State.GONE | State.SUSPENDED:
                await self._driver.stop(sandbox.id, 0)

    async def _recover_suspending(self, sandbox: Sandbox) -> None:
        """With a whole image and nothing that runs on, it is suspended; else it goes on running, if it does."""
        status = await self._driver.status(sandbox.id)
        if own_image(sandbox.id) in await self._driver.images() and status is not DriverStatus.RUNNING:
            await self._suspension.finish_suspend(sandbox.id)
        elif status in (DriverStatus.RUNNING, DriverStatus.PAUSED):
            await self._readopt(
                await self._registry.correct(sandbox.id, State.RUNNING, "not suspended: the daemon ended")
            )
        else:
            await self._driver.stop(sandbox.id, 0)
            await self._registry.correct(sandbox.id, State.STOPPED, "it ended while the daemon was down")

    async def _recover_resuming(self, sandbox: Sandbox) -> None:
        """What the runtime brought up meanwhile has gone on from the image, and counts."""
        if await self._driver.status(sandbox.id) is DriverStatus.RUNNING:
            await self._readopt(
                await self._registry.correct(sandbox.id, State.RUNNING, "resumed while the daemon was down")
            )
        else:
            await self._suspension.failed_wake(sandbox.id, "the daemon ended while it was resumed")

    async def _readopt(self, sandbox: Sandbox) -> None:
        status = await self._driver.status(sandbox.id)
        if sandbox.spec.spare and status is not DriverStatus.RUNNING:
            await self._running.discard(sandbox.id)
            return
        if status in (DriverStatus.STOPPED, DriverStatus.ABSENT):
            await self._driver.stop(sandbox.id, 0)
            await self._registry.correct(sandbox.id, State.STOPPED, "it ended while the daemon was down")
            return
        self._running.supervise(sandbox.id)  # first: whatever fails below, its end is noticed
        await self._running.attach(sandbox.spec)
        if status is DriverStatus.PAUSED and sandbox.state is State.RUNNING:
            await self._driver.resume(sandbox.id)  # frozen by a pause or a checkpoint that was cut: undone
        if status is DriverStatus.RUNNING and sandbox.state is State.PAUSED:
            sandbox = await self._registry.correct(
                sandbox.id, State.RUNNING, "as found after a restart of the daemon"
            )
        await self._hooks.on_running(sandbox)

"""The memory of sandboxes as files: suspended and woken, captured for checkpoints and forks, and removed when nothing will
go on from it.
"""

import asyncio
import contextlib
import secrets as randomness
from collections.abc import Callable
from dataclasses import dataclass

from corral.engine.activity import Activity
from corral.engine.admission import Admission
from corral.engine.hooks import Hooks
from corral.engine.ports import Driver, Gateway, Saved, Store
from corral.engine.registry import WITH_IMAGE, Registry
from corral.engine.running import Running, own_image
from corral.engine.templates import Templates
from corral.errors import Conflict, Unsupported
from corral.model.grants import Grant
from corral.model.ids import ImageId, LayerDigest, SandboxId, TenantId
from corral.model.lifecycle import Event, State
from corral.model.sandbox import Sandbox
from corral.model.template import Template


@dataclass(frozen=True, slots=True)
class Captured:
    """What was in a sandbox at one moment: its changes as a layer, and its memory, of `size` bytes, if asked for."""

    layer: LayerDigest
    image: ImageId | None
    size: int


class Suspension:
    """Who calls it holds the sandbox's lock, where not said otherwise."""

    def __init__(
        self,
        *,
        store: Store,
        driver: Driver,
        gateway: Gateway,
        templates: Templates,
        registry: Registry,
        admission: Admission,
        activity: Activity,
        hooks: Hooks,
        running: Running,
    ) -> None:
        self._store = store
        self._driver = driver
        self._gateway = gateway
        self._templates = templates
        self._registry = registry
        self._admission = admission
        self._activity = activity
        self._hooks = hooks
        self._running = running
        self._saving: set[ImageId] = set()  # of which no template is in the store yet

    async def suspend(self, tenant: TenantId, ref: str, reason: str, only_if: Callable[[], bool]) -> Sandbox:
        """Write its memory to disk, and free all that it holds of the host but the disk. Raises Unsupported."""
        async with self._registry.locked(tenant, ref) as sandbox:
            if not only_if():
                return sandbox
            if not self._driver.saves_memory(sandbox.spec.runtime):
                raise Unsupported(
                    f"the runtime {sandbox.spec.runtime} cannot save memory",
                    "pause it without --memory: it uses no CPU then; sandboxes of isolation gvisor can be suspended",
                )
            await self._registry.advance(sandbox.id, Event.SUSPEND)
            try:
                await self._driver.hold(sandbox.id)
                await self._driver.save(
                    sandbox.id, own_image(sandbox.id), await self._running.token(sandbox.id), own=True
                )
            except BaseException as error:
                await asyncio.shield(self._undo_suspend(sandbox, str(error)))
                raise
            return await asyncio.shield(self.finish_suspend(sandbox.id, reason))

    async def _undo_suspend(self, sandbox: Sandbox, reason: str) -> None:
        with contextlib.suppress(Conflict):  # it has ended
            await self._driver.resume(sandbox.id)
        await self._driver.remove_image(own_image(sandbox.id))
        running = await self._registry.advance(sandbox.id, Event.FAIL, reason)
        await self._hooks.on_running(running)

    async def finish_suspend(self, sandbox: SandboxId, reason: str = "") -> Sandbox:
        """What is in its image is to be all there is of it."""
        await self._let_go(sandbox)
        suspended = await self._registry.advance(sandbox, Event.SUSPENDED, reason)
        self._admission.changed()
        return suspended

    async def wake(self, sandbox: Sandbox) -> Sandbox:
        """Let a suspended sandbox go on."""
        async with self._running.place_again(sandbox):
            await self._registry.advance(sandbox.id, Event.RESUME)
            try:
                saved = Saved(own_image(sandbox.id), await self._running.token(sandbox.id))
                template = await self._store.template(sandbox.spec.template)
                await self._running.bring_up(sandbox.spec, template, saved=saved)
            except BaseException as error:
                await asyncio.shield(self.failed_wake(sandbox.id, str(error)))
                raise
            await self._registry.add_pause(sandbox.id, since=sandbox.changed_at)
            woken = await self._registry.advance(sandbox.id, Event.STARTED)
        self._running.supervise(sandbox.id)
        self._activity.touch(sandbox.id)
        await self._driver.remove_image(own_image(sandbox.id))
        return woken

    async def failed_wake(self, sandbox: SandboxId, reason: str) -> None:
        """It did not wake: stopped, with the reason."""
        await self._let_go(sandbox)
        await self._registry.advance(sandbox, Event.FAIL, reason)

    async def _let_go(self, sandbox: SandboxId) -> None:
        """Its processes, if there are any, are killed where they stand; they go on from an image, or not at all."""
        self._running.abandon_wait(sandbox)
        await self._hooks.on_leave(sandbox)
        await self._driver.stop(sandbox, 0)
        await self._gateway.detach(sandbox)

    async def saved_of(self, template: Template, grant: Grant) -> Saved | None:
        """The memory that sandboxes of a template go on from, with the token that this one is to hold."""
        if template.memory is None:
            return None
        return Saved(template.memory.image, await self._store.derive_token(grant.id))

    async def capture(self, sandbox: Sandbox, *, memory: bool) -> Captured:
        """What is in a sandbox at one moment, as a layer and, with `memory`, an image. It stands still for that moment
        only. The caller holds its lock, and layers. Raises Conflict, Unsupported, DiskFull."""
        if sandbox.state not in (
            State.RUNNING,
            State.PAUSED,
            *(() if memory else (State.STOPPED, State.SUSPENDED)),
        ):
            raise Conflict(
                f"cannot checkpoint {'the memory of ' if memory else ''}a sandbox that is {sandbox.state}",
                "wait until it is running",
            )
        image, size = None, 0
        try:
            if memory:
                image = ImageId(randomness.token_hex(8))
                self._saving.add(image)
                await self._driver.hold(sandbox.id)
                size = await self._driver.save(
                    sandbox.id, image, await self._running.token(sandbox.id), own=False
                )
            elif sandbox.state is State.RUNNING:
                await self._driver.pause(sandbox.id)
            return Captured(await self._driver.commit(sandbox.id), image, size)
        except BaseException:
            if image is not None:
                await asyncio.shield(self.release_image(image))
            raise
        finally:
            if sandbox.state is State.RUNNING or memory:
                await asyncio.shield(self._driver.resume(sandbox.id))
            if sandbox.state is State.PAUSED and memory:
                await self._driver.pause(sandbox.id)

    async def release_image(self, image: ImageId) -> None:
        """An image that was captured is used by a template now, or by nobody."""
        self._saving.discard(image)
        await self.sweep_images()

    async def sweep_images(self) -> None:
        """Remove images that nothing will go on from."""
        kept = {own_image(s.id) for s in self._registry.all() if s.state in WITH_IMAGE}
        kept |= self._saving | await self._templates.images()
        for image in await self._driver.images() - kept:
            await self._driver.remove_image(image)

"""Looks after sandboxes that nobody uses, and after the host: the one loop that pauses and stops without being asked.

Each second it asks the host for its free memory and disk, which costs a tenth of a millisecond. Sandboxes are looked at as
rarely as their policies allow, once a minute at most; those without a policy too, so that under pressure it is known who has
been idle. Whatever is done is told: as the sandbox's reason, as an event, in the audit log.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from corral.engine.activity import Activity
from corral.engine.admission import Admission
from corral.engine.ports import Driver, Machine, Store
from corral.engine.processes import Processes
from corral.engine.registry import Registry
from corral.engine.sandboxes import Sandboxes
from corral.errors import CorralError
from corral.model.capacity import Resource, Room, Rules
from corral.model.ids import SandboxId
from corral.model.lifecycle import State
from corral.model.sandbox import IdlePolicy, Sandbox
from corral.policy import idle as policy
from corral.policy.idle import Step, Vitals

log = logging.getLogger(__name__)

TICK_SECONDS = 1.0
NEAR_SECONDS = 0.1
"""Between two looks at a disk that is about to be full."""
NEAR_RESERVES = 4
GROWTH = 1024 * 1024
"""Bytes that a sandbox has written between two looks, to be called a writer."""
STOP_GRACE = 10.0


@dataclass(frozen=True, slots=True)
class Pressure:
    """The operator's setting: what is done to a sandbox that has been idle for `idle` seconds, while memory is short."""

    action: Step = Step.PAUSE
    idle: float = 600.0


@dataclass(slots=True)
class _Look:
    at: float
    vitals: Vitals


@dataclass(slots=True)
class Vigil:
    """Run `run` in the background. `idle` gives the host's policy for sandboxes without one of their own."""

    sandboxes: Sandboxes
    processes: Processes
    registry: Registry
    driver: Driver
    store: Store
    machine: Machine
    activity: Activity
    admission: Admission
    rules: Callable[[], Rules]
    idle: Callable[[], IdlePolicy]
    pressure: Callable[[], Pressure]
    now: Callable[[], float]
    _looks: dict[SandboxId, _Look] = field(default_factory=dict)
    _disk: dict[SandboxId, int] = field(default_factory=dict)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            room = self._disk_room(self.machine.room())
            await asyncio.sleep(NEAR_SECONDS if self._near(room) else TICK_SECONDS)
            try:
                await self.tick()
            except (CorralError, OSError) as error:
                log.error("the host could not be looked after: %s", error)

    async def tick(self) -> None:
        """One round."""
        room = self.machine.room()
        await self.driver.leave_free(policy.disk_floor(room, self.rules()))
        await self._watch_disk(self._disk_room(room))
        for sandbox in self.registry.all():
            if sandbox.spec.spare:
                continue  # waiting is its purpose; its pool looks after it
            self._look(sandbox)
            await self._follow_policy(sandbox)
        for gone in self._looks.keys() - {sandbox.id for sandbox in self.registry.all()}:
            del self._looks[gone]
        if policy.memory_pressed(room, self.rules(), self.machine.waiting_percent()):
            await self._relieve(room)

    def policy_of(self, sandbox: Sandbox) -> IdlePolicy:
        """Its own policy, completed by the host's."""
        own, host = sandbox.spec.idle, self.idle()
        return IdlePolicy(
            host.pause if own.pause is None else own.pause, host.stop if own.stop is None else own.stop
        )

    # -- idle sandboxes -------------------------------------------------------------------------------------------

    def _look(self, sandbox: Sandbox) -> None:
        """See whether it has done something since the last look."""
        if sandbox.state is not State.RUNNING:
            self._looks.pop(sandbox.id, None)
            return
        now, former = self.now(), self._looks.get(sandbox.id)
        if former is not None and now - former.at < policy.look_every(self.policy_of(sandbox)):
            return
        with contextlib.suppress(CorralError, OSError):
            cpu, net = self.driver.vitals(sandbox.id)
            vitals = Vitals(cpu, net, self.processes.written_by(sandbox.id))
            if former is not None and policy.is_active(former.vitals, vitals, now - former.at):
                self.activity.touch(sandbox.id)
            self._looks[sandbox.id] = _Look(now, vitals)

    async def _follow_policy(self, sandbox: Sandbox) -> None:
        idle = self.activity.idle(sandbox.id)
        step = policy.due(self.policy_of(sandbox), sandbox.state, idle)
        if step is not Step.NONE:
            await self._do(step, sandbox, policy.idle_reason(idle), idle)

    async def _relieve(self, room: Room) -> None:
        """One sandbox a round: its memory comes back before the next is looked for. Where one cannot rest, the next one does."""
        setting = self.pressure()
        for holding in policy.in_order_to_go(self.admission.holdings(), setting.action, setting.idle):
            sandbox = self.registry.get(SandboxId(holding.id))
            if sandbox is not None and not sandbox.spec.spare:
                reason = policy.pressure_reason(room, holding.idle)
                if await self._do(setting.action, sandbox, reason, holding.idle):
                    return

    async def _do(self, step: Step, sandbox: Sandbox, reason: str, idle: float) -> bool:
        """Unless somebody has used it while this waited for its lock; whether it was done."""

        def still_idle() -> bool:
            return self.activity.idle(sandbox.id) >= idle

        spec = sandbox.spec
        # What is written to disk gives its memory back; what is only frozen keeps it.
        memory = self.driver.saves_memory(spec.runtime)
        try:
            if step is Step.PAUSE:
                done = await self.sandboxes.pause(
                    spec.tenant, spec.id, memory=memory, reason=reason, only_if=still_idle
                )
            else:
                done = await self.sandboxes.stop(
                    spec.tenant, spec.id, STOP_GRACE, reason=reason, only_if=still_idle
                )
        except CorralError as error:
            log.warning("sandbox %s could not rest: %s", spec.name, error)
            return False
        if done.reason != reason:
            return False
        log.info("sandbox %s: %s: %s", spec.name, done.state, reason)
        await self.store.audit(
            spec.tenant, spec.id, f"sandbox.{done.state}", {"reason": reason, "by": "the host"}
        )
        return True

    # -- the disk -------------------------------------------------------------------------------------------------

    def _near(self, room: Room) -> bool:
        """Whether the disk could be full within a second."""
        rules = self.rules()
        return not policy.disk_relieved(room, rules.with_disk_reserve(NEAR_RESERVES))

    def _disk_room(self, room: Room) -> Room:
        """The host's room less what will be on its disk soon, whatever is paused until then."""
        left = max(room.free.get(Resource.DISK, 0.0) - self.machine.unwritten(), 0.0)
        return replace(room, free={**room.free, Resource.DISK: left})

    async def _watch_disk(self, room: Room) -> None:
        rules = self.rules()
        if policy.disk_relieved(room, rules):
            self._disk.clear()
            return await self._resume_writers()
        running = [sandbox.id for sandbox in self.registry.all() if sandbox.state is State.RUNNING]
        usage = await self.driver.written(running)
        if policy.disk_pressed(room, rules):
            for id, used in usage.items():
                if used - self._disk.get(id, used) >= GROWTH:
                    await self._pause_writer(id, policy.disk_reason(room))
        self._disk = usage
        return None

    async def _pause_writer(self, id: SandboxId, reason: str) -> None:
        sandbox = self.registry.get(id)
        if sandbox is None:
            return
        log.error("sandbox %s is paused: %s", sandbox.spec.name, reason)
        with contextlib.suppress(CorralError):
            await self.sandboxes.pause(sandbox.spec.tenant, id, reason=reason)
            await self.store.audit(
                sandbox.spec.tenant, id, "sandbox.paused", {"reason": reason, "by": "the host"}
            )

    async def _resume_writers(self) -> None:
        for sandbox in self.registry.all():
            if sandbox.state is State.PAUSED and sandbox.reason.startswith(policy.DISK_FULL):
                log.info("sandbox %s goes on: the disk has room again", sandbox.spec.name)
                with contextlib.suppress(CorralError):
                    await self.sandboxes.resume(sandbox.spec.tenant, sandbox.id)

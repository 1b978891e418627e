"""What others do at the turns of a sandbox's life, and what they add to what is decided about it."""

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from corral.engine.plan import CreateRequest
from corral.engine.ports import Progress
from corral.model.egress import EgressPolicy
from corral.model.ids import SandboxId, TenantId
from corral.model.sandbox import Sandbox, SandboxSpec
from corral.model.service import Service

Ready = Callable[[Sandbox], Coroutine[Any, Any, None]]


async def _nothing(_: Sandbox) -> None:
    """There is nothing to do."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """Each is called by the use case that holds the sandbox's lock."""

    on_running: Ready
    """It runs: open the session with its guest."""
    on_down: Callable[[SandboxId], Awaitable[None]]
    """Its processes have ended: close the session."""
    on_leave: Callable[[SandboxId], Awaitable[None]]
    """Its processes go on later: let go of the session."""
    on_claimed: Ready
    """It was a spare: tell the session what it is now."""
    on_up: Callable[[Sandbox, tuple[Service, ...], Progress | None], Awaitable[None]]
    """Start services in it."""
    provision: Callable[[Sandbox, CreateRequest], Awaitable[None]]
    """Fill a new one (agent, repository)."""
    complete: Callable[[TenantId, CreateRequest], Awaitable[CreateRequest]]
    """Check what a request names outside of the engine, and fill in its defaults."""
    on_demand: Callable[[SandboxSpec], None] = lambda _: None
    """Hears what is asked for, and of lost spares."""
    egress_of: Callable[[SandboxSpec], EgressPolicy] = lambda spec: spec.egress
    """Adds to its own policy what was allowed it since, and where its secrets go."""
    before_down: Callable[[Sandbox], Awaitable[object]] = _nothing
    """Look at it once more before its processes end."""

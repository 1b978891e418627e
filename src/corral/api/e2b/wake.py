"""Waking sandboxes: when a client connects, and when traffic comes for one that was made so."""

from corral.api.e2b import shapes
from corral.api.e2b.failures import Refusal, not_running, not_there
from corral.api.e2b.states import WITH_MEMORY
from corral.engine.engine import Engine
from corral.errors import Conflict, NotFound
from corral.model.lifecycle import State
from corral.model.sandbox import Sandbox
from corral.policy.idle import wakes_on_use

_ROUNDS = 3
_UNSETTLED = "The sandbox is still transitioning. Try again in a moment."
_LEAST_LIFE = 15
_UNKNOWN_LIFE = 300


def wakes_by_traffic(sandbox: Sandbox) -> bool:
    """Whether it does not run, and traffic for it lets it go on."""
    made_so = sandbox.spec.attributes.get(shapes.AUTO_RESUME) == "true"
    return sandbox.state in WITH_MEMORY and (made_so or wakes_on_use(sandbox.reason))


async def awake(engine: Engine, sandbox: Sandbox) -> Sandbox:
    """The sandbox, running: one that was made so, or was paused since nobody used it, is woken by traffic. The caller has
    seen that who sends it may. Raises Refusal."""
    if sandbox.state is State.RUNNING:
        return sandbox
    if not wakes_by_traffic(sandbox):
        if sandbox.state in (State.STARTING, State.RESUMING):
            raise Refusal(409, _UNSETTLED, sandboxId=sandbox.id)
        raise not_running(sandbox.id)
    seconds = None
    if not wakes_on_use(sandbox.reason):  # else the pause was the host's own, and changes nothing of its life
        seconds = max(int(sandbox.spec.attributes.get(shapes.TIMEOUT, _UNKNOWN_LIFE)), _LEAST_LIFE)
    return (await wake(engine, sandbox, seconds))[0]


async def wake(engine: Engine, sandbox: Sandbox, seconds: int | None) -> tuple[Sandbox, bool]:
    """The sandbox, running, and whether it was paused before. It ends in `seconds`; None leaves its end as it is. Who comes
    second finds it running. Raises Refusal."""
    tenant, name = sandbox.spec.tenant, sandbox.id
    for _ in range(_ROUNDS):
        try:
            if sandbox.state is State.RUNNING:
                return sandbox, False
            if sandbox.state is State.STARTING:  # by another request, which this one joins
                async with engine.sandboxes.locked(tenant, name) as sandbox:
                    continue
            if sandbox.state in WITH_MEMORY:
                woken = await engine.sandboxes.resume(tenant, name)
            elif sandbox.state is State.STOPPED:
                # With its end from the first moment on: the client may be gone before what it starts is ready.
                woken = await engine.sandboxes.start(tenant, name, ttl=seconds)
            else:
                raise Conflict(f"sandbox {name} is {sandbox.state}")
            if seconds is not None:
                woken = await engine.sandboxes.set_ttl(tenant, name, seconds)
            return woken, True
        except Conflict:
            # Somebody else was faster: look again.
            found = engine.sandboxes.by_id(name)
            if found is None or found.state in (State.REMOVING, State.GONE):
                raise Refusal(409, f'Sandbox "{name}" is being killed') from None
            sandbox = found
        except NotFound:
            raise not_there(name) from None
    raise Refusal(409, _UNSETTLED)

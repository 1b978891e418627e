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
_LEAST_LIFE = 15
_UNKNOWN_LIFE = 300


async def awake(engine: Engine, sandbox: Sandbox) -> Sandbox:
    """The sandbox, running: one that was made so is woken by traffic. Raises Refusal."""
    if sandbox.state is State.RUNNING:
        return sandbox
    noted = sandbox.spec.attributes
    idle = wakes_on_use(sandbox.reason)  # paused for nothing but that nobody used it
    if sandbox.state not in WITH_MEMORY or not (idle or noted.get(shapes.AUTO_RESUME) == "true"):
        raise not_running(sandbox.id)
    seconds = max(int(noted.get(shapes.TIMEOUT, _UNKNOWN_LIFE)), _LEAST_LIFE)
    return (await wake(engine, sandbox, seconds))[0]


async def wake(engine: Engine, sandbox: Sandbox, seconds: int) -> tuple[Sandbox, bool]:
    """The sandbox, running, and whether it was paused before. Who comes second finds it running. Raises Refusal."""
    tenant, name = sandbox.spec.tenant, sandbox.id
    for _ in range(_ROUNDS):
        try:
            if sandbox.state is State.RUNNING:
                return sandbox, False
            if sandbox.state in WITH_MEMORY:
                await engine.sandboxes.resume(tenant, name)
            elif sandbox.state is State.STOPPED:
                await engine.sandboxes.start(tenant, name)
            else:
                raise Conflict(f"sandbox {name} is {sandbox.state}")
            return await engine.sandboxes.set_ttl(tenant, name, seconds), True
        except Conflict:
            # Somebody else was faster: look again.
            found = engine.sandboxes.by_id(name)
            if found is None or found.state in (State.REMOVING, State.GONE):
                raise Refusal(409, f'Sandbox "{name}" is being killed') from None
            sandbox = found
        except NotFound:
            raise not_there(name) from None
    raise Refusal(409, f'Sandbox "{name}" is changing its state')

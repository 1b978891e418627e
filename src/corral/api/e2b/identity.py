"""What tells programs in a sandbox that they are in one, in which, and of what: variables, and files beside them."""

import logging
from collections.abc import Awaitable, Callable, Mapping

from corral.api.e2b.shapes import is_of_e2b, template_of
from corral.engine.hooks import Ready
from corral.errors import CorralError
from corral.model.lifecycle import State
from corral.model.sandbox import Sandbox, SandboxSpec

log = logging.getLogger(__name__)

DIRECTORY = "/run/e2b"


def variables_of(sandbox: Sandbox) -> dict[str, str]:
    """What tells a process that it is in a sandbox, in which, and of what."""
    return {
        "E2B_SANDBOX": "true",
        "E2B_SANDBOX_ID": sandbox.id,
        "E2B_TEMPLATE_ID": template_of(sandbox),
    }


def with_variables(
    environment: Callable[[Sandbox], Awaitable[dict[str, str]]],
) -> Callable[[Sandbox], Awaitable[dict[str, str]]]:
    """`environment`, and for what a client of E2B made those of `variables_of`.

    They are of the sandbox as it is, and in no spec: what is forked or made from it has its own.
    """

    async def whole(sandbox: Sandbox) -> dict[str, str]:
        return await environment(sandbox) | (variables_of(sandbox) if is_of_e2b(sandbox) else {})

    return whole


def with_files(
    ready: Ready, announce: Callable[[SandboxSpec, Mapping[str, bytes]], Awaitable[None]]
) -> Ready:
    """`ready`, and then for what a client of E2B made the same variables as files of `DIRECTORY`, for what was not started
    by Corral. They are memory's, as all of `/run` is: written at each start, and anew in what goes on from another's memory.
    """

    async def whole(sandbox: Sandbox) -> None:
        await ready(sandbox)
        if not is_of_e2b(sandbox) or sandbox.state is State.PAUSED:
            return
        said = {f"{DIRECTORY}/.{name}": value.encode() for name, value in variables_of(sandbox).items()}
        try:
            await announce(sandbox.spec, said)
        except CorralError as error:  # the guest's root may have done anything there, and runs on without
            log.info("sandbox %s has no files of E2B's: %s", sandbox.spec.name, error)

    return whole

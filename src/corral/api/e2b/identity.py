"""What tells programs in a sandbox that they are in one, in which, and of what: variables, and files beside them."""

import logging
from collections.abc import Awaitable, Callable

from corral.api.e2b.shapes import is_of_e2b, template_of
from corral.engine.hooks import Ready
from corral.engine.ports import GuestFiles
from corral.engine.tars import once
from corral.errors import CorralError
from corral.model.lifecycle import State
from corral.model.sandbox import Isolation, Sandbox, SandboxSpec

log = logging.getLogger(__name__)

DIRECTORY = "/run/e2b"
_ROOT = "0:0"


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


def with_files(ready: Ready, files_of: Callable[[SandboxSpec], GuestFiles]) -> Ready:
    """`ready`, and then for what a client of E2B made the same variables as files of `DIRECTORY`, for what was not started
    by Corral. They are memory's, as all of `/run` is: written at each start.

    Not where a sandbox has a kernel of its own, which hides `/run`: a process inside for each would take longer than all
    else of a create.
    """

    async def whole(sandbox: Sandbox) -> None:
        await ready(sandbox)
        seen = sandbox.spec.isolation is Isolation.CONTAINER and sandbox.state is not State.PAUSED
        if seen and is_of_e2b(sandbox):
            await _write(files_of(sandbox.spec), sandbox)

    return whole


async def _write(files: GuestFiles, sandbox: Sandbox) -> None:
    try:
        for name, value in variables_of(sandbox).items():
            await files.write(f"{DIRECTORY}/.{name}", once(value.encode()), _ROOT, 0o644)
    except CorralError as error:  # the guest's root may have done anything there, and runs on without
        log.info("sandbox %s has no files of E2B's: %s", sandbox.spec.name, error)

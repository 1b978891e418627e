"""Running a command in a sandbox through its runtime, apart from PID 1: for the files of gVisor's guests."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

from corral.drivers.execfiles import Run
from corral.errors import InternalError, first_of
from corral.host import process
from corral.model.ids import SandboxId
from corral.oci.runtime import Runtime

_SECONDS = 3600.0
_MAX_OUTPUT = 64 * 1024


def run_inside(runtime: Runtime, sandbox: SandboxId) -> Run:
    """A `Run` for a running sandbox. Only as its root, for that is what the runtime is told."""

    async def run(
        argv: Sequence[str], data: AsyncIterator[bytes] | None, user: str
    ) -> tuple[int, bytes, bytes]:
        if user != "0:0":
            raise InternalError(f"a runtime's exec was asked to run as {user}")
        async with process.stream(runtime.exec_command(sandbox, argv), timeout=_SECONDS) as child:
            try:
                async with asyncio.TaskGroup() as group:
                    output = group.create_task(_collect(child))
                    await _feed(child, data)
            except ExceptionGroup as failures:  # such as the refusal of what is uploaded
                raise first_of(failures) from None
            done = await child.wait()
        return done.exit_code, output.result(), done.stderr

    return run


async def _feed(child: process.Stream, data: AsyncIterator[bytes] | None) -> None:
    """All of the input; a program that stops reading says by its exit code why."""
    if data is not None:
        with contextlib.suppress(BrokenPipeError):
            async for chunk in data:
                await child.write(chunk)
    child.close_stdin()


async def _collect(child: process.Stream) -> bytes:
    kept = bytearray()
    async for chunk in child:
        kept += chunk[: _MAX_OUTPUT - len(kept)]
    return bytes(kept)

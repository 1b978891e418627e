"""Running commands in one sandbox, for use cases that are made of commands: cloning, diffing, installing."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from corral.engine.processes import Chunk, Ended, Processes, StartRequest
from corral.errors import Conflict, NotFound, Timeout, UpstreamFailed
from corral.model.ids import ProcessId, SandboxId, TenantId
from corral.model.process import OWN_TAG, Exit, Stream

OUTPUT_LIMIT = 4 * 1024 * 1024
FEED = 256 * 1024


class Shell:
    """Commands in one sandbox, as a user of it."""

    def __init__(self, processes: Processes, tenant: TenantId, sandbox: SandboxId, user: str) -> None:
        self._processes = processes
        self._tenant = tenant
        self._sandbox = sandbox
        self._user = user

    async def run(
        self,
        argv: tuple[str, ...],
        *,
        user: str | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        stdin: AsyncIterator[bytes] | None = None,
        timeout: float = 600.0,  # noqa: ASYNC109 - enforced inside the sandbox, which is killed for it
    ) -> tuple[int, bytes, bytes]:
        """Run to the end: exit code, stdout and stderr (the first 4 MiB of each). Raises Timeout."""
        request = StartRequest(
            tuple(argv),
            user or self._user,
            cwd,
            dict(env or {}),
            stdin=stdin is not None,
            timeout=timeout,
            tag=OWN_TAG,
        )
        if stdin is None:
            result = await self._processes.run(self._tenant, self._sandbox, request, OUTPUT_LIMIT)
            return self._checked(result.info.exit, timeout), result.stdout, result.stderr
        return await self._run_fed(request, stdin, timeout)

    async def stream_out(
        self,
        argv: tuple[str, ...],
        *,
        user: str | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout: float = 600.0,  # noqa: ASYNC109 - enforced inside the sandbox, which is killed for it
    ) -> AsyncIterator[bytes]:
        """Its stdout as it comes. Raises UpstreamFailed with the end of its stderr if it fails."""
        request = StartRequest(
            tuple(argv), user or self._user, cwd, dict(env or {}), timeout=timeout, tag=OWN_TAG
        )
        info = await self._processes.start(self._tenant, self._sandbox, request)
        errors = bytearray()
        finished = False
        try:
            async for item in self._processes.output(self._tenant, self._sandbox, info.id):
                match item:
                    case Chunk(stream=Stream.STDOUT, data=data):
                        yield data
                    case Chunk(data=data):
                        errors = (errors + data)[-4096:]
                    case Ended(exit=exit):
                        finished = True
                        if self._checked(exit, timeout) != 0:
                            raise UpstreamFailed(
                                f"{argv[0]} failed in the sandbox: {errors.decode(errors='replace').strip()[-500:]}"
                            )
        finally:
            if not finished:
                await self._processes.kill(self._tenant, self._sandbox, info.id)

    async def _run_fed(
        self,
        request: StartRequest,
        stdin: AsyncIterator[bytes],
        timeout: float,  # noqa: ASYNC109
    ) -> tuple[int, bytes, bytes]:
        info = await self._processes.start(self._tenant, self._sandbox, request)
        kept = {Stream.STDOUT: bytearray(), Stream.STDERR: bytearray()}
        exit: Exit | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                feeding = tasks.create_task(self._feed(info.id, stdin))
                async for item in self._processes.output(self._tenant, self._sandbox, info.id):
                    if isinstance(item, Ended):
                        exit = item.exit
                    else:
                        kept[item.stream] += item.data[: max(OUTPUT_LIMIT - len(kept[item.stream]), 0)]
                feeding.cancel()
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from failures
        finally:
            if exit is None:  # what is fed broke off: it would wait for the rest
                with contextlib.suppress(Conflict, NotFound):
                    await asyncio.shield(self._processes.end(self._tenant, self._sandbox, info.id))
        return self._checked(exit, timeout), bytes(kept[Stream.STDOUT]), bytes(kept[Stream.STDERR])

    async def _feed(self, process: ProcessId, stdin: AsyncIterator[bytes]) -> None:
        with contextlib.suppress(Conflict):  # it ended before it had read all: its exit code tells
            async for data in stdin:
                for start in range(0, len(data), FEED):
                    await self._processes.write_stdin(
                        self._tenant, self._sandbox, process, data[start : start + FEED]
                    )
            await self._processes.close_stdin(self._tenant, self._sandbox, process)

    @staticmethod
    def _checked(exit: Exit | None, timeout: float) -> int:
        if exit is None or exit.reason == "lost":
            raise UpstreamFailed("the sandbox ended while a command ran in it")
        if exit.reason == "timeout":
            raise Timeout(f"a command in the sandbox took longer than {timeout:g} seconds")
        return exit.code

"""Starting the programs that a sandbox is to start by itself, and waiting until they are ready."""

import asyncio

from corral.engine.ports import Progress
from corral.engine.processes import Chunk, Processes, StartRequest
from corral.errors import CommandFailed, CorralError, Timeout
from corral.model.ids import ProcessId
from corral.model.process import Stream
from corral.model.sandbox import Sandbox
from corral.model.service import Service

TAG = "service:"
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_SHOWN = 2000


class Services:
    """The services of sandboxes. They are processes like others: listed, followed and signalled as those are."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes

    async def start(self, sandbox: Sandbox, services: tuple[Service, ...], progress: Progress | None) -> None:
        """Start them in their order, each once the one before is ready.

        Raises CommandFailed for one that ended before it was ready, Timeout for one that was not ready in time, both with
        the end of what it wrote.
        """
        for service in services:
            if progress is not None:
                progress(f"starting {service.name}")
            await self._start(sandbox, service)

    async def _start(self, sandbox: Sandbox, service: Service) -> None:
        request = StartRequest(
            service.command,
            service.user or None,
            service.cwd or None,
            service.env,
            tag=f"{TAG}{service.name}",
        )
        info = await self._processes.start(sandbox.spec.tenant, sandbox.id, request)
        if not service.ready:
            return
        try:
            async with asyncio.timeout(service.patience):
                await self._wait(sandbox, service, info.id)
        except TimeoutError:
            raise Timeout(
                f"service {service.name} was not ready after {service.patience:g} seconds; "
                f"it wrote: {await self._written(sandbox, info.id)}",
                "see that its ready command can succeed, or give it more time",
            ) from None

    async def _wait(self, sandbox: Sandbox, service: Service, process: ProcessId) -> None:
        pause = _FIRST_PAUSE
        check = StartRequest(
            service.ready,
            service.user or None,
            service.cwd or None,
            service.env,
            timeout=min(service.attempt, service.patience),
            tag=f"{TAG}{service.name}:ready",
        )
        while True:
            done = await self._processes.run(sandbox.spec.tenant, sandbox.id, check, _SHOWN)
            if done.info.exit is not None and done.info.exit.code == 0:
                return
            exit = self._processes.get(sandbox.spec.tenant, sandbox.id, process).exit
            if exit is not None and exit.code != 0:
                raise CommandFailed(
                    f"service {service.name} ended with exit code {exit.code} before it was ready; "
                    f"it wrote: {await self._written(sandbox, process)}",
                    "see its command: what a template starts is shown by `corral template show`",
                )
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _written(self, sandbox: Sandbox, process: ProcessId) -> str:
        """The end of its output."""
        kept = b""
        try:
            written = self._processes.written(sandbox.spec.tenant, sandbox.id, process)
            offsets = {stream: max(0, written.get(stream, 0) - _SHOWN) for stream in Stream}
            async for item in self._processes.output(
                sandbox.spec.tenant, sandbox.id, process, offsets, follow=False
            ):
                if isinstance(item, Chunk):
                    kept = (kept + item.data)[-_SHOWN:]
        except CorralError:
            return "nothing that can be read"
        return kept.decode("utf-8", "replace").strip() or "nothing"

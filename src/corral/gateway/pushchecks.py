"""The engine's side of pushes: files that hold them, and their inspection. Each ends with its gateway process at the
latest, and what it had made is gone with it.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass

from corral.engine.ports import Inspector
from corral.errors import Conflict, CorralError, InternalError, NoCapacity, Timeout
from corral.gateway.channel import Channel
from corral.model.ids import SandboxId, TenantId
from corral.wire import link

_log = logging.getLogger(__name__)

MAX_OPEN = 64
"""Pushes of all sandboxes under way."""
MAX_OF_SANDBOX = 4
_CONCURRENT = 4


@dataclass(eq=False, slots=True)
class _Push:
    sandbox: SandboxId
    fd: int
    task: asyncio.Task[None] | None = None


class PushChecks:
    """Takes what gateway processes say of pushes."""

    def __init__(
        self,
        inspector: Callable[[], Inspector | None],
        tenant_of: Callable[[SandboxId], TenantId | None],
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._inspector = inspector
        self._tenant_of = tenant_of
        self._tasks = tasks
        self._turns = asyncio.Semaphore(_CONCURRENT)
        self._open: dict[tuple[Channel, int], _Push] = {}

    def take(self, channel: Channel, message: link.OpenSpool | link.Inspect | link.CloseSpool) -> None:
        """Something said by the process behind a channel."""
        key = (channel, message.number)
        try:
            match message:
                case link.OpenSpool():
                    push = self._make(key, message.sandbox)
                    channel.send(link.Spool(message.number), [push.fd])
                case link.Inspect():
                    self._start(key, message)
                case link.CloseSpool():
                    self._end(key)
        except CorralError as error:
            _fail(channel, message.number, error)

    def ended(self, channel: Channel) -> None:
        """The process behind a channel is gone."""
        for key in [key for key in self._open if key[0] is channel]:
            self._end(key)

    def close(self) -> None:
        """Give up all."""
        for key in list(self._open):
            self._end(key)

    def _make(self, key: tuple[Channel, int], sandbox: SandboxId) -> _Push:
        inspector = self._inspector()
        if inspector is None or self._tenant_of(sandbox) is None:
            raise Conflict("the sandbox is not served", "nothing is to be done")
        of_sandbox = sum(1 for one in self._open.values() if one.sandbox == sandbox)
        if key in self._open or len(self._open) >= MAX_OPEN or of_sandbox >= MAX_OF_SANDBOX:
            raise NoCapacity("too many pushes are under way", "push again when one of them is done")
        push = self._open[key] = _Push(sandbox, inspector.spool())
        return push

    def _start(self, key: tuple[Channel, int], message: link.Inspect) -> None:
        push = self._open.get(key)
        if push is None or push.task is not None:
            raise Conflict("there is no such push", "push again")
        push.task = self._tasks.create_task(self._inspect(key[0], message, push), name="inspection")

    def _end(self, key: tuple[Channel, int]) -> None:
        push = self._open.pop(key, None)
        if push is None:
            return
        if push.task is None or push.task.done():
            os.close(push.fd)
        else:
            push.task.add_done_callback(lambda _: os.close(push.fd))
            push.task.cancel()

    async def _inspect(self, channel: Channel, message: link.Inspect, push: _Push) -> None:
        tenant, inspector = self._tenant_of(push.sandbox), self._inspector()
        try:
            if tenant is None or inspector is None:
                raise Conflict("the sandbox is not served", "nothing is to be done")
            async with self._turns:
                found = await inspector.inspect(tenant, push.sandbox, message.push, push.fd)
        except TimeoutError:
            _fail(channel, message.number, Timeout("reading the push took too long", "push less at once"))
        except CorralError as error:
            _fail(channel, message.number, error)
        except Exception:  # noqa: BLE001 (a defect in one inspection must not end the link)
            _log.exception("the inspection of a push of sandbox %s failed", push.sandbox)
            _fail(channel, message.number, InternalError("the push could not be read"))
        else:
            channel.send(link.Inspected(message.number, found))


def _fail(channel: Channel, number: int, error: CorralError) -> None:
    channel.send(link.PushFailed(number, error.code, error.message, error.hint))

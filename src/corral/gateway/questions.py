"""The engine's side of questions that gateway processes ask for their sandboxes.

Each question is a task of its own, which ends with its answer, when it is withdrawn, or with its gateway process.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from corral.errors import CorralError
from corral.gateway.channel import Channel
from corral.model.approval import Answer, Question, bounded, refused
from corral.model.ids import SandboxId, TenantId
from corral.wire import link

_log = logging.getLogger(__name__)

MAX_OPEN = 4096
"""Questions of one gateway process under way; the engine lets each sandbox have a few only."""

Told = Callable[[str, int, int], None]
"""Told that a question waits: the approval's id, seconds until it is a no, and how many listen."""
OnAsk = Callable[[TenantId, SandboxId, Question, Told], Awaitable[Answer]]


async def refuse_all(_tenant: TenantId, _sandbox: SandboxId, _question: Question, _told: Told) -> Answer:
    """The answer where nobody can be asked."""
    return refused("nobody can be asked on this host")


class Questions:
    """Takes questions and sends answers."""

    def __init__(
        self, on_ask: OnAsk, tenant_of: Callable[[SandboxId], TenantId | None], tasks: asyncio.TaskGroup
    ) -> None:
        self._on_ask = on_ask
        self._tenant_of = tenant_of
        self._tasks = tasks
        self._open: dict[tuple[Channel, int], asyncio.Task[None]] = {}

    def take(self, channel: Channel, message: link.Ask | link.Withdraw) -> None:
        """Something said by the process behind a channel."""
        key = (channel, message.number)
        match message:
            case link.Withdraw():
                if (task := self._open.get(key)) is not None:
                    task.cancel()
            case link.Ask() if key in self._open or len(self._open) >= MAX_OPEN:
                self._answer(channel, message.number, refused("too many questions wait"))
            case link.Ask():
                task = self._tasks.create_task(self._ask(channel, message), name="question")
                self._open[key] = task
                task.add_done_callback(lambda _: self._open.pop(key, None))

    def ended(self, channel: Channel) -> None:
        """The process behind a channel is gone, and so are those who asked."""
        for (of, _), task in list(self._open.items()):
            if of is channel:
                task.cancel()

    def close(self) -> None:
        """Give up all questions."""
        for task in list(self._open.values()):
            task.cancel()

    async def _ask(self, channel: Channel, ask: link.Ask) -> None:
        tenant = self._tenant_of(ask.sandbox)
        if tenant is None:
            self._answer(channel, ask.number, refused("the sandbox is not served"))
            return
        asked = ask.question
        # What bounds the texts is not left to the process that reads hostile bytes.
        fields = {field.name: field.text for field in asked.detail}
        question = bounded(asked.kind, asked.summary, fields, asked.seconds)

        def told(approval: str, seconds: int, listeners: int) -> None:
            channel.send(link.Asked(ask.number, approval, seconds, listeners))

        try:
            answer = await self._on_ask(tenant, ask.sandbox, question, told)
        except CorralError as error:
            _log.error("a question of sandbox %s failed: %s", ask.sandbox, error)
            answer = refused(f"it could not be asked: {error.message}")
        except Exception:  # noqa: BLE001 (a defect in one question must not end the link)
            _log.exception("a question of sandbox %s failed", ask.sandbox)
            answer = refused("it could not be asked: a defect of Corral")
        self._answer(channel, ask.number, answer)

    def _answer(self, channel: Channel, number: int, answer: Answer) -> None:
        channel.send(link.Answered(number, answer))

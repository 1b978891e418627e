"""Questions to a person, asked by the gateway on behalf of a sandbox.

The engine keeps them, tells whoever listens, and answers. Whoever asks waits here; one who stops waiting (the guest's
connection is gone, the task is cancelled) withdraws the question, so that nobody is asked for what nobody wants.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from corral.gateway.channel import Channel
from corral.model.approval import Answer, Kind, bounded, refused
from corral.model.ids import SandboxId
from corral.wire import link

_GRACE = 30.0
"""Seconds beyond the deadline until the engine is taken to have forgotten."""

Told = Callable[[link.Asked], None]


@dataclass(eq=False, slots=True)
class _Waiting:
    answer: asyncio.Future[Answer]
    told: Told | None


class Desk:
    """Where the gateway's services ask."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._number = 0
        self._waiting: dict[int, _Waiting] = {}

    async def ask(
        self,
        sandbox: SandboxId,
        kind: Kind,
        summary: str,
        detail: Mapping[str, str],
        deadline_seconds: float,
        told: Told | None = None,
    ) -> Answer:
        """A person's answer; a no if nobody gives one in time. A yes has taken effect when it is returned.

        `summary` is one line, `detail` fields that say exactly what would happen; both may hold what the sandbox
        wrote, and are cut where they are too long. A field `standing` (`model.approval.STANDING`) names what a yes for
        this sandbox or for always would cover; an equal question is then answered without a person. `told` is called
        once the question waits for one, with the approval's id. Cancelling withdraws the question.
        """
        self._number += 1
        number = self._number
        question = bounded(kind, summary, detail, deadline_seconds)
        waiting = _Waiting(asyncio.get_running_loop().create_future(), told)
        self._waiting[number] = waiting
        self._channel.send(link.Ask(number, sandbox, question))
        answered = False
        try:
            async with asyncio.timeout(question.seconds + _GRACE):
                answer = await waiting.answer
            answered = True
        except TimeoutError:
            return refused("nobody answered in time")
        finally:
            del self._waiting[number]
            if not answered:
                self._channel.send(link.Withdraw(number))
        return answer

    def take(self, message: link.Asked | link.Answered) -> None:
        """The engine's word. That on a question which was withdrawn is late, and ignored."""
        waiting = self._waiting.get(message.number)
        if waiting is None or waiting.answer.done():
            return
        match message:
            case link.Asked():
                if waiting.told is not None:
                    waiting.told(message)
            case link.Answered():
                waiting.answer.set_result(message.answer)

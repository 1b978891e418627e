"""Money for model calls: set aside by the engine before a call is made, settled after it.

The engine keeps the ledger; here is only what waits for its answer. A usage record is money: it is kept until the
engine has acknowledged it. What is lost with this process the engine settles at its worst case.
"""

import asyncio
import contextlib
from dataclasses import dataclass

from corral.errors import NoCapacity, UpstreamFailed
from corral.gateway.channel import Channel
from corral.gateway.leases import Leases
from corral.model.budget import RateRefusal, Refusal
from corral.model.ids import SandboxId
from corral.model.usage import Usage
from corral.wire import link

ANSWER_SECONDS = 20.0

Answer = link.Reserved | link.Refused | link.Limited | link.Unreserved


@dataclass(frozen=True, slots=True)
class Request:
    """A call that is about to be made, and the most that it can cost."""

    sandbox: SandboxId
    amount: int
    secret: str
    provider: str
    model: str
    path: str


class Reservations:
    """Numbers calls, asks for their reservations, and settles them."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._number = 0
        self._asked: dict[int, asyncio.Future[Refusal | RateRefusal | None]] = {}
        self._kept: dict[int, link.UsageRecord] = {}
        self._empty = asyncio.Event()
        self._empty.set()
        self.leases = Leases(lambda lease: channel.send(link.Return(lease)))

    async def reserve(self, request: Request) -> int | Refusal | RateRefusal:
        """The call's number once its worst case is set aside, or why it is not. Raises CorralError if the ledger
        cannot be asked.
        """
        if lease := self.leases.draw(request.sandbox, request.amount):
            return self._say(request, lease, drawn=True)
        before = self.leases.given_back
        answer = await self._ask(request, self.leases.wanted(request.sandbox))
        if isinstance(answer, Refusal):
            # What is set aside for calls that nobody makes yet must not refuse one.
            self.leases.drop_all()
            if self.leases.given_back > before:
                return await self._ask(request, 0)
        return answer

    def _say(self, request: Request, lease: int, *, drawn: bool) -> int:
        self._number += 1
        self._channel.send(
            link.Reserve(
                self._number, request.sandbox, request.amount, request.secret, request.provider, request.model,
                request.path, lease, drawn,
            )
        )  # fmt: skip
        return self._number

    async def _ask(self, request: Request, lease: int) -> int | Refusal | RateRefusal:
        number = self._say(request, lease, drawn=False)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                refusal = await answer
        except TimeoutError:
            self.release(number)
            raise UpstreamFailed("the ledger does not answer", "try again") from None
        except asyncio.CancelledError:
            # The answer may be under way, or here already: whatever it says, nothing will be called.
            self.release(number)
            raise
        finally:
            del self._asked[number]
        return number if refusal is None else refusal

    def answered(self, message: Answer) -> None:
        """The engine's word on a call. That of one which nobody waits for any more was released before."""
        answer = self._asked.get(message.number)
        if answer is None or answer.done():
            return
        match message:
            case link.Reserved():
                answer.set_result(None)
            case link.Refused() | link.Limited():
                answer.set_result(message.refusal)
            case link.Unreserved():
                answer.set_exception(NoCapacity(message.message, "try again"))

    def release(self, number: int) -> None:
        """The call was not made."""
        self._channel.send(link.Release(number))

    def settle(self, number: int, usage: Usage) -> None:
        """The call is over."""
        record = link.UsageRecord(number, usage)
        self._kept[number] = record
        self._empty.clear()
        self._channel.send(record)

    def acknowledged(self, number: int) -> None:
        """The engine has the record of this call."""
        self._kept.pop(number, None)
        if not self._kept:
            self._empty.set()

    async def drained(self, seconds: float) -> None:
        """Wait until every record is acknowledged, the link has ended, or the time is over."""
        if self._channel.closed:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._empty.wait()

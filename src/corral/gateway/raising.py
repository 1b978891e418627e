"""A model call that its sandbox's budget does not cover waits while a person is asked for more money.

Only where the operator allows it: else the call is refused at once, and says how to ask. All calls that wait at a time
are one question, and one raise.
"""

from collections.abc import Callable

from corral.gateway.box import Box
from corral.gateway.desk import Desk
from corral.gateway.requests import Limits
from corral.gateway.reservations import Request, Reservations
from corral.model.approval import Kind
from corral.model.budget import RateRefusal, Refusal
from corral.model.usage import Usage
from corral.policy.budget import raise_for, with_answer
from corral.policy.money import dollars, usd_text

WAIT_SECONDS = 24 * 3600
"""As long as the host's settings let a question wait."""
_RAISES = 3


class Raising:
    """`Reservations` of one box, that asks for more where there is not enough."""

    def __init__(
        self, box: Box, reservations: Reservations, desk: Desk, limits: Callable[[], Limits]
    ) -> None:
        self._box = box
        self._reservations = reservations
        self._desk = desk
        self._limits = limits

    async def reserve(self, request: Request) -> int | Refusal | RateRefusal:
        """The call's number, or why it is not covered, and what a person said to that."""
        answer = await self._reservations.reserve(request)
        for _ in range(_RAISES):
            if not isinstance(answer, Refusal):
                return answer
            amount = raise_for(answer)
            if amount is None or not self._limits().asks_budget(self._box.tenant, self._box.name):
                return answer
            said = await self._ask(request, answer, amount)
            if said is not None:
                return with_answer(answer, said)
            answer = await self._reservations.reserve(request)
        return answer

    async def _ask(self, request: Request, refusal: Refusal, amount: int) -> str | None:
        """None after a yes, else what was answered."""
        reason = f"a call of {request.model} may cost up to {dollars(refusal.needed)}"
        answer = await self._desk.ask(
            self._box.id,
            Kind.BUDGET,
            f"spend {dollars(amount)} more on model calls: {reason}",
            {"usd": usd_text(amount), "reason": reason},
            WAIT_SECONDS,
        )
        return None if answer.allowed else answer.reason or "the answer was no"

    def release(self, number: int) -> None:
        """The call was not made."""
        self._reservations.release(number)

    def settle(self, number: int, usage: Usage) -> None:
        """The call is over."""
        self._reservations.settle(number, usage)

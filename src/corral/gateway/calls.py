"""The engine's calls to a gateway process: numbered, and waited for until they are answered or the link has ended."""

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from corral.errors import CorralError, InternalError, UpstreamFailed, all_errors
from corral.gateway.channel import Channel
from corral.model.ids import TenantId
from corral.wire import link
from corral.wire.forges import ForgeAnswer, ForgeCall

CALL_TIMEOUT = 30.0
_FORGE_TIMEOUT = 90.0


class LinkLostError(Exception):
    """The link ended before the answer came."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A call under way, and what answers it if it does not fail."""

    answer: asyncio.Future[Any]
    by: type[link.Done] | type[link.Forged]


class Calls:
    """Makes calls, and takes what answers them."""

    def __init__(self) -> None:
        self._seq = itertools.count(1)
        self._waiting: dict[int, _Waiting] = {}

    async def make(self, channel: Channel, order: link.Order, fds: Sequence[int] = ()) -> None:
        """Return once it has taken effect. Raises what the gateway answers, or LinkLostError."""
        try:
            await self._ask(channel, replace(order, seq=next(self._seq)), fds, CALL_TIMEOUT)
        except TimeoutError:
            raise UpstreamFailed("the gateway does not answer", "see `corral daemon logs`") from None

    async def forge(self, channel: Channel, tenant: TenantId, secret: str, call: ForgeCall) -> ForgeAnswer:
        """Call a forge's API with a tenant's secret. Raises what the gateway answers, and UpstreamFailed."""
        try:
            question = link.CallForge(next(self._seq), tenant, secret, call)
            answer: ForgeAnswer = await self._ask(channel, question, (), _FORGE_TIMEOUT)
        except LinkLostError:
            raise UpstreamFailed(
                "the gateway ended while it called the forge", "look whether it was done"
            ) from None
        except TimeoutError:
            raise UpstreamFailed("the gateway does not answer", "see `corral daemon logs`") from None
        return answer

    def answered(self, message: link.Done | link.Failed | link.Forged) -> bool:
        """Whether a call waits that this may answer; it has its answer then."""
        waiting = self._waiting.get(message.seq)
        if waiting is None or not isinstance(message, (waiting.by, link.Failed)):
            return False
        if not waiting.answer.done():
            match message:
                case link.Done():
                    waiting.answer.set_result(None)
                case link.Forged():
                    waiting.answer.set_result(message.answer)
                case link.Failed():
                    waiting.answer.set_exception(_error_of(message))
        return True

    def ended(self) -> None:
        """The link has ended: no call will be answered."""
        for waiting in self._waiting.values():
            if not waiting.answer.done():
                waiting.answer.set_exception(LinkLostError())

    async def _ask(
        self, channel: Channel, message: link.Order | link.CallForge, fds: Sequence[int], seconds: float
    ) -> Any:
        if channel.closed:
            raise LinkLostError
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        by = link.Forged if isinstance(message, link.CallForge) else link.Done
        self._waiting[message.seq] = _Waiting(answer, by)
        try:
            channel.send(message, fds)
            async with asyncio.timeout(seconds):
                return await answer
        finally:
            del self._waiting[message.seq]


def _error_of(failed: link.Failed) -> CorralError:
    return all_errors().get(failed.code, InternalError)(failed.message, failed.hint)

"""What gateway processes say about money, on its way to the ledger, and the ledger's answers on their way back.

Reservations and usage reach the ledger in the order in which they came, as many at a time as have come while the last
ones were written: one transaction serves all who wait for it. That a process has ended is said in the same order, so
what it settled before its end is settled as it said, and only the rest at its worst case.
"""

import asyncio
import contextlib
import logging
import secrets as randomness
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from corral.engine.ports import Ledger
from corral.errors import CorralError
from corral.gateway.channel import Channel
from corral.gateway.journal import Journals
from corral.model.budget import LedgerEntry, Outcome, RateRefusal, Refusal, Reservation, Return, Settlement
from corral.model.ids import SandboxId, TenantId
from corral.wire import link

_log = logging.getLogger(__name__)

RETRY_DELAY = 1.0
"""Seconds until what was not taken is offered again."""
_MAX_BATCH = 256
_GATHER_SECONDS = 0.004

Money = link.Reserve | link.UsageRecord | link.Release | link.Return


@dataclass(frozen=True, slots=True)
class _Item:
    """A message, or None for the end of its process; and the ledger's entry for it, if it is one."""

    channel: Channel
    message: Money | None
    entry: LedgerEntry | None = None

    @property
    def question(self) -> link.Reserve | None:
        """The message, if the process waits for its answer and makes no call without one."""
        match self.message:
            case link.Reserve(drawn=False) as question:
                return question
            case _:
                return None


class Accounts:
    """Takes what is said; `run` passes it on, until it is cancelled."""

    def __init__(
        self,
        ledger: Ledger,
        tenant_of: Callable[[SandboxId], TenantId | None],
        progress: Callable[[], None],
        journals: Journals | None,
    ) -> None:
        """`tenant_of` knows the sandboxes that are served; `progress` is called when something was passed on. Without
        journals there are no leases.
        """
        self._journals = journals
        self._progress = progress
        self._ledger = ledger
        self._tenant_of = tenant_of
        self._holders: dict[Channel, str] = {}
        self._queue: asyncio.Queue[_Item] = asyncio.Queue()

    @property
    def waiting(self) -> int:
        """Messages that are not passed on yet."""
        return self._queue.qsize()

    def begin(self, channel: Channel) -> int | None:
        """A process begins to speak: the descriptor of its journal, which the caller closes, if it can have one."""
        holder = self._holders[channel] = randomness.token_hex(8)
        if self._journals is None:
            return None
        try:
            return self._journals.create(holder)
        except OSError as error:
            _log.warning("model calls wait for the ledger each: no journal can be written: %s", error)
            return None

    def take(self, channel: Channel, message: Money) -> None:
        """Something said by the process behind a channel."""
        self._queue.put_nowait(_Item(channel, message, self._entry(self._holders[channel], message)))

    def ended(self, channel: Channel) -> None:
        """The process behind a channel says no more."""
        self._queue.put_nowait(_Item(channel, None))

    async def done(self) -> None:
        """Return when all that was taken is passed on."""
        await self._queue.join()

    async def run(self) -> None:
        """Pass on."""
        while True:
            batch = [await self._queue.get()]
            if _can_wait(batch[0]):
                await self._gather(batch)
            while len(batch) < _MAX_BATCH and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            try:
                await self._enter(batch)
            finally:
                for _ in batch:
                    self._queue.task_done()
            self._progress()

    async def _gather(self, batch: list[_Item]) -> None:
        """Let what nobody waits for wait a moment for the next question, so that one transaction does for both."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GATHER_SECONDS):
                while len(batch) < _MAX_BATCH and _can_wait(batch[-1]):
                    batch.append(await self._queue.get())

    def _entry(self, holder: str, message: Money) -> LedgerEntry | None:
        match message:
            case link.UsageRecord():
                return Settlement(holder, message.number, message.usage)
            case link.Release():
                return Settlement(holder, message.number, None)
            case link.Return():
                return Return(holder, message.lease)
            case link.Reserve():
                tenant = self._tenant_of(message.sandbox)
                if (tenant is None and not message.drawn) or message.amount < 0:
                    return None
                return Reservation(
                    # What is drawn on a lease is of the lease's tenant, also once its sandbox is gone.
                    holder, message.number, tenant or TenantId(""), message.sandbox, message.amount, datetime.now(UTC),
                    message.secret, message.provider, message.model, message.path,
                    message.lease if self._journals is not None else 0, message.drawn,
                )  # fmt: skip

    async def _enter(self, batch: Sequence[_Item]) -> None:
        for item in batch:
            if item.entry is None and (question := item.question) is not None:
                item.channel.send(link.Unreserved(question.number, "the sandbox is not served"))
        entries = [item for item in batch if item.entry is not None]
        if entries:
            await self._apply(entries)
        for item in batch:
            if item.message is None and (holder := self._holders.pop(item.channel, None)) is not None:
                drawn = None if self._journals is None else self._journals.drawn(holder)
                await until_taken(partial(self._ledger.abandon, holder, drawn))
                if self._journals is not None:
                    self._journals.remove(holder)

    async def _apply(self, items: Sequence[_Item]) -> None:
        try:
            outcomes = await self._ledger.apply([item.entry for item in items if item.entry is not None])
        except CorralError as error:
            _log.error("the ledger failed: %s", error)
            await self._keep_settlements(items, error)
            return
        for item, outcome in zip(items, outcomes, strict=True):
            _answer(item, outcome)

    async def _keep_settlements(self, items: Sequence[_Item], error: CorralError) -> None:
        """Where nothing can be set aside no call is made; what was drawn and spent is written once that is possible again."""
        for item in items:
            if (question := item.question) is not None:
                text = f"the ledger cannot be written: {error.message}"
                item.channel.send(link.Unreserved(question.number, text))
        kept = [item for item in items if item.question is None]
        entries = [item.entry for item in kept if item.entry is not None]
        if entries:
            await until_taken(partial(self._ledger.apply, entries))
        for item in kept:
            _answer(item, Outcome())


def _can_wait(item: _Item) -> bool:
    """Whether nobody waits for what becomes of it: what was used, drawn or given back."""
    return item.message is not None and item.question is None


def _answer(item: _Item, outcome: Outcome) -> None:
    if isinstance(item.message, link.Reserve) and outcome.leased:
        item.channel.send(link.Leased(item.message.lease, outcome.leased))
    refusal = outcome.refusal
    match item.message:
        case link.UsageRecord(number=number):
            item.channel.send(link.UsageAck(number))
        case link.Reserve(number=number) if isinstance(refusal, RateRefusal):
            item.channel.send(link.Limited(number, refusal))
        case link.Reserve(number=number) if isinstance(refusal, Refusal):
            item.channel.send(link.Refused(number, refusal))
        case link.Reserve(number=number, drawn=False):
            item.channel.send(link.Reserved(number))
        case _:
            return


async def until_taken(offer: Callable[[], Awaitable[object]]) -> None:
    """Offer something until it is taken without a CorralError."""
    while True:
        try:
            await offer()
        except CorralError as error:
            _log.error("a record of the gateway was not taken, trying again: %s", error)
            await asyncio.sleep(RETRY_DELAY)
        else:
            return

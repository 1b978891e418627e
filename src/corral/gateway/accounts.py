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
from corral.model.budget import RateRefusal, Refusal, Reservation, Settlement
from corral.model.ids import SandboxId, TenantId
from corral.wire import link

_log = logging.getLogger(__name__)

RETRY_DELAY = 1.0
"""Seconds until what was not taken is offered again."""
_MAX_BATCH = 256
_GATHER_SECONDS = 0.004

Money = link.Reserve | link.UsageRecord | link.Release


@dataclass(frozen=True, slots=True)
class _Item:
    """A message, or None for the end of its process; and the ledger's entry for it, if it is one."""

    channel: Channel
    message: Money | None
    entry: Reservation | Settlement | None = None


class Accounts:
    """Takes what is said; `run` passes it on, until it is cancelled."""

    def __init__(
        self,
        ledger: Ledger,
        tenant_of: Callable[[SandboxId], TenantId | None],
        progress: Callable[[], None],
    ) -> None:
        """`tenant_of` knows the sandboxes that are served; `progress` is called when something was passed on."""
        self._progress = progress
        self._ledger = ledger
        self._tenant_of = tenant_of
        self._holders: dict[Channel, str] = {}
        self._queue: asyncio.Queue[_Item] = asyncio.Queue()

    @property
    def waiting(self) -> int:
        """Messages that are not passed on yet."""
        return self._queue.qsize()

    def take(self, channel: Channel, message: Money) -> None:
        """Something said by the process behind a channel."""
        holder = self._holders.setdefault(channel, randomness.token_hex(8))
        self._queue.put_nowait(_Item(channel, message, self._entry(holder, message)))

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
            if isinstance(batch[0].message, link.UsageRecord):
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
        """Let what a call used wait a moment for the next reservation, so that one transaction does for both. Nobody waits
        for a settlement; a reservation waits for nobody.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GATHER_SECONDS):
                while len(batch) < _MAX_BATCH and isinstance(batch[-1].message, link.UsageRecord):
                    batch.append(await self._queue.get())

    def _entry(self, holder: str, message: Money) -> Reservation | Settlement | None:
        match message:
            case link.UsageRecord():
                return Settlement(holder, message.number, message.usage)
            case link.Release():
                return Settlement(holder, message.number, None)
            case link.Reserve():
                tenant = self._tenant_of(message.sandbox)
                if tenant is None or message.amount < 0:
                    return None
                return Reservation(
                    holder, message.number, tenant, message.sandbox, message.amount, datetime.now(UTC),
                    message.secret, message.provider, message.model, message.path,
                )  # fmt: skip

    async def _enter(self, batch: Sequence[_Item]) -> None:
        for item in batch:
            if isinstance(item.message, link.Reserve) and item.entry is None:
                item.channel.send(link.Unreserved(item.message.number, "the sandbox is not served"))
        entries = [item for item in batch if item.entry is not None]
        if entries:
            await self._apply(entries)
        for item in batch:
            if item.message is None and (holder := self._holders.pop(item.channel, None)) is not None:
                await until_taken(partial(self._ledger.abandon, holder))

    async def _apply(self, items: Sequence[_Item]) -> None:
        try:
            refusals = await self._ledger.apply([item.entry for item in items if item.entry is not None])
        except CorralError as error:
            _log.error("the ledger failed: %s", error)
            await self._keep_settlements(items, error)
            return
        for item, refusal in zip(items, refusals, strict=True):
            _answer(item, refusal)

    async def _keep_settlements(self, items: Sequence[_Item], error: CorralError) -> None:
        """Where nothing can be set aside no call is made; what was spent is written once that is possible again."""
        for item in items:
            if isinstance(item.message, link.Reserve):
                text = f"the ledger cannot be written: {error.message}"
                item.channel.send(link.Unreserved(item.message.number, text))
        settlements = [item for item in items if isinstance(item.entry, Settlement)]
        entries = [item.entry for item in settlements if item.entry is not None]
        if entries:
            await until_taken(partial(self._ledger.apply, entries))
        for item in settlements:
            _answer(item, None)


def _answer(item: _Item, refusal: Refusal | RateRefusal | None) -> None:
    match item.message:
        case link.UsageRecord(number=number):
            item.channel.send(link.UsageAck(number))
        case link.Reserve(number=number) if isinstance(refusal, RateRefusal):
            item.channel.send(link.Limited(number, refusal))
        case link.Reserve(number=number) if isinstance(refusal, Refusal):
            item.channel.send(link.Refused(number, refusal))
        case link.Reserve(number=number):
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

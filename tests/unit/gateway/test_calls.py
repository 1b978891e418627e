"""The engine's calls to a gateway, and what that may answer."""

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

from corral.errors import Conflict
from corral.gateway.calls import Calls, LinkLostError
from corral.gateway.channel import Channel
from corral.model.ids import TenantId
from corral.wire import link
from corral.wire.forges import ForgeAnswer, ForgeCall

PING = link.Ping(0)


class Sent:
    """A link that goes nowhere."""

    def __init__(self) -> None:
        self.closed = False
        self._messages: asyncio.Queue[int] = asyncio.Queue()

    def send(self, message: link.Ping | link.CallForge, fds: Sequence[int] = ()) -> None:
        self._messages.put_nowait(message.seq)

    async def seq(self) -> int:
        """The number of the next call."""
        return await self._messages.get()

    @property
    def channel(self) -> Channel:
        return cast(Channel, self)


async def test_only_what_answers_a_call_is_taken_for_its_answer() -> None:
    """A gateway that was taken over cannot pass one kind of answer off as another, nor answer what nobody asked."""
    sent, calls = Sent(), Calls()
    forged = ForgeAnswer(200, "")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(calls.make(sent.channel, PING))
        seq = await sent.seq()
        assert not calls.answered(link.Forged(seq, forged))
        assert not calls.answered(link.Done(seq + 1))
        assert calls.answered(link.Done(seq))
    assert not calls.answered(link.Done(seq))
    async with asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(
            calls.forge(sent.channel, TenantId("t"), "s", ForgeCall("GET", "https://f"))
        )
        seq = await sent.seq()
        assert not calls.answered(link.Done(seq))
        assert calls.answered(link.Forged(seq, forged))
    assert asked.result() == forged


async def test_a_call_ends_with_what_was_wrong_or_with_the_link() -> None:
    sent, calls = Sent(), Calls()

    async def refuse() -> None:
        failed = link.Failed(await sent.seq(), Conflict.code, "taken", "choose another")
        assert calls.answered(failed)

    async def cut() -> None:
        await sent.seq()
        calls.ended()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(refuse())
        with pytest.raises(Conflict, match="taken"):
            await calls.make(sent.channel, PING)
        tasks.create_task(cut())
        with pytest.raises(LinkLostError):
            await calls.make(sent.channel, PING)
    sent.closed = True
    with pytest.raises(LinkLostError):
        await calls.make(sent.channel, PING)

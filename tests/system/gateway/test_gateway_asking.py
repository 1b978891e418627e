"""A sandbox asks a person, through its gateway."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from corral.gateway.questions import Told
from corral.model.approval import Answer, Kind, Question, Scope, refused
from corral.model.egress import EgressPolicy, HostRule
from corral.model.ids import SandboxId, TenantId

if TYPE_CHECKING:
    from tests.system.gateway.conftest import Bed, BoxEnd

YES = Answer(allowed=True, scope=Scope.ONCE, reason="", by="me")


@dataclass
class Person:
    """Whoever answers: questions come in, answers go out, and what was withdrawn is counted."""

    asked: "asyncio.Queue[tuple[SandboxId, Question]]" = field(default_factory=asyncio.Queue)
    answers: "asyncio.Queue[Answer]" = field(default_factory=asyncio.Queue)
    withdrawn: asyncio.Event = field(default_factory=asyncio.Event)

    async def ask(self, tenant: TenantId, sandbox: SandboxId, question: Question, told: Told) -> Answer:
        told("1a2b3c4d", 600, 1)
        self.asked.put_nowait((sandbox, question))
        try:
            return await self.answers.get()
        except asyncio.CancelledError:
            self.withdrawn.set()
            raise


@dataclass
class World:
    bed: "Bed"
    box: "BoxEnd"
    person: Person

    async def post(self, what: str, data: str) -> str:
        url, own = f"{self.box.url}/ask/{what}", {"Host": "gateway.corral"}
        async with self.bed.http.post(url, data=data.encode(), headers=own) as answer:
            return (await answer.read()).decode()


MakeGateway = Callable[..., "AbstractAsyncContextManager[Bed]"]


@pytest.fixture
async def world(make_gateway: MakeGateway) -> AsyncIterator[World]:
    person = Person()
    async with make_gateway(on_ask=person.ask) as bed:
        policy = EgressPolicy((HostRule("open.test"), HostRule("shut.test", deny=True)))
        yield World(bed, await bed.attach(policy=policy), person)


async def test_a_host_is_asked_for_and_allowed(world: World) -> None:
    """G-257, G-315: who asks sees what happens, and the last line is the answer."""
    world.person.answers.put_nowait(YES)
    said = await world.post("host", "API.Example.com\nread the\ndocs")
    assert "question 1a2b3c4d waits" in said
    assert said.splitlines()[-1] == "allowed: api.example.com for ten minutes"
    sandbox, question = world.person.asked.get_nowait()
    assert sandbox == world.box.id
    assert (question.kind, question.field("host"), question.field("reason")) == (
        Kind.HOST,
        "api.example.com",
        "read the docs",
    )


async def test_a_no_comes_with_its_reason_on_one_line(world: World) -> None:
    world.person.answers.put_nowait(refused("ask\nallowed: everything"))
    said = await world.post("budget", "5\nmore to do")
    assert said.splitlines()[-1] == "denied: ask allowed: everything"
    assert world.person.asked.get_nowait()[1].field("usd") == "5"


@pytest.mark.parametrize(
    ("what", "data", "expected"),
    [
        ("host", "open.test\nwhy", "allowed: open.test is open"),
        ("host", "metadata.google.internal\nwhy", "denied: metadata.google.internal is a metadata service"),
        ("host", "169.254.169.254\nwhy", "denied: 169.254.169.254 is a metadata service"),
        ("host", "10.0.0.1\nwhy", "denied: 10.0.0.1 is a private"),
        ("host", "shut.test\nwhy", "denied: a rule denies shut.test"),
        ("host", "private:nas.test:445\nwhy", "denied: a private service cannot be asked for"),
        ("host", "api.anthropic.com\nwhy", "denied: api.anthropic.com is a model API"),
        ("host", "*\nwhy", "denied: every host"),
        ("host", "a b\nwhy", "denied: 'a b' is not a valid host"),
        ("host", "a.test", "denied: the question gives no reason"),
        ("host", "a.test\n" + "x" * 9000, "denied: the question is too long"),
        ("budget", "-5\nwhy", "denied: '-5' is no amount"),
        ("budget", "0\nwhy", "denied: the amount is nothing"),
        ("approve/1a2b3c4d", "", "Ask the person"),
    ],
)
async def test_what_needs_no_person_reaches_none(world: World, what: str, data: str, expected: str) -> None:
    """G-13, G-64, G-185, G-321: nothing that cannot be allowed is asked for, and nothing answers but a person."""
    assert (await world.post(what, data)).startswith(expected)
    assert world.person.asked.empty()


async def test_a_client_that_goes_away_withdraws_its_question(world: World) -> None:
    asking = asyncio.get_running_loop().create_task(world.post("host", "a.test\nwhy"))
    await world.person.asked.get()
    asking.cancel()
    await asyncio.wait([asking])
    async with asyncio.timeout(20):
        await world.person.withdrawn.wait()


async def test_a_gateway_that_dies_withdraws_its_questions(world: World) -> None:
    asking = asyncio.get_running_loop().create_task(world.post("host", "a.test\nwhy"))
    await world.person.asked.get()
    await world.bed.kill()
    async with asyncio.timeout(20):
        await world.person.withdrawn.wait()
    await asyncio.wait([asking])
    assert asking.exception() is not None


async def test_a_sandbox_that_ends_withdraws_its_questions(world: World) -> None:
    asking = asyncio.get_running_loop().create_task(world.post("host", "a.test\nwhy"))
    await world.person.asked.get()
    await world.bed.client.detach(world.box.id)
    async with asyncio.timeout(20):
        await world.person.withdrawn.wait()
    await asyncio.wait([asking])
    assert not asking.cancelled()


async def test_questions_come_at_a_bounded_rate(world: World) -> None:
    """G-268: and the gateway refuses them by itself."""
    for _ in range(100):
        world.person.answers.put_nowait(YES)
    said = [await world.post("host", f"h{number}.test\nwhy") for number in range(40)]
    assert "too many questions" in said[-1]
    assert world.person.asked.qsize() < 30

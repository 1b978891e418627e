"""Model calls that wait while a person is asked for more money."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

import pytest

from corral.gateway.questions import Told
from corral.model.approval import Answer, Question, Scope, refused
from corral.model.budget import Refusal, Window
from corral.model.budget import Scope as BudgetScope
from corral.model.ids import SandboxId, TenantId

if TYPE_CHECKING:
    from tests.system.gateway.conftest import Bed, BoxEnd

REQUEST = {
    "model": "claude-sonnet-4-5",
    "max_tokens": 1000,
    "messages": [{"role": "user", "content": "hi"}],
}
SHORT = Refusal(BudgetScope.SANDBOX, Window.TOTAL, 10_000_000, 9_990_000, 0, 30_000)
YES = Answer(allowed=True, scope=Scope.ONCE, reason="", by="me")


class Person:
    """Answers questions, and before a yes does what it is to bring about."""

    def __init__(self) -> None:
        self.asked: list[Question] = []
        self.answer = YES
        self.effect: Callable[[], None] = lambda: None

    async def ask(self, _tenant: TenantId, _sandbox: SandboxId, question: Question, _told: Told) -> Answer:
        self.asked.append(question)
        if self.answer.allowed:
            self.effect()
        return self.answer


@pytest.fixture
async def asked(
    make_gateway: Callable[..., "AbstractAsyncContextManager[Bed]"],
) -> AsyncIterator[tuple["Bed", "BoxEnd", Person]]:
    person = Person()
    async with make_gateway(on_ask=person.ask) as bed:
        bed.ledger.refusal = SHORT
        person.effect = lambda: setattr(bed.ledger, "refusal", None)
        yield bed, await bed.attach(), person


async def post(bed: "Bed", box: "BoxEnd") -> tuple[int, str]:
    headers = {"Host": "gateway.corral", "x-api-key": box.token, "Content-Type": "application/json"}
    url = f"{box.url}/s/anthropic/v1/messages"
    async with bed.http.post(url, data=json.dumps(REQUEST), headers=headers) as answer:
        return answer.status, await answer.text()


@pytest.mark.parametrize("whose", ["*", "default", "default/box-1"])
async def test_a_call_goes_on_once_there_is_more(asked: tuple["Bed", "BoxEnd", Person], whose: str) -> None:
    bed, box, person = asked
    await bed.client.set_config(asking=(whose,))
    assert (await post(bed, box))[0] == 200
    assert [question.field("usd") for question in person.asked] == ["3"]
    assert "claude-sonnet-4-5" in person.asked[0].field("reason")


async def test_a_no_is_a_refusal_that_says_what_was_answered(asked: tuple["Bed", "BoxEnd", Person]) -> None:
    """G-216."""
    bed, box, person = asked
    await bed.client.set_config(asking=("*",))
    person.answer = refused("finish with what you have")
    status, text = await post(bed, box)
    assert status == 402
    assert "finish with what you have" in text
    assert bed.upstream.seen == []


@pytest.mark.parametrize("whose", [(), ("other",), ("default/box-2",)])
async def test_without_leave_nothing_waits_and_the_refusal_says_how_to_ask(
    asked: tuple["Bed", "BoxEnd", Person], whose: tuple[str, ...]
) -> None:
    bed, box, person = asked
    await bed.client.set_config(asking=whose)
    status, text = await post(bed, box)
    assert (status, person.asked) == (402, [])
    assert "corral-ask budget" in text


@pytest.mark.parametrize(
    "refusal",
    [
        Refusal(BudgetScope.TENANT, Window.TOTAL, 10, 10, 0, 5),
        Refusal(BudgetScope.SANDBOX, Window.DAY, 10, 10, 0, 5),
        Refusal(BudgetScope.SANDBOX, Window.TOTAL, 100, 10, 90, 5),
    ],
)
async def test_what_more_for_the_sandbox_would_not_mend_is_not_asked_for(
    asked: tuple["Bed", "BoxEnd", Person], refusal: Refusal
) -> None:
    bed, box, person = asked
    await bed.client.set_config(asking=("*",))
    bed.ledger.refusal = refusal
    assert ((await post(bed, box))[0], person.asked) == (402, [])


async def test_calls_are_asked_for_the_same_so_that_one_answer_serves_all(
    asked: tuple["Bed", "BoxEnd", Person],
) -> None:
    bed, box, person = asked
    await bed.client.set_config(asking=("*",))
    async with asyncio.TaskGroup() as tasks:
        calls = [tasks.create_task(post(bed, box)) for _ in range(5)]
    assert {call.result()[0] for call in calls} == {200}
    assert len({question.field("usd") for question in person.asked}) == 1

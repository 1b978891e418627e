"""Budgets over a real gateway process and a real ledger: nothing gets past a cap, and nothing is lost."""

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from aiohttp import web

from corral.daemon.clock import SystemClock
from corral.engine.budgets import Budgets
from corral.engine.events import Events
from corral.engine.ports import ModelPrice
from corral.engine.registry import Registry
from corral.errors import DiskFull
from corral.gateway.journal import Journals
from corral.model.budget import Balance, LedgerEntry, Outcome, Rate, Refusal, Scope, Window
from corral.model.ids import TenantId
from corral.model.usage import UsageTotal
from corral.store.store import SqlStore

if TYPE_CHECKING:
    from tests.system.gateway.conftest import Bed, BoxEnd

TENANT = TenantId("default")
MODEL = "claude-sonnet-4-5"
REQUEST = {"model": MODEL, "max_tokens": 1000, "messages": [{"role": "user", "content": "hi"}]}
ANSWER = {"model": MODEL, "usage": {"input_tokens": 100, "output_tokens": 1000}, "content": []}
COST = 100 * 3 + 1000 * 15
WORST = (4096 + len(json.dumps(REQUEST))) * 3 + 1000 * 15


@dataclass
class Ledger:
    """A real store, and what a test asks of it."""

    store: SqlStore
    cap: int | None = None

    async def account(self, box: "BoxEnd") -> Balance:
        """The sandbox's own, in all."""
        return (await self.store.balances(TENANT, box.id, self.cap))[0]

    async def settled(self, box: "BoxEnd") -> Balance:
        """The same, once no call is under way."""
        async with asyncio.timeout(30):
            while (found := await self.account(box)).reserved:
                continue
        return found

    async def reserved(self, box: "BoxEnd", calls: int) -> None:
        """Return once so many calls have been let through and not settled."""
        async with asyncio.timeout(30):
            while (await self.account(box)).reserved < calls * WORST:
                continue

    async def totals(self, box: "BoxEnd") -> list[UsageTotal]:
        """The ledger's records."""
        return await self.store.usage(box.id)


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[Ledger]:
    store = await SqlStore.open(f"sqlite:///{tmp_path}/corral.db", tmp_path / "key")
    yield Ledger(store)
    await store.close()


@pytest.fixture
async def capped(
    ledger: Ledger, make_gateway: Callable[..., contextlib.AbstractAsyncContextManager["Bed"]], tmp_path: Path
) -> AsyncIterator["Bed"]:
    """A gateway whose calls are reserved and settled by the engine's own use case."""
    budgets = Budgets(ledger.store, Registry(ledger.store, Events(), SystemClock()), lambda: ledger.cap)
    async with make_gateway(ledger=budgets, journals=Journals(tmp_path / "leases")) as found:
        await found.client.set_config(model_calls=512)
        yield found


async def post(
    bed: "Bed", box: "BoxEnd", body: Any = REQUEST, path: str = "/s/anthropic/v1/messages"
) -> "Answered":
    headers = {"Host": "gateway.corral", "x-api-key": box.token, "Content-Type": "application/json"}
    data = io.BytesIO(json.dumps(body).encode())
    async with bed.http.post(box.url + path, data=data, headers=headers) as answer:
        return Answered(answer.status, json.loads(await answer.read()), dict(answer.headers))


@dataclass
class Answered:
    status: int
    value: dict[str, Any]
    headers: dict[str, str]


class Gate:
    """An upstream that answers once it is opened."""

    def __init__(self, bed: "Bed") -> None:
        self.open = asyncio.Event()
        self.answer: Any = ANSWER
        bed.upstream.handler = self._handle

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        await self.open.wait()
        return web.json_response(self.answer)


async def test_a_hundred_parallel_calls_on_a_nearly_spent_budget_overspend_by_nothing(
    capped: "Bed", ledger: Ledger
) -> None:
    """G-211, G-213, G-226, G-228: exactly as many go up as fit, the others are told so, another sandbox is not concerned."""
    box, other, gate = await capped.attach(1), await capped.attach(2), Gate(capped)
    ledger.cap = 7 * WORST + WORST // 2
    async with asyncio.TaskGroup() as tasks:
        calls = [tasks.create_task(post(capped, box)) for _ in range(100)]
        await ledger.reserved(box, 7)
        gate.open.set()
        assert (await post(capped, other)).status == 200
    answers = [call.result() for call in calls]
    paid = sum(answer.status == 200 for answer in answers)
    assert {answer.status for answer in answers} == {200, 402}
    account = await ledger.settled(box)
    assert account.cap is not None
    assert account.spent == paid * COST <= account.cap
    assert paid >= 7
    assert len(capped.upstream.seen) == paid + 1
    assert [(total.calls, total.cost) for total in await ledger.totals(box)] == [(paid, account.spent)]
    # What is left is used up to the last call that fits.
    while (await post(capped, box)).status == 200:
        pass
    account = await ledger.settled(box)
    assert account.spent <= ledger.cap < account.spent + WORST


async def test_a_refusal_is_in_the_providers_shape_and_final(capped: "Bed", ledger: Ledger) -> None:
    """G-184, G-189, G-216, G-225."""
    box = await capped.attach()
    await ledger.store.set_caps(TENANT, box.id, {Window.TOTAL: 0})
    answer = await post(capped, box)
    assert (answer.status, answer.headers["x-should-retry"]) == (402, "false")
    assert "Retry-After" not in answer.headers
    assert (answer.value["type"], answer.value["error"]["type"]) == ("error", "billing_error")
    text = answer.value["error"]["message"]
    for part in ("sandbox box-1", "cap $0.00", "spent $0.00", "reserved", "corral budget set box-1 USD"):
        assert part in text
    chat = {"model": "gpt-5", "messages": [{"role": "user", "content": "hi"}]}
    answer = await post(capped, box, chat, "/s/openai/v1/chat/completions")
    assert (answer.status, answer.value["error"]["type"]) == (402, "insufficient_quota")
    assert answer.value["error"]["code"] == "budget"
    assert capped.upstream.seen == []
    record = await capped.audit("llm", "denied")
    assert (record.reason, record.status) == ("budget", 402)
    # What is free is not concerned (G-229), and a change holds for the next call (G-221).
    assert (await post(capped, box, REQUEST, "/s/anthropic/v1/messages/count_tokens")).status == 200
    await ledger.store.set_caps(TENANT, box.id, {Window.TOTAL: None})
    assert (await post(capped, box)).status == 200


async def test_a_call_refused_for_others_under_way_may_be_tried_again(capped: "Bed", ledger: Ledger) -> None:
    """G-189: a refusal that may change says so."""
    box, gate = await capped.attach(), Gate(capped)
    ledger.cap = WORST
    gate.answer = {"model": MODEL, "usage": {"input_tokens": 0, "output_tokens": 0}}
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(post(capped, box))
        await ledger.reserved(box, 1)
        answer = await post(capped, box)
        assert (answer.status, answer.headers["x-should-retry"], answer.headers["Retry-After"]) == (
            402,
            "true",
            "5",
        )
        gate.open.set()
    assert first.result().status == 200
    await ledger.settled(box)
    assert (await post(capped, box)).status == 200


async def test_a_tenants_day_counts_all_of_its_sandboxes(capped: "Bed", ledger: Ledger) -> None:
    """G-210, G-216."""
    box, other, gate = await capped.attach(1), await capped.attach(2), Gate(capped)
    gate.open.set()
    await ledger.store.set_caps(TENANT, None, {Window.DAY: WORST + COST // 2})
    assert (await post(capped, box)).status == 200
    await ledger.settled(box)
    answer = await post(capped, other)
    assert answer.status == 402
    assert "corral budget set --tenant USD --daily" in answer.value["error"]["message"]
    assert "starts anew at" in answer.value["error"]["message"]


@pytest.mark.parametrize("status", [400, 429, 500, 529])
async def test_what_the_provider_refuses_gives_everything_back(
    capped: "Bed", ledger: Ledger, status: int
) -> None:
    """G-207, G-213."""
    box = await capped.attach()

    async def handler(request: web.Request) -> web.StreamResponse:
        return web.json_response({"type": "error", "error": {"message": "no"}}, status=status)

    capped.upstream.handler = handler
    assert (await post(capped, box)).status == status
    assert (await ledger.settled(box)).spent == 0


async def test_what_cannot_be_reached_gives_everything_back(capped: "Bed", ledger: Ledger) -> None:
    """G-213."""
    await capped.secrets(base="http://127.0.0.1:1")
    box = await capped.attach()
    assert (await post(capped, box)).status == 502
    assert (await ledger.settled(box)).spent == 0
    assert await ledger.totals(box) == []


async def test_an_answer_without_usage_costs_what_was_set_aside(capped: "Bed", ledger: Ledger) -> None:
    """G-202."""
    box, gate = await capped.attach(), Gate(capped)
    gate.answer = {"model": MODEL, "content": [{"type": "text", "text": "hi"}]}
    gate.open.set()
    assert (await post(capped, box)).status == 200
    account = await ledger.settled(box)
    assert account.spent == WORST
    assert (await ledger.totals(box))[0].assumed


async def test_a_client_that_gives_up_pays_for_what_it_may_have_caused(capped: "Bed", ledger: Ledger) -> None:
    """G-201, G-219: input in full, output by the time that it had, and no more than was set aside."""
    box = await capped.attach()
    Gate(capped)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
            call = tasks.create_task(post(capped, box))
            await ledger.reserved(box, 1)
            while not capped.upstream.seen:
                await capped.client.ping()
            call.cancel()
    account = await ledger.settled(box)
    assert 3 * 4096 < account.spent < WORST
    assert (await ledger.totals(box))[0].assumed


async def stream(bed: "Bed", box: "BoxEnd", body: dict[str, Any], path: str) -> bytes:
    headers = {"Host": "gateway.corral", "x-api-key": box.token}
    async with bed.http.post(box.url + path, json={**body, "stream": True}, headers=headers) as answer:
        assert answer.status == 200
        return await answer.read()


def endless(first: bytes, then: bytes) -> Callable[[web.Request], Any]:
    """A provider that does not keep to the limit it was given."""

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(first)
        while True:
            await response.write(then)

    return handler


def event(name: str, data: Any) -> bytes:
    return (f"event: {name}\n" if name else "").encode() + b"data: " + json.dumps(data).encode() + b"\n\n"


async def test_a_stream_that_passes_its_reservation_is_cut_with_an_error_event(
    capped: "Bed", ledger: Ledger
) -> None:
    """G-214."""
    box = await capped.attach()
    start = {"type": "message_start", "message": {"model": MODEL, "usage": {"input_tokens": 100}}}
    delta = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "x" * 2000}}
    capped.upstream.handler = endless(event("message_start", start), event("content_block_delta", delta))
    async with asyncio.timeout(60):
        data = await stream(capped, box, REQUEST, "/s/anthropic/v1/messages")
    last = data.strip().rpartition(b"\n\n")[2]
    assert last.startswith(b"event: error\ndata: ")
    error = json.loads(last.partition(b"data: ")[2])
    assert (error["type"], error["error"]["type"]) == ("error", "billing_error")
    assert "cut because it passed" in error["error"]["message"]
    assert (await ledger.settled(box)).spent == 100 * 3 + 1000 * 15
    assert (await capped.audit("llm", "cut")).reason == "reservation-passed"


@pytest.mark.parametrize("path", ["chat/completions", "responses"])
async def test_stated_usage_that_passes_the_reservation_cuts_at_once(
    capped: "Bed", ledger: Ledger, path: str
) -> None:
    """G-214, on both of OpenAI's APIs."""
    box = await capped.attach()
    if path == "responses":
        chunk = event(
            "response.output_text.delta", {"type": "response.output_text.delta", "delta": "x" * 2000}
        )
        body = {"model": "gpt-5", "input": "hi", "max_output_tokens": 100}
    else:
        chunk = event("", {"model": "gpt-5", "choices": [{"delta": {"content": "x" * 2000}}]})
        body = {"model": "gpt-5", "messages": [], "max_completion_tokens": 100}
    capped.upstream.handler = endless(chunk, chunk)
    async with asyncio.timeout(60):
        data = await stream(capped, box, body, f"/s/openai/v1/{path}")
    error = json.loads(data.strip().rpartition(b"data: ")[2])
    assert (error if path == "responses" else error["error"])["code"] == "budget"
    account = await ledger.settled(box)
    assert account.spent > 0
    assert (await ledger.totals(box))[0].assumed


async def test_limits_are_written_into_requests_that_have_none(capped: "Bed", ledger: Ledger) -> None:
    """G-179, G-212."""
    box, gate = await capped.attach(), Gate(capped)
    gate.answer = {"model": "gpt-5", "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
    gate.open.set()
    await capped.client.set_config(model_calls=512, output=777)
    chat = {"model": "gpt-5", "messages": [{"role": "user", "content": "hi"}]}
    assert (await post(capped, box, chat, "/s/openai/v1/chat/completions")).status == 200
    assert json.loads(capped.upstream.seen[-1].body) == {**chat, "max_completion_tokens": 777}
    assert (
        await post(capped, box, {"model": "gpt-5", "input": "hi"}, "/s/openai/v1/responses")
    ).status == 200
    sent = json.loads(capped.upstream.seen[-1].body)
    assert (sent["max_output_tokens"], sent["store"]) == (777, False)
    await capped.client.set_prices([ModelPrice("openai", "*", 0, 0, 0, 0)])
    ledger.cap = 0
    assert (await post(capped, box, chat, "/s/openai/v1/chat/completions")).status == 200
    assert json.loads(capped.upstream.seen[-1].body) == chat
    stored = {"model": "gpt-5", "input": "hi", "store": True}
    assert (await post(capped, box, stored, "/s/openai/v1/responses")).status == 403


async def test_calls_under_way_are_limited(capped: "Bed", ledger: Ledger) -> None:
    """G-224."""
    box, gate = await capped.attach(), Gate(capped)
    await capped.client.set_config(model_calls=1)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(post(capped, box))
        await ledger.reserved(box, 1)
        answer = await post(capped, box)
        assert (answer.status, answer.headers["Retry-After"]) == (429, "1")
        gate.open.set()


async def test_what_a_killed_gateway_had_under_way_counts_as_its_worst_case(
    capped: "Bed", ledger: Ledger
) -> None:
    """G-215, G-335: also what was answered in full, but not recorded; and what was recorded counts as recorded."""
    box, gate = await capped.attach(), Gate(capped)
    gate.open.set()
    assert (await post(capped, box)).status == 200
    assert (await ledger.settled(box)).spent == COST
    gate.open.clear()
    async with asyncio.timeout(60):
        calls = [asyncio.get_running_loop().create_task(post(capped, box)) for _ in range(3)]
        await ledger.reserved(box, 3)
        while len(capped.upstream.seen) < 4:
            await capped.client.ping()
        await capped.kill()
        for call in calls:
            with pytest.raises(aiohttp.ClientError):
                await call
        account = await ledger.settled(box)
    assert account.spent == COST + 3 * WORST
    await capped.client.lost()
    await capped.client.reattach(capped.spawn())
    gate.open.set()
    assert (await post(capped, box)).status == 200
    assert (await ledger.settled(box)).spent == account.spent + COST
    [total] = await ledger.totals(box)
    assert (total.calls, total.cost) == (5, account.spent + COST)


async def test_a_gateway_that_is_asked_to_end_settles_what_it_has_under_way(
    capped: "Bed", ledger: Ledger
) -> None:
    """G-219."""
    box = await capped.attach()
    start = {"type": "message_start", "message": {"model": MODEL, "usage": {"input_tokens": 100}}}

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(event("message_start", start))
        await asyncio.Event().wait()
        return response

    capped.upstream.handler = handler
    headers = {"Host": "gateway.corral", "x-api-key": box.token}
    url = box.url + "/s/anthropic/v1/messages"
    answer = await capped.http.post(url, json={**REQUEST, "stream": True}, headers=headers)
    await answer.content.readany()
    assert capped.process is not None
    capped.process.terminate()
    account = await ledger.settled(box)
    answer.close()
    assert 0 < account.spent < WORST // 2 + 100 * 3 + 1000 * 15
    [total] = await ledger.totals(box)
    assert total.tokens.input == 100


async def test_without_a_ledger_no_call_is_made(bed: "Bed") -> None:
    """Principle 4, G-326."""
    box = await bed.attach()
    bed.ledger.failure = DiskFull("the data directory is full")
    answer = await post(bed, box)
    assert (answer.status, answer.headers["Retry-After"]) == (503, "2")
    assert bed.upstream.seen == []
    bed.ledger.failure = None
    assert (await post(bed, box)).status == 200


async def test_a_caller_that_goes_away_before_its_call_is_let_through_leaves_no_reservation(
    bed: "Bed",
) -> None:
    """G-213."""
    box = await bed.attach()
    bed.ledger.refusal = Refusal(Scope.SANDBOX, Window.TOTAL, 0, 0, 0, 1)
    assert (await post(bed, box)).status == 402
    bed.ledger.refusal = None
    await bed.secrets(base="http://127.0.0.1:1")
    assert (await post(bed, box)).status == 502
    async with asyncio.timeout(30):
        while not bed.ledger.released:
            await bed.client.ping()
    assert bed.ledger.open == {}
    assert len(bed.ledger.reserved) == 1


async def test_too_many_calls_in_a_minute_are_refused_for_a_while(capped: "Bed", ledger: Ledger) -> None:
    """G-184, G-189, G-224: with 429 and the time to wait, which SDKs keep to; another sandbox is not concerned."""
    box, other, gate = await capped.attach(1), await capped.attach(2), Gate(capped)
    gate.open.set()
    await ledger.store.set_caps(TENANT, box.id, {Rate.REQUESTS: 2})
    answers = [await post(capped, box) for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    assert 1 <= int(answers[-1].headers["Retry-After"]) <= 60
    assert answers[-1].value["error"]["type"] == "rate_limit_error"
    assert "corral rate set box-1 --requests N" in answers[-1].value["error"]["message"]
    assert (await post(capped, other)).status == 200
    assert len(capped.upstream.seen) == 3
    assert (await ledger.settled(box)).spent == 2 * COST


class Slow(Budgets):
    """A ledger that takes nothing for a while."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.taking = asyncio.Event()
        self.taking.set()

    async def apply(self, entries: Sequence[LedgerEntry]) -> list[Outcome]:
        await self.taking.wait()
        return await super().apply(entries)


async def test_calls_that_a_lease_covers_do_not_wait_for_the_ledger(
    ledger: Ledger, make_gateway: Callable[..., contextlib.AbstractAsyncContextManager["Bed"]], tmp_path: Path
) -> None:
    """G-230: nor do they for another sandbox's call that does. They are in it afterwards. Where what is leased is taken back,
    or its gateway is gone, each call asks again.
    """
    budgets = Slow(ledger.store, Registry(ledger.store, Events(), SystemClock()), lambda: ledger.cap)
    async with make_gateway(ledger=budgets, journals=Journals(tmp_path / "leases")) as bed:
        box, gate = await bed.attach(), Gate(bed)
        gate.open.set()
        assert (await post(bed, box)).status == 200
        await ledger.settled(box)
        budgets.taking.clear()
        other = await bed.attach(2)
        waiting = asyncio.get_running_loop().create_task(post(bed, other))
        assert [(await post(bed, box)).status for _ in range(8)] == [200] * 8
        assert (await ledger.account(box)).spent == COST
        assert not waiting.done()
        asked = asyncio.get_running_loop().create_task(post(bed, box))
        budgets.taking.set()
        assert [(await call).status for call in (asked, waiting)] == [200, 200]
        while (await ledger.account(box)).spent < 10 * COST:
            await bed.client.ping()
        assert await ledger.settled(box) == await ledger.account(box)
        ledger.cap = 10 * COST
        await bed.client.recall(box.id)
        assert (await post(bed, box)).status == 402
        assert [total.calls for total in await ledger.totals(box)] == [10]


async def test_what_is_leased_refuses_no_other_call(capped: "Bed", ledger: Ledger) -> None:
    """G-211: what is set aside for calls that nobody makes is given back before one is refused, to the last that fits."""
    boxes, gate = [await capped.attach(number) for number in range(1, 4)], Gate(capped)
    gate.open.set()
    await ledger.store.set_caps(TENANT, None, {Window.TOTAL: 60 * WORST})
    for box in boxes[:2]:
        assert (await post(capped, box)).status == 200
        await ledger.settled(box)
    gate.open.clear()
    async with asyncio.TaskGroup() as tasks:
        calls = [tasks.create_task(post(capped, boxes[2])) for _ in range(70)]
        await ledger.reserved(boxes[2], 58)
        gate.open.set()
    assert [call.result().status for call in calls].count(200) >= 58
    account = (await ledger.store.balances(TENANT, None, None))[0]
    assert account.spent + account.reserved <= 60 * WORST

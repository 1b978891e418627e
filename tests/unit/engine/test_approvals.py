"""Approvals over a real store: what is asked, answered, joined, refused, and what a crash leaves (G-257, G-258, G-268)."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from corral.engine.approvals import Approvals, Terms
from corral.engine.budgets import Budgets
from corral.engine.events import Events
from corral.engine.permissions import Permissions
from corral.engine.registry import Registry
from corral.errors import Conflict, InvalidInput, NotFound
from corral.model.approval import EXACTLY, STANDING, Answer, Approval, Kind, Question, Scope, Status, bounded
from corral.model.egress import EgressPolicy, HostRule
from corral.model.grants import Grant
from corral.model.ids import DEFAULT_TENANT, GrantId, LayerDigest, SandboxId, TemplateId, TenantId
from corral.model.lifecycle import State
from corral.model.sandbox import Isolation, Limits, Sandbox, SandboxSpec
from corral.model.template import Template, TemplateConfig
from corral.policy import approval as policy
from corral.store.store import SqlStore

BOX, OTHER_BOX = SandboxId("a" * 16), SandboxId("b" * 16)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOST = bounded(Kind.HOST, "connect to a.com", {"host": "a.com", "reason": "docs"}, 60)
PUSH = bounded(Kind.PUSH, "push main", {"refs": "main", STANDING: "github.com/o/r main"}, 60)


@dataclass
class Clock:
    time: datetime = NOW

    def now(self) -> datetime:
        return self.time


@dataclass
class World:
    store: SqlStore
    clock: Clock
    registry: Registry
    events: Events
    permissions: Permissions
    told: list[Approval] = field(default_factory=list)
    refreshed: list[SandboxId] = field(default_factory=list)
    listeners: int = 1
    unattended: int = 60

    async def approvals(self) -> Approvals:
        await self.permissions.load()

        async def refresh(sandbox: SandboxId) -> None:
            self.refreshed.append(sandbox)

        self.permissions.on_change(refresh)
        made = Approvals(
            store=self.store,
            registry=self.registry,
            permissions=self.permissions,
            budgets=Budgets(self.store, self.registry, lambda: 10_000_000),
            events=self.events,
            clock=self.clock,
            terms=lambda: Terms(600, self.unattended),
            listeners=lambda: self.listeners,
            notify=self.told.append,
        )
        await made.recover()
        return made


def spec(id: SandboxId, name: str) -> SandboxSpec:
    return SandboxSpec(
        id=id, tenant=DEFAULT_TENANT, name=name, template=TemplateId("0" * 16), isolation=Isolation.CONTAINER,
        runtime="runc", limits=Limits(), env={}, labels={}, user="user", workdir="/", secrets=(), created_at=NOW,
        egress=EgressPolicy((HostRule("own.com"),)),
    )  # fmt: skip


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    clock, events = Clock(), Events()
    store = await SqlStore.open(f"sqlite:///{tmp_path / 'db'}", tmp_path / "key", now=clock.now)
    layers = (LayerDigest("sha256:" + "0" * 64),)
    await store.add_template(
        Template(TemplateId("0" * 16), DEFAULT_TENANT, "base", layers, TemplateConfig(), 1, NOW)
    )
    registry = Registry(store, events, clock)
    for id, name in ((BOX, "box"), (OTHER_BOX, "other")):
        grant = Grant(GrantId(id), DEFAULT_TENANT, id, id, (), NOW)
        await registry.add(Sandbox(spec(id, name), State.RUNNING, NOW), grant)
    yield World(store, clock, registry, events, Permissions(store, registry, clock))
    await store.close()


class Asking:
    """A question under way."""

    def __init__(self, approvals: Approvals, question: Question, sandbox: SandboxId = BOX) -> None:
        self.ids: asyncio.Queue[str] = asyncio.Queue()
        coro = approvals.ask(DEFAULT_TENANT, sandbox, question, lambda id, *_: self.ids.put_nowait(id))
        self.task = asyncio.get_running_loop().create_task(coro)

    async def id(self) -> str:
        return await self.ids.get()

    async def answer(self) -> Answer:
        return await self.task


async def test_a_yes_is_durable_before_the_sandbox_hears_of_it(world: World) -> None:
    approvals = await world.approvals()
    asking = Asking(approvals, HOST)
    id = await asking.id()
    assert [a.status for a in world.told] == [Status.PENDING]
    answered = await approvals.allow(DEFAULT_TENANT, id, scope=Scope.SANDBOX, by="me")
    stored = (await world.store.approvals(DEFAULT_TENANT))[0]
    assert (stored.status, stored.scope, stored.by) == (Status.ALLOWED, Scope.SANDBOX, "me")
    assert answered == stored
    assert await asking.answer() == Answer(allowed=True, scope=Scope.SANDBOX, reason="", by="me")
    assert HostRule("a.com", origin=f"approval {id}") in world.permissions.egress_of(spec(BOX, "box")).rules
    assert (
        HostRule("a.com", origin=f"approval {id}")
        not in world.permissions.egress_of(spec(OTHER_BOX, "other")).rules
    )
    assert world.refreshed == [BOX]
    assert (await world.store.verify_audit()).fault == ""


async def test_what_was_allowed_outlives_the_daemon_and_can_be_taken_back(world: World) -> None:
    approvals = await world.approvals()
    asking = Asking(approvals, HOST)
    id = await asking.id()
    await approvals.allow(DEFAULT_TENANT, id, scope=Scope.ALWAYS, by="me")
    approvals = await world.approvals()
    assert [item.id for item in await approvals.standing(DEFAULT_TENANT)] == [id]
    assert await approvals.standing(TenantId("other")) == []
    assert "a.com" in {r.host for r in world.permissions.egress_of(spec(OTHER_BOX, "other")).rules}
    assert (await approvals.deny(DEFAULT_TENANT, id, by="me")).status is Status.DENIED
    assert world.permissions.egress_of(spec(OTHER_BOX, "other")).rules == (HostRule("own.com"),)
    assert await world.store.permissions() == []


async def test_a_host_allowed_once_is_open_for_a_while(world: World) -> None:
    approvals = await world.approvals()
    id = await Asking(approvals, HOST).id()
    await approvals.allow(DEFAULT_TENANT, id, by="me")
    assert HostRule("a.com", origin=f"approval {id}") in world.permissions.egress_of(spec(BOX, "box")).rules
    world.clock.time += timedelta(seconds=policy.ONCE_SECONDS)
    assert (
        HostRule("a.com", origin=f"approval {id}") not in world.permissions.egress_of(spec(BOX, "box")).rules
    )


async def test_a_no_tells_its_reason_and_answers_the_same_again_for_a_while(world: World) -> None:
    approvals = await world.approvals()
    asking = Asking(approvals, HOST)
    await approvals.deny(DEFAULT_TENANT, await asking.id(), reason="use the mirror", by="me")
    assert (await asking.answer()).reason == "use the mirror"
    again = bounded(Kind.HOST, "connect to a.com", {"host": "a.com", "reason": "please"}, 60)
    assert (await Asking(approvals, again).answer()).reason == "use the mirror"
    world.clock.time += policy.REPEAT_WINDOW
    await Asking(approvals, again).id()


async def test_answers_are_idempotent_and_others_conflict(world: World) -> None:
    approvals = await world.approvals()
    asking = Asking(approvals, PUSH)
    id = await asking.id()
    first = await approvals.allow(DEFAULT_TENANT, id, by="me")
    assert await approvals.allow(DEFAULT_TENANT, id, by="another") == first
    for again in (
        approvals.deny(DEFAULT_TENANT, id, by="me"),
        approvals.allow(DEFAULT_TENANT, id, scope=Scope.ALWAYS, by="me"),
    ):
        with pytest.raises(Conflict):
            await again
    with pytest.raises(NotFound):
        await approvals.allow(TenantId("other"), id, by="me")


async def test_a_push_is_asked_for_each_time_unless_a_yes_stands(world: World) -> None:
    approvals = await world.approvals()
    asking, second = Asking(approvals, PUSH), Asking(approvals, PUSH)
    id, other = await asking.id(), await second.id()
    assert id != other
    await approvals.allow(DEFAULT_TENANT, id, by="me")
    assert (await asking.answer()).allowed
    assert not second.task.done()
    await approvals.allow(DEFAULT_TENANT, other, scope=Scope.SANDBOX, by="me")
    covered = await Asking(approvals, PUSH).answer()
    assert (covered.allowed, covered.by) == (True, f"approval {other}")
    elsewhere = Asking(approvals, PUSH, OTHER_BOX)
    await elsewhere.id()
    assert not elsewhere.task.done()
    plain = bounded(Kind.PUSH, "push", {"refs": "main"}, 60)
    id = await Asking(approvals, plain).id()
    with pytest.raises(InvalidInput):
        await approvals.allow(DEFAULT_TENANT, id, scope=Scope.ALWAYS, by="me")


def push(exactly: str) -> Question:
    return bounded(Kind.PUSH, "push main", {EXACTLY: exactly, "pack": "whatever"}, 60)


async def lost(approvals: Approvals, question: Question) -> str:
    """The id of a question whose asker goes away."""
    asking = Asking(approvals, question)
    id = await asking.id()
    asking.task.cancel()
    await asyncio.wait([asking.task])
    return id


async def test_a_late_yes_is_for_the_same_push_and_once(world: World) -> None:
    """G-257, G-258, G-267: not for another push, not in another sandbox, over a restart, and not for a second time."""
    approvals = await world.approvals()
    id = await lost(approvals, push("one"))
    assert (await approvals.allow(DEFAULT_TENANT, id, by="me")).status is Status.KEPT
    assert (await approvals.allow(DEFAULT_TENANT, id, by="me")).status is Status.KEPT
    approvals = await world.approvals()
    assert [item.id for item in await approvals.standing(DEFAULT_TENANT)] == [id]
    for other in (Asking(approvals, push("two")), Asking(approvals, push("one"), OTHER_BOX)):
        assert await other.id() != id
    again = bounded(Kind.PUSH, "push main", {EXACTLY: "one", "pack": "packed otherwise"}, 60)
    assert await Asking(approvals, again).answer() == Answer(
        allowed=True, scope=Scope.ONCE, reason="", by="me"
    )
    assert (await approvals.get(DEFAULT_TENANT, id)).status is Status.ALLOWED
    assert await approvals.standing(DEFAULT_TENANT) == []
    assert await Asking(approvals, push("one")).id() != id
    assert (await world.store.verify_audit()).fault == ""


async def test_a_late_yes_is_not_for_ever_and_can_be_taken_back(world: World) -> None:
    """G-258."""
    approvals = await world.approvals()
    id = await lost(approvals, push("one"))
    await approvals.allow(DEFAULT_TENANT, id, by="me")
    assert (await approvals.deny(DEFAULT_TENANT, id, by="me", reason="no")).status is Status.DENIED
    assert (await Asking(approvals, push("one")).answer()).reason == "no"
    other = await lost(approvals, push("two"))
    await approvals.allow(DEFAULT_TENANT, other, by="me")
    world.clock.time += policy.LATE
    assert await lost(approvals, push("two")) != other
    old = await lost(approvals, push("three"))
    world.clock.time += policy.LATE
    with pytest.raises(Conflict):
        await approvals.allow(DEFAULT_TENANT, old, by="me")


async def test_what_was_asked_for_again_is_answered_there(world: World) -> None:
    """G-258: one push has one answer, under the last of its ids."""
    approvals = await world.approvals()
    first = await lost(approvals, push("one"))
    world.clock.time += timedelta(seconds=1)
    asking = Asking(approvals, push("one"))
    second = await asking.id()
    with pytest.raises(Conflict, match=second):
        await approvals.allow(DEFAULT_TENANT, first, by="me")
    await approvals.allow(DEFAULT_TENANT, second, by="me")
    assert (await asking.answer()).allowed
    with pytest.raises(Conflict):
        await approvals.allow(DEFAULT_TENANT, first, by="me")


async def test_equal_questions_about_hosts_are_one(world: World) -> None:
    approvals = await world.approvals()
    first, second = Asking(approvals, HOST), Asking(approvals, HOST)
    assert await first.id() == await second.id()
    first.task.cancel()
    await asyncio.wait([first.task])
    await approvals.allow(DEFAULT_TENANT, (await world.store.approvals(None))[0].id, by="me")
    assert (await second.answer()).allowed


async def test_a_question_is_withdrawn_when_nobody_waits(world: World) -> None:
    approvals = await world.approvals()
    asking = Asking(approvals, HOST)
    id = await asking.id()
    asking.task.cancel()
    await asyncio.wait([asking.task])
    assert (await approvals.get(DEFAULT_TENANT, id)).status is Status.WITHDRAWN
    with pytest.raises(Conflict):
        await approvals.allow(DEFAULT_TENANT, id, by="me")
    assert world.permissions.egress_of(spec(BOX, "box")).rules == (HostRule("own.com"),)


async def test_a_daemon_that_ends_leaves_no_question_open(world: World) -> None:
    approvals = await world.approvals()
    asking = Asking(approvals, HOST)
    id = await asking.id()
    assert (await (await world.approvals()).get(DEFAULT_TENANT, id)).status is Status.WITHDRAWN
    asking.task.cancel()


async def test_nobody_to_answer_is_a_no(world: World) -> None:
    world.listeners, world.unattended = 0, 0
    approvals = await world.approvals()
    answer = await Asking(approvals, HOST).answer()
    assert not answer.allowed
    assert "nobody listened" in answer.reason
    assert (await world.store.approvals(None))[0].status is Status.EXPIRED


async def test_a_sandbox_cannot_flood_whoever_answers(world: World) -> None:
    approvals = await world.approvals()
    questions = [bounded(Kind.HOST, f"connect to {i}", {"host": f"h{i}.com"}, 60) for i in range(20)]
    asked = [Asking(approvals, question) for question in questions]
    done, waiting = await asyncio.wait([item.task for item in asked], timeout=2)
    assert len(waiting) == policy.MAX_PENDING
    assert all("wait for an answer already" in task.result().reason for task in done)
    assert await Asking(approvals, HOST, OTHER_BOX).id()


async def test_money_is_given_once(world: World) -> None:
    approvals = await world.approvals()
    question = bounded(Kind.BUDGET, "spend $5 more", {"usd": "5"}, 60)
    asking = [Asking(approvals, question) for _ in range(3)]
    id = await asking[0].id()
    assert {await item.id() for item in asking[1:]} == {id}
    await approvals.allow(DEFAULT_TENANT, id, by="me")
    assert [(await item.answer()).allowed for item in asking] == [True] * 3
    await approvals.allow(DEFAULT_TENANT, id, by="me")
    caps = {b.cap for b in await world.store.balances(DEFAULT_TENANT, BOX, 10_000_000)}
    assert 15_000_000 in caps


async def test_followers_hear_of_questions_and_count_as_listeners(world: World) -> None:
    world.listeners = 0
    approvals = await world.approvals()
    following = world.events.follow(DEFAULT_TENANT)
    first = asyncio.get_running_loop().create_task(anext(following))
    await asyncio.sleep(0)
    assert world.events.followers(DEFAULT_TENANT) == 1
    id = await Asking(approvals, HOST).id()
    event = await first
    assert getattr(event, "approval", None) == await approvals.get(DEFAULT_TENANT, id)
    await following.aclose()
    assert world.events.followers(DEFAULT_TENANT) == 0


async def test_what_a_sandbox_was_allowed_goes_with_it_and_its_approvals_stay(world: World) -> None:
    approvals = await world.approvals()
    id = await Asking(approvals, HOST).id()
    await approvals.allow(DEFAULT_TENANT, id, scope=Scope.SANDBOX, by="me")
    await world.store.remove_sandbox(BOX)
    assert await world.store.permissions() == []
    assert [a.id for a in await world.store.approvals(DEFAULT_TENANT, BOX)] == [id]

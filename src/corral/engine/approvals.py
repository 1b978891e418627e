"""Approvals: a sandbox asks, a person answers.

A question is in the store before anybody is told of it, and an answer, with all that it allows, before the sandbox
hears of it (G-325). Whoever asks waits on this object; when nobody waits any more the question is withdrawn. A daemon
that ends takes the askers' connections with it, so what it left open is withdrawn at the next start.
"""

import asyncio
import logging
import secrets as randomness
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from corral.engine.budgets import Budgets
from corral.engine.events import Events
from corral.engine.permissions import Permissions
from corral.engine.ports import Clock, Store
from corral.engine.registry import Registry
from corral.errors import InvalidInput
from corral.model.approval import (
    MAX_BY,
    MAX_REASON,
    STANDING,
    Answer,
    Approval,
    ApprovalId,
    Field,
    Kind,
    Question,
    Scope,
    Status,
    refused,
)
from corral.model.budget import Scope as BudgetScope
from corral.model.budget import Window
from corral.model.ids import SandboxId, TenantId
from corral.policy import approval as policy
from corral.policy.budget import checked_cap
from corral.policy.money import dollars, parse_dollars

log = logging.getLogger(__name__)

_RECENT = 100
_WAS_RESTARTED = "the daemon was restarted"

Told = Callable[[str, int, int], None]
"""Told that a question waits: the approval's id, seconds until it is a no, and how many listen."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How long questions wait at most, in seconds: `limit` in any case, `unattended` where nobody listens."""

    limit: int
    unattended: int


@dataclass(eq=False, slots=True)
class _Open:
    """A question that waits, and how many wait for it."""

    approval: Approval
    done: asyncio.Future[Answer]
    askers: int = 0


class Approvals:
    """All questions of this daemon's sandboxes."""

    def __init__(
        self,
        *,
        store: Store,
        registry: Registry,
        permissions: Permissions,
        budgets: Budgets,
        events: Events,
        clock: Clock,
        terms: Callable[[], Terms],
        listeners: Callable[[], int],
        notify: Callable[[Approval], None],
    ) -> None:
        """`listeners` counts who is told besides followers of events; `notify` tells them, and returns at once."""
        self._store = store
        self._registry = registry
        self._permissions = permissions
        self._budgets = budgets
        self._events = events
        self._clock = clock
        self._terms = terms
        self._listeners = listeners
        self._notify = notify
        self._open: dict[ApprovalId, _Open] = {}
        self._locks: defaultdict[SandboxId, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def recover(self) -> None:
        """After a start: nobody waits any more for what a former daemon left open."""
        for approval in await self._store.approvals(None, status=Status.PENDING):
            await self._end(approval, Status.WITHDRAWN, _WAS_RESTARTED)

    # -- for sandboxes ----------------------------------------------------------------------------------------------

    async def ask(self, tenant: TenantId, sandbox: SandboxId, question: Question, told: Told) -> Answer:
        """The answer of a person, or of an earlier answer that covers the question; a no if nobody answers in time.

        A yes has taken effect when this returns. Cancelling withdraws the question.
        """
        async with self._locks[sandbox]:
            entered = await self._enter(tenant, sandbox, question)
        if isinstance(entered, Answer):
            return entered
        listeners = self._events.followers(tenant) + self._listeners()
        left = (entered.approval.deadline - self._clock.now()).total_seconds()
        told(entered.approval.id, max(int(left), 0), listeners)
        try:
            async with asyncio.timeout(max(left, 0)):
                return await asyncio.shield(entered.done)
        except TimeoutError:
            return await self._expire(entered)
        finally:
            entered.askers -= 1
            if not entered.askers and not entered.done.done():
                await asyncio.shield(self._withdraw(entered))

    async def _enter(self, tenant: TenantId, sandbox: SandboxId, question: Question) -> _Open | Answer:
        """The open question that a sandbox's question is or joins, or the answer that it gets without a person."""
        found = self._registry.get(sandbox)
        if found is None or found.spec.tenant != tenant:
            return refused("the sandbox is gone")
        now = self._clock.now()
        recent = await self._store.approvals(tenant, sandbox, limit=_RECENT)
        known = self._known_answer(tenant, sandbox, question, recent)
        if known is not None:
            return known
        if (kept := policy.kept_for(recent, question, now)) is not None:
            used = replace(kept, status=Status.ALLOWED)
            await self._store.settle_approval(used)
            self._tell(used)
            return Answer(allowed=True, scope=used.scope, reason=used.reason, by=used.by)
        same = policy.same_pending(recent, question)
        joined = self._open.get(same.id) if same is not None else None
        if joined is None:
            waiting = len([o for o in self._open.values() if o.approval.tenant == tenant])
            if refusal := policy.too_many(recent, waiting, now):
                return refused(refusal)
            joined = await self._put(tenant, sandbox, found.spec.name, question)
        joined.askers += 1
        return joined

    def _known_answer(
        self, tenant: TenantId, sandbox: SandboxId, question: Question, recent: list[Approval]
    ) -> Answer | None:
        subject = question.field(STANDING)
        standing = self._permissions.covering(tenant, sandbox, question.kind, subject) if subject else None
        if standing is not None:
            scope = Scope.ALWAYS if standing.sandbox is None else Scope.SANDBOX
            return Answer(allowed=True, scope=scope, reason="", by=f"approval {standing.approval}")
        denied = policy.denied_lately(recent, question, self._clock.now())
        if denied is not None:
            return refused(denied.reason or "it was denied a moment ago", denied.by)
        return None

    async def _put(self, tenant: TenantId, sandbox: SandboxId, name: str, question: Question) -> _Open:
        """Record a question and tell whoever listens."""
        terms = self._terms()
        question = await self._with_facts(tenant, sandbox, question)
        listeners = self._events.followers(tenant) + self._listeners()
        seconds = policy.wait_seconds(
            question.seconds, limit=terms.limit, unattended=terms.unattended, listeners=listeners
        )
        now = self._clock.now()
        approval = Approval(
            ApprovalId(randomness.token_hex(4)), tenant, sandbox, name, question,
            asked_at=now, deadline=now + timedelta(seconds=seconds),
        )  # fmt: skip
        await self._store.add_approval(approval)
        entered = _Open(approval, asyncio.get_running_loop().create_future())
        self._open[approval.id] = entered
        self._tell(approval)
        return entered

    async def _with_facts(self, tenant: TenantId, sandbox: SandboxId, question: Question) -> Question:
        """The question with what whoever answers has to know, and the sandbox does not say."""
        if question.kind is not Kind.BUDGET:
            return question
        facts = []
        for balance in await self._budgets.of_sandbox(tenant, sandbox):
            if balance.scope is BudgetScope.SANDBOX and balance.window is Window.TOTAL:
                cap = "none" if balance.cap is None else dollars(balance.cap)
                facts += [Field(policy.CAP, cap), Field(policy.SPENT, dollars(balance.spent))]
        return replace(question, detail=(*question.detail, *facts))

    async def _expire(self, entered: _Open) -> Answer:
        async with self._locks[entered.approval.sandbox]:
            if entered.done.done():  # answered while the lock was waited for
                return entered.done.result()
            reason = "nobody answered in time"
            if not self._events.followers(entered.approval.tenant) + self._listeners():
                reason += ", and nobody listened for questions"
            await self._end(entered.approval, Status.EXPIRED, reason)
            return self._close(entered, refused(reason))

    async def _withdraw(self, entered: _Open) -> None:
        async with self._locks[entered.approval.sandbox]:
            if entered.askers or entered.done.done():
                return
            await self._end(entered.approval, Status.WITHDRAWN, "the sandbox no longer waits for the answer")
            self._close(entered, refused("withdrawn"))

    def _close(self, entered: _Open, answer: Answer) -> Answer:
        self._open.pop(entered.approval.id, None)
        entered.done.set_result(answer)
        return answer

    async def _end(self, approval: Approval, status: Status, reason: str) -> None:
        ended = replace(approval, status=status, reason=reason, answered_at=self._clock.now())
        await self._store.settle_approval(ended)
        self._tell(ended)

    def _tell(self, approval: Approval) -> None:
        self._events.publish_approval(approval)
        self._notify(approval)

    # -- for people -------------------------------------------------------------------------------------------------

    async def list(
        self, tenant: TenantId, ref: str | None = None, status: Status | None = None
    ) -> list[Approval]:
        """A tenant's approvals, oldest first: of one sandbox (its name if it is there, else its id), in one status."""
        sandbox = None if ref is None else self._sandbox_id(tenant, ref)
        return await self._store.approvals(tenant, sandbox, status)

    async def standing(self, tenant: TenantId) -> Sequence[Approval]:
        """Those whose yes still allows something, oldest first. `deny` takes them back."""
        found = [await self._store.approval(tenant, p.approval) for p in self._permissions.standing(tenant)]
        now = self._clock.now()
        kept = await self._store.approvals(tenant, status=Status.KEPT)
        found += [item for item in kept if policy.kept_for([item], item.question, now) is not None]
        return sorted(found, key=lambda item: item.asked_at)

    def _sandbox_id(self, tenant: TenantId, ref: str) -> SandboxId:
        named = [s.id for s in self._registry.of(tenant) if ref in (s.spec.name, s.id)]
        return named[0] if named else SandboxId(ref)

    async def get(self, tenant: TenantId, id: str) -> Approval:
        """By id. Raises NotFound."""
        return await self._store.approval(tenant, ApprovalId(id))

    async def allow(
        self, tenant: TenantId, id: str, *, scope: Scope | None = None, by: str, reason: str = ""
    ) -> Approval:
        """Say yes, once or for longer. The same answer again changes nothing. A yes to a push that nobody waits for any
        more is kept, for the same push to be tried again (G-257).

        Raises NotFound, Conflict if it is over or was answered otherwise, InvalidInput for a scope that it cannot have.
        """
        return await self._answer(tenant, id, scope, by, reason, allowed=True)

    async def deny(self, tenant: TenantId, id: str, *, reason: str = "", by: str) -> Approval:
        """Say no; the sandbox is told the reason. It also takes back a yes that still stands. As `allow` otherwise."""
        return await self._answer(tenant, id, None, by, reason, allowed=False)

    async def _answer(
        self, tenant: TenantId, id: str, scope: Scope | None, by: str, reason: str, *, allowed: bool
    ) -> Approval:
        if len(reason) > MAX_REASON or len(by) > MAX_BY:
            raise InvalidInput("the reason is too long", f"use at most {MAX_REASON} characters")
        first = await self.get(tenant, id)
        async with self._locks[first.sandbox]:
            approval = await self.get(tenant, id)
            now = self._clock.now()
            recent = await self._store.approvals(tenant, first.sandbox, limit=_RECENT)
            late = policy.late(approval, recent, now)
            wanted = policy.checked_answer(approval, scope, allowed=allowed, late=late)
            if wanted is None:
                return approval
            kept = late and wanted is Scope.ONCE
            answered = replace(
                approval,
                status=(Status.KEPT if kept else Status.ALLOWED) if allowed else Status.DENIED,
                scope=wanted if allowed else None,
                reason=reason, by=by, answered_at=now,
            )  # fmt: skip
            permission = policy.permission(approval, wanted, now) if allowed else None
            cap = await self._raised_cap(approval) if allowed else None
            await self._store.settle_approval(answered, permission, cap)
            await self._permissions.put(answered.id, permission)
            self._tell(answered)
            if (entered := self._open.get(answered.id)) is not None:
                self._close(entered, Answer(allowed, answered.scope, reason, by))
            return answered

    async def _raised_cap(self, approval: Approval) -> int | None:
        """The cap of a sandbox after the raise that it asked for; None where the question is another, or nothing
        limits it."""
        if approval.question.kind is not Kind.BUDGET:
            return None
        raise_by = parse_dollars(approval.question.field("usd"))
        for balance in await self._budgets.of_sandbox(approval.tenant, approval.sandbox):
            if balance.scope is BudgetScope.SANDBOX and balance.window is Window.TOTAL:
                if balance.cap is None:
                    return None
                return checked_cap(max(balance.cap, balance.spent + balance.reserved) + raise_by)
        return None

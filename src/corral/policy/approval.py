"""Which questions of a sandbox reach a person, decided on values alone (G-257, G-258, G-268)."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from corral.errors import Conflict, InvalidInput
from corral.model.approval import EXACTLY, STANDING, Approval, Kind, Permission, Question, Scope, Status

MAX_PENDING = 8
"""Questions of one sandbox that may wait at a time."""
MAX_PENDING_OF_TENANT = 200
"""Questions of all sandboxes of one tenant that may wait at a time."""
RATE_WINDOW = timedelta(minutes=10)
MAX_IN_WINDOW = 30
REPEAT_WINDOW = timedelta(minutes=5)
"""How long a no answers the same question again without a person."""
LATE = timedelta(hours=24)
"""How long after it was asked a push can be answered, and for how long a yes is then kept for it."""
ONCE_SECONDS = 600
"""How long a host stays open that was allowed once."""


CAP, SPENT = "cap now", "spent"
"""Fields of a question for money that the host adds."""
_NOT_ASKED = frozenset({"reason", CAP, SPENT})


def too_many(recent: Sequence[Approval], of_tenant: int, now: datetime) -> str:
    """Why a sandbox may put no further question, given its last ones and how many of its tenant wait; empty if it may."""
    if of_tenant >= MAX_PENDING_OF_TENANT:
        return f"{of_tenant} questions wait for an answer already"
    waiting = sum(item.status is Status.PENDING for item in recent)
    if waiting >= MAX_PENDING:
        return f"{waiting} questions of this sandbox wait for an answer already"
    lately = sum(now - item.asked_at < RATE_WINDOW for item in recent)
    if lately >= MAX_IN_WINDOW:
        minutes = int(RATE_WINDOW.total_seconds() // 60)
        return f"this sandbox has put {lately} questions in the last {minutes} minutes"
    return ""


def same_pending(recent: Sequence[Approval], question: Question) -> Approval | None:
    """The waiting approval that an equal question joins. A push or a file is asked for by itself each time: its yes is
    for one use."""
    if question.kind not in (Kind.HOST, Kind.BUDGET):
        return None
    return next((a for a in recent if a.status is Status.PENDING and _same(a.question, question)), None)


def denied_lately(recent: Sequence[Approval], question: Question, now: datetime) -> Approval | None:
    """The no that answers an equal question again."""
    for item in recent:
        fresh = item.answered_at is not None and now - item.answered_at < REPEAT_WINDOW
        if item.status is Status.DENIED and fresh and _same(item.question, question):
            return item
    return None


def late(approval: Approval, recent: Sequence[Approval], now: datetime) -> bool:
    """Whether a question that is over can still be answered, for the same to be tried again (G-257).

    Raises Conflict where that was done, and so it is asked for under another id.
    """
    question = approval.question
    over = approval.status in (Status.EXPIRED, Status.WITHDRAWN)
    if not over or not question.field(EXACTLY) or now - approval.asked_at >= LATE:
        return False
    for other in recent:
        if other.asked_at > approval.asked_at and _same(other.question, question):
            raise Conflict(
                f"the same was asked for again as {other.id}",
                f"answer that one: `corral approvals {other.id}`",
            )
    return True


def kept_for(recent: Sequence[Approval], question: Question, now: datetime) -> Approval | None:
    """The late yes that a question finds: to exactly the same, for one use, and not for ever (G-258)."""
    for item in recent:
        fresh = item.answered_at is not None and now - item.answered_at < LATE
        if item.status is Status.KEPT and fresh and _same(item.question, question):
            return item
    return None


def _same(one: Question, other: Question) -> bool:
    """Whether two questions ask for the same, whatever reasons they give."""
    return one.kind is other.kind and _asked(one) == _asked(other)


def _asked(question: Question) -> list[tuple[str, str]]:
    if exactly := question.field(EXACTLY):
        return [(EXACTLY, exactly)]
    return [(field.name, field.text) for field in question.detail if field.name not in _NOT_ASKED]


def wait_seconds(asked: int, *, limit: int, unattended: int, listeners: int) -> int:
    """How long a question waits: no longer than the operator lets one wait, and shorter where nobody listens."""
    return min(asked, limit if listeners else min(limit, unattended))


def checked_answer(
    approval: Approval, scope: Scope | None, *, allowed: bool, late: bool = False
) -> Scope | None:
    """The scope of an answer, or None where it changes nothing because it was given before. `late`: it can be answered
    although it is over.

    Raises Conflict for an approval that is over or was answered otherwise, InvalidInput for a scope that it cannot have.
    """
    wanted = scope or approval.scopes[0]
    if allowed and wanted not in approval.scopes:
        fitting = ", ".join(approval.scopes)
        raise InvalidInput(
            f"a {approval.question.kind} cannot be allowed for {wanted}",
            f"give --for {fitting}, or leave it out",
        )
    match approval.status:
        case Status.PENDING:
            return wanted
        case Status.EXPIRED | Status.WITHDRAWN if late:
            return wanted
        case Status.ALLOWED | Status.KEPT if allowed and (scope is None or scope is approval.scope):
            return None
        case Status.DENIED if not allowed:
            return None
        case Status.ALLOWED | Status.KEPT if not allowed and takes_back(approval):
            return wanted
        case _:
            raise Conflict(
                f"approval {approval.id} is {approval.status} already",
                "the sandbox has to ask again; see `corral approvals`",
            )


def takes_back(approval: Approval) -> bool:
    """Whether a no ends what an earlier yes still allows."""
    return (
        approval.status is Status.KEPT
        or approval.question.kind is Kind.HOST
        or approval.scope is not Scope.ONCE
    )


def permission(approval: Approval, scope: Scope, now: datetime) -> Permission | None:
    """What a yes leaves standing: a host allowed once is open for a while; a push or a file allowed once is the asker's."""
    kind = approval.question.kind
    subject = approval.question.field("host" if kind is Kind.HOST else STANDING)
    once = scope is Scope.ONCE
    if not subject or (once and kind is not Kind.HOST):
        return None
    until = now + timedelta(seconds=ONCE_SECONDS) if once else None
    sandbox = None if scope is Scope.ALWAYS else approval.sandbox
    return Permission(approval.id, approval.tenant, sandbox, kind, subject, until)

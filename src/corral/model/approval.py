"""Questions that a sandbox puts to a person, and what was answered.

What a question says comes out of a hostile sandbox: `bounded` is the one way to make a `Question`, and cuts every text.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NewType

from corral.model.ids import SandboxId, TenantId

ApprovalId = NewType("ApprovalId", str)
"""8 lower-case hexadecimal digits, random."""

MAX_SUMMARY = 300
MAX_FIELDS = 32
MAX_FIELD_NAME = 64
MAX_FIELD = 16 * 1024
MAX_DETAIL = 64 * 1024
"""Characters of all fields of a question together."""
MAX_REASON = 1000
MAX_BY = 200
MAX_DEADLINE = 24 * 3600
DEFAULT_LIMIT = 600
"""Seconds that a question waits at most, unless the host's operator says otherwise."""
DEFAULT_UNATTENDED = 120
"""The same where nobody listens for questions."""
CUT = " … (cut)"

STANDING = "standing"
"""The field that says what a yes for longer than once would cover; without it only `once` can be given."""


EXACTLY = "exactly"
"""The field that says by a digest what exactly a yes would do: a yes that comes too late for its asker is kept for the same."""


class Kind(StrEnum):
    """What is asked for: a git push, a host to connect to, more money for model calls, a file to leave."""

    PUSH = "push"
    HOST = "host"
    BUDGET = "budget"
    FILE = "file"


class Scope(StrEnum):
    """How far a yes reaches: this one time, the same in this sandbox, the same in all of the tenant's sandboxes."""

    ONCE = "once"
    SANDBOX = "sandbox"
    ALWAYS = "always"


class Status(StrEnum):
    """Where an approval stands. All but `pending` are final, except that a standing yes can be denied later, and that a push
    may be answered when it is over: a yes is then `kept` for the same push, which makes it `allowed`.
    """

    PENDING = "pending"
    KEPT = "kept"
    ALLOWED = "allowed"
    DENIED = "denied"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True, slots=True)
class Field:
    """A named text of a question."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked: one line, and fields that say it exactly. `seconds` is how long the asker waits."""

    kind: Kind
    summary: str
    detail: tuple[Field, ...]
    seconds: int

    def field(self, name: str) -> str:
        """The text of a field; empty if it has none of that name."""
        return next((field.text for field in self.detail if field.name == name), "")


@dataclass(frozen=True, slots=True)
class Approval:
    """A question that was put, and its answer.

    `scope`, `reason`, `by` and `answered_at` belong to the answer; `by` says who gave it through which interface.
    """

    id: ApprovalId
    tenant: TenantId
    sandbox: SandboxId
    name: str
    question: Question
    asked_at: datetime
    deadline: datetime
    status: Status = Status.PENDING
    scope: Scope | None = None
    reason: str = ""
    by: str = ""
    answered_at: datetime | None = None

    @property
    def scopes(self) -> tuple[Scope, ...]:
        """The scopes that a yes may have."""
        if self.question.kind is Kind.HOST or self.question.field(STANDING):
            return (Scope.ONCE, Scope.SANDBOX, Scope.ALWAYS)
        return (Scope.ONCE,)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the asker is told. A question that nobody answered in time is a no."""

    allowed: bool
    scope: Scope | None
    reason: str
    by: str


def refused(reason: str, by: str = "") -> Answer:
    """A no."""
    return Answer(allowed=False, scope=None, reason=reason, by=by)


@dataclass(frozen=True, slots=True)
class Permission:
    """What an approval still allows: `subject` of its kind (a host and ports as a rule says them, or what the question
    named as standing), in one sandbox or, with None, in all of the tenant's, until a time if there is one.
    """

    approval: ApprovalId
    tenant: TenantId
    sandbox: SandboxId | None
    kind: Kind
    subject: str
    until: datetime | None = None

    def holds_for(self, tenant: TenantId, sandbox: SandboxId, now: datetime) -> bool:
        """Whether it holds in that sandbox now."""
        if self.tenant != tenant or self.sandbox not in (None, sandbox):
            return False
        return self.until is None or now < self.until


def bounded(kind: Kind, summary: str, detail: Mapping[str, str], seconds: float) -> Question:
    """A question of texts that may be of any length and hold anything; what is too much is cut, and says so."""
    room = MAX_DETAIL
    fields = []
    for name, text in list(detail.items())[:MAX_FIELDS]:
        kept = _cut(text, min(MAX_FIELD, room))
        room -= len(kept)
        fields.append(Field(_line(name, MAX_FIELD_NAME), kept))
    return Question(kind, _line(summary, MAX_SUMMARY), tuple(fields), max(1, min(int(seconds), MAX_DEADLINE)))


def _line(text: str, most: int) -> str:
    """`text` on one line."""
    return _cut(" ".join(text.split()), most)


def _cut(text: str, most: int) -> str:
    """`text` without what no database and no terminal takes, at most `most` characters long."""
    shown = "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text[: most + 1])
    if len(shown) <= most:
        return shown
    return shown[: max(0, most - len(CUT))] + CUT[: max(0, most)]

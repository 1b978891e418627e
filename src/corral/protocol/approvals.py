"""Shapes of approvals."""

from typing import Annotated, Literal

from pydantic import Field

from corral.model.approval import MAX_BY, MAX_REASON, Kind, Scope, Status
from corral.protocol.base import Reply, Request, Text, Time
from corral.protocol.catalog import BudgetWarning

By = Annotated[
    Text,
    Field(max_length=MAX_BY - 60, description="Who answers, for the record; how the answer came is added."),
]


class ApprovalField(Reply):
    """A named text of a question; it comes from the sandbox."""

    name: str
    text: str


class ApprovalInfo(Reply):
    """A question that a sandbox put, and how it ended. Summary, detail and name are the sandbox's words."""

    id: str
    sandbox: str = Field(description="Id of the sandbox; it may be gone.")
    name: str = Field(description="Name of the sandbox.")
    kind: Kind
    summary: str
    detail: list[ApprovalField]
    status: Status
    scopes: list[Scope] = Field(description="What a yes can be given for, the default first.")
    scope: Scope | None = Field(default=None, description="What a yes was given for.")
    reason: str = ""
    by: str = Field(default="", description="Who answered, and by which way.")
    asked_at: Time
    deadline: Time = Field(description="When it is a no, if nobody answers.")
    answered_at: Time | None = None


class ApprovalList(Reply):
    """Approvals, oldest first."""

    approvals: list[ApprovalInfo]


class Approve(Request):
    """A yes."""

    scope: Scope | None = Field(
        default=None, description="`once`, for this `sandbox`, or `always`. Default: the first of `scopes`."
    )
    by: By = ""


class Deny(Request):
    """A no, or the end of a yes that still stands."""

    reason: Annotated[Text, Field(max_length=MAX_REASON)] = ""
    by: By = ""


class WebhookEvent(Reply):
    """What is posted to the webhook of approvals."""

    event: Literal["approval"] = "approval"
    approval: ApprovalInfo


class BudgetWebhookEvent(Reply):
    """What is posted to the webhook of warnings of budgets."""

    event: Literal["budget"] = "budget"
    budget: BudgetWarning


class WebhookKey(Reply):
    """The key with which webhook calls are signed."""

    key: str

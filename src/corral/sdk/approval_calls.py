"""Requests about what sandboxes ask for."""

from corral.protocol import approvals
from corral.sdk.operations import Call, Event, Follow, Request, build, parse, reply
from corral.sdk.requests import EVENTS, get, given, post, url


def list_approvals(
    ref: str | None = None, *, status: str | None = None, standing: bool = False
) -> Call[list[approvals.ApprovalInfo]]:
    """The latest approvals, oldest first: all, or of one sandbox; in any status, or in one (`pending`, `kept`, `allowed`,
    `denied`, `expired`, `withdrawn`). `standing`: all those whose yes still allows something.
    """
    path = url("approvals", sandbox=ref, status=status, standing="true" if standing else None)
    return Call(get(path), lambda body: parse(approvals.ApprovalList, body).approvals)


def get_approval(id: str) -> Call[approvals.ApprovalInfo]:
    """An approval. Raises NotFound."""
    return Call(get(url("approvals", id)), reply(approvals.ApprovalInfo))


def approve(id: str, scope: str | None = None, *, by: str = "") -> Call[approvals.ApprovalInfo]:
    """Say yes to what a sandbox asked: `once`, for this `sandbox`, or `always`. When it returns, it has taken effect.
    Raises Conflict for one that is over or was answered otherwise.
    """
    body = build(approvals.Approve, **given(scope=scope), by=by)
    return Call(post(url("approvals", id, "approve"), body), reply(approvals.ApprovalInfo))


def deny(id: str, reason: str = "", *, by: str = "") -> Call[approvals.ApprovalInfo]:
    """Say no; the sandbox is told the reason. Or take back a yes that still stands."""
    body = build(approvals.Deny, reason=reason, by=by)
    return Call(post(url("approvals", id, "deny"), body), reply(approvals.ApprovalInfo))


def follow_approvals(after: int | None = None, *, wait: bool = True) -> Follow[approvals.ApprovalInfo]:
    """Approvals as they are asked for, answered and over, without end; without `wait`, those that the daemon remembers
    after a sequence number. Who follows counts as somebody who may answer.
    """

    def decode(event: Event) -> approvals.ApprovalInfo | None:
        return parse(approvals.ApprovalInfo, event.data) if event.name == "approval" else None

    path = url("events", after=after, follow=None if wait else "false")
    return Follow(Request("GET", path, accept=EVENTS), decode)


def webhook_key() -> Call[str]:
    """The key with which calls of the webhook are signed. Operator only."""
    return Call(get(url("webhook", "key")), lambda body: parse(approvals.WebhookKey, body).key)

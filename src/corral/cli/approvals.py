"""Commands of approvals: what sandboxes ask for, and the answers."""

import contextlib
import getpass
import os
import sys
import threading
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from corral.cli.app import App, pass_app
from corral.cli.output import clean, json_line, note, say, show_json, table
from corral.cli.values import json_option
from corral.errors import CorralError, InvalidInput

if TYPE_CHECKING:
    from corral.protocol.approvals import ApprovalInfo
    from corral.sdk.settings import Settings

_INDENT = "    "
_MOST_LINES = 40


@click.command(
    epilog="""\b
Examples:
  corral approvals                 what waits for an answer
  corral approvals 1a2b3c4d        all of one question
  corral approvals --all           and what was answered before
  corral approvals --standing      what is still allowed by an answer
  corral approvals --wait          go on with what is asked from now"""
)
@click.argument("id", required=False)
@click.option("--all", "everything", is_flag=True, help="Also those that are answered or over.")
@click.option(
    "--standing", is_flag=True, help="Those whose yes still allows something; `corral deny` ends it."
)
@click.option("--sandbox", metavar="NAME", help="Only those of one sandbox.")
@click.option("--wait", is_flag=True, help="Go on with what is asked and answered from now.")
@click.option("--webhook-key", is_flag=True, help="Print the key that signs calls of the webhook.")
@json_option
@pass_app
def approvals(
    app: App,
    id: str | None,
    everything: bool,
    standing: bool,
    sandbox: str | None,
    wait: bool,
    webhook_key: bool,
    as_json: bool,
) -> None:
    """Show what sandboxes ask for: pushes, hosts, money. All text in a question comes from the sandbox."""
    if webhook_key:
        say(app.client.webhook_key())
        return
    if id is not None:
        if wait or everything or sandbox or standing:
            raise InvalidInput("one question is shown alone", "corral approvals ID")
        found = app.client.get_approval(id)
        show_json(found) if as_json else _show(found)
        return
    if standing:
        if wait or everything or sandbox:
            raise InvalidInput("what still stands is shown alone", "corral approvals --standing")
        found_all = app.client.list_approvals(standing=True)
        show_json(found_all) if as_json else _list(found_all, "no yes stands")
        return
    waiting = app.client.list_approvals(sandbox, status=None if everything else "pending")
    if not wait:
        show_json(waiting) if as_json else _list(waiting)
        return
    for item in waiting:
        _tell(item, as_json)
    shown = {(item.id, item.status) for item in waiting}
    for item in app.client.follow_approvals():
        if (item.id, item.status) not in shown and sandbox in (None, item.name, item.sandbox):
            _tell(item, as_json)


def _list(found: "list[ApprovalInfo]", nothing: str = "nothing waits for an answer") -> None:
    rows = [
        (item.id, item.name, item.kind, item.summary, _state(item), _left(item), item.by or "-")
        for item in found
    ]
    if rows:
        table(["ID", "SANDBOX", "KIND", "ASKS FOR", "STATE", "TIME LEFT", "ANSWERED BY"], rows)
        if any(item.status == "pending" for item in found):
            note("look at one: `corral approvals ID`; answer: `corral approve ID`, `corral deny ID`")
    else:
        note(nothing)


def _tell(item: "ApprovalInfo", as_json: bool) -> None:
    if as_json:
        json_line(item)
    elif item.status == "pending":
        _show(item)
    else:
        why = f": {item.reason}" if item.reason else ""
        say(clean(f"{item.id}  {item.name}  {_state(item)}{why}"))
    sys.stdout.flush()


def _show(item: "ApprovalInfo") -> None:
    say(clean(f"{item.id}  {item.name} asks ({item.kind}): {item.summary}"))
    for field in item.detail:
        lines = field.text.split("\n")
        if len(lines) == 1:
            say(clean(f"{_INDENT}{field.name}: {field.text}"))
            continue
        say(clean(f"{_INDENT}{field.name}:"))
        for line in lines[:_MOST_LINES]:
            say(clean(f"{_INDENT}  {line}"))
        if len(lines) > _MOST_LINES:
            say(f"{_INDENT}  … {len(lines) - _MOST_LINES} more lines, all in --json")
    if item.status != "pending":
        why = f": {item.reason}" if item.reason else ""
        by = f" by {item.by}" if item.by else ""
        say(clean(f"{_INDENT}{_state(item)}{by}{why}"))
        return
    ways = f"[--for {'|'.join(item.scopes)}] " if len(item.scopes) > 1 else ""
    say(f"{_INDENT}{_left(item)} left; yes: corral approve {item.id} {ways}no: corral deny {item.id}")


def _state(item: "ApprovalInfo") -> str:
    return f"{item.status} ({item.scope})" if item.scope else str(item.status)


def _left(item: "ApprovalInfo") -> str:
    if item.status != "pending":
        return "-"
    seconds = max(int((item.deadline - datetime.now(UTC)).total_seconds()), 0)
    return f"{seconds // 60}m{seconds % 60:02}s" if seconds >= 60 else f"{seconds}s"


@click.command(
    epilog="""\b
Examples:
  corral approve 1a2b3c4d
  corral approve 1a2b3c4d --for sandbox      also when this sandbox asks again
  corral approve 1a2b3c4d --for always       in all sandboxes"""
)
@click.argument("id")
@click.option(
    "--for",
    "scope",
    type=click.Choice(["once", "sandbox", "always"]),
    help="How far the yes reaches. Default: once; a host is then open for ten minutes.",
)
@json_option
@pass_app
def approve(app: App, id: str, scope: str | None, as_json: bool) -> None:
    """Say yes to what a sandbox asks for. When the command ends, it has taken effect."""
    answered = app.client.approve(id, scope, by=_who())
    if as_json:
        show_json(answered)
    else:
        note(clean(f"{answered.name} may: {answered.summary}"))
        if answered.status == "kept":
            note(
                "nobody waits for it any more: the yes is kept for a day, for the same push to be tried again"
            )


@click.command(
    epilog="""\b
Examples:
  corral deny 1a2b3c4d --reason "use the mirror at packages.example.com"
  corral deny 1a2b3c4d         (also takes back a yes that still stands)"""
)
@click.argument("id")
@click.option("--reason", default="", help="What the sandbox is told.")
@json_option
@pass_app
def deny(app: App, id: str, reason: str, as_json: bool) -> None:
    """Say no to what a sandbox asks for, or take back a yes for a host, a sandbox or always."""
    answered = app.client.deny(id, reason, by=_who())
    if as_json:
        show_json(answered)
    else:
        note(clean(f"{answered.name} may not: {answered.summary}"))


def _who() -> str:
    """Who is at the keyboard, as far as this host knows."""
    try:
        return (os.environ.get("SUDO_USER") or getpass.getuser())[:64]
    except (KeyError, OSError):
        return ""


def announce(app: App, sandbox: str) -> None:
    """Tell on stderr what a sandbox asks for while the command goes on; whoever sees it counts as listening."""
    where = replace(app.client.where, autostart=False)
    threading.Thread(target=_announce, args=(where, sandbox), daemon=True).start()


def _announce(where: "Settings", sandbox: str) -> None:
    from corral.sdk.client import Client

    # It ends with the process; when the daemon goes, the command itself has more to say about that.
    with contextlib.suppress(CorralError), Client(where=where) as client:
        for item in client.follow_approvals():
            if item.sandbox == sandbox and item.status == "pending":
                note(clean(f"{item.name} asks ({item.kind}): {item.summary}"))
                note(
                    f"  yes: corral approve {item.id}   no: corral deny {item.id}   more: corral approvals {item.id}"
                )

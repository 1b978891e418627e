"""Commands of budgets."""

import sys
from typing import TYPE_CHECKING

import click

from corral.cli.app import App, pass_app
from corral.cli.output import clean, json_line, say, show_json, table
from corral.cli.values import json_option
from corral.errors import InvalidInput
from corral.model.budget import Window
from corral.policy.money import dollars, parse_dollars

if TYPE_CHECKING:
    from corral.protocol.catalog import Budget, BudgetAccount

_tenant = click.option("--tenant", is_flag=True, help="All sandboxes together, in place of one.")


@click.group(epilog="\b\nExamples:\n  corral budget show box\n  corral budget set box 50")
def budget() -> None:
    """What sandboxes' model calls may cost. A call is made only if the most that it can cost fits."""


@budget.command(
    "show", epilog="\b\nExamples:\n  corral budget show box\n  corral budget show --tenant --json"
)
@click.argument("name", required=False)
@_tenant
@json_option
@pass_app
def show_budget(app: App, name: str | None, tenant: bool, as_json: bool) -> None:
    """Show what may be spent, is spent, and is set aside for calls under way."""
    _check(name, tenant)
    found = app.client.tenant_budget() if name is None else app.client.budget(name)
    _show(found, as_json)


@budget.command(
    "set",
    epilog="""\b
Examples:
  corral budget set box 50
  corral budget set box 10 --daily
  corral budget set box none
  corral budget set box default
  corral budget set box 2 --per hour         (the last hour, at every moment)
  corral budget set --tenant 500 --daily
  corral config set budget.sandbox 10        (of every sandbox without one of its own)""",
)
@click.argument("words", nargs=-1, required=True, metavar="[NAME] USD")
@_tenant
@click.option("--of", metavar="TENANT", help="With --tenant: another tenant's.")
@click.option("--daily", is_flag=True, help="Per calendar day in UTC, in place of in all.")
@click.option(
    "--per",
    type=click.Choice([item.value for item in Window]),
    help="The time that it is for. Default: in all.",
)
@json_option
@pass_app
def set_budget(
    app: App,
    words: tuple[str, ...],
    tenant: bool,
    of: str | None,
    daily: bool,
    per: str | None,
    as_json: bool,
) -> None:
    """Let NAME, or with --tenant all sandboxes together, spend USD, from the next call on.

    USD is an amount, `none` for no cap, or `default` for the host's.
    """
    if len(words) != (1 if tenant else 2) or (of and not tenant):
        raise InvalidInput(
            "say whose budget it is, and how much",
            "corral budget set NAME USD, or: corral budget set --tenant USD",
        )
    if daily and per not in (None, Window.DAY.value):
        raise InvalidInput("--daily and --per name different times", "give one of them")
    cap = _cap(words[-1])
    window = Window.DAY.value if daily else per or Window.TOTAL.value
    if not tenant:
        _show(app.client.set_budget(words[0], cap, window=window), as_json)
    elif isinstance(cap, str):
        raise InvalidInput("a tenant has no default budget", "give an amount, or `none`")
    else:
        _show(app.client.set_tenant_budget(cap, window=window, tenant=of), as_json)


@budget.command(
    "warnings", epilog="\b\nExamples:\n  corral budget warnings\n  corral budget warnings -f --json"
)
@click.option("-f", "--follow", is_flag=True, help="Go on with those to come.")
@json_option
@pass_app
def show_warnings(app: App, follow: bool, as_json: bool) -> None:
    """Show budgets of which 50, 80 or 95 percent came to be spent, since the daemon started."""
    for item in app.client.follow_budgets(0, wait=follow):
        if as_json:
            json_line(item)
        else:
            whose = item.name if item.scope == "sandbox" else f"the {item.scope}, by {item.name}"
            say(clean(
                f"{item.at.isoformat(timespec='seconds')}  {item.percent} % of the budget of {whose} "
                f"{_FOR[item.window]}: {dollars(item.spent)} of {dollars(item.cap)}"
            ))  # fmt: skip
        sys.stdout.flush()


_FOR = {"total": "in all", "day": "today", "hour": "an hour", "24h": "24 hours", "week": "seven days"}


def _check(name: str | None, tenant: bool) -> None:
    if (name is None) is not tenant:
        raise InvalidInput("name a sandbox, or give --tenant", "corral budget show NAME")


def _cap(text: str) -> int | str | None:
    if text == "default":
        return text
    return None if text == "none" else parse_dollars(text)


def _show(found: "Budget", as_json: bool) -> None:
    if as_json:
        show_json(found)
        return
    rows = [
        (
            account.scope,
            _FOR[account.window],
            _cap_text(account),
            dollars(account.spent),
            dollars(account.reserved),
            _left(account),
            account.resets_at.isoformat(timespec="minutes")
            if account.resets_at and account.cap is not None
            else "-",
        )
        for account in found.accounts
    ]
    table(["BUDGET OF", "FOR", "CAP", "SPENT", "RESERVED", "LEFT", "STARTS ANEW"], rows)
    for account in found.accounts:
        if account.warning is not None:
            say(f"{account.warning} % or more of the {account.scope}'s budget is spent")


def _cap_text(account: "BudgetAccount") -> str:
    if account.cap is None:
        return "none"
    return dollars(account.cap) + (" (default)" if account.default else "")


def _left(account: "BudgetAccount") -> str:
    if account.cap is None:
        return "-"
    return dollars(max(account.cap - account.spent - account.reserved, 0))


def budget_line(found: "Budget") -> str:
    """A sandbox's accounts on one line: those with a cap."""
    parts = [
        f"{dollars(account.spent)} of {_cap_text(account)}"
        + ("" if account.scope == "sandbox" else f" of the {account.scope}")
        + ("" if account.window == "total" else f" {_FOR[account.window]}")
        for account in found.accounts
        if account.cap is not None
    ]
    return ", ".join(parts) or "none"

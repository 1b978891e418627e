"""Commands of rates: how much at a time."""

from typing import TYPE_CHECKING

import click

from corral.cli.app import App, pass_app
from corral.cli.output import fields, show_json
from corral.cli.values import json_option
from corral.errors import InvalidInput

if TYPE_CHECKING:
    from corral.protocol.rates import Rates

_tenant = click.option("--tenant", is_flag=True, help="All sandboxes together, in place of one.")


@click.group(
    epilog="\b\nExamples:\n  corral rate show box\n  corral rate set box --requests 60 --tokens 100000"
)
def rate() -> None:
    """How many model calls and tokens a sandbox may use in a minute, and how many calls at a time."""


@rate.command("show", epilog="\b\nExamples:\n  corral rate show box\n  corral rate show --tenant")
@click.argument("name", required=False)
@_tenant
@json_option
@pass_app
def show_rate(app: App, name: str | None, tenant: bool, as_json: bool) -> None:
    """Show the limits of a sandbox, or of all together."""
    _check(name, tenant)
    _show(app.client.tenant_rates() if name is None else app.client.rates(name), as_json)


@rate.command(
    "set",
    epilog="""\b
Examples:
  corral rate set box --requests 60
  corral rate set box --tokens 100000 --calls 4
  corral rate set box --requests none --tokens default
  corral rate set --tenant --tokens 1000000""",
)
@click.argument("name", required=False)
@_tenant
@click.option("--of", metavar="TENANT", help="With --tenant: another tenant's.")
@click.option("--requests", metavar="COUNT", help="Model calls in a minute.")
@click.option("--tokens", metavar="COUNT", help="Tokens in a minute, in and out.")
@click.option("--calls", metavar="COUNT", help="Model calls at a time.")
@json_option
@pass_app
def set_rate(
    app: App,
    name: str | None,
    tenant: bool,
    of: str | None,
    requests: str | None,
    tokens: str | None,
    calls: str | None,
    as_json: bool,
) -> None:
    """Limit NAME, or with --tenant all sandboxes together, from the next call on.

    COUNT is a number, `none` for no limit, or `default` for the host's.
    """
    _check(name, tenant)
    given = {"requests": requests, "tokens": tokens, "calls": calls}
    limits = {key: _count(value) for key, value in given.items() if value is not None}
    if not limits:
        raise InvalidInput("nothing is to be limited", "give --requests, --tokens or --calls")
    if name is None:
        _show(app.client.set_tenant_rates(limits, tenant=of), as_json)
    else:
        _show(app.client.set_rates(name, limits), as_json)


def _check(name: str | None, tenant: bool) -> None:
    if (name is None) is not tenant:
        raise InvalidInput("name a sandbox, or give --tenant", "corral rate show NAME")


def _count(text: str) -> int | str | None:
    if text == "default":
        return text
    if text == "none":
        return None
    if not (text.isascii() and text.isdecimal()):
        raise InvalidInput(f"{text[:40]!r} is not a number", "give a number, `none` or `default`")
    return int(text)


def _show(found: "Rates", as_json: bool) -> None:
    if as_json:
        show_json(found)
        return
    fields(
        [
            ("model calls a minute", _text(found.requests)),
            ("tokens a minute", _text(found.tokens)),
            ("model calls at a time", _text(found.calls)),
        ]
    )


def _text(limit: int | None) -> str:
    return "no limit" if limit is None else f"{limit:,}"

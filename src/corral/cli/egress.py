"""Commands of what sandboxes may reach."""

import sys
from typing import TYPE_CHECKING

import click

from corral.cli.app import App, pass_app
from corral.cli.learning import learn, lock
from corral.cli.output import clean, fields, say, show_json, table
from corral.cli.values import json_option

if TYPE_CHECKING:
    from corral.protocol.egress import EgressRule


@click.group(
    epilog="""\b
Examples:
  corral egress show box
  corral egress test box POST https://api.example.com/v1/items
  corral egress allow box 'GET api.example.com/v1/**' @npm
  corral egress learn box"""
)
def egress() -> None:
    """What sandboxes may reach."""


@egress.command("show", epilog="\b\nExample:\n  corral egress show box")
@click.argument("name")
@json_option
@pass_app
def show_egress(app: App, name: str, as_json: bool) -> None:
    """Show all rules of a sandbox, and where each comes from."""
    _list(app.client.get_egress(name), as_json)


def _list(rules: "list[EgressRule]", as_json: bool) -> None:
    if as_json:
        show_json(rules)
        return
    table(
        ["", "RULE", "FROM"],
        [
            ("deny" if item.deny else "allow", clean(item.rule), clean(item.origin) or "given")
            for item in rules
        ],
    )


@egress.command(
    "test",
    epilog="""\b
Examples:
  corral egress test box https://api.example.com/v1/items
  corral egress test box POST https://api.example.com/v1/items""",
)
@click.argument("name")
@click.argument("request", nargs=-1, required=True, metavar="[METHOD] URL")
@json_option
@pass_app
def check_egress(app: App, name: str, request: tuple[str, ...], as_json: bool) -> None:
    """Say whether a request would be allowed, without making it. Exit code 1: it would not."""
    if len(request) > 2:
        raise click.UsageError("give a method and a URL, or a URL alone")
    method, target = request if len(request) == 2 else ("GET", request[0])
    found = app.client.check_egress(name, target, method)
    if as_json:
        show_json(found)
    else:
        say("allowed" if found.allowed else "denied")
        rule = found.rule
        fields(
            [
                ("rule", f"{clean(rule.rule)} ({clean(rule.origin) or 'given'})" if rule else None),
                ("reason", f"{clean(found.why)} ({found.reason})" if not found.allowed else None),
                ("to allow it", clean(found.hint) or None),
                ("read by the gateway", "yes" if found.inspected else "no, passed through"),
                ("secrets", ", ".join(found.secrets) or None),
            ]
        )
    if not found.allowed:
        sys.exit(1)


@egress.command(
    "allow", epilog="\b\nExample:\n  corral egress allow box api.example.com 'GET *.example.org/data/**'"
)
@click.argument("name")
@click.argument("rules", nargs=-1, required=True)
@json_option
@pass_app
def allow_egress(app: App, name: str, rules: tuple[str, ...], as_json: bool) -> None:
    """Let a sandbox reach more, at once."""
    _list(app.client.change_egress(name, allow=rules), as_json)


@egress.command("deny", epilog="\b\nExample:\n  corral egress deny box 'POST *.example.com'")
@click.argument("name")
@click.argument("rules", nargs=-1, required=True)
@json_option
@pass_app
def deny_egress(app: App, name: str, rules: tuple[str, ...], as_json: bool) -> None:
    """Refuse a sandbox what else would be allowed, at once."""
    _list(app.client.change_egress(name, deny=rules), as_json)


@egress.command("remove", epilog="\b\nExample:\n  corral egress remove box api.example.com")
@click.argument("name")
@click.argument("rules", nargs=-1, required=True)
@json_option
@pass_app
def remove_egress(app: App, name: str, rules: tuple[str, ...], as_json: bool) -> None:
    """Take back rules that were given to a sandbox, written as `corral egress show` writes them."""
    _list(app.client.change_egress(name, remove=rules), as_json)


@egress.command("presets", epilog="\b\nExample:\n  corral egress presets")
@json_option
@pass_app
def show_presets(app: App, as_json: bool) -> None:
    """List the presets, each host with its purpose. All of them are also ways out for data."""
    found = app.client.list_presets()
    if as_json:
        show_json(found)
        return
    table(
        ["PRESET", "RULE", "PURPOSE"],
        [(item.name, rule, host.purpose) for item in found for host in item.hosts for rule in host.rules],
    )


egress.add_command(learn)
egress.add_command(lock)

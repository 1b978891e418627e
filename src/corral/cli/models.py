"""Commands of models: what all of a tenant's sandboxes may use."""

from typing import TYPE_CHECKING

import click

from corral.cli.app import App, pass_app
from corral.cli.grants import patterns
from corral.cli.output import fields, show_json
from corral.cli.values import json_option, pairs
from corral.errors import InvalidInput

if TYPE_CHECKING:
    from corral.protocol.grants import Models


@click.group(epilog="\b\nExamples:\n  corral models show\n  corral models set 'claude-*' --of acme")
def models() -> None:
    """Which models all of a tenant's sandboxes may use. Their own rules and the host's hold beside."""


@models.command("show", epilog="\b\nExample:\n  corral models show --json")
@json_option
@pass_app
def show_models(app: App, as_json: bool) -> None:
    """Show which models all of the tenant's sandboxes may use."""
    _show(app.client.models(), as_json)


@models.command(
    "set",
    epilog="""\b
Examples:
  corral models set 'claude-haiku-*' gpt-5-mini --of acme
  corral models set --alias opus=haiku
  corral models set '*' --no-alias            (all models)
  corral config set models.allow 'claude-*'   (of all tenants)""",
)
@click.argument("allow", nargs=-1, metavar="[PATTERN]…")
@click.option(
    "--alias", multiple=True, metavar="ASKED=SENT", help="Send one model where another is asked for."
)
@click.option("--no-alias", is_flag=True, help="Take all aliases away.")
@click.option("--of", metavar="TENANT", help="Another tenant's.")
@json_option
@pass_app
def set_models(
    app: App, allow: tuple[str, ...], alias: tuple[str, ...], no_alias: bool, of: str | None, as_json: bool
) -> None:
    """Let all of a tenant's sandboxes use models of these names and no others, from the next call on."""
    if not (allow or alias or no_alias):
        raise InvalidInput("nothing is to be changed", "give PATTERN, --alias or --no-alias")
    aliases = {} if no_alias else pairs(alias, "an alias") or None
    _show(app.client.set_models(patterns(allow), aliases, tenant=of), as_json)


def _show(found: "Models", as_json: bool) -> None:
    if as_json:
        show_json(found)
        return
    aliases = ", ".join(f"{asked} → {sent}" for asked, sent in found.aliases.items())
    fields([("models", ", ".join(found.models)), ("aliases", aliases or "none")])

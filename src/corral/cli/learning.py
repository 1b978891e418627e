"""Commands of learning what a sandbox wants to reach."""

import click

from corral.cli.app import App, pass_app
from corral.cli.output import clean, note, say, show_json
from corral.cli.values import json_option


@click.command(
    epilog="\b\nExample:\n  corral egress learn box; corral exec box -- npm ci; corral egress lock box"
)
@click.argument("name")
@json_option
@pass_app
def learn(app: App, name: str, as_json: bool) -> None:
    """Let a sandbox reach any public name at ports 443 and 80, and record which, until it is locked.

    Denials, metadata services, private networks and model APIs stay shut; no secret goes to a host that it is not bound to.
    Let nothing run in it meanwhile that you would not let out.
    """
    found = app.client.learn_egress(name)
    if as_json:
        show_json(found)
    else:
        note(
            f"{name} may reach any public name now; when it has done what it should: corral egress lock {name}"
        )


@click.command(epilog="\b\nExamples:\n  corral egress lock box --dry-run\n  corral egress lock box")
@click.argument("name")
@click.option("--dry-run", is_flag=True, help="Only show what the policy would be.")
@json_option
@pass_app
def lock(app: App, name: str, dry_run: bool, as_json: bool) -> None:
    """End learning: from now on a sandbox reaches what it has reached meanwhile, and what it could before."""
    found = app.client.lock_egress(name, dry_run=dry_run)
    if as_json:
        show_json(found)
        return
    learned = [item.rule for item in found.rules if item.origin == "learned"]
    for rule in learned:
        say(clean(rule))
    options = " ".join(f"--allow '{rule}'" for rule in learned)
    if dry_run:
        note(f"hosts that would be added: {len(learned)}; nothing was changed")
    elif learned:
        note(clean(f"locked to these and what was allowed before; for the next sandbox: {options}"))
    else:
        note("locked to what was allowed before: nothing else was reached")

"""The command that attacks its own installation."""

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from corral.cli.app import App, pass_app
from corral.cli.output import clean, json_line, note, say
from corral.cli.values import json_option
from corral.errors import InvalidInput

if TYPE_CHECKING:
    from corral.testing.attack.arena import Attack
    from corral.testing.attack.selftest import Finding


@click.command(
    "self-test",
    epilog="""\b
Examples:
  corral self-test
  corral self-test --isolation gvisor
  corral self-test --list
  corral self-test metadata fronting-tls
  corral self-test --only budget
  corral self-test --json""",
)
@click.argument("attack", nargs=-1)
@click.option(
    "--isolation",
    type=click.Choice(["container", "gvisor"]),
    multiple=True,
    help="Attack from sandboxes of this isolation; may be repeated. Default: container.",
)
@click.option("--only", default="", metavar="TEXT", help="Only attacks whose name, rules or words hold TEXT.")
@click.option("--list", "listed", is_flag=True, help="List the attacks, and carry out none.")
@json_option
@pass_app
def self_test(
    app: App, attack: tuple[str, ...], isolation: tuple[str, ...], only: str, listed: bool, as_json: bool
) -> int:
    """Attack this installation from inside sandboxes, and say what stopped each attack: all of them, or those named.

    Makes a few sandboxes and a secret of its own, and removes them at the end. Runs on the daemon's host, as root. Ends
    with 1 if an attack got through or could not be carried out.
    """
    from corral.testing.attack.selftest import chosen

    attacks = chosen(attack, only)
    if listed:
        for one in attacks:
            say(f"{one.name:20} {one.rules:22} {one.tried}")
        return 0
    if not app.client.where.local:
        raise InvalidInput(
            "the self-test runs on the daemon's own host", "log in there, and unset CORRAL_URL"
        )
    found: list[Finding] = []
    for wanted in isolation or ("container",):
        found += _attack(app, wanted, attacks, as_json)
    counts = {
        verdict: sum(item.verdict == verdict for item in found)
        for verdict in sorted({f.verdict for f in found})
    }
    if not as_json:
        note(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    return 1 if {"escaped", "failed"} & set(counts) else 0


def _attack(app: App, isolation: str, attacks: "list[Attack]", as_json: bool) -> "list[Finding]":
    from corral.testing.attack.selftest import run_attacks

    found = []
    for item in run_attacks(app.client, isolation, attacks):
        found.append(item)
        if as_json:
            json_line(asdict(item))
        else:
            what = f"{isolation:9} {item.name:20} {item.rules:22} {item.tried}"
            say(clean(f"{item.verdict:8} {what}: {item.said}"))
    return found

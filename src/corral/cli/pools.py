"""Commands of warm pools."""

import click

from corral.cli.app import App, pass_app
from corral.cli.output import say, show_json, table
from corral.cli.values import Duration, Size, json_option

_ISOLATION = click.Choice(["container", "gvisor"])


@click.group(epilog="\b\nExamples:\n  corral pool set base 5\n  corral pool ls")
def pool() -> None:
    """Sandboxes that are ready before they are asked for: a create takes one in a few milliseconds."""


@pool.command(
    "set",
    epilog="""\b
Examples:
  corral pool set base 5
  corral pool set claude 2 --idle 1h
  corral pool set base 3 --isolation gvisor --memory 2G

A create takes one if it names the same template, isolation and limits; its name, environment,
repository, labels, hosts, secrets and time to live are its own.""",
)
@click.argument("template")
@click.argument("size", type=click.IntRange(1))
@click.option("--isolation", type=_ISOLATION, help="Strength of the boundary. Default: container.")
@click.option("--runtime", help="OCI runtime, such as runc. Default: the isolation's.")
@click.option("--memory", type=Size(), help="Most memory of each. Default: as of a create.")
@click.option("--cpus", type=float, help="Most CPU of each, in cores.")
@click.option("--disk", type=Size(), help="Most disk of each over the template.")
@click.option("--pids", type=int, help="Most processes and threads of each.")
@click.option("--idle", type=Duration(), help="Empty it after this time without a create that wants one.")
@json_option
@pass_app
def set_(
    app: App,
    template: str,
    size: int,
    isolation: str | None,
    runtime: str | None,
    memory: int | None,
    cpus: float | None,
    disk: int | None,
    pids: int | None,
    idle: float | None,
    as_json: bool,
) -> None:
    """Keep SIZE sandboxes of TEMPLATE ready. They are made in the background."""
    given = {"memory": memory, "cpus": cpus, "disk": disk, "pids": pids}
    limits = {key: value for key, value in given.items() if value is not None}
    info = app.client.set_pool(
        template,
        size,
        isolation=isolation,
        runtime=runtime,
        limits=limits or None,
        idle=None if idle is None else int(idle),
    )
    show_json(info) if as_json else say(f"{info.template}: {info.ready} of {info.size} ready")


@pool.command("ls", epilog="\b\nExamples:\n  corral pool ls\n  corral pool ls --json")
@json_option
@pass_app
def list_(app: App, as_json: bool) -> None:
    """List pools, how many of each are ready, and why the others are not."""
    found = app.client.list_pools()
    if as_json:
        show_json(found)
        return
    table(
        ["TEMPLATE", "ISOLATION", "READY", "SIZE", "STATE"],
        [
            (
                item.template,
                item.isolation,
                item.ready,
                item.size,
                item.problem
                or ("asleep" if item.asleep else "ready" if item.ready >= item.size else "filling"),
            )
            for item in found
        ],
    )


@pool.command("rm", epilog="\b\nExample:\n  corral pool rm base")
@click.argument("template")
@click.option("--isolation", type=_ISOLATION, help="Only the pool of this isolation.")
@json_option
@pass_app
def remove(app: App, template: str, isolation: str | None, as_json: bool) -> None:
    """End TEMPLATE's pools and remove the sandboxes that wait in them."""
    app.client.remove_pool(template, isolation)
    show_json({"name": template, "ok": True}) if as_json else say(template)

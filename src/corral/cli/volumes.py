"""Commands of volumes."""

from collections.abc import Sequence

import click

from corral.cli.app import App, pass_app
from corral.cli.output import age, say, show_json, size, table
from corral.cli.sandboxes import each
from corral.cli.values import Size, force_option, json_option


@click.group(
    epilog="\b\nExamples:\n  corral volume create cache\n  corral create --volume cache:/cache\n  corral volume ls"
)
def volume() -> None:
    """Directories with a limit, which sandboxes mount and which outlive them."""


@volume.command(
    epilog="\b\nExamples:\n  corral volume create cache\n  corral volume create models --size 100G"
)
@click.argument("name")
@click.option("--size", "most", type=Size(), help="The most that it can hold. Default: 10G.")
@json_option
@pass_app
def create(app: App, name: str, most: int | None, as_json: bool) -> None:
    """Make an empty volume. Mount it by `corral create --volume NAME:/path`."""
    info = app.client.create_volume(name, most)
    show_json(info) if as_json else say(info.name)


@volume.command("ls", epilog="\b\nExamples:\n  corral volume ls\n  corral volume ls --json")
@json_option
@pass_app
def list_(app: App, as_json: bool) -> None:
    """List volumes, what is in them, and what mounts them."""
    found = app.client.list_volumes()
    if as_json:
        show_json(found)
        return
    table(
        ["NAME", "USED", "SIZE", "SANDBOXES", "AGE"],
        [
            (
                item.name,
                size(item.used),
                size(item.size),
                ", ".join(item.sandboxes) or "-",
                age(item.created_at),
            )
            for item in found
        ],
    )


@volume.command("rm", epilog="\b\nExample:\n  corral volume rm cache")
@click.argument("names", nargs=-1, required=True)
@force_option
@json_option
@pass_app
def remove(app: App, names: Sequence[str], force: bool, as_json: bool) -> None:
    """Remove volumes with all that is in them. One that a sandbox mounts, running or not, stays: remove that first."""
    each(names, app.client.remove_volume, as_json, force=force)

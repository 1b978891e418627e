"""Commands of disk use."""

import click

from corral.cli.app import App, pass_app
from corral.cli.output import note, say, show_json, size, table
from corral.cli.values import Size, json_option
from corral.protocol.disk import DiskUse


@click.command(epilog="\b\nExamples:\n  corral df\n  corral df --json")
@json_option
@pass_app
def df(app: App, as_json: bool) -> None:
    """Show what takes disk. OWN comes back when it is removed; SHARED are layers that others need, too."""
    found = app.client.disk()
    if as_json:
        show_json(found)
        return
    line = f"store: {size(found.used)} of {size(found.total)} used, {size(found.free)} free"
    say(line if found.file is None else f"{line}; its file takes {size(found.file)} of the host's disk")
    if found.uses:
        say()
        _show(found.uses)


@click.command(
    epilog="\b\nExamples:\n  corral prune --dry-run\n  corral prune --keep 5\n  corral prune --max-size 20G"
)
@click.option("-n", "--dry-run", is_flag=True, help="Only tell what would go.")
@click.option("--keep", type=click.IntRange(0), help="Keep this many checkpoints of each project.")
@click.option("--max-size", type=Size(), help="Keep no more than this much of each project's.")
@json_option
@pass_app
def prune(app: App, dry_run: bool, keep: int | None, max_size: int | None, as_json: bool) -> None:
    """Remove what nothing needs, and checkpoints beyond the bounds, oldest first.

    Without bounds, those of the settings checkpoints.keep and checkpoints.size hold. Checkpoints that a pool is made of
    stay, and layers that sandboxes run on.
    """
    done = app.client.prune(keep=keep, size=max_size, dry_run=dry_run)
    if as_json:
        show_json(done)
        return
    if done.removed:
        _show(done.removed)
    note(f"{size(done.freed)} {'would be freed' if dry_run else 'freed'}")


def _show(uses: list[DiskUse]) -> None:
    table(
        ["KIND", "NAME", "OWN", "SHARED"],
        [(item.kind, item.name or "-", size(item.own), size(item.shared)) for item in uses],
    )

"""The host's capacity."""

import click

from corral.cli.app import App, pass_app
from corral.cli.output import clean, say, show_json, size, table
from corral.cli.values import json_option
from corral.model.capacity import Resource
from corral.protocol.catalog import HostInfo, HostResource

_NAMES = {Resource.HANDLES: "file handles", Resource.PIDS: "processes"}


@click.command(epilog="\b\nExamples:\n  corral top\n  corral top --json")
@json_option
@pass_app
def top(app: App, as_json: bool) -> None:
    """Show what the host can carry and carries, what your sandboxes use, and who waits for room.

    EXPECTED is what sandboxes count as: what they use, or what they are expected to use if that is more. FREE is what a
    new one may take, beside the host's reserve. `corral config get` shows the over-commit factors and reserves.
    """
    found = app.client.host()
    if as_json:
        show_json(found)
        return
    table(
        ["RESOURCE", "TOTAL", "RESERVE", "USED", "PROMISED", "EXPECTED", "FREE"],
        [_resource(item) for item in found.resources],
    )
    _sandboxes(found)
    _queue(found)


def _resource(item: HostResource) -> list[str]:
    numbers = (item.total, item.reserve, item.used, item.promised, item.expected, item.free)
    return [_NAMES.get(item.resource, item.resource.value), *(_number(item.resource, n) for n in numbers)]


def _number(resource: Resource, value: float | None) -> str:
    if value is None:
        return "not counted"
    if resource in (Resource.MEMORY, Resource.DISK):
        return size(value)
    return f"{value:.1f}".removesuffix(".0")


def _sandboxes(found: HostInfo) -> None:
    if not found.sandboxes:
        return
    say()
    ordered = sorted(found.sandboxes, key=lambda item: -item.memory)
    table(
        ["NAME", "STATE", "MEMORY", "DISK", "PROCESSES", "IDLE"],
        [
            (item.name, item.state, size(item.memory), size(item.disk), item.pids, _span(item.idle))
            for item in ordered
        ],
    )


def _queue(found: HostInfo) -> None:
    if not found.queue:
        return
    say()
    say(f"waiting for room: {len(found.queue)}")
    for item in found.queue:
        say(f"  {item.place}. {clean(item.name or '-')}, for {_span(item.seconds)}: {clean(item.reason)}")


def _span(seconds: float) -> str:
    for unit, name in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= unit:
            return f"{seconds // unit:.0f}{name}"
    return f"{seconds:.0f}s"

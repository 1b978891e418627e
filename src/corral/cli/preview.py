"""The way to what serves inside a sandbox."""

import click

from corral.cli.app import App, pass_app
from corral.cli.output import say, show_json
from corral.cli.values import json_option


@click.command(
    epilog="\b\nExamples:\n  corral url brave-otter 3000\n  curl $(corral url brave-otter 8000 --curl)"
)
@click.argument("name")
@click.argument("port", type=click.IntRange(1, 65535))
@click.option(
    "--curl", is_flag=True, help="Print it as arguments of curl: the address, and the token as a header."
)
@json_option
@pass_app
def url(app: App, name: str, port: int, curl: bool, as_json: bool) -> None:
    """Print the address under which a port of a sandbox opens in a browser. Whoever has it can use that port."""
    found = app.client.get_url(name, port)
    if as_json:
        show_json(found)
    elif curl:
        say(f"{found.url} -H {found.header}:{found.token}")
    else:
        say(found.link)

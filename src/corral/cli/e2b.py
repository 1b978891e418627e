"""Commands for clients of the E2B API."""

import shlex

import click

from corral.cli.app import App, pass_app
from corral.cli.catalog import create_key
from corral.cli.output import say, show_json
from corral.cli.values import json_option
from corral.errors import Conflict

_ANY = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104 - what a listener on all addresses is reached by


@click.group(epilog='\b\nExample:\n  eval "$(corral e2b env)"')
def e2b() -> None:
    """Use E2B's SDKs with this host."""


@e2b.command("env", epilog='\b\nExample:\n  eval "$(corral e2b env)" && python program_with_e2b.py')
@click.option("--key", default="", help="An API key to use. Default: a new one.")
@json_option
@pass_app
def print_env(app: App, key: str, as_json: bool) -> None:
    """Print the variables that point E2B's SDKs at this host, for a shell to read."""
    listen = str(app.client.get_config().get("api.listen") or "")
    if not listen:
        raise Conflict(
            "the API does not listen on TCP, and E2B's SDKs speak nothing else",
            "corral config set api.listen 127.0.0.1:7070 && corral daemon stop && corral daemon start",
        )
    host, _, port = listen.rpartition(":")
    url = f"http://{_ANY.get(host, host)}:{port}"
    values = {"E2B_API_KEY": key or app.client.create_key("e2b"), "E2B_API_URL": url, "E2B_SANDBOX_URL": url}
    if as_json:
        show_json(values)
        return
    for name, value in values.items():
        say(f"export {name}={shlex.quote(value)}")


@e2b.group("key", epilog="\b\nExample:\n  corral e2b key create laptop")
def keys() -> None:
    """API keys; the same as those of `corral key`."""


@keys.command("create", epilog="\b\nExample:\n  export E2B_API_KEY=$(corral e2b key create laptop)")
@click.argument("label")
@json_option
@click.pass_context
def create(context: click.Context, label: str, as_json: bool) -> None:
    """Make a new API key and print it; it is not shown again."""
    context.invoke(create_key, label=label, as_json=as_json)

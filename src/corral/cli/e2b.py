"""Commands for clients of the E2B API."""

import os
import shlex
from pathlib import Path

import click

from corral.cli.app import App, pass_app
from corral.cli.catalog import create_key
from corral.cli.output import say, show_json
from corral.cli.values import json_option
from corral.errors import Conflict, InvalidInput
from corral.model.places import data_dir

_ANY = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104 - what a listener on all addresses is reached by
INTERPRETER = "code-interpreter-v1"
_FILES = Path(__file__).parent / INTERPRETER
_RESOLV = Path("/etc/resolv.conf")
_WITH_RESOLVER = 'mount --bind "$1" /etc/resolv.conf && shift && exec "$@"'


@click.group(epilog='\b\nExample:\n  eval "$(corral e2b env)"')
def e2b() -> None:
    """Use E2B's SDKs with this host."""


@e2b.command("env", epilog='\b\nExample:\n  eval "$(corral e2b env)" && python program_with_e2b.py')
@click.option("--key", default="", help="An API key to use. Default: a new one.")
@json_option
@pass_app
def print_env(app: App, key: str, as_json: bool) -> None:
    """Print the variables that point E2B's SDKs at this host, for a shell to read."""
    values = variables(app, key)
    if as_json:
        show_json(values)
        return
    for name, value in values.items():
        say(f"export {name}={shlex.quote(value)}")


@e2b.command(
    "run",
    context_settings={"ignore_unknown_options": True},
    epilog="\b\nExample:\n  corral e2b run -- python program_with_e2b.py",
)
@click.option("--key", default="", help="An API key to use. Default: a new one.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@pass_app
def run(app: App, key: str, command: tuple[str, ...]) -> None:
    """Run a program with these variables. Where `api.dns` is set, names of sandboxes' ports are known to it, and to it only."""
    values = variables(app, key)
    argv = list(command)
    if dns := str(app.client.get_config().get("api.dns") or ""):
        # Its own view of the file that names the resolvers: the host's stays.
        own = data_dir(os.environ) / "tls" / "resolv.conf"
        own.write_text(f"nameserver {dns}\n" + _RESOLV.read_text())
        argv = ["unshare", "--mount", "sh", "-c", _WITH_RESOLVER, "sh", str(own), *argv]
    try:
        os.execvpe(argv[0], argv, {**os.environ, **values})  # noqa: S606  it takes the place of this process
    except FileNotFoundError:
        raise InvalidInput(f"there is no program {argv[0]!r}", "give its name or path") from None


def variables(app: App, key: str) -> dict[str, str]:
    """What points E2B's SDKs at this host. Raises Conflict where they cannot reach it."""
    config = app.client.get_config()
    listen, tls = (str(config.get(name) or "") for name in ("api.listen", "tls.listen"))
    if not (listen or tls):
        raise Conflict(
            "the API does not listen on TCP, and E2B's SDKs speak nothing else",
            "corral config set api.listen 127.0.0.1:7070 && corral daemon stop && corral daemon start",
        )
    domain = str(config.get("api.domain") or "")
    url = _url("http", listen) if listen else f"https://{domain}:{tls.rpartition(':')[2]}"
    values = {"E2B_API_KEY": key or app.client.create_key("e2b")}
    values |= dict.fromkeys(("E2B_API_URL", "E2B_SANDBOX_URL", "E2B_VOLUME_API_URL"), url)
    if domain:
        port = (tls or listen).rpartition(":")[2]
        values["E2B_DOMAIN"] = domain if port == ("443" if tls else "80") else f"{domain}:{port}"
    if tls and not config.get("tls.cert"):
        directory = data_dir(os.environ) / "tls"
        values["SSL_CERT_FILE"] = str(directory / "bundle.pem")
        values["NODE_EXTRA_CA_CERTS"] = str(directory / "ca.pem")
    return values


def _url(scheme: str, listen: str) -> str:
    host, _, port = listen.rpartition(":")
    return f"{scheme}://{_ANY.get(host, host)}:{port}"


@e2b.command("interpreter", epilog="\b\nExample:\n  corral e2b interpreter")
@click.option("--name", default=INTERPRETER, show_default=True, help="Name of the template.")
@click.option(
    "--allow",
    multiple=True,
    metavar="HOST",
    help="Where Python packages come from, in place of the preset pypi's hosts.",
)
@json_option
@pass_app
def build_interpreter(app: App, name: str, allow: tuple[str, ...], as_json: bool) -> None:
    """Build the template of `e2b-code-interpreter`: Jupyter kernels behind a service on port 49999. Takes minutes, once."""
    from corral.cli.builds import show_line
    from corral.policy.presets import PRESETS
    from corral.sdk.contexts import Context

    hosts = allow or tuple(host for entry in PRESETS["pypi"].entries for host in entry.rules)
    built = app.client.build_template_from(
        name,
        dockerfile=(_FILES / "Dockerfile").read_text(),
        ready="curl -sf localhost:49999/health",
        context=Context(_FILES).archive,
        allow=hosts,
        limits={"memory": 2 << 30, "pids": 4096},
        on_line=show_line,
    )
    if as_json:
        show_json(built)
    else:
        say(built.name)


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

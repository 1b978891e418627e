"""Commands of secrets: where a value comes from, and never a value on a command line or a screen."""

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from corral.cli.app import App, pass_app
from corral.cli.bindings import binding_of, binding_options, goes_to
from corral.cli.output import age, note, say, show_json, table
from corral.cli.values import force_option, json_option, read_private
from corral.errors import InvalidInput
from corral.model.secrets import Provider

_LOGIN_HINT = "make one for Corral alone: `CODEX_HOME=/root/corral-login codex login`"


@click.group(epilog="\b\nExamples:\n  corral secret add anthropic < key.txt\n  corral secret ls")
def secret() -> None:
    """Keys that stay on this host: the gateway uses them on behalf of sandboxes, which never see them."""


@secret.command(
    "add",
    epilog="""\b
Examples:
  corral secret add anthropic                          (asks, without showing what you type)
  corral secret add anthropic < key.txt
  corral secret add openai --from-env OPENAI_API_KEY
  corral secret add openai --from-file /root/openai.key
  corral secret add github --command 'gh auth token'
  corral secret add codex --login codex --from-file /root/corral-login/auth.json
  corral secret add local --provider openai --base-url http://10.0.0.5:8000/v1 < key.txt
  corral secret add github < token.txt                 (a token that git pushes with)
  corral secret add github --app 123456 --from-file /root/app.pem    (a token for each repository, had when needed)
  corral secret add work --provider git --base-url https://git.example.com < user-and-password.txt
  corral secret add stripe --host api.stripe.com < key.txt
  corral secret add maps --host maps.example.com --query key < key.txt
  corral secret add intern --host '*.corp.example' --mode set --header 'Authorization: Bearer {}' --paths '/api/**'
  corral secret add s3 --host '*.amazonaws.com' --mode aws < key-id-colon-secret.txt
  corral secret add bank --host api.bank.example --mode certificate --from-file client.pem

With --host, a sandbox that gets the secret (--secret NAME) holds a placeholder in a variable; the gateway puts the
secret in its place in requests to these hosts.""",
)
@click.argument("name")
@click.option(
    "--provider",
    type=click.Choice([item.value for item in Provider if item is not Provider.HOST]),
    help="Default: told from NAME.",
)
@click.option(
    "--base-url", metavar="URL", help="Where the model API or git host is. Default: the provider's own."
)
@binding_options
@click.option("--from-env", metavar="VARIABLE", help="Take the value from this variable of yours.")
@click.option("--from-file", metavar="PATH", help="Take the value from a file that nobody else can read.")
@click.option(
    "--command", metavar="COMMAND", help="A command that prints the value, run by the daemon when needed."
)
@click.option("--app", "app_id", metavar="ID", help="The value is the private key (.pem) of this GitHub App.")
@click.option("--login", type=click.Choice(["codex"]), help="The value is a subscription's login file.")
@json_option
@pass_app
def add_secret(
    app: App,
    name: str,
    provider: str | None,
    base_url: str | None,
    from_env: str | None,
    from_file: str | None,
    command: str | None,
    app_id: str | None,
    login: str | None,
    as_json: bool,
    **binding: Any,
) -> None:
    """Add or replace a secret. Its value comes from standard input, a variable, a file or a command's output, never from
    the command line.
    """
    if sum(item is not None for item in (from_env, from_file, command)) > 1:
        raise InvalidInput(
            "the value has several sources", "give one of --from-env, --from-file and --command"
        )
    if command is not None:
        value, form = json.dumps(_words(command)), "command"
    elif app_id is not None:
        pem = _value(name, from_env, from_file)
        value, form = json.dumps({"app": app_id, "key": pem}, separators=(",", ":")), "github-app"
    elif login is not None:
        value, form = _login(_value(name, from_env, from_file), from_file), "chatgpt"
    else:
        value, form = _value(name, from_env, from_file), "value"
        if binding["mode"] == "certificate":
            value = json.dumps({"pem": value}, separators=(",", ":"))
    added = app.client.put_secret(name, value, provider, base_url, binding_of(**binding), form)
    show_json(added) if as_json else say(added.name)


@secret.command(
    "rotate",
    epilog="""\b
Examples:
  corral secret rotate anthropic < new-key.txt
  corral secret rotate github                          (of a command or a login: have it give another now)""",
)
@click.argument("name")
@click.option("--from-env", metavar="VARIABLE", help="Take the value from this variable of yours.")
@click.option("--from-file", metavar="PATH", help="Take the value from a file that nobody else can read.")
@json_option
@pass_app
def rotate_secret(app: App, name: str, from_env: str | None, from_file: str | None, as_json: bool) -> None:
    """Give a secret another value. Running sandboxes use it from their next request on."""
    found = {item.name: item.form for item in app.client.list_secrets()}
    if found.get(name) == "github-app":
        raise InvalidInput(
            f"the key of {name} belongs to a GitHub App",
            f"corral secret add {name} --app ID --from-file KEY.pem",
        )
    by_itself = found.get(name) in ("command", "chatgpt") and from_env is None and from_file is None
    value = None if by_itself else _value(name, from_env, from_file)
    rotated = app.client.rotate_secret(name, value)
    show_json(rotated) if as_json else say(rotated.name)


@secret.command("ls", epilog="\b\nExample:\n  corral secret ls --json")
@json_option
@pass_app
def list_secrets(app: App, as_json: bool) -> None:
    """List secrets, without their values."""
    found = app.client.list_secrets()
    if as_json:
        show_json(found)
        return
    table(
        ["NAME", "PROVIDER", "FORM", "GOES TO", "CHANGED"],
        [(item.name, item.provider, item.form, goes_to(item), age(item.updated_at)) for item in found],
    )
    for item in found:
        if item.problem:
            note(f"{item.name} cannot be used: {item.problem}")


@secret.command("rm", epilog="\b\nExample:\n  corral secret rm anthropic")
@click.argument("names", nargs=-1, required=True)
@force_option
@json_option
@pass_app
def remove_secret(app: App, names: tuple[str, ...], force: bool, as_json: bool) -> None:
    """Remove secrets; calls that use them are cut, and refused from now on."""
    from corral.cli.sandboxes import each

    each(names, app.client.remove_secret, as_json, force=force)


def _value(name: str, variable: str | None, path: str | None) -> str:
    if variable is not None:
        if not os.environ.get(variable):
            raise InvalidInput(
                f"the variable {variable[:80]!r} is not set here", "set it, or give the key on stdin"
            )
        return os.environ[variable]
    if path is not None:
        return read_private(Path(path).expanduser())
    if sys.stdin.isatty():
        return str(click.prompt(f"value of {name}", hide_input=True, err=True))
    return sys.stdin.read().strip()


def _words(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise InvalidInput(f"the command cannot be read: {error}", "quote it as for a shell") from None
    if not words:
        raise InvalidInput("the command is empty", "give one that prints the value, such as 'op read op://…'")
    return words


def _login(text: str, path: str | None) -> str:
    """A login file as one line. That of the Codex which is used on this host is not taken: renewing it here would log
    that one out (G-162).
    """
    own = Path(os.environ.get("CODEX_HOME") or "~/.codex").expanduser() / "auth.json"
    if path is not None and own.exists() and Path(path).expanduser().samefile(own):
        raise InvalidInput(f"{path} is the login of your own Codex, which would be logged out", _LOGIN_HINT)
    try:
        return json.dumps(json.loads(text), separators=(",", ":"))
    except ValueError:
        raise InvalidInput("the login file is not JSON", _LOGIN_HINT) from None

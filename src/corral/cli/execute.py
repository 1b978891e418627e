"""Commands that run something in a sandbox: exec, shell, attach, ps."""

import os
from collections.abc import Sequence
from typing import Any

import click

from corral.cli.app import App, pass_app
from corral.cli.output import age, say, show_json, table
from corral.cli.values import Duration, env_option, json_option, variables
from corral.errors import InvalidInput
from corral.model.process import OWN_TAG


def split_own(args: Sequence[str], valued: set[str], flags: set[str]) -> list[str]:
    """Arguments such that click reads options of ours, then `--`, NAME, and the command untouched.

    Our own options may stand before or after NAME; they end at `--`, or at the first word after NAME that is not an
    option. `valued` and `flags` are the options with and without a value, short ones as `-u`.
    """
    own: list[str] = []
    name: list[str] = []
    rest = list(args)
    while rest:
        word = rest[0]
        if word == "--":
            rest.pop(0)
            break
        if not word.startswith("-") or word == "-":
            if name:
                break
            name.append(rest.pop(0))
            continue
        own.append(rest.pop(0))
        if _wants_value(word, valued, flags) and rest:
            own.append(rest.pop(0))
    if not name and rest:
        name.append(rest.pop(0))
    return [*own, "--", *name, *rest]


def _wants_value(word: str, valued: set[str], flags: set[str]) -> bool:
    if word.startswith("--"):
        return word in valued
    for index, letter in enumerate(word[1:], start=1):
        if f"-{letter}" in valued:
            return index == len(word) - 1
        if f"-{letter}" not in flags:
            return False
    return False


class OwnOptionsFirst(click.Command):
    """A command whose last argument is another command, passed on unchanged."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read own options only as far as they go."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        valued = {name for option in options if not option.is_flag for name in option.opts}
        flags = {name for option in options if option.is_flag for name in option.opts}
        return super().parse_args(ctx, split_own(args, valued, flags))


@click.command(
    "exec",
    cls=OwnOptionsFirst,
    epilog="""\b
Examples:
  corral exec box -- ls -la
  corral exec -w /srv -e LANG=C box -- make test
  corral exec -u root box -- apt-get update
  tar c src | corral exec -i box -- tar x
  corral exec -it box -- vim README.md
  corral exec --detach box -- python3 -m http.server
  corral exec --timeout 30s box -- ./slow""",
)
@click.option(
    "-i", "--interactive", is_flag=True, help="Pass standard input on. Without it, input is at its end."
)
@click.option("-t", "--tty", is_flag=True, help="Give it a terminal, of the size of yours.")
@click.option("-u", "--user", help="Who runs it: name, uid or uid:gid.")
@click.option("-w", "--workdir", help="Where it runs.")
@env_option
@click.option("--timeout", type=Duration(), help="Kill it after this time, such as 90s or 5m.")
@click.option("-d", "--detach", is_flag=True, help="Leave it running, and print its id.")
@click.option("--tag", default="", help="A mark, to find the process by.")
@json_option
@click.argument("name")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@pass_app
def exec_(
    app: App,
    name: str,
    command: Sequence[str],
    interactive: bool,
    tty: bool,
    detach: bool,
    as_json: bool,
    **values: Any,
) -> int:
    """Run COMMAND in a sandbox, with its output here, and end with its exit code.

    Ctrl-C goes to the command; a second one kills it. With --json its result is printed when it has ended.
    """
    if not command:
        raise InvalidInput("no command was given", "write it after `--`: corral exec NAME -- COMMAND")
    options = {
        "user": values["user"],
        "cwd": values["workdir"],
        "env": variables(values["env"]),
        "timeout": values["timeout"],
        "tag": values["tag"],
    }
    if as_json and not detach:
        if interactive or tty:
            raise InvalidInput("--json does not go with -i or -t", "leave one of them out")
        return _as_json(app, name, command, options)
    if detach:
        info = app.client.start_process(name, list(command), **options)
        show_json(info) if as_json else say(str(info.id))
        return 0
    return run_here(app, name, command, options, interactive=interactive, tty=tty)


def _as_json(app: App, name: str, command: Sequence[str], options: dict[str, Any]) -> int:
    result = app.client.exec_command(name, list(command), **options)
    show_json(
        {
            "exit_code": result.exit_code,
            "signal": result.signal,
            "reason": result.reason,
            "stdout": result.stdout,
            "stderr": result.stderr,
            "truncated": result.truncated,
        }
    )
    return 124 if result.reason == "timeout" else result.exit_code


def run_here(
    app: App, name: str, command: Sequence[str], options: dict[str, Any], *, interactive: bool, tty: bool
) -> int:
    """Run a command joined to our own streams; its exit code."""
    from corral.cli import terminal
    from corral.cli.interactive import Session

    if tty:
        terminal.need()
        options["env"] = {**terminal.environment(), **options.get("env", {})}
    info = app.client.start_process(
        name, list(command), stdin=interactive, terminal=terminal.size() if tty else None, **options
    )
    return Session(app.client, name, info).run(forward_input=interactive)


_SHELL = "exec $(command -v bash || echo /bin/sh) -l"


@click.command(epilog="\b\nExamples:\n  corral shell box\n  corral shell -u root box")
@click.argument("name")
@click.option("-u", "--user", help="Whose shell. Default: the sandbox's user.")
@click.option("-w", "--workdir", help="Where it starts.")
@pass_app
def shell(app: App, name: str, user: str | None, workdir: str | None) -> int:
    """Open a shell in a sandbox: bash where it has it, else sh."""
    options = {"user": user, "cwd": workdir}
    on_terminal = os.isatty(0)
    return run_here(app, name, ["/bin/sh", "-c", _SHELL], options, interactive=True, tty=on_terminal)


@click.command(epilog="\b\nExample:\n  corral attach box        (leave with Ctrl-b d; the agent goes on)")
@click.argument("name")
@pass_app
def attach(app: App, name: str) -> int:
    """Join the terminal of a sandbox's agent. Ctrl-b d leaves it; the agent goes on."""
    argv = app.client.agent_terminal(name)
    return run_here(app, name, argv, {}, interactive=True, tty=True)


@click.command(epilog="\b\nExamples:\n  corral ps box\n  corral ps box --json")
@click.argument("name")
@click.option(
    "-a", "--all", "everything", is_flag=True, help="Also steps of Corral's own work, such as a clone."
)
@json_option
@pass_app
def ps(app: App, name: str, everything: bool, as_json: bool) -> None:
    """List processes that were started in a sandbox: those that run, and the last ones that ended."""
    found = [item for item in app.client.list_processes(name) if everything or item.tag != OWN_TAG]
    if as_json:
        show_json(found)
        return
    table(
        ["ID", "STATE", "USER", "AGE", "TAG", "COMMAND"],
        [
            (
                item.id,
                "running" if item.exit is None else f"exit {item.exit.code}",
                item.user,
                age(item.started_at),
                item.tag or "-",
                " ".join(item.argv)[:80],
            )
            for item in found
        ],
    )

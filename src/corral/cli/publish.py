"""Commands that bring a sandbox's work to a forge: `push` and `pr`."""

from pathlib import Path

import click

from corral.cli.app import App, pass_app
from corral.cli.output import note, say, show_json, write_guest
from corral.cli.values import json_option
from corral.errors import CommandFailed, InvalidInput

_PUSH = """
branch=$(git symbolic-ref --quiet --short HEAD) || { echo 'no branch is checked out' >&2; exit 1; }
exec git push --set-upstream origin "HEAD:refs/heads/$branch"
"""


@click.command(epilog="\b\nExamples:\n  corral push box\n  corral pr box")
@click.argument("name")
@pass_app
def push(app: App, name: str) -> None:
    """Push the branch that is checked out in a sandbox. It goes the way of every push of its: rules, or a person's yes."""
    _push(app, name)


def _push(app: App, name: str) -> None:
    process = app.client.start_process(name, ["sh", "-c", _PUSH])
    for piece in app.client.follow_output(name, process.id):
        write_guest(piece.data, err=True)
    exit = app.client.get_process(name, process.id).exit
    if exit is None or exit.code != 0:
        raise CommandFailed("git did not push", "read what it wrote; see `corral denials`", exit_status=1)


@click.command(
    epilog="""\b
Examples:
  corral pr box
  corral pr box --title "Fix the parser" --base develop --draft
  corral pr box --body-file summary.md"""
)
@click.argument("name")
@click.option("--title", help="Default: that of its last commit.")
@click.option("--body", help="What the pull request says.")
@click.option(
    "--body-file", type=click.Path(exists=True, dir_okay=False), help="A file of yours that holds it."
)
@click.option("--base", metavar="BRANCH", help="Branch to go into. Default: the forge's default branch.")
@click.option("--draft", is_flag=True, help="Open it as a draft.")
@click.option("--no-push", is_flag=True, help="What is to be proposed was pushed before.")
@json_option
@pass_app
def pr(
    app: App,
    name: str,
    title: str | None,
    body: str | None,
    body_file: str | None,
    base: str | None,
    draft: bool,
    no_push: bool,
    as_json: bool,
) -> None:
    """Push a sandbox's branch, and open a pull request for it from this host: GitHub or GitLab, with the host's credential."""
    if body is not None and body_file is not None:
        raise InvalidInput("the body is given twice", "give --body or --body-file")
    if body_file is not None:
        body = Path(body_file).read_text()
    if not no_push:
        _push(app, name)
    found = app.client.open_pull_request(name, title=title, body=body, base=base, draft=draft)
    if as_json:
        show_json(found)
        return
    say(found.url)
    if found.existed:
        note("it was open already, and has what was pushed")

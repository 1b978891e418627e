"""A repository's `corral.toml` on the command line: used by create and run, written by init."""

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from corral.cli.app import App, pass_app
from corral.cli.output import clean, note, say, show_json
from corral.cli.values import json_option
from corral.model.project import Project

F = TypeVar("F", bound=Callable[..., Any])


def project_options(command: F) -> F:
    """Whether a repository's own file counts."""
    options = [
        click.option("--no-project", is_flag=True, help="Leave the repository's corral.toml out."),
        click.option("--trust", is_flag=True, help="Agree to what the repository's corral.toml asks for."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def with_project(
    wanted: dict[str, Any], *, no_project: bool, trust: bool
) -> tuple[dict[str, Any], Project | None]:
    """Options of a create, with those of the repository's file where there is one. Raises Forbidden without consent."""
    from corral.sdk.projects import Agreements, create_options, find_project

    repo = wanted.get("repo")
    if repo is None or "://" in repo or no_project:
        return wanted, None
    found = find_project(repo)
    if found is None:
        return wanted, None
    top, project = found
    Agreements().require(top, project, lambda asks: trust or _ask(str(top), asks))
    return create_options(project, wanted), project


def _ask(top: str, asks: tuple[str, ...]) -> bool:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    note(f"the repository {clean(top)} asks that its sandboxes may")
    for line in asks:
        note(f"  - {clean(line)}")
    return click.confirm("agree, until it asks for something else?", err=True)


def carry_in(app: App, sandbox: str, project: Project | None) -> None:
    """Copy what a project wants of the user's home into a new sandbox."""
    from corral.sdk.projects import carried

    archive = carried(project) if project is not None else None
    if archive is not None:
        app.client.write_archive(sandbox, "/home/user", archive)


@click.command(epilog="\b\nExamples:\n  corral init\n  corral init path/to/repo --print")
@click.argument("path", default=".")
@click.option("--print", "print_only", is_flag=True, help="Print the file instead of writing it.")
@click.option("-f", "--force", is_flag=True, help="Replace a file that is there.")
@json_option
@pass_app
def init(app: App, path: str, print_only: bool, force: bool, as_json: bool) -> None:
    """Write a corral.toml for the repository at PATH, from what is seen there."""
    from corral.sdk.project_guess import write_project

    text, place = write_project(path, dry=print_only, force=force)
    if as_json:
        show_json({"path": str(place), "text": text, "written": not print_only})
    elif print_only:
        say(text.rstrip())
    else:
        say(str(place))
        note("see what it says, then: corral create --repo . --trust")

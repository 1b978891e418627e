"""Commands that make templates, and those of builds."""

import sys
from pathlib import Path
from typing import Any

import click

from corral.cli.app import App, pass_app
from corral.cli.output import age, clean, fields, note, progress, say, show_json, size, table
from corral.cli.values import Size, json_option, pairs, variables
from corral.errors import InvalidInput, NotFound
from corral.protocol.builds import BuildLine

_RECIPE = (
    "file",
    "context",
    "target",
    "build_arg",
    "start",
    "ready",
    "no_cache",
    "allow",
    "secret",
    "models",
    "alias",
)


@click.command(
    "build",
    epilog="""\b
Examples:
  corral template build                                    the base
  corral template build claude                             an agent on top of the base
  corral template build --image debian:12 --name deb       an OCI image
  corral template build web --context .                    ./Dockerfile, with . as its context
  corral template build web -f Dockerfile --allow deb.debian.org --allow registry.example.org
  corral template build web -f - --start "npm start" --ready "curl -sf localhost:3000" < Dockerfile""",
)
@click.argument("name", required=False)
@click.option("-f", "--file", metavar="PATH", help="The Dockerfile; - for stdin. Default: in the context.")
@click.option(
    "--context", metavar="DIR", help="What COPY takes files from. Default: the Dockerfile's directory."
)
@click.option("--target", help="The stage to build. Default: the last.")
@click.option(
    "--build-arg", multiple=True, metavar="KEY[=VALUE]", help="Value of an ARG; without one: your own."
)
@click.option("--allow", multiple=True, metavar="HOST[:PORT]", help="A host that its commands may reach.")
@click.option("--secret", multiple=True, metavar="NAME", help="A secret that the gateway adds for them.")
@click.option("--start", metavar="COMMAND", help="Runs in each sandbox from its start.")
@click.option("--ready", metavar="COMMAND", help="Succeeds once that is ready.")
@click.option("--models", multiple=True, metavar="PATTERN", help="Models that its sandboxes may use at most.")
@click.option(
    "--alias", multiple=True, metavar="ASKED=SENT", help="Send one model where another is asked for."
)
@click.option("--no-cache", is_flag=True, help="Do every step again.")
@click.option("--memory", type=Size(), help="Most memory of each step, such as 2G.")
@click.option("--cpus", type=float, help="Most CPU of each step, in cores.")
@click.option("--disk", type=Size(), help="Most disk of each step.")
@click.option("--isolation", type=click.Choice(["container", "gvisor"]), help="Boundary of each step.")
@click.option("--image", metavar="REFERENCE", help="Import an OCI image.")
@click.option("--name", "image_name", metavar="NAME", help="Name of the imported template.")
@json_option
@pass_app
def build_template(
    app: App, name: str | None, image: str | None, image_name: str | None, as_json: bool, **values: Any
) -> None:
    """Build the base, an agent's template, or the template NAME from a Dockerfile or an OCI image."""
    if image:
        built = _import_image(app, name or image_name, image, both=bool(name and image_name))
    elif image_name:
        raise InvalidInput("only an imported image gets a name by --name", "give NAME, or add --image")
    elif any(values[key] for key in _RECIPE):
        built = _build_recipe(app, name, values)
    else:
        built = _build_known(app, name)
    if as_json:
        show_json(built)
    else:
        say(built.name)
        note(f"{len(built.layers)} layers, {size(built.size)}")


def _import_image(app: App, name: str | None, image: str, *, both: bool) -> Any:
    if both or not name:
        raise InvalidInput(
            "an image needs one name, and no agent", "corral template build NAME --image REFERENCE"
        )
    with progress("importing") as show:
        return app.client.build_template("image", name=name, image=image, progress=show)


def _build_known(app: App, name: str | None) -> Any:
    with progress("building") as show:
        if name and name != "base":
            return app.client.build_template("agent", agent=name, progress=show)
        return app.client.build_template("base", progress=show)


def _build_recipe(app: App, name: str | None, values: dict[str, Any]) -> Any:
    from functools import partial

    from corral.sdk.contexts import Context, read_ignore
    from corral.sdk.template import context_sources

    if not name:
        raise InvalidInput("the template needs a name", "corral template build NAME --context .")
    args = variables(values["build_arg"])
    text, path = _dockerfile(values["file"], values["context"])
    target = values["target"] or ""
    context = None
    if sources := context_sources(text, args, target):
        root = Path(values["context"] or (path.parent if path else "."))
        context = partial(Context(root, read_ignore(root, path), only=sources).archive)
    limits = {key: values[key] for key in ("memory", "cpus", "disk") if values[key] is not None}
    return app.client.build_template_from(
        name,
        dockerfile=text,
        target=target,
        start=values["start"],
        ready=values["ready"],
        context=context,
        args=args,
        allow=values["allow"],
        secrets=values["secret"],
        limits={"pids": 4096, **limits},
        isolation=values["isolation"],
        models=values["models"] or None,
        aliases=pairs(values["alias"], "an alias") or None,
        fresh=values["no_cache"],
        on_line=show_line,
    )


def _dockerfile(file: str | None, context: str | None) -> tuple[str, Path | None]:
    if file == "-":
        return sys.stdin.read(), None
    path = Path(file) if file else Path(context or ".") / "Dockerfile"
    try:
        return path.read_text(encoding="utf-8"), path
    except (OSError, UnicodeDecodeError) as error:
        raise NotFound(f"the Dockerfile cannot be read: {error}", "name it: --file PATH") from None


def show_line(line: BuildLine) -> None:
    """A line of a build's log, on stderr: what commands print is set in."""
    note(f"  {clean(line.text)}" if line.output else clean(line.text))


@click.group(epilog="\b\nExamples:\n  corral build ls\n  corral build log 3f9a1c0d2b4e5f60")
def build() -> None:
    """Builds of templates: what runs, how it went."""


@build.command("ls", epilog="\b\nExample:\n  corral build ls --json")
@json_option
@pass_app
def list_builds(app: App, as_json: bool) -> None:
    """List builds since the daemon's start."""
    found = app.client.list_builds()
    if as_json:
        show_json(found)
        return
    table(
        ["ID", "TEMPLATE", "STATUS", "STEP", "CACHED", "AGE"],
        [
            (item.id, item.name, item.status, f"{item.step}/{item.steps}", item.cached, age(item.created_at))
            for item in found
        ],
    )


@build.command("show", epilog="\b\nExample:\n  corral build show 3f9a1c0d2b4e5f60")
@click.argument("id")
@json_option
@pass_app
def show_build(app: App, id: str, as_json: bool) -> None:
    """Show a build."""
    found = app.client.get_build(id)
    if as_json:
        show_json(found)
        return
    fields(
        [
            ("id", found.id),
            ("template", found.name),
            ("status", found.status),
            ("step", f"{found.step} of {found.steps}, {found.cached} known from before"),
            ("error", found.error.get("message")),
            ("hint", found.error.get("hint")),
            ("created", found.created_at.isoformat(timespec="seconds")),
            ("finished", found.finished_at.isoformat(timespec="seconds") if found.finished_at else None),
        ]
    )


@build.command("log", epilog="\b\nExample:\n  corral build log 3f9a1c0d2b4e5f60")
@click.argument("id")
@json_option
@pass_app
def build_log(app: App, id: str, as_json: bool) -> None:
    """Follow a build's log until it ends."""
    from corral.cli.output import json_line

    for line in app.client.follow_build(id):
        if as_json:
            json_line(line)
        else:
            say(f"  {clean(line.text)}" if line.output else clean(line.text))


@build.command("cancel", epilog="\b\nExample:\n  corral build cancel 3f9a1c0d2b4e5f60")
@click.argument("id")
@json_option
@pass_app
def cancel_build(app: App, id: str, as_json: bool) -> None:
    """Give a build up; returns once nothing of it runs."""
    found = app.client.cancel_build(id)
    show_json(found) if as_json else say(found.status)


@build.command("forget", epilog="\b\nExample:\n  corral build forget")
@json_option
@pass_app
def forget_steps(app: App, as_json: bool) -> None:
    """Free the disk of steps that no template has; later builds do them again."""
    count = app.client.forget_steps()
    show_json({"steps": count}) if as_json else say(f"{count} steps forgotten")

"""Templates as files: out to other hosts and tools, and in from them."""

import sys
from pathlib import Path

import click

from corral.cli.app import App, pass_app
from corral.cli.output import note, progress, say, show_json, size
from corral.cli.values import json_option
from corral.errors import InvalidInput


@click.command(
    "export",
    epilog="""\b
Examples:
  corral template export web web.tar                 one file; docker load -i web.tar
  corral template export web layout/                 a directory; skopeo inspect oci:layout
  corral template export web - | ssh other corral template import web -""",
)
@click.argument("name")
@click.argument("path")
@json_option
@pass_app
def export_template(app: App, name: str, path: str, as_json: bool) -> None:
    """Write a template or checkpoint as an OCI image: to the file PATH, to the directory PATH/, or to stdout (-).
    Saved processes (a checkpoint with --memory) stay here: an image holds files."""
    from corral.sdk.layouts import write_archive, write_layout

    if path == "-":
        if sys.stdout.isatty() or as_json:
            raise InvalidInput("an archive is not for a terminal", "give a file's name, or a pipe")
        _tell_memory(app, name)
        for chunk in app.client.export_template(name):
            sys.stdout.buffer.write(chunk)
        return
    target = Path(path)
    _tell_memory(app, name)
    with progress(f"exporting {name}"):
        chunks = app.client.export_template(name)
        whole = write_layout if path.endswith("/") or target.is_dir() else write_archive
        count = whole(chunks, target)
    if as_json:
        show_json({"path": path, "size": count})
    else:
        say(path)
        note(size(count))


def _tell_memory(app: App, name: str) -> None:
    if app.client.get_template(name).memory is not None:
        note(f"note: {name} has saved processes, which no image can hold: its files alone are exported")


@click.command(
    "import",
    epilog="""\b
Examples:
  corral template import web web.tar
  corral template import web layout/
  docker save debian:12 | corral template import deb -""",
)
@click.argument("name")
@click.argument("path")
@json_option
@pass_app
def import_template(app: App, name: str, path: str, as_json: bool) -> None:
    """Make the template NAME of an image: an archive of `corral template export`, of `docker save` or of podman and
    skopeo, a directory with an OCI layout, or an archive from stdin (-)."""
    from corral.sdk.layouts import read_image

    with progress(f"importing {name}"):
        data = iter(lambda: sys.stdin.buffer.read(1 << 18), b"") if path == "-" else read_image(Path(path))
        made = app.client.import_template(name, data)
    if as_json:
        show_json(made)
    else:
        say(made.name)
        note(f"{len(made.layers)} layers, {size(made.size)}")

"""Commands of files: cp, and the group `files`."""

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click

from corral.cli.app import App, pass_app
from corral.cli.output import clean, fields, note, say, show_json, size, table, write_guest
from corral.cli.values import force_option, json_option
from corral.errors import InvalidInput, NotFound
from corral.sdk.sandbox import Files
from corral.sdk.trees import Copied

STREAM = "-"
"""Standard input or output in place of a path of this machine."""


def remote(text: str) -> tuple[str, str] | None:
    """Sandbox and path of `NAME:PATH`; None for a path of this machine. `./a:b` is always of this machine."""
    name, colon, path = text.partition(":")
    if not colon or not name or "/" in name:
        return None
    return name, path


@click.command(
    epilog="""\b
Examples:
  corral cp report.pdf box:/home/user/
  corral cp src box:/home/user/src
  corral cp box:/home/user/result.json .
  corral cp box:/var/log logs
  corral cp box:notes.txt - | wc -l
  date | corral cp - box:/tmp/now"""
)
@click.argument("source")
@click.argument("target")
@click.option("-u", "--user", help="Who owns what is made in the sandbox. Default: its user.")
@json_option
@pass_app
def cp(app: App, source: str, target: str, user: str | None, as_json: bool) -> int:
    """Copy a file or directory into a sandbox or out of it; the other side is NAME:PATH.

    Into an existing directory the copy gets its own name; else TARGET is the name of the copy. A relative PATH starts at
    the sandbox's work directory. `-` is standard input or output, of one file; `./-` is a file of that name. Links are
    copied as links; what leads out of the directory, and special files, are left out and told, and the exit code is
    then 1.
    """
    inside, outside = remote(source), remote(target)
    if inside is not None and outside is None:
        if target == STREAM:
            return _print(app, *inside, as_json=as_json)
        copied = _download(app, *inside, Path(target))
    elif outside is not None and inside is None:
        copied = (
            _from_stdin(app, *outside, user)
            if source == STREAM
            else _upload(app, Path(source), *outside, user)
        )
    else:
        raise InvalidInput(
            "one of SOURCE and TARGET is in a sandbox", "write it as NAME:PATH, and the other as a path here"
        )
    for entry, reason in copied.skipped:
        note(f"left out: {clean(entry)}: {reason}")
    if as_json:
        show_json({"files": copied.files, "bytes": copied.bytes, "skipped": copied.skipped})
    else:
        note(f"{copied.files} file{'' if copied.files == 1 else 's'}, {size(copied.bytes)}")
    return 1 if copied.skipped else 0


def _print(app: App, name: str, path: str, *, as_json: bool) -> int:
    if as_json:
        raise InvalidInput(
            "standard output cannot hold a file and what was copied", "leave out one of - and --json"
        )
    for chunk in app.client.stream_file(name, absolute(app, name, path)):
        write_guest(chunk)
    return 0


def _from_stdin(app: App, name: str, path: str, user: str | None) -> Copied:
    target = absolute(app, name, path)
    if path == "" or path.endswith("/") or _is_directory(Files(app.client.transport, name), target):
        raise InvalidInput(
            f"{target} is a directory, and standard input has no name", "name the file to make"
        )
    made = app.client.write_file(name, target, _stdin(), user=user)
    return Copied(files=1, bytes=made.size)


def _download(app: App, name: str, path: str, target: Path) -> Copied:
    source = absolute(app, name, path)
    if target.is_dir():
        target = target / (source.rstrip("/").rpartition("/")[2] or name)
    return Files(app.client.transport, name).download(source, target)


def _upload(app: App, source: Path, name: str, path: str, user: str | None) -> Copied:
    files = Files(app.client.transport, name)
    target = absolute(app, name, path)
    if path == "" or path.endswith("/") or _is_directory(files, target):
        target = f"{target.rstrip('/')}/{source.resolve().name}"
    return files.upload(source, target, user=user)


def _is_directory(files: Files, path: str) -> bool:
    try:
        return files.stat(path).kind == "directory"
    except NotFound:
        return False


def absolute(app: App, name: str, path: str) -> str:
    """A path in a sandbox; a relative one starts at its work directory."""
    if path.startswith("/"):
        return path
    return f"{app.client.get_sandbox(name).workdir.rstrip('/')}/{path}".rstrip("/") or "/"


@click.group(epilog="\b\nExamples:\n  corral files ls box /home/user\n  corral files cat box notes.txt")
def files() -> None:
    """Look at and change a sandbox's files. Relative paths start at its work directory."""


@files.command(
    "ls", epilog="\b\nExamples:\n  corral files ls box\n  corral files ls box /etc --depth 2 --json"
)
@click.argument("name")
@click.argument("path", default="")
@click.option("--depth", type=click.IntRange(1, 64), default=1, help="Levels below the directory.")
@json_option
@pass_app
def list_(app: App, name: str, path: str, depth: int, as_json: bool) -> None:
    """List a directory."""
    found = app.client.list_files(name, absolute(app, name, path), depth)
    if as_json:
        show_json(found)
        return
    rows = [
        (
            f"{_KINDS.get(item.kind, '?')}{item.mode & 0o7777:04o}",
            f"{item.uid}:{item.gid}",
            item.size,
            datetime.fromtimestamp(item.mtime, UTC).strftime("%Y-%m-%d %H:%M"),
            f"{item.path} -> {item.target}" if item.target is not None else item.path,
        )
        for item in found
    ]
    table(["MODE", "OWNER", "SIZE", "CHANGED", "PATH"], rows)


_KINDS = {"file": "-", "directory": "d", "symlink": "l"}


@files.command(epilog="\b\nExample:\n  corral files cat box /etc/os-release")
@click.argument("name")
@click.argument("path")
@pass_app
def cat(app: App, name: str, path: str) -> None:
    """Print a file; byte for byte into a file or pipe."""
    _print(app, name, path, as_json=False)


@files.command(epilog="\b\nExample:\n  date | corral files write box /tmp/now")
@click.argument("name")
@click.argument("path")
@click.option("-u", "--user", help="Its owner. Default: the sandbox's user.")
@pass_app
def write(app: App, name: str, path: str, user: str | None) -> None:
    """Replace or create a file by standard input, at once."""
    app.client.write_file(name, absolute(app, name, path), _stdin(), user=user)


def _stdin() -> Iterator[bytes]:
    stream = sys.stdin.buffer
    while chunk := stream.read(256 * 1024):
        yield chunk


@files.command(epilog="\b\nExample:\n  corral files stat box /etc/passwd --json")
@click.argument("name")
@click.argument("path")
@json_option
@pass_app
def stat(app: App, name: str, path: str, as_json: bool) -> None:
    """Show a file's kind, size, owner and mode."""
    found = app.client.stat_file(name, absolute(app, name, path))
    if as_json:
        show_json(found)
        return
    fields(
        [
            ("path", found.path),
            ("kind", found.kind),
            ("size", found.size),
            ("mode", f"{found.mode & 0o7777:04o}"),
            ("owner", f"{found.uid}:{found.gid}"),
            ("target", found.target),
        ]
    )


@files.command(epilog="\b\nExample:\n  corral files mkdir box /srv/data")
@click.argument("name")
@click.argument("path")
@click.option("-u", "--user", help="Its owner. Default: the sandbox's user.")
@pass_app
def mkdir(app: App, name: str, path: str, user: str | None) -> None:
    """Create a directory and its parents."""
    app.client.make_dir(name, absolute(app, name, path), user=user)


@files.command(epilog="\b\nExample:\n  corral files mv box draft.md final.md")
@click.argument("name")
@click.argument("source")
@click.argument("target")
@pass_app
def mv(app: App, name: str, source: str, target: str) -> None:
    """Rename within the sandbox."""
    app.client.move_file(name, absolute(app, name, source), absolute(app, name, target))


@files.command(epilog="\b\nExample:\n  corral files rm box /tmp/scratch")
@click.argument("name")
@click.argument("path")
@force_option
@pass_app
def rm(app: App, name: str, path: str, force: bool) -> None:
    """Remove a file, or a directory with all below it."""
    sandbox = app.client.get_sandbox(name)
    try:
        app.client.remove_file(sandbox.id, absolute(app, name, path))
    except NotFound:
        if not force:
            raise


@files.command(epilog="\b\nExample:\n  corral files watch box /home/user --recursive")
@click.argument("name")
@click.argument("path", default="")
@click.option("-r", "--recursive", is_flag=True, help="Everything below it.")
@json_option
@pass_app
def watch(app: App, name: str, path: str, recursive: bool, as_json: bool) -> None:
    """Show changes below a directory, until Ctrl-C."""
    from corral.cli.output import json_line

    for change in app.client.watch_files(name, absolute(app, name, path), recursive=recursive):
        json_line(change) if as_json else say(f"{change.kind}  {clean(change.path)}")

"""Commands of the daemon itself."""

import os
import select
import signal
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any

import click

from corral.cli.app import App, pass_app
from corral.cli.output import clean, fields, note, say, show_json, table
from corral.cli.values import json_option
from corral.errors import DaemonUnreachable, Forbidden, Unsupported
from corral.sdk import autostart
from corral.sdk.settings import Settings, settings

_DOCTOR = ("-m", "corral.daemon.doctor")
"""The same checks as a program of its own, for a host where the daemon does not start."""
STOP_SECONDS = 30.0
FOLLOW_SECONDS = 0.25
_CREDENTIALS = struct.Struct("3i")


@click.command(
    context_settings={"ignore_unknown_options": True},
    add_help_option=False,
    epilog="\b\nExamples:\n  corral serve\n  corral serve --listen 127.0.0.1:7070",
)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def serve(args: tuple[str, ...]) -> None:
    """Run the daemon in the foreground, until SIGTERM or Ctrl-C."""
    # The daemon is another program, of which the client knows the name only; it takes the place of this process.
    os.execv(sys.executable, [sys.executable, "-m", "corral.daemon.main", *args])  # noqa: S606


@click.group(epilog="\b\nExamples:\n  corral daemon status\n  corral daemon logs -f")
def daemon() -> None:
    """Start, stop and look at this host's daemon. It is also started by the first command that needs it."""


@daemon.command("start", epilog="\b\nExample:\n  corral daemon start")
def start_daemon() -> None:
    """Start the daemon, and return once it answers."""
    where = _local()
    autostart.ensure(where)
    say(f"the daemon answers at {where.socket}")


@daemon.command("stop", epilog="\b\nExample:\n  corral daemon stop")
def stop_daemon() -> None:
    """Stop the daemon. Sandboxes and what runs in them go on; the next start takes them up again."""
    where = _local()
    pid = _listener(where.socket)
    if pid is None:
        note("no daemon runs")
        return
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(fd, signal.SIGTERM)
        if not select.select([fd], [], [], STOP_SECONDS)[0]:
            raise DaemonUnreachable(
                f"the daemon (pid {pid}) did not end", f"see `corral daemon logs`; kill -9 {pid}"
            )
    except PermissionError:
        raise Forbidden("this user may not stop the daemon", "run the command as root: sudo") from None
    finally:
        os.close(fd)
    say("stopped")


@daemon.command("status", epilog="\b\nExample:\n  corral daemon status --json")
@json_option
@pass_app
def daemon_status(app: App, as_json: bool) -> int:
    """Show whether the daemon runs, and where it keeps things. The exit code is 9 if it does not."""
    where = _local()
    pid = _listener(where.socket)
    found: dict[str, Any] = {
        "running": pid is not None,
        "pid": pid,
        "socket": str(where.socket),
        "data_dir": str(where.data_dir),
        "log": str(where.log),
    }
    if pid is not None:
        found["version"] = app.client.health().version
        found["sandboxes"] = len(app.client.list_sandboxes())
    show_json(found) if as_json else fields(list(found.items()))
    return 0 if pid is not None else DaemonUnreachable.exit_code


@daemon.command("logs", epilog="\b\nExamples:\n  corral daemon logs\n  corral daemon logs -f -n 20")
@click.option("-f", "--follow", is_flag=True, help="Go on with what is written from now.")
@click.option("-n", "lines", type=click.IntRange(0, 100_000), default=100, help="Lines to begin with.")
def daemon_logs(follow: bool, lines: int) -> None:
    """Show the daemon's log."""
    log = _local().log
    try:
        with log.open("rb") as file:
            tail = file.read().splitlines()[-lines:] if lines else []
            position = file.tell()
    except FileNotFoundError:
        raise DaemonUnreachable(
            f"there is no log at {log} yet", "start the daemon: `corral daemon start`"
        ) from None
    for line in tail:
        say(clean(line.decode("utf-8", "replace")))
    while follow:
        position = _print_new(log, position)
        time.sleep(FOLLOW_SECONDS)


def _print_new(log: Path, position: int) -> int:
    with log.open("rb") as file:
        if file.seek(0, os.SEEK_END) < position:
            position = 0  # a new log took its place
        file.seek(position)
        while line := file.readline():
            if not line.endswith(b"\n"):
                break
            position += len(line)
            say(clean(line.decode("utf-8", "replace").rstrip("\n")))
    return position


def _local() -> Settings:
    where = settings()
    if not where.local:
        raise Forbidden(
            "CORRAL_URL names a daemon elsewhere", "manage it on its own host, or unset CORRAL_URL here"
        )
    return where


def _listener(path: Path) -> int | None:
    """The process that listens on a unix socket, as the kernel tells it; None where nobody does."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        except PermissionError:
            raise Forbidden("this user may not use the daemon", "run the command as root: sudo") from None
        raw = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid: int = _CREDENTIALS.unpack(raw)[0]
    return pid


@click.command(epilog="\b\nExamples:\n  corral doctor\n  corral doctor --deep")
@click.option("--deep", is_flag=True, help="Read all layers, and use none any more that is damaged.")
@json_option
@pass_app
def doctor(app: App, deep: bool, as_json: bool) -> int:
    """Check what this host can do, what will not work, and what to do about it. The exit code is 6 if something fails."""
    try:
        checks = app.client.doctor(deep=deep)
    except DaemonUnreachable as error:
        if not settings().local:
            raise
        note(f"{clean(error.message, lines=True)}\nso the host is checked without it:")
        os.execv(sys.executable, [sys.executable, *_DOCTOR, *(["--json"] if as_json else [])])  # noqa: S606
    if as_json:
        show_json(checks)
    else:
        table(["CHECK", "STATUS", "FOUND"], [(check.name, check.status, check.message) for check in checks])
        for check in checks:
            if check.hint and check.status != "ok":
                say(f"{clean(check.name)}: {clean(check.hint)}")
    return Unsupported.exit_code if any(check.status == "fail" for check in checks) else 0

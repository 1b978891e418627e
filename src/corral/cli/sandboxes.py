"""Commands of sandboxes' lives."""

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from corral.cli.app import App, pass_app
from corral.cli.budgets import budget_line
from corral.cli.grants import patterns
from corral.cli.output import age, fields, json_line, note, progress, say, show_json, size, table
from corral.cli.project import carry_in, project_options, with_project
from corral.cli.values import (
    Dollars,
    Duration,
    Size,
    env_option,
    force_option,
    json_option,
    labels,
    pairs,
    read_private,
    variables,
)
from corral.errors import CorralError, InvalidInput, NotFound
from corral.model.sandbox import GIB, Limits

if TYPE_CHECKING:
    from corral.protocol.sandboxes import SandboxInfo

F = TypeVar("F", bound=Callable[..., Any])
MAX_AT_ONCE = 1000
_DEFAULTS = Limits()
_SSH = re.compile(r"[\w.-]+@[\w.-]+:")
THREADS = 16


def create_options(command: F) -> F:
    """What may be said of a new sandbox."""
    options = [
        click.option("--name", help="Default: a free one like brave-otter."),
        click.option("-t", "--template", help="What to start from. Default: the agent's, or base."),
        click.option(
            "--isolation",
            type=click.Choice(["container", "gvisor"]),
            help="Strength of the boundary. Default: container.",
        ),
        click.option("--runtime", help="OCI runtime, such as runc. Default: the isolation's."),
        click.option(
            "--memory", type=Size(), help=f"Most memory, such as 512M. Default: {_DEFAULTS.memory // GIB}G."
        ),
        click.option("--cpus", type=float, help=f"Most CPU, in cores. Default: {_DEFAULTS.cpus:g}."),
        click.option(
            "--disk", type=Size(), help=f"Most disk over the template. Default: {_DEFAULTS.disk // GIB}G."
        ),
        click.option("--pids", type=int, help=f"Most processes and threads. Default: {_DEFAULTS.pids}."),
        env_option,
        click.option("-l", "--label", multiple=True, metavar="KEY=VALUE", help="Label, to find it by."),
        click.option("-u", "--user", help="Who runs commands. Default: the template's user."),
        click.option("-w", "--workdir", help="Where commands run."),
        click.option("--timezone", metavar="ZONE", help="Time zone of its commands, such as Europe/Berlin."),
        click.option("--ttl", type=Duration(), help="Remove it after this time, such as 2h. Default: never."),
        click.option(
            "--allow",
            multiple=True,
            metavar="RULE",
            help="A host that it may reach: HOST, 'GET HOST/PATH', @npm.",
        ),
        click.option("--deny", multiple=True, metavar="RULE", help="What it may not, whatever allows it."),
        click.option(
            "--dns", multiple=True, metavar="ADDRESS", help="A DNS server for its names. Default: the host's."
        ),
        click.option(
            "--proxy",
            metavar="URL|PATH",
            help="A proxy for its connections, as socks5://HOST:PORT; a private file holds one with its login.",
        ),
        click.option(
            "--secret",
            multiple=True,
            metavar="NAME[=VARIABLE]",
            help="A secret that it may use, by a placeholder in VARIABLE. Default: its agent's.",
        ),
        click.option("--repo", metavar="PATH|URL", help="Repository to clone into it."),
        click.option("--branch", help="Branch to work on; `auto` for corral/NAME."),
        click.option(
            "--git-repo",
            multiple=True,
            metavar="HOST/OWNER/NAME[:write]",
            help="A repository that git in it may read, or also push to.",
        ),
        click.option(
            "--push-rule",
            multiple=True,
            metavar="allow|ask|deny:PATTERN",
            help="What it may push, such as allow:feature/* or deny:main.",
        ),
        click.option(
            "--volume",
            multiple=True,
            metavar="NAME:/PATH[:ro]",
            help="A volume to mount (`corral volume create`); with :ro to only read it.",
        ),
        click.option("--budget", type=Dollars(), help="What its model calls may cost. Default: the host's."),
        click.option(
            "--idle-pause", type=Duration(), help="Pause it after this time without use; 0 for never."
        ),
        click.option(
            "--idle-stop", type=Duration(), help="Stop it after this time without use; 0 for never."
        ),
        click.option("--queue", is_flag=True, help="Wait in a fair queue if the host has no room for it."),
        click.option("--queue-timeout", type=Duration(), help="Wait that long at most. Default: no end."),
        click.option(
            "--models", multiple=True, metavar="PATTERN", help="Models that it may use. Default: the host's."
        ),
        click.option(
            "--alias", multiple=True, metavar="ASKED=SENT", help="Send one model where another is asked for."
        ),
        click.option(
            "--expires", type=Duration(), help="When its secrets and hosts end, such as 8h. Default: never."
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def creation(values: dict[str, Any]) -> dict[str, Any]:
    """Arguments of `Client.create_sandbox` from the options of `create_options`."""
    ttl = values["ttl"]
    if ttl is not None and ttl < 1:
        raise InvalidInput("a time to live is at least one second", "leave --ttl out for no end")
    limits = {key: values[key] for key in ("memory", "cpus", "disk", "pids") if values[key] is not None}
    return {
        **{
            key: values[key]
            for key in ("name", "template", "isolation", "runtime", "user", "workdir", "timezone", "branch")
        },
        "limits": limits or None,
        "env": variables(values["env"]) or None,
        "labels": labels(values["label"]) or None,
        "ttl": None if ttl is None else int(ttl),
        "allow": values["allow"],
        "deny": values["deny"],
        "dns": values["dns"],
        "proxy": _proxy(values["proxy"]),
        "secrets": values["secret"] or None,
        "repo": repository(values["repo"]),
        "budget": values["budget"],
        "idle_pause": None if values["idle_pause"] is None else int(values["idle_pause"]),
        "idle_stop": None if values["idle_stop"] is None else int(values["idle_stop"]),
        "queue": values["queue"] or values["queue_timeout"] is not None,
        "queue_timeout": None if values["queue_timeout"] is None else max(1, int(values["queue_timeout"])),
        "git_repos": values["git_repo"],
        "push_rules": values["push_rule"],
        "volumes": values["volume"],
        "models": patterns(values["models"]),
        "aliases": pairs(values["alias"], "an alias") or None,
        "expires": None if values["expires"] is None else max(1, int(values["expires"])),
    }


def _proxy(text: str | None) -> str | None:
    """A proxy's URL. Raises InvalidInput for a login that other users of the host can read."""
    if text is None:
        return None
    if "://" not in text:
        return read_private(Path(text).expanduser())
    if "@" in text:
        raise InvalidInput(
            "a login on the command line can be read by others",
            "give a file that holds the URL: `--proxy PATH`",
        )
    return text


def repository(text: str | None) -> str | None:
    """A URL as it is; a path made absolute, since the daemon has another working directory.

    Raises InvalidInput for git's `user@host:path`, which is neither.
    """
    if text is not None and _SSH.match(text) and not Path(text).exists():
        raise InvalidInput(
            "a repository is not cloned over SSH", "give its https:// URL, or the path of a clone"
        )
    return text if text is None or "://" in text else str(Path(text).expanduser().absolute())


@click.command(
    epilog="""\b
Examples:
  corral create
  corral create --name box --memory 2G --ttl 1h
  corral create -n 10 -l job=42 --json
  corral create --isolation gvisor --allow example.org
  corral create --volume cache:/cache --volume models:/models:ro
  corral create --memory 8G --queue --queue-timeout 10m
  corral create --repo . --branch auto"""
)
@create_options
@project_options
@click.option("--agent", help="The coding agent that it is for, such as claude.")
@click.option("-n", "count", type=click.IntRange(1, MAX_AT_ONCE), default=1, help="Make this many at once.")
@json_option
@pass_app
def create(
    app: App, count: int, agent: str | None, as_json: bool, no_project: bool, trust: bool, **values: Any
) -> None:
    """Make a sandbox, start it and print its name. A repository's corral.toml says what it starts from and runs."""
    wanted, project = with_project({**creation(values), "agent": agent}, no_project=no_project, trust=trust)
    with progress("creating") as show:
        made, failures = _create_all(app, {**wanted, "progress": show}, count)
        for info in made:
            carry_in(app, info.id, project)
    if as_json:
        show_json(made[0] if count == 1 and made else made)
    else:
        for info in made:
            say(info.name)
    if failures:
        if count > 1:
            note(f"{len(failures)} of {count} were not made")
        raise failures[0]


def _create_all(
    app: App, wanted: dict[str, Any], count: int
) -> tuple[list["SandboxInfo"], list[CorralError]]:
    client = app.client
    made: list[SandboxInfo] = []
    failures: list[CorralError] = []

    def one(number: int) -> None:
        name = wanted["name"]
        try:
            numbered = f"{name}-{number + 1}" if name and count > 1 else name
            made.append(client.create_sandbox(**{**wanted, "name": numbered}))
        except CorralError as error:
            failures.append(error)

    with ThreadPoolExecutor(min(count, THREADS)) as pool:
        for _ in pool.map(one, range(count)):
            pass
    return made, failures


@click.command(
    "ls", epilog="\b\nExamples:\n  corral ls\n  corral ls -l job=42 --json\n  corral rm $(corral ls -q)"
)
@click.option("-l", "--label", multiple=True, metavar="KEY=VALUE", help="Only those with this label.")
@click.option("-q", "--quiet", is_flag=True, help="Names only.")
@json_option
@pass_app
def list_(app: App, label: Sequence[str], quiet: bool, as_json: bool) -> None:
    """List sandboxes, oldest first."""
    found = app.client.list_sandboxes(labels(label))
    if as_json:
        show_json(found)
    elif quiet:
        for item in found:
            say(item.name)
    else:
        table(
            ["NAME", "STATE", "TEMPLATE", "ISOLATION", "AGENT", "AGE"],
            [
                (
                    item.name,
                    item.state,
                    item.template_name or item.template,
                    item.isolation,
                    item.agent or "-",
                    age(item.created_at),
                )
                for item in found
            ],
        )


@click.command(epilog="\b\nExamples:\n  corral show box\n  corral show box --json")
@click.argument("name")
@json_option
@pass_app
def show(app: App, name: str, as_json: bool) -> None:
    """Show all that is known of a sandbox, and what it uses now."""
    info = app.client.get_sandbox(name)
    stats = app.client.stats(info.id) if info.state in ("running", "paused") else None
    if as_json:
        show_json({"sandbox": info, "stats": stats})
        return
    limits = info.limits
    fields(
        [
            ("name", info.name),
            ("id", info.id),
            ("state", f"{info.state} ({info.reason})" if info.reason else info.state),
            ("exit code", info.exit_code),
            ("template", info.template_name or info.template),
            ("isolation", f"{info.isolation} ({info.runtime})"),
            ("agent", info.agent),
            ("repository", info.repo),
            ("git repositories", ", ".join(f"{one.name} ({one.access})" for one in info.git_repos)),
            ("branch", info.branch),
            ("volumes", ", ".join(f"{v.name}:{v.path}{':ro' * v.read_only}" for v in info.volumes)),
            ("user", info.user),
            ("work directory", info.workdir),
            ("memory", f"{size(stats.memory)} of {size(limits.memory)}" if stats else size(limits.memory)),
            ("disk", f"{size(stats.disk)} of {size(limits.disk)}" if stats else size(limits.disk)),
            ("processes", f"{stats.pids} of {limits.pids}" if stats else limits.pids),
            ("cpus", limits.cpus),
            ("secrets", ", ".join(info.secrets)),
            ("may reach", ", ".join(rule.host for rule in info.allow)),
            ("labels", ", ".join(f"{key}={value}" for key, value in info.labels.items())),
            ("environment", ", ".join(sorted(info.env))),
            ("budget", budget_line(app.client.budget(info.id))),
            ("time to live", f"{info.ttl} s" if info.ttl else None),
            ("idle: paused after", f"{info.idle_pause} s" if info.idle_pause else None),
            ("idle: stopped after", f"{info.idle_stop} s" if info.idle_stop else None),
            ("created", info.created_at.isoformat(timespec="seconds")),
        ]
    )


def each(names: Sequence[str], act: Callable[[str], Any], as_json: bool, *, force: bool = False) -> None:
    """Do the same to several objects; go on after a failure, and end with the first one.

    `force`: one that does not exist is passed over.
    """
    failures: list[CorralError] = []
    for name in names:
        try:
            result = act(name)
            if as_json:
                json_line(result if result is not None else {"name": name, "ok": True})
            else:
                say(name)
        except CorralError as error:
            if force and isinstance(error, NotFound):
                continue
            if len(names) > 1:
                note(f"error: {name}: {error.message}")
            failures.append(error)
    if failures:
        raise failures[0]


@click.command(epilog="\b\nExample:\n  corral start box")
@click.argument("names", nargs=-1, required=True)
@json_option
@pass_app
def start(app: App, names: Sequence[str], as_json: bool) -> None:
    """Start stopped sandboxes; their files are as they were."""
    each(names, app.client.start_sandbox, as_json)


@click.command(epilog="\b\nExamples:\n  corral stop box\n  corral stop --grace 0 box")
@click.argument("names", nargs=-1, required=True)
@click.option(
    "--grace", type=Duration(), default=10.0, show_default="10s", help="Time between TERM and KILL."
)
@json_option
@pass_app
def stop(app: App, names: Sequence[str], grace: float, as_json: bool) -> None:
    """End sandboxes' processes; their files stay."""
    each(names, lambda name: app.client.stop_sandbox(name, grace), as_json)


@click.command(epilog="\b\nExamples:\n  corral pause box\n  corral pause --memory box")
@click.argument("names", nargs=-1, required=True)
@click.option("--memory", is_flag=True, help="Write processes to disk and free their memory (gVisor only).")
@json_option
@pass_app
def pause(app: App, names: Sequence[str], memory: bool, as_json: bool) -> None:
    """Freeze sandboxes where they are; they use no CPU until they are resumed."""
    each(names, lambda name: app.client.pause_sandbox(name, memory=memory), as_json)


@click.command(epilog="\b\nExample:\n  corral resume box")
@click.argument("names", nargs=-1, required=True)
@json_option
@pass_app
def resume(app: App, names: Sequence[str], as_json: bool) -> None:
    """Let paused and suspended sandboxes go on."""
    each(names, app.client.resume_sandbox, as_json)


@click.command(epilog="\b\nExamples:\n  corral fork box\n  corral fork box -n 10 --name try --ttl 1h")
@click.argument("name")
@click.option("-n", "count", type=click.IntRange(1, 100), default=1, help="Make this many.")
@click.option("--name", "stem", help="They are called NAME-1, NAME-2 … Default: after the sandbox.")
@click.option("--ttl", type=Duration(), help="Remove each after this time. Default: as the sandbox.")
@click.option("--files-only", is_flag=True, help="Leave its processes behind.")
@json_option
@pass_app
def fork(
    app: App, name: str, count: int, stem: str | None, ttl: float | None, files_only: bool, as_json: bool
) -> None:
    """Make sandboxes that are what NAME is now: with its processes under gVisor, with its files elsewhere."""
    with progress("forking"):
        forks = app.client.fork_sandbox(
            name, count, name=stem, ttl=None if ttl is None else int(ttl), files_only=files_only
        )
    if as_json:
        show_json(forks)
        return
    for info in forks.sandboxes:
        say(info.name)
    if not forks.memory and not files_only:
        note("they have its files; its processes were left behind, as only gVisor can copy those")


@click.command(epilog="\b\nExamples:\n  corral ttl box 2h\n  corral ttl box never")
@click.argument("name")
@click.argument("time")
@json_option
@pass_app
def ttl(app: App, name: str, time: str, as_json: bool) -> None:
    """Let a sandbox end after TIME from now, or `never`."""
    seconds = None if time == "never" else int(Duration().convert(time, None, None))
    if seconds is not None and seconds < 1:
        raise InvalidInput("a time to live is at least one second", "remove it at once: `corral rm NAME`")
    each([name], lambda ref: app.client.set_ttl(ref, seconds), as_json)


@click.command(
    "rm",
    epilog="\b\nExamples:\n  corral rm box\n  corral rm -f box other\n  corral rm $(corral ls -q -l job=42)",
)
@click.argument("names", nargs=-1, required=True)
@force_option
@json_option
@pass_app
def remove(app: App, names: Sequence[str], force: bool, as_json: bool) -> None:
    """Remove sandboxes with all that is in them, running or not."""
    each(names, app.client.remove_sandbox, as_json, force=force)

"""Commands of an agent's work: run, logs, diff, pull, usage, denials, events."""

import sys
from typing import TYPE_CHECKING, Any

import click

from corral.cli.app import App, pass_app
from corral.cli.approvals import announce
from corral.cli.budgets import budget_line
from corral.cli.output import (
    clean,
    dollars,
    fields,
    json_line,
    note,
    progress,
    say,
    show_json,
    table,
    write_guest,
)
from corral.cli.project import carry_in, project_options, with_project
from corral.cli.sandboxes import create_options, creation
from corral.cli.values import json_option
from corral.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from corral.protocol.processes import Exit, ProcessInfo
    from corral.protocol.sandboxes import SandboxInfo, UsageReport

AGENT_TAG = "agent"
_CAN_BE_ALLOWED = ("host-not-allowed", "port-not-allowed")


@click.command(
    epilog="""\b
Examples:
  corral run claude "make the tests pass" --repo . --branch auto
  corral run codex "explain this code" --repo https://example.org/project.git
  corral run claude --repo .            (no prompt: the agent's terminal opens)
  cat task.md | corral run opencode - --repo . --detach
  corral run pi "say hello" --json"""
)
@click.argument("agent")
@click.argument("prompt", required=False)
@create_options
@project_options
@click.option("--model", help="The model, as the agent spells it.")
@click.option("-d", "--detach", is_flag=True, help="Leave the agent working, and print the sandbox's name.")
@click.option("--rm", "remove", is_flag=True, help="Remove the sandbox when the agent has ended.")
@json_option
@pass_app
def run(
    app: App,
    agent: str,
    prompt: str | None,
    model: str | None,
    detach: bool,
    remove: bool,
    as_json: bool,
    no_project: bool,
    trust: bool,
    **values: Any,
) -> int:
    """Run a coding agent on PROMPT in a new sandbox, and end with its exit code.

    PROMPT `-` is read from standard input. Ctrl-C stops the showing, not the agent. The sandbox stays, with what the
    agent did; see `corral diff` and `corral pull`.
    """
    if prompt == "-":
        prompt = sys.stdin.read()
    if prompt is None and (as_json or detach or remove):
        raise InvalidInput(
            "without a prompt the agent's terminal opens", "give a prompt, or leave --json, -d and --rm out"
        )
    wanted, project = with_project(creation(values), no_project=no_project, trust=trust)
    with progress(f"making a sandbox for {agent}") as show:
        sandbox = app.client.create_sandbox(**wanted, agent=agent, progress=show)
        carry_in(app, sandbox.id, project)
    process = app.client.start_agent(sandbox.id, prompt, model)
    if prompt is None:
        from corral.cli.execute import run_here

        note(f"{sandbox.name}: Ctrl-b d leaves the agent working; `corral attach {sandbox.name}` comes back")
        argv = app.client.agent_terminal(sandbox.id)
        return run_here(app, sandbox.id, argv, {}, interactive=True, tty=True)
    if detach:
        show_json({"sandbox": sandbox, "process": process}) if as_json else say(sandbox.name)
        return 0
    return _to_the_end(app, sandbox, process, as_json=as_json, remove=remove)


def _to_the_end(
    app: App, sandbox: "SandboxInfo", process: "ProcessInfo", *, as_json: bool, remove: bool
) -> int:
    note(f"{sandbox.name}: {sandbox.agent} works")
    announce(app, sandbox.id)
    exit = _follow(app, sandbox, process, err=as_json)
    if exit is None:
        note(f"the agent goes on: `corral logs -f {sandbox.name}`; to end it: `corral rm {sandbox.name}`")
        return 130
    report = app.client.usage(sandbox.id)
    if as_json:
        show_json({"sandbox": sandbox, "process": process.id, "exit": exit, "usage": report})
    else:
        _summary(sandbox, exit, report, kept=not remove)
    if remove:
        app.client.remove_sandbox(sandbox.id)
    return exit.code


def _follow(app: App, sandbox: "SandboxInfo", process: "ProcessInfo", *, err: bool) -> "Exit | None":
    try:
        for piece in app.client.follow_output(sandbox.id, process.id):
            write_guest(piece.data, err=err or piece.stream == "stderr")
    except KeyboardInterrupt:
        return None
    return app.client.get_process(sandbox.id, process.id).exit


def _summary(sandbox: "SandboxInfo", exit: "Exit", report: "UsageReport", *, kept: bool) -> None:
    tokens = sum(item.input + item.output + item.cache_read + item.cache_write for item in report.models)
    how = "done" if exit.code == 0 else f"ended with exit code {exit.code}"
    note(f"{sandbox.name}: {how}; {tokens:,} tokens, {dollars(report.cost)}")
    if kept and sandbox.repo:
        note(f"see its work: `corral diff {sandbox.name}`; fetch it: `corral pull {sandbox.name}`")


@click.command(
    epilog="\b\nExamples:\n  corral logs box          what its agent wrote so far\n"
    "  corral logs -f box       and what it writes now\n  corral logs box 7        what process 7 wrote"
)
@click.argument("name")
@click.argument("process", type=int, required=False)
@click.option("-f", "--follow", is_flag=True, help="Go on until the process ends.")
@pass_app
def logs(app: App, name: str, process: int | None, follow: bool) -> None:
    """Show what the agent of a sandbox wrote, or the process with an id of `corral ps`."""
    if process is None:
        found = [item for item in app.client.list_processes(name) if item.tag == AGENT_TAG]
        if not found:
            raise NotFound(f"no agent has run in {name}", f"choose a process: `corral ps {name}`")
        process = found[-1].id
    for piece in app.client.follow_output(name, process, wait=follow):
        write_guest(piece.data, err=piece.stream == "stderr")


@click.command(epilog="\b\nExamples:\n  corral diff box\n  corral diff box | git apply")
@click.argument("name")
@pass_app
def diff(app: App, name: str) -> None:
    """Show what changed in a sandbox's repository since it was cloned, committed or not."""
    for chunk in _lines(app.client.diff(name)):
        write_guest(chunk)


def _lines(chunks: Any) -> Any:
    """The same bytes, cut at line ends, so that no character is shown in two halves."""
    rest = b""
    for chunk in chunks:
        whole, newline, rest = (rest + chunk).rpartition(b"\n")
        if newline:
            yield whole + newline
    if rest:
        yield rest


@click.command(epilog="\b\nExamples:\n  corral pull box\n  corral pull box --into ~/src/project")
@click.argument("name")
@click.option("--into", metavar="PATH", help="The clone to fetch into. Default: where --repo came from.")
@json_option
@pass_app
def pull(app: App, name: str, into: str | None, as_json: bool) -> None:
    """Fetch a sandbox's commits, checked, into refs/corral/NAME of your clone. Your branches do not change."""
    from corral.cli.sandboxes import repository

    result = app.client.pull(name, repository(into))
    if as_json:
        show_json(result)
        return
    fields([(key, value) for key, value in result.items() if not isinstance(value, list | dict)])
    for key, value in result.items():
        if isinstance(value, list) and value:
            say(f"{key}:")
            for item in value:
                shown = (
                    ", ".join(f"{k}: {v}" for k, v in item.items()) if isinstance(item, dict) else str(item)
                )
                say(f"  {clean(shown)}")


@click.command(epilog="\b\nExamples:\n  corral usage box\n  corral usage box --json")
@click.argument("name")
@json_option
@pass_app
def usage(app: App, name: str, as_json: bool) -> None:
    """Show what a sandbox's model calls used and cost. `~` marks prices or counts that had to be assumed."""
    report = app.client.usage(name)
    if as_json:
        show_json(report)
        return
    rows: list[tuple[object, ...]] = [
        (
            item.model,
            item.calls,
            item.input,
            item.output,
            item.cache_read,
            item.cache_write,
            ("~" if item.assumed else "") + dollars(item.cost),
        )
        for item in report.models
    ]
    rows.append(("total", sum(item.calls for item in report.models), "", "", "", "", dollars(report.cost)))
    table(["MODEL", "CALLS", "INPUT", "OUTPUT", "CACHE READ", "CACHE WRITE", "COST"], rows)
    note(f"budget: {budget_line(app.client.budget(name))}")


@click.command(epilog="\b\nExample:\n  corral denials box")
@click.argument("name")
@json_option
@pass_app
def denials(app: App, name: str, as_json: bool) -> None:
    """Show what a sandbox's gateway refused it, newest last."""
    found = app.client.denials(name)
    if as_json:
        show_json(found)
        return
    for item in found:
        at, kind = item.get("at", ""), item.get("kind", "")
        rest = " ".join(f"{key}={value}" for key, value in item.items() if key not in ("at", "kind"))
        say(clean(f"{at} {kind} {rest}"))
    if not found:
        note("nothing was refused")
    hosts = {str(i.get("host")): str(i.get("port")) for i in found if i.get("reason") in _CAN_BE_ALLOWED}
    for host, port in list(hosts.items())[-3:]:
        where = host if port in ("80", "443") else f"{host}:{port}"
        note(clean(f"to allow it: corral egress allow {name} {where}"))


@click.command(epilog="\b\nExamples:\n  corral events\n  corral events -f --json")
@click.option("-f", "--follow", is_flag=True, help="Go on with what happens from now.")
@json_option
@pass_app
def events(app: App, follow: bool, as_json: bool) -> None:
    """Show sandboxes' changes of state: those that the daemon remembers, and with -f those to come."""
    for item in app.client.events(0, wait=follow):
        if as_json:
            json_line(item)
        else:
            reason = f"  ({item.reason})" if item.reason else ""
            say(clean(f"{item.at.isoformat(timespec='seconds')}  {item.name}  {item.state}{reason}"))
        sys.stdout.flush()

"""The `corral` command: its table of commands, and the one place where errors become messages and exit codes."""

import gc
import importlib
import os
import sys
from typing import Any

import click

import corral
from corral.errors import CorralError, InternalError

EPILOG = """\
\b
First steps:
  corral secret add anthropic < key.txt        give Corral a key; it stays on this host
  corral run claude "make the tests pass" --repo . --branch auto
  corral diff NAME                             what the agent changed
  corral pull NAME                             its commits, as refs/corral/NAME here

\b
Any sandbox:
  corral create --name box                     make one
  corral exec box -- uname -a                  run a command in it
  corral shell box                             work in it
  corral rm box                                remove it with all that is in it

Every command has --help with examples, and every list has --json.
"""

COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("corral.cli.work:run", "Run a coding agent on a task in a new sandbox."),
    "init": ("corral.cli.project:init", "Write a repository's corral.toml."),
    "create": ("corral.cli.sandboxes:create", "Make a sandbox and start it."),
    "ls": ("corral.cli.sandboxes:list_", "List sandboxes."),
    "show": ("corral.cli.sandboxes:show", "Show all that is known of a sandbox."),
    "start": ("corral.cli.sandboxes:start", "Start stopped sandboxes."),
    "stop": ("corral.cli.sandboxes:stop", "Stop sandboxes; their files stay."),
    "pause": ("corral.cli.sandboxes:pause", "Freeze sandboxes where they are."),
    "resume": ("corral.cli.sandboxes:resume", "Let paused sandboxes go on."),
    "fork": ("corral.cli.sandboxes:fork", "Make copies of a sandbox, with what runs in it."),
    "ttl": ("corral.cli.sandboxes:ttl", "Set when a sandbox ends."),
    "rm": ("corral.cli.sandboxes:remove", "Remove sandboxes with all that is in them."),
    "top": ("corral.cli.host:top", "Show what the host carries, and who waits for room."),
    "url": ("corral.cli.preview:url", "Print the address of a port of a sandbox."),
    "exec": ("corral.cli.execute:exec_", "Run a command in a sandbox."),
    "shell": ("corral.cli.execute:shell", "Open a shell in a sandbox."),
    "attach": ("corral.cli.execute:attach", "Join the agent's terminal."),
    "ps": ("corral.cli.execute:ps", "List a sandbox's processes."),
    "logs": ("corral.cli.work:logs", "Show what an agent or a process wrote."),
    "diff": ("corral.cli.work:diff", "Show what changed in a sandbox's repository."),
    "pull": ("corral.cli.work:pull", "Fetch a sandbox's commits into your clone."),
    "push": ("corral.cli.publish:push", "Push a sandbox's branch to where it came from."),
    "pr": ("corral.cli.publish:pr", "Open a pull request for a sandbox's branch."),
    "usage": ("corral.cli.work:usage", "Show tokens and cost of a sandbox."),
    "grant": ("corral.cli.grants:grant", "Show and change what sandboxes' tokens may be used for."),
    "models": ("corral.cli.models:models", "Show and change which models all sandboxes may use."),
    "rate": ("corral.cli.rates:rate", "Limit model calls and tokens at a time."),
    "budget": ("corral.cli.budgets:budget", "Show and set what sandboxes may spend."),
    "egress": ("corral.cli.egress:egress", "What sandboxes may reach."),
    "denials": ("corral.cli.work:denials", "Show what a sandbox was refused."),
    "approvals": ("corral.cli.approvals:approvals", "Show what sandboxes ask for."),
    "approve": ("corral.cli.approvals:approve", "Say yes to what a sandbox asks for."),
    "deny": ("corral.cli.approvals:deny", "Say no, or take back a yes."),
    "audit": ("corral.cli.audit:audit", "Show every decision, and check the log."),
    "receipt": ("corral.cli.audit:receipt", "Show what a sandbox did."),
    "events": ("corral.cli.work:events", "Show sandboxes' changes of state."),
    "cp": ("corral.cli.files:cp", "Copy files and directories in and out."),
    "files": ("corral.cli.files:files", "Look at and change a sandbox's files."),
    "template": ("corral.cli.catalog:template", "What sandboxes start from."),
    "build": ("corral.cli.builds:build", "Builds of templates."),
    "checkpoint": ("corral.cli.catalog:checkpoint", "Make a template of a sandbox."),
    "pool": ("corral.cli.pools:pool", "Keep sandboxes ready."),
    "volume": ("corral.cli.volumes:volume", "Directories that outlive sandboxes."),
    "df": ("corral.cli.disk:df", "Show what takes disk."),
    "prune": ("corral.cli.disk:prune", "Give back disk that nothing needs."),
    "secret": ("corral.cli.secrets:secret", "Keys that stay on this host."),
    "price": ("corral.cli.catalog:price", "Prices of models."),
    "config": ("corral.cli.catalog:config", "The daemon's settings."),
    "e2b": ("corral.cli.e2b:e2b", "Use E2B's SDKs with this host."),
    "key": ("corral.cli.catalog:key", "API keys for the TCP interface."),
    "doctor": ("corral.cli.daemon:doctor", "Check this host, and say what to do."),
    "self-test": ("corral.cli.selftest:self_test", "Attack this installation from inside."),
    "serve": ("corral.cli.daemon:serve", "Run the daemon in the foreground."),
    "daemon": ("corral.cli.daemon:daemon", "Start, stop and look at the daemon."),
}


class Commands(click.Group):
    """The commands of the table; a command's module is loaded when it is used, so that `--help` is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load one."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """From the table alone."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


@click.command(cls=Commands, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(corral.__version__, prog_name="corral")
def cli() -> None:
    """Run coding agents in isolated sandboxes on this host. Keys never enter a sandbox."""


def main(args: list[str] | None = None, obj: Any = None) -> None:
    """The console entry point: runs the command and exits with its code."""
    gc.set_threshold(50_000)  # what is loaded at the start is no garbage
    # For plugins it would look through all that is installed.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    sys.exit(run(args, obj))


def run(args: list[str] | None = None, obj: Any = None) -> int:
    """Run a command; its exit code. Errors are told on stderr as `error: …` and `hint: …`."""
    try:
        result = cli.main(args, prog_name="corral", standalone_mode=False, obj=obj)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        path = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "corral"
        return _tell(error.format_message(), f"see `{path} --help`", 2)
    except CorralError as error:
        return _tell(error.message, error.hint, error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        # Whoever read our output has gone: nothing is left to tell, also not at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        if os.environ.get("CORRAL_DEBUG"):
            raise
        defect = InternalError(
            f"the command failed in an unexpected way: {type(error).__name__}: {error}",
            "this is a defect: report it with the output of the same command under CORRAL_DEBUG=1",
        )
        return _tell(defect.message, defect.hint, defect.exit_code)


def _tell(message: str, hint: str, code: int) -> int:
    from corral.cli.output import clean

    click.echo(f"error: {clean(message, lines=True)}\nhint: {clean(hint, lines=True)}", err=True)
    return code


if __name__ == "__main__":
    main()

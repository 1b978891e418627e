"""Commands of grants: what a sandbox's token may be used for."""

from typing import TYPE_CHECKING

import click

from corral.cli.app import App, pass_app
from corral.cli.output import fields, say, show_json, table
from corral.cli.values import Duration, json_option, pairs
from corral.errors import InvalidInput

if TYPE_CHECKING:
    from corral.protocol.grants import GrantInfo


@click.group(epilog="\b\nExamples:\n  corral grant ls\n  corral grant revoke box")
def grant() -> None:
    """What sandboxes' tokens may be used for: secrets, models, hosts, until when."""


@grant.command("ls", epilog="\b\nExample:\n  corral grant ls --json")
@json_option
@pass_app
def list_grants(app: App, as_json: bool) -> None:
    """List the grants of all sandboxes."""
    found = app.client.list_grants()
    if as_json:
        show_json(found)
        return
    table(
        ["SANDBOX", "STATE", "SECRETS", "MODELS", "HOSTS", "EXPIRES"],
        [
            (item.name, item.state, _some(item.secrets), _models(item), _some(item.hosts), _end(item))
            for item in found
        ],
    )


@grant.command("show", epilog="\b\nExample:\n  corral grant show box")
@click.argument("sandbox")
@json_option
@pass_app
def show_grant(app: App, sandbox: str, as_json: bool) -> None:
    """Show what a sandbox's token may be used for."""
    _show(app.client.grant(sandbox), as_json)


@grant.command(
    "set",
    epilog="""\b
Examples:
  corral grant set box --models 'claude-haiku-*' --alias opus=haiku
  corral grant set box --expires 2h
  corral grant set box --expires never --secret anthropic --secret github""",
)
@click.argument("sandbox")
@click.option(
    "--secret", multiple=True, metavar="NAME", help="A secret that it shall cover, in place of all others."
)
@click.option(
    "--models", multiple=True, metavar="PATTERN", help="Models that may run, in place of the former."
)
@click.option(
    "--alias", multiple=True, metavar="ASKED=SENT", help="Send one model where another is asked for."
)
@click.option("--no-alias", is_flag=True, help="Take all aliases away.")
@click.option("--expires", metavar="TIME", help="When it ends, from now on, such as 2h; `never` for no end.")
@json_option
@pass_app
def set_grant(
    app: App,
    sandbox: str,
    secret: tuple[str, ...],
    models: tuple[str, ...],
    alias: tuple[str, ...],
    no_alias: bool,
    expires: str | None,
    as_json: bool,
) -> None:
    """Change what a sandbox's token may be used for, from the next request on."""
    if not (secret or models or alias or no_alias or expires):
        raise InvalidInput("nothing is to be changed", "give --secret, --models, --alias or --expires")
    changed = app.client.change_grant(
        sandbox,
        secrets=secret or None,
        models=patterns(models),
        aliases={} if no_alias else pairs(alias, "an alias") or None,
        expires=expires if expires in (None, "never") else seconds(expires),
    )
    _show(changed, as_json)


@grant.command(
    "renew",
    epilog="\b\nExamples:\n  corral grant renew box\n  corral grant renew box --expires 8h --overlap 0",
)
@click.argument("sandbox")
@click.option("--expires", metavar="TIME", help="When it ends, from now on. Default: as before.")
@click.option(
    "--overlap",
    type=Duration(),
    default=600,
    help="How long running processes may use the former token. Default: 10m.",
)
@json_option
@pass_app
def renew_grant(app: App, sandbox: str, expires: str | None, overlap: float, as_json: bool) -> None:
    """Give a sandbox a new token, also where its grant was revoked or is over. New processes get it."""
    end = None if expires is None else seconds(expires)
    _show(app.client.renew_grant(sandbox, expires=end, overlap=int(overlap)), as_json)


@grant.command(
    "revoke", epilog="\b\nExamples:\n  corral grant revoke box\n  corral grant revoke box anthropic"
)
@click.argument("sandbox")
@click.argument("secrets", nargs=-1)
@json_option
@pass_app
def revoke_grant(app: App, sandbox: str, secrets: tuple[str, ...], as_json: bool) -> None:
    """Take SECRETS out of a sandbox's grant, or all that it covers; what is under way is cut within a second."""
    revoked = app.client.revoke_grant(sandbox, secrets)
    show_json(revoked) if as_json else say(revoked.name)


def patterns(models: tuple[str, ...]) -> list[str] | None:
    """Patterns as given, each option one or several with commas; None where there are none."""
    found = [part.strip() for item in models for part in item.split(",") if part.strip()]
    return found or None


def seconds(text: str) -> int:
    """Whole seconds, at least one."""
    return max(1, int(Duration().convert(text, None, None)))


def _show(found: "GrantInfo", as_json: bool) -> None:
    if as_json:
        show_json(found)
        return
    fields(
        [
            ("sandbox", found.name),
            ("state", found.state),
            ("secrets", ", ".join(found.secrets) or "none"),
            ("models", ", ".join(found.models)),
            ("aliases", ", ".join(f"{asked}={sent}" for asked, sent in found.aliases.items())),
            ("hosts", ", ".join(found.hosts) or "none"),
            ("expires", _end(found)),
            (
                "former token until",
                found.former_until.isoformat(timespec="seconds") if found.former_until else None,
            ),
        ]
    )


def _some(items: list[str], most: int = 3) -> str:
    more = f" +{len(items) - most}" if len(items) > most else ""
    return (", ".join(items[:most]) + more) or "none"


def _models(item: "GrantInfo") -> str:
    return "all" if item.models == ["*"] else _some(item.models)


def _end(item: "GrantInfo") -> str:
    return "never" if item.expires_at is None else item.expires_at.isoformat(timespec="seconds")

"""Commands of templates, secrets, prices, settings and API keys."""

from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

import click

from corral.cli.app import App, pass_app
from corral.cli.builds import build_template
from corral.cli.images import export_template, import_template
from corral.cli.output import age, clean, fields, note, progress, say, show_json, size, table
from corral.cli.values import force_option, json_option
from corral.errors import InvalidInput

if TYPE_CHECKING:
    from corral.protocol.catalog import TemplateInfo

# -- templates ----------------------------------------------------------------------------------------------------


@click.group(epilog="\b\nExamples:\n  corral template build\n  corral template ls")
def template() -> None:
    """What sandboxes start from: the base, OCI images, agents, checkpoints."""


template.add_command(build_template)
template.add_command(export_template)
template.add_command(import_template)


@template.command("ls", epilog="\b\nExample:\n  corral template ls --json")
@json_option
@pass_app
def list_templates(app: App, as_json: bool) -> None:
    """List templates."""
    found = app.client.list_templates()
    if as_json:
        show_json(found)
        return
    rows = [(item.name, item.id, size(item.size), item.source, age(item.created_at)) for item in found]
    table(["NAME", "ID", "SIZE", "SOURCE", "AGE"], rows)


@template.command("show", epilog="\b\nExample:\n  corral template show base")
@click.argument("name")
@json_option
@pass_app
def show_template(app: App, name: str, as_json: bool) -> None:
    """Show a template."""
    found = app.client.get_template(name)
    if as_json:
        show_json(found)
        return
    fields(
        [
            ("name", found.name),
            ("id", found.id),
            ("source", found.source),
            ("parent", found.parent),
            ("size", size(found.size)),
            ("user", found.user),
            ("work directory", found.workdir),
            ("sudo", "yes" if found.sudo else "no"),
            ("starts", " ".join(found.start_command)),
            ("ready once", " ".join(found.ready_command)),
            ("environment", ", ".join(f"{key}={value}" for key, value in found.env.items())),
            ("services", ", ".join(found.services)),
            ("layers", ", ".join(found.layers)),
            ("created", found.created_at.isoformat(timespec="seconds")),
            *_checkpoint(found),
        ]
    )


def _checkpoint(found: "TemplateInfo") -> list[tuple[str, str]]:
    """What is known of a checkpoint only."""
    lines = []
    if found.memory is not None:
        memory = found.memory
        lines.append(("processes", f"saved, {size(memory.size)}; {memory.isolation} ({memory.runtime}) only"))
    if found.origin is not None:
        lines.append(("made of", f"sandbox {found.origin.sandbox} ({found.origin.sandbox_id})"))
        lines.append(("made by", found.origin.by))
        lines += [("overwritten", clean(line)) for line in found.origin.redacted]
    return lines


@template.command("rm", epilog="\b\nExample:\n  corral template rm deb")
@click.argument("names", nargs=-1, required=True)
@force_option
@json_option
@pass_app
def remove_template(app: App, names: tuple[str, ...], force: bool, as_json: bool) -> None:
    """Remove templates; sandboxes made from them go on."""
    from corral.cli.sandboxes import each

    each(names, app.client.remove_template, as_json, force=force)


@click.command(
    epilog="""\b
Examples:
  corral checkpoint box ready && corral create -t ready -n 10
  corral checkpoint box warm --memory                  its servers run in each sandbox from the first moment"""
)
@click.argument("sandbox")
@click.argument("template")
@click.option("--memory", is_flag=True, help="With its running processes (gVisor only).")
@click.option(
    "--redact", is_flag=True, help="Overwrite secrets of yours that it would hold, rather than refuse."
)
@json_option
@pass_app
def checkpoint(app: App, sandbox: str, template: str, memory: bool, redact: bool, as_json: bool) -> None:
    """Make a template of a sandbox as it is now."""
    with progress("keeping it"):
        made = app.client.checkpoint(sandbox, template, memory=memory, redact=redact)
    show_json(made) if as_json else say(made.name)
    for line in made.origin.redacted if made.origin else ():
        note(f"overwritten in the checkpoint: {clean(line)}")


# -- prices -------------------------------------------------------------------------------------------------------


@click.group(epilog="\b\nExample:\n  corral price set local '*' --input 0 --output 0")
def price() -> None:
    """Prices of models that the price library does not know."""


def _micro(text: str) -> int:
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise InvalidInput(f"{text[:40]!r} is not a price", "write US dollars, such as 3 or 0.25") from None
    if not 0 <= value <= 1_000_000:
        raise InvalidInput(f"the price {text[:40]} is out of range", "use 0 to 1,000,000 US dollars")
    return int((value * 1_000_000).to_integral_value())


@price.command(
    "set",
    epilog="""\b
Examples:
  corral price set openai gpt-next --input 2.50 --output 10 --cache-read 0.25
  corral price set local '*' --input 0 --output 0""",
)
@click.argument("secret")
@click.argument("model")
@click.option("--input", "input_", required=True, help="US dollars per million input tokens.")
@click.option("--output", required=True, help="US dollars per million output tokens.")
@click.option("--cache-read", help="For tokens read from a cache. Default: as input.")
@click.option("--cache-write", help="For tokens written to a cache. Default: as input.")
@pass_app
def set_price(
    app: App,
    secret: str,
    model: str,
    input_: str,
    output: str,
    cache_read: str | None,
    cache_write: str | None,
) -> None:
    """Set what MODEL costs at SECRET's endpoint; MODEL `*` stands for all of its models."""
    app.client.set_price(
        secret,
        model,
        input=_micro(input_),
        output=_micro(output),
        cache_read=_micro(cache_read if cache_read is not None else input_),
        cache_write=_micro(cache_write if cache_write is not None else input_),
    )


@price.command("ls", epilog="\b\nExample:\n  corral price ls --json")
@json_option
@pass_app
def list_prices(app: App, as_json: bool) -> None:
    """List the prices that were set here, in US dollars per million tokens."""
    found = app.client.list_prices()
    if as_json:
        show_json(found)
        return
    table(
        ["SECRET", "MODEL", "INPUT", "OUTPUT", "CACHE READ", "CACHE WRITE"],
        [
            (
                item.secret,
                item.model,
                item.input / 1e6,
                item.output / 1e6,
                item.cache_read / 1e6,
                item.cache_write / 1e6,
            )
            for item in found
        ],
    )


# -- settings and keys --------------------------------------------------------------------------------------------


@click.group(epilog="\b\nExamples:\n  corral config get\n  corral config set api.listen 127.0.0.1:7070")
def config() -> None:
    """The daemon's settings."""


@config.command("get", epilog="\b\nExamples:\n  corral config get\n  corral config get api.listen")
@click.argument("key", required=False)
@json_option
@pass_app
def get_config(app: App, key: str | None, as_json: bool) -> None:
    """Show all settings, or one."""
    values = app.client.get_config()
    if key is not None:
        if key not in values:
            raise InvalidInput(f"there is no setting {key[:80]!r}", f"settings: {', '.join(sorted(values))}")
        show_json(values[key]) if as_json else say(_setting(values[key]))
    elif as_json:
        show_json(values)
    else:
        table(["SETTING", "VALUE"], [(name, _setting(value)) for name, value in sorted(values.items())])


def _setting(value: object) -> str:
    return clean(", ".join(map(str, value)) if isinstance(value, list) else str(value))


_FROM_THE_NEXT_START = frozenset({"api.listen", "tls.listen", "tls.cert", "tls.key", "api.domain", "api.dns"})


@config.command("set", epilog="\b\nExample:\n  corral config set egress.networks 10.1.0.0/16,10.2.0.0/16")
@click.argument("key")
@click.argument("value")
@json_option
@pass_app
def set_config(app: App, key: str, value: str, as_json: bool) -> None:
    """Change a setting. An empty VALUE takes it back."""
    values = app.client.set_config(key, value)
    show_json(values) if as_json else say(_setting(values.get(key, "")))
    if key in _FROM_THE_NEXT_START:
        note("holds from the daemon's next start: `corral daemon stop && corral daemon start`")


@click.group(epilog="\b\nExample:\n  corral key create laptop")
def key() -> None:
    """API keys, for the API over TCP."""


@key.command("create", epilog="\b\nExample:\n  export CORRAL_API_KEY=$(corral key create laptop)")
@click.argument("label")
@json_option
@pass_app
def create_key(app: App, label: str, as_json: bool) -> None:
    """Make a new API key and print it; it is not shown again."""
    made = app.client.create_key(label)
    show_json({"label": label, "key": made}) if as_json else say(made)


@key.command("ls", epilog="\b\nExample:\n  corral key ls --json")
@json_option
@pass_app
def list_keys(app: App, as_json: bool) -> None:
    """List API keys, without the keys themselves."""
    found = app.client.list_keys()
    if as_json:
        show_json(found)
        return
    table(["LABEL", "ID", "CREATED"], [(item.label, item.id, age(item.created_at)) for item in found])


@key.command("revoke", epilog="\b\nExample:\n  corral key revoke laptop")
@click.argument("names", nargs=-1, required=True, metavar="LABEL|ID…")
@json_option
@pass_app
def revoke_keys(app: App, names: tuple[str, ...], as_json: bool) -> None:
    """Refuse API keys from the next request on."""
    revoked = [app.client.revoke_key(name) for name in names]
    if as_json:
        show_json(revoked)
    else:
        for item in revoked:
            say(item.label)

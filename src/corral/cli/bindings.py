"""Options that say which hosts a secret goes to, and where in a request it may stand."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from corral.errors import InvalidInput

if TYPE_CHECKING:
    from corral.protocol.catalog import SecretInfo

F = TypeVar("F", bound=Callable[..., Any])


def binding_options(command: F) -> F:
    """The options, of which `--host` makes the secret one that goes to hosts."""
    options = [
        click.option(
            "--host", multiple=True, metavar="HOST[:PORT]", help="A host that gets it: a name or *.DOMAIN."
        ),
        click.option(
            "--header",
            multiple=True,
            metavar="NAME[: FORM]",
            help="A header field it may stand in besides the usual ones; with --mode set the one to write.",
        ),
        click.option(
            "--query", multiple=True, metavar="NAME", help="A parameter of the query it may stand in."
        ),
        click.option("--path", is_flag=True, help="It may stand in the path."),
        click.option("--body", is_flag=True, help="It may stand in the body."),
        click.option("--websocket", is_flag=True, help="It may stand in a WebSocket's subprotocol."),
        click.option(
            "--mode",
            type=click.Choice(["replace", "set", "aws", "certificate"]),
            help="Replace a placeholder (default), set a header field, sign requests to AWS, or show the server a certificate.",
        ),
        click.option("--require", is_flag=True, help="Refuse requests to its hosts without the placeholder."),
        click.option("--methods", metavar="GET,POST", help="With --mode set: only these."),
        click.option(
            "--paths", multiple=True, metavar="/PATH/**", help="With --mode set: only these; at least one."
        ),
        click.option("--overwrite", is_flag=True, help="With --mode set: replace a field that is there."),
        click.option("--plaintext", is_flag=True, help="Also over unencrypted HTTP."),
        click.option(
            "--variable", metavar="NAME", help="Variable of the placeholder. Default: told from NAME."
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def binding_of(
    *,
    host: tuple[str, ...],
    header: tuple[str, ...],
    query: tuple[str, ...],
    path: bool,
    body: bool,
    websocket: bool,
    mode: str | None,
    require: bool,
    methods: str | None,
    paths: tuple[str, ...],
    overwrite: bool,
    plaintext: bool,
    variable: str | None,
) -> dict[str, Any] | None:
    """The binding that the options say, None if none of them is given."""
    others = (
        header,
        query,
        path,
        body,
        websocket,
        mode,
        require,
        methods,
        paths,
        overwrite,
        plaintext,
        variable,
    )
    if not host:
        if any(others):
            raise InvalidInput("these options need a host", "name it: `--host api.example.com`")
        return None
    places = ["header"] if header or not (query or path or body) else []
    places += [
        name
        for name, wanted in (("query", query), ("path", path), ("body", body), ("websocket", websocket))
        if wanted
    ]
    hosts, ports = _hosts(host)
    fields, form = _fields(header)
    return {
        "hosts": hosts,
        "ports": ports,
        "places": places,
        "mode": mode or "replace",
        "absent": "reject" if require else "pass",
        "fields": fields,
        "form": form,
        "parameters": list(query),
        "methods": methods.split(",") if methods else [],
        "paths": list(paths),
        "replaces": overwrite,
        "plaintext": plaintext,
        "variable": variable or "",
    }


def _hosts(given: tuple[str, ...]) -> tuple[list[str], list[int]]:
    hosts, ports = [], []
    for text in given:
        name, colon, port = text.partition(":")
        hosts.append(name)
        if colon:
            if not port.isdecimal():
                raise InvalidInput(f"{text[:80]!r} is not a host", "give HOST or HOST:PORT")
            ports.append(int(port))
    return hosts, sorted(set(ports)) or [443]


def _fields(given: tuple[str, ...]) -> tuple[list[str], str]:
    names, form = [], "{}"
    for text in given:
        name, colon, rest = text.partition(":")
        names.append(name.strip())
        if colon:
            form = rest.strip()
    return names, form


def goes_to(secret: "SecretInfo") -> str:
    """Where a secret goes, for a table."""
    binding = secret.binding
    if binding is None:
        return secret.base_url
    ports = "" if binding.ports == [443] else ":" + ",".join(map(str, binding.ports))
    return ", ".join(f"{host}{ports}" for host in binding.hosts)

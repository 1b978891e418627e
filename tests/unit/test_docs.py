"""The documentation names what there is, and what it names is there."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from fastapi.routing import APIRoute

from corral.api import (
    approvals,
    audit,
    builds,
    catalog,
    disk,
    egress,
    files,
    grants,
    learning,
    models,
    pools,
    processes,
    rates,
    sandboxes,
    volumes,
)
from corral.cli.main import cli
from corral.daemon.config import ConfigFile
from corral.errors import CorralError, all_errors

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.glob("*.md"), *ROOT.glob("*.md")])
ERRORS = sorted(all_errors().values(), key=lambda cls: cls.code)

_VARIABLE = re.compile(r"\bCORRAL_[A-Z][A-Z_]*[A-Z]\b")
_NAMED_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_TITLE = re.compile(r"^#+ (.+)$", re.MULTILINE)
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_NOT_VARIABLES = {"CORRAL_INIT_H"}
"""Names of the same form: a header's guard."""
_SOURCES = ("src", "scripts", "guest", "tests", "bench", "deploy", "Makefile")


def text_of(page: str) -> str:
    return (DOCS / page).read_text()


def commands(
    group: click.Command, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if not isinstance(group, click.Group):
        yield path, group
        return
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield from commands(command, (*path, name))


COMMANDS = dict(commands(cli))


def section(page: str, title: str) -> str:
    """What stands below the heading that begins with `title`, up to the next one."""
    _, found, rest = page.partition(f"\n### `{title}")
    assert found, f"there is no heading for {title}"
    return re.split(r"^#{2,3} ", rest, maxsplit=1, flags=re.MULTILINE)[0]


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_and_option_is_documented(path: tuple[str, ...]) -> None:
    told = section(text_of("cli.md"), " ".join(["corral", *path]))
    if path == ("run",):  # it takes what `create` takes, and says so
        assert "`corral create`" in told
        told += section(text_of("cli.md"), "corral create")
    options = {
        name for param in COMMANDS[path].params if isinstance(param, click.Option) for name in param.opts
    }
    assert {name for name in options if f"`{name}`" not in told} == set()


def test_no_command_is_documented_that_is_not_there() -> None:
    titles = re.findall(r"^### `corral ([a-z0-9]+(?:[ -][a-z0-9]+)*)", text_of("cli.md"), re.MULTILINE)
    told = {tuple(title.split()) for title in titles}
    assert told == set(COMMANDS)


def _examples() -> Iterator[str]:
    """Command lines of the docs' blocks and of `--help`, without what comes behind them."""
    blocks = [block for page in PAGES for block in _FENCE.findall(page.read_text())]
    helps = [command.epilog or "" for command in COMMANDS.values()]
    for line in "\n".join([*blocks, *helps]).splitlines():
        text = re.sub(r"\$\(.*?\)", "WORD", line.strip().removeprefix("$ "))
        if re.match(r"corral [a-z]", text):
            yield re.split(r" {3,}|;", text)[0].rstrip("\\")


@pytest.mark.parametrize("line", sorted(set(_examples())))
def test_every_example_is_a_command_that_is_understood(line: str) -> None:
    words, context = shlex.split(line, comments=True), click.Context(cli)
    args = words[1 : next((at for at, word in enumerate(words) if word in ("|", "&&", ">", "<")), None)]
    found: click.Command = cli
    while isinstance(found, click.Group) and args:
        name = args.pop(0)
        inner = found.get_command(context, name)
        assert inner is not None, f"there is no {name}"
        found = inner
    try:
        found.make_context("corral", args, parent=context)
    except click.exceptions.Exit:
        pass  # --help
    except click.BadParameter as error:
        assert "does not exist" in error.message  # noqa: PT017 - the reader's own file


def test_every_route_is_documented() -> None:
    told = set(re.findall(r"`([A-Z]+) (/v1/\S+)`", text_of("api.md")))
    routes = {
        (method, route.path)
        for module in (
            processes,
            sandboxes,
            files,
            catalog,
            grants,
            models,
            rates,
            volumes,
            egress,
            approvals,
            pools,
            disk,
            builds,
            audit,
            learning,
        )
        for route in module.router.routes
        if isinstance(route, APIRoute)
        for method in route.methods or ()
    }
    assert told == routes


@pytest.mark.parametrize("error", ERRORS, ids=lambda cls: cls.code)
def test_every_error_code_is_documented(error: type[CorralError]) -> None:
    row = f"| `{error.code}` | `{error.__name__}` | {error.status} | {error.exit_code} |"
    group = f"`{error.code}` (`{error.__name__}`, {error.status}, exit code {error.exit_code}"
    told = " ".join(text_of("errors.md").split())
    assert row in told or group in told


def test_every_setting_is_documented(tmp_path: Path) -> None:
    settings = set(ConfigFile(tmp_path / "config.json").get())
    assert (
        set(re.findall(r"^\| `([a-z0-9]+\.[a-z]+)` \|", text_of("configuration.md"), re.MULTILINE))
        == settings
    )


def test_every_variable_is_documented() -> None:
    told = set(_VARIABLE.findall(text_of("configuration.md")))
    read: set[str] = set()
    for name in _SOURCES:
        top = ROOT / name
        for path in [top] if top.is_file() else top.rglob("*"):
            if path.is_file() and path.suffix in ("", ".py", ".c", ".h", ".service"):
                read |= set(_VARIABLE.findall(path.read_text(errors="replace")))
    assert told == read - _NOT_VARIABLES


def functions_of(path: Path) -> set[str]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, functions)}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_test_that_is_named_exists(page: Path) -> None:
    missing = [
        f"{file}::{test}"
        for file, test in _NAMED_TEST.findall(page.read_text())
        if not (ROOT / file).exists() or test not in functions_of(ROOT / file)
    ]
    assert missing == []


def test_every_promise_is_numbered_once_and_shown_or_pending() -> None:
    rows = [line for line in text_of("spec.md").splitlines() if line.startswith("| S-")]
    numbers = [int(row.split("|")[1].strip().removeprefix("S-")) for row in rows]
    assert numbers == sorted(set(numbers))
    budgets = [row for row in rows if row.count("|") == 5]
    assert budgets
    assert [
        row for row in rows if row not in budgets and not _NAMED_TEST.search(row) and "*pending*" not in row
    ] == []


def test_every_budget_names_a_row_of_the_benchmarks() -> None:
    source = "".join(path.read_text() for path in (ROOT / "bench" / "rows").glob("*.py"))
    source = source.replace("{FLEET}", "100").replace("{size // MIB}", "256")
    rows = [
        row.split("|")[4].strip().strip("`")
        for row in text_of("spec.md").splitlines()
        if row.startswith("| S-9")
    ]
    assert rows
    assert [row for row in rows if f'"{row}"' not in source] == []


def anchors(page: Path) -> set[str]:
    """The names under which GitHub and its like let a page's headings be linked."""
    titles = _TITLE.findall(_FENCE.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_between_pages_resolve(page: Path) -> None:
    broken = []
    for link in _LINK.findall(_FENCE.sub("", page.read_text())):
        target, _, anchor = link.partition("#")
        if "://" in target:
            continue
        path = (page.parent / target).resolve() if target else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(link)
    assert broken == []


def test_every_page_is_listed_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    assert [page.name for page in DOCS.glob("*.md") if f"(docs/{page.name})" not in readme] == []


def test_what_the_gateway_cannot_do_is_told_beside_what_it_does() -> None:
    """G-147, G-301, G-347."""
    text = " ".join((ROOT / "docs" / "egress.md").read_text().split())
    assert "A host that gets a secret can hand it back in a spelling of its own." in text
    assert "Databases and SSH have no place where the gateway could put a secret." in text

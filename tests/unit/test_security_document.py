"""SECURITY.md promises what tests show: each test that it names exists."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def functions_of(path: Path) -> set[str]:
    """Names of the test functions of a file."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, functions)}


def named() -> list[tuple[str, str]]:
    """File and function of all tests that the document names."""
    return NAMED.findall((ROOT / "SECURITY.md").read_text())


def test_every_named_test_exists() -> None:
    assert named()
    missing = [
        f"{file}::{test}"
        for file, test in named()
        if not (ROOT / file).exists() or test not in functions_of(ROOT / file)
    ]
    assert missing == []


def test_every_attack_is_named() -> None:
    shown = set(named())
    files = sorted((ROOT / "tests" / "attack").glob("test_*.py"))
    found = {
        (str(path.relative_to(ROOT)), name)
        for path in files
        for name in functions_of(path)
        if name.startswith("test_")
    }
    assert sorted(found - shown) == []


def test_every_no_names_a_test() -> None:
    rows = [
        line.split("|") for line in (ROOT / "SECURITY.md").read_text().splitlines() if line.startswith("| ")
    ]
    answers = {row[1].strip(): (row[2].strip(), row[3]) for row in rows}
    assert {answer for answer, _ in answers.values()} == {"possible", "No", "Yes"}
    assert [harm for harm, (answer, why) in answers.items() if answer == "No" and not NAMED.search(why)] == []

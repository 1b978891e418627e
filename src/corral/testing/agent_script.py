"""What a scripted model does, as data, and the small repository that the shipped script mends."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corral.errors import InvalidInput, NotFound

MAX_STEPS = 1000


@dataclass(frozen=True, slots=True)
class Step:
    """One shell command that the model asks for, and what it says before it."""

    run: str
    say: str = ""


@dataclass(frozen=True, slots=True)
class Script:
    """Steps in order, one per turn of the conversation, and the last words."""

    name: str
    steps: tuple[Step, ...]
    final: str

    @classmethod
    def from_data(cls, name: str, data: object) -> "Script":
        """A script of `{"steps": ["command" | {"run": …, "say": …}, …], "final": "text"}`. Raises InvalidInput."""
        if not isinstance(data, Mapping) or not isinstance(data.get("steps"), list):
            raise InvalidInput(
                f"script {name!r} has no list of steps", 'give {"steps": ["command", …], "final": "text"}'
            )
        final = data.get("final", "Done.")
        if not isinstance(final, str) or len(data["steps"]) > MAX_STEPS:
            raise InvalidInput(
                f"script {name!r} is not valid", f"use a text as `final` and at most {MAX_STEPS} steps"
            )
        return cls(name, tuple(_step(name, item) for item in data["steps"]), final)


def _step(name: str, item: Any) -> Step:
    if isinstance(item, str):
        return Step(item)
    if (
        isinstance(item, Mapping)
        and isinstance(item.get("run"), str)
        and isinstance(item.get("say", ""), str)
    ):
        return Step(item["run"], item.get("say", ""))
    raise InvalidInput(
        f"script {name!r} has a step that is not valid", 'use a command, or {"run": command, "say": text}'
    )


# The bug is one character; the test tells which. Standard library only: the base template needs nothing more.
FIX_TESTS_FILES: dict[str, str] = {
    "README.md": "# Calculator\n\nRun the tests with `python3 -m unittest`.\n",
    ".gitignore": "__pycache__/\n",
    "calculator.py": (
        '"""Arithmetic on integers."""\n\n\n'
        "def add(a: int, b: int) -> int:\n"
        '    """The sum of `a` and `b`."""\n'
        "    return a - b\n"
    ),
    "test_calculator.py": (
        "import unittest\n\n"
        "from calculator import add\n\n\n"
        "class AddTest(unittest.TestCase):\n"
        "    def test_sum_of_two_numbers(self) -> None:\n"
        "        self.assertEqual(add(2, 3), 5)\n\n"
        "    def test_zero_changes_nothing(self) -> None:\n"
        "        self.assertEqual(add(7, 0), 7)\n\n\n"
        'if __name__ == "__main__":\n'
        "    unittest.main()\n"
    ),
}
"""A repository with a failing test, by path: what the script `fix-tests` mends."""

FIX_TESTS = Script(
    name="fix-tests",
    steps=(
        Step("git status --short --branch && ls && cat calculator.py", "I look at the repository first."),
        Step("python3 -m unittest", "Now the tests, to see what fails."),
        Step(
            "sed -i 's/return a - b/return a + b/' calculator.py && git diff",
            "`add` subtracts. I correct it.",
        ),
        Step("python3 -m unittest", "I run the tests again."),
        Step("git add -A && git commit -m 'Make add() add' && git log --oneline -1", "They pass: I commit."),
    ),
    final="The tests pass now: `add` subtracted its arguments. The correction is committed.",
)

SCRIPTS: dict[str, Script] = {FIX_TESTS.name: FIX_TESTS}


def load_script(name: str) -> Script:
    """A shipped script by name, or one from a JSON file by path. Raises NotFound, InvalidInput."""
    if name in SCRIPTS:
        return SCRIPTS[name]
    path = Path(name)
    if not path.is_file():
        raise NotFound(
            f"there is no script {name!r}", f"use one of {', '.join(SCRIPTS)}, or the path of a JSON file"
        )
    try:
        data = json.loads(path.read_text())
    except (ValueError, OSError) as error:
        raise InvalidInput(f"script {name!r} cannot be read: {error}", "give a JSON file") from error
    return Script.from_data(path.stem, data)

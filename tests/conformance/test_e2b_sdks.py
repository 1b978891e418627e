"""The official SDKs of E2B, unmodified, against a real daemon. Each version runs its program once; each case is a test."""

import ast
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.conformance.conftest import CACHE
from tests.conftest import Daemon

PROGRAMS = Path(__file__).parent / "programs"
PYTHONS = ["e2b-2.45.1", "e2b-2.63.0"]
SECONDS = 300
GVISOR = "python_gvisor.py"

pytestmark = [pytest.mark.root, pytest.mark.timeout(SECONDS + 60)]


def _cases(program: str) -> list[str]:
    """Names of a program's cases, without importing what it needs."""
    text = (PROGRAMS / program).read_text()
    if program.endswith(".mjs"):
        return re.findall(r"^  async (case_\w+)", text, re.MULTILINE)
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = [node.name for node in ast.parse(text).body if isinstance(node, kinds)]
    return [name for name in found if name.startswith("case_")]


RUNS = [
    *(
        (sdk, program, case)
        for sdk in PYTHONS
        for program in ("python_sync.py", "python_async.py")
        for case in _cases(program)
    ),
    *(("e2b-2.63.0", "python_binary.py", case) for case in _cases("python_binary.py")),
    *(pytest.param("e2b-2.63.0", GVISOR, case, marks=pytest.mark.gvisor) for case in _cases(GVISOR)),
    *(("javascript", "cases.mjs", case) for case in _cases("cases.mjs")),
]


class Outcomes:
    """What became of all cases of a program with one SDK; run when the first one is asked for."""

    def __init__(self, env: dict[str, str], daemon: Daemon) -> None:
        self._env = env
        self._daemon = daemon
        self._known: dict[tuple[str, str], dict[str, str | None]] = {}
        self._forgotten: set[tuple[str, str]] = set()

    def of(self, sdk: str, program: str) -> dict[str, str | None]:
        if (sdk, program) not in self._known:
            with self._isolated(program):
                self._known[sdk, program] = self._run(sdk, program)
        return self._known[sdk, program]

    def forget(self, sdk: str, program: str) -> None:
        """Run the program again, once, for whoever asks next."""
        if (sdk, program) not in self._forgotten:
            self._forgotten.add((sdk, program))
            del self._known[sdk, program]

    @contextmanager
    def _isolated(self, program: str) -> Iterator[None]:
        """Within it, sandboxes of E2B's clients have the isolation that a program is about."""
        with self._daemon.client() as client:
            client.set_config("e2b.isolation", "gvisor" if program == GVISOR else "")
            try:
                yield
            finally:
                client.set_config("e2b.isolation", "")

    def _run(self, sdk: str, program: str) -> dict[str, str | None]:
        home = CACHE / sdk
        if not (home / ".corral-stamp").exists():
            pytest.skip(f"{sdk} is not installed: run tests/conformance/setup")
        if sdk == "javascript":
            argv = [shutil.which("node") or "node", str(PROGRAMS / program), str(home)]
        else:
            argv = [str(home / "bin" / "python"), "harness.py", program.removesuffix(".py")]
        done = subprocess.run(
            argv, env=self._env, cwd=PROGRAMS, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        _, found, outcome = done.stdout.rpartition("OUTCOME ")
        if not found:
            pytest.fail(f"the program ended early:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
        told: dict[str, str | None] = json.loads(outcome)
        return told


@pytest.fixture(scope="module")
def outcomes(e2b_env: dict[str, str], shared_daemon: Daemon) -> Outcomes:
    return Outcomes(e2b_env, shared_daemon)


@pytest.mark.parametrize(("sdk", "program", "case"), RUNS)
def test_sdk(outcomes: Outcomes, sdk: str, program: str, case: str) -> None:
    problem = outcomes.of(sdk, program)[case]
    if problem is not None:
        outcomes.forget(sdk, program)
        pytest.fail(problem)

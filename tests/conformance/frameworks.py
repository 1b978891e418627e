"""What is built on E2B's SDKs, unmodified and each in an environment of its own.

`frameworks.py install [NAME...]` installs what is missing, and what is called newest always; `frameworks.py try [NAME...]`
runs their programs against the daemon that its variables point at (`tests/conformance/e2b_daemon`).
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

CACHE = (
    Path(os.environ.get("CORRAL_CACHE_DIR") or Path.home() / ".cache" / "corral")
    / "conformance"
    / "frameworks"
)
PROGRAMS = Path(__file__).parent / "programs"
SECONDS = 900
# What 2.31.0 has not: forks, names of snapshots, words for a killed sandbox, and proxies of sandboxes.
OLD = (
    "case_a_fork_has_the_files",
    "case_a_snapshot_starts_sandboxes_and_can_be_deleted",
    "case_a_killed_sandbox_ends_its_commands",
    "case_a_proxy_is_told_without_its_password_and_nothing_goes_around_it",
    "case_network_options_that_cannot_be_kept_are_refused",
)


@dataclass(frozen=True)
class Tried:
    """Packages of one environment, of Python or (`npm`) of Node, and the programs to run there; `lacking`: cases that
    these versions cannot pass. `python`: the oldest that the packages take."""

    name: str
    packages: tuple[str, ...]
    programs: tuple[tuple[str, ...], ...]
    lacking: tuple[str, ...] = ()
    npm: bool = False
    python: tuple[int, int] = (3, 11)

    @property
    def home(self) -> Path:
        """Where it is installed."""
        return CACHE / self.name

    @property
    def stamp(self) -> Path:
        """Tells what is installed there."""
        return self.home / ".packages"


_SDK = (("harness.py", "python_sync"), ("harness.py", "python_async"))
_INTERPRETER = (("frameworks/interpreter.py",),)
ALL = (
    Tried("e2b-2.31.0", ("e2b==2.31.0",), _SDK, OLD),
    Tried("e2b-2.51.0", ("e2b==2.51.0",), _SDK),
    Tried("e2b-newest", ("e2b",), _SDK),
    Tried("javascript-2.49.1", ("e2b@2.49.1",), (("cases.mjs",),), npm=True),
    Tried("javascript-newest", ("e2b@latest",), (("cases.mjs",),), npm=True),
    Tried("code-interpreter-2.8.1", ("e2b-code-interpreter==2.8.1", "e2b==2.31.0"), _INTERPRETER),
    Tried("code-interpreter-newest", ("e2b-code-interpreter",), _INTERPRETER),
    Tried("openai-agents-0.24.0", ("openai-agents[e2b]==0.24.0",), (("frameworks/openai_agents.py",),)),
    Tried("langchain-e2b-0.0.6", ("langchain-e2b==0.0.6",), (("frameworks/deep_agents.py",),)),
    Tried("harbor-0.26.0", ("harbor[e2b]==0.26.0",), (("frameworks/harbor_task.py",),), python=(3, 12)),
    Tried("cli-2.19.0", ("@e2b/cli@2.19.0",), (("frameworks/e2b_cli.py",),), npm=True),
)


def interpreter(least: tuple[int, int]) -> str | None:
    """A Python of at least this version; None if none on the search path is, or runs."""
    for minor in range(least[1], 15):
        for folder in os.get_exec_path():
            found = shutil.which(f"python3.{minor}", path=folder)
            if found and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0:
                return found
    return None


def install(tried: Tried) -> bool:
    """Whether it is there now."""
    newest = tried.name.endswith("newest")
    if not newest and tried.stamp.exists() and tried.stamp.read_text() == repr(tried.packages):
        return True
    tried.home.mkdir(parents=True, exist_ok=True)
    if tried.npm:
        if not shutil.which("npm"):
            return False
        options = ["--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(tried.home)]
        subprocess.run(["npm", "install", *options, *tried.packages], check=True)
    else:
        python = interpreter(tried.python)
        if python is None:
            return False
        subprocess.run([python, "-m", "venv", str(tried.home)], check=True)
        pip = [
            str(tried.home / "bin" / "python"),
            "-m",
            "pip",
            "install",
            "-q",
            "--disable-pip-version-check",
        ]
        subprocess.run([*pip, *(["--upgrade"] if newest else []), *tried.packages], check=True)
    tried.stamp.write_text(repr(tried.packages))
    return True


def command(tried: Tried, program: tuple[str, ...]) -> list[str]:
    """How a program is started."""
    if program[0].endswith(".mjs"):
        return [shutil.which("node") or "node", *program, str(tried.home)]
    if tried.npm:
        return [sys.executable, *program, str(tried.home / "node_modules" / ".bin" / "e2b")]
    return [str(tried.home / "bin" / "python"), *program]


def problem(tried: Tried, program: tuple[str, ...]) -> str:
    """What went wrong with a program; empty if nothing."""
    try:
        done = subprocess.run(
            command(tried, program),
            cwd=PROGRAMS,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it did not end in {SECONDS} s"
    if done.returncode != 0:
        return f"{done.stdout[-1000:]}\n{done.stderr[-3000:]}"
    _, found, outcome = done.stdout.rpartition("OUTCOME ")
    told: dict[str, str | None] = json.loads(outcome) if found else {}
    failed = {case: said for case, said in told.items() if said is not None and case not in tried.lacking}
    return "\n".join(f"{case}: {said}" for case, said in failed.items())


def installed(chosen: list[Tried]) -> int:
    """Install. 1 if one could not be, for want of what the host lacks."""
    worst = 0
    for tried in chosen:
        if not install(tried):
            worst = 1
            sys.stdout.write(f"{tried.name}: needs {'npm' if tried.npm else 'a newer Python'}\n")
    return worst


def tried_all(chosen: list[Tried]) -> int:
    """Try what is installed. 1 if one failed."""
    subprocess.run(["corral", "e2b", "interpreter"], check=True, stdout=subprocess.DEVNULL)
    worst = 0
    for tried in chosen:
        if not tried.stamp.exists():
            sys.stdout.write(f"{tried.name}: not installed\n")
            continue
        begun = time.monotonic()
        problems = [found for program in tried.programs if (found := problem(tried, program))]
        worst = max(worst, len(problems) and 1)
        outcome = "\n".join(["failed", *problems]) if problems else "works"
        sys.stdout.write(f"{tried.name}: {outcome} ({time.monotonic() - begun:.0f} s)\n")
        sys.stdout.flush()
    return worst


def main() -> int:
    """Install or try those that are named, else all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step", choices=["install", "try"])
    parser.add_argument("names", nargs="*", metavar="NAME")
    given = parser.parse_args()
    chosen = [tried for tried in ALL if not given.names or tried.name in given.names]
    return installed(chosen) if given.step == "install" else tried_all(chosen)


if __name__ == "__main__":
    sys.exit(main())

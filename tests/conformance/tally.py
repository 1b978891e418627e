"""What became of a suite: `tally.py WITHOUT WITH`, its results without a server and with one, of pytest (-rA) or vitest."""

import json
import re
import sys
from pathlib import Path


def outcomes(path: Path) -> dict[str, str]:
    """Outcome of each test by name: `passed`, `failed`, `error`, `skipped`; of several of one name the worst."""
    text = path.read_text(errors="replace")
    if not text.startswith("{"):
        found = re.findall(r"^(PASSED|FAILED|ERROR|SKIPPED) (\S+)", text, re.MULTILINE)
        return {test: outcome.lower() for outcome, test in found}
    told: dict[str, str] = {}
    for file in json.loads(text)["testResults"]:
        name = re.sub(r"^.*/tests/", "tests/", file["name"])
        for test in file["assertionResults"]:
            key = f"{name}: {test['fullName']}"
            told[key] = test["status"] if told.get(key, "passed") == "passed" else told[key]
    return told


def main() -> None:
    """Print the tests that do not pass, and how many do."""
    without, given = (outcomes(Path(path)) for path in sys.argv[1:])
    needing = sorted(test for test, outcome in without.items() if outcome in ("failed", "error"))
    failed = [test for test in needing if given.get(test) != "passed"]
    local = [test for test, outcome in without.items() if outcome == "passed" != given.get(test)]
    lines = [f"did not pass: {test}" for test in failed]
    lines += [f"passes without the variables that point at this host: {test}" for test in local]
    lines.append(f"{len(needing) - len(failed)} of {len(needing)} tests that need a server pass")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

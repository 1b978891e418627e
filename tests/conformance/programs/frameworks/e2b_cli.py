"""E2B's command line: `e2b_cli.py PROGRAM` goes through what it does with sandboxes, snapshots and templates."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


def e2b(*args: str, code: int = 0) -> str:
    """What `e2b ARGS` prints."""
    done = subprocess.run(
        [sys.argv[1], *args],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=300,
        check=False,
    )
    assert done.returncode == code, (args, done)
    return done.stdout


def listed(*args: str) -> Any:
    return json.loads(e2b(*args, "--format", "json"))


def templates() -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "Dockerfile").write_text("FROM base\nRUN echo built > /made\n")
        e2b("template", "create", "of-the-cli", "--path", folder)
    assert any("of-the-cli" in str(item) for item in listed("template", "list"))
    box = e2b("sandbox", "create", "of-the-cli", "--detach").split()[-1]
    assert e2b("sandbox", "exec", box, "cat", "/made").strip() == "built"
    e2b("sandbox", "kill", box)
    e2b("template", "delete", "of-the-cli", "--yes")
    assert not any("of-the-cli" in str(item) for item in listed("template", "list"))


def sandboxes() -> None:
    box = e2b("sandbox", "create", "base", "--detach", "--timeout", "600").split()[-1]
    assert box in [item["sandboxId"] for item in listed("sandbox", "list")]
    assert listed("sandbox", "info", box)["state"] == "running"
    assert e2b("sandbox", "exec", "-e", "A=1", box, "sh", "-c", "echo $A").strip() == "1"
    e2b("sandbox", "exec", box, "sh", "-c", "exit 3", code=3)
    e2b("sandbox", "metrics", box)
    e2b("sandbox", "logs", box)
    e2b("sandbox", "pause", box)
    assert box in [item["sandboxId"] for item in listed("sandbox", "list", "--state", "paused")]
    e2b("sandbox", "resume", box)
    e2b("sandbox", "snapshot", "create", box)
    (kept,) = listed("sandbox", "snapshot", "list", box)
    e2b("sandbox", "snapshot", "delete", kept["snapshotId"])
    e2b("sandbox", "kill", box)
    assert box not in [item["sandboxId"] for item in listed("sandbox", "list")]


if __name__ == "__main__":
    sandboxes()
    templates()

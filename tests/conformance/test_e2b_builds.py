"""What a build that fails tells clients of E2B's, whatever it fails by."""

import time
from typing import Any

import httpx2
import pytest

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("body", "message", "step"),
    [
        (
            {"steps": [{"type": "ENV", "args": ["A", "1"]}, {"type": "RUN", "args": ["echo no; exit 3"]}]},
            "failed to run command 'echo no; exit 3': exit status 3",
            "2",
        ),
        (
            {"steps": [{"type": "RUN", "args": ["whoami", "root123"]}]},
            "failed to run command 'whoami': command failed: unauthenticated: invalid username: 'root123'",
            "1",
        ),
    ],
)
def test_the_log_tells_why(http: httpx2.Client, body: dict[str, Any], message: str, step: str) -> None:
    made = http.post("/v3/templates", json={"name": "failing"}).json()
    path = f"/templates/{made['templateID']}/builds/{made['buildID']}"
    assert http.post(f"/v2{path}", json={"fromTemplate": "base", **body}).status_code == 202
    while (told := http.get(f"{path}/status").json())["status"] in ("waiting", "building"):
        time.sleep(0.05)
    failures = [entry for entry in told["logEntries"] if entry["level"] == "error"]
    assert [(entry["message"], entry["step"]) for entry in failures] == [(message, step)]
    assert told["status"] == "error"
    assert told["reason"] == {"message": message, "step": step, "logEntries": failures}
    assert http.get(f"{path}/logs", params={"level": "error"}).json() == {"logs": failures}

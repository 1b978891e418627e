"""A scripted model server that knows one key, in a process of its own."""

import json
import os
import secrets
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass
class Model:
    """The server. Calls with `key` are good ones."""

    process: "subprocess.Popen[bytes]"
    key: str
    url: str

    def put(self, what: str, value: object) -> None:
        """Set its faults or its script."""
        request = urllib.request.Request(f"{self.url}/__{what}", json.dumps(value).encode(), method="PUT")
        urllib.request.urlopen(request, timeout=10).close()

    def wait(self, seconds: float) -> None:
        """Let calls take so long from now on."""
        self.put("faults", {"wait": seconds})

    def stats(self) -> dict[str, Any]:
        """What it has seen."""
        with urllib.request.urlopen(f"{self.url}/__stats", timeout=10) as reply:
            found: dict[str, Any] = json.load(reply)
            return found

    @property
    def calls(self) -> int:
        """Calls with the right key that have arrived."""
        return int(self.stats()["good"])


@contextmanager
def serving(key: str = "") -> Iterator[Model]:
    """A server; without `key` one of a key that is made up."""
    key = key or f"sk-test-{secrets.token_hex(24)}"
    process = subprocess.Popen(
        [sys.executable, "-m", "corral.testing.model_server", "--key-env", "MODEL_KEY"],
        env={**os.environ, "MODEL_KEY": key},
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        yield Model(process, key, f"http://127.0.0.1:{json.loads(process.stdout.readline())['port']}")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()

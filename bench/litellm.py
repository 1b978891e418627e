"""LiteLLM's proxy as a yardstick, from an installation of its own: `CORRAL_BENCH_LITELLM` names its program."""

import json
import os
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.clock import end, wait_until
from bench.load import Target
from bench.nginx import free_port, listens

VARIABLE = "CORRAL_BENCH_LITELLM"
_START_SECONDS = 180.0
_INHERITED = ("PATH", "HOME", "LANG", "TMPDIR")


@contextmanager
def running(work: Path, upstream: int, model: str, path: str) -> Iterator[Target | None]:
    """The proxy before a server of Anthropic's API on loopback; None where it is not installed."""
    program = os.environ.get(VARIABLE, "")
    if not program:
        yield None
        return
    work.mkdir(exist_ok=True)
    port, key = free_port(), f"sk-{secrets.token_hex(16)}"
    parameters = {
        "model": f"anthropic/{model}",
        "api_base": f"http://127.0.0.1:{upstream}",
        "api_key": "sk-bench",
    }
    config = {
        "model_list": [{"model_name": model, "litellm_params": parameters}],
        "general_settings": {"master_key": key},
    }
    (work / "config.yaml").write_text(json.dumps(config))
    command = [
        program,
        "--config",
        "config.yaml",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--num_workers",
        "1",
    ]
    env = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    with (work / "log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=work, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            env={**env, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"},
        )  # fmt: skip
    try:
        wait_until(lambda: listens(process, work / "log", ("127.0.0.1", port)), "LiteLLM", _START_SECONDS)
        yield Target(f"http://127.0.0.1:{port}{path}", {"x-api-key": key}, pid=process.pid)
    finally:
        end(process)

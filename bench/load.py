"""Load by `wrk`: many connections for a while, from this namespace or from a sandbox's."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.clock import call, cpu_seconds

_SCRIPT = """
wrk.method = "POST"
wrk.body = [==[%s]==]
%s
done = function(summary, latency, requests)
  io.stdout:write(string.format(
    "JSON{%%q:%%d,%%q:%%d,%%q:%%d,%%q:%%d,%%q:%%d,%%q:%%d,%%q:%%d}\\n",
    "requests", summary.requests, "failed", summary.errors.status + summary.errors.read + summary.errors.timeout,
    "usec", summary.duration, "p50", latency:percentile(50), "p90", latency:percentile(90), "p99", latency:percentile(99),
    "min", latency.min))
end
"""


@dataclass(frozen=True, slots=True)
class Load:
    """What came of a load. Latencies in milliseconds."""

    requests: int
    seconds: float
    p50: float
    p90: float
    p99: float
    best: float
    cpu_seconds: float

    @property
    def per_core(self) -> float:
        """Requests for each second of CPU that the process under test used: what one core carries."""
        return self.requests / self.cpu_seconds if self.cpu_seconds else 0.0


@dataclass(frozen=True, slots=True)
class Target:
    """Where to send what. `netns`: the namespace to send from; None is this one. `pid`: the process under test."""

    url: str
    headers: Mapping[str, str]
    netns: Path | None = None
    pid: int | None = None


def run(target: Target, body: str, work: Path, *, connections: int, seconds: int, cpu: Sequence[str]) -> Load:
    """Post `body` as often as `connections` can. `cpu`: words before the command that choose its core.

    Raises RuntimeError if any answer was not a success.
    """
    script = work / "wrk.lua"
    headers = {"content-type": "application/json", **target.headers}
    script.write_text(
        _SCRIPT % (body, "\n".join(f"wrk.headers[{name!r}] = {value!r}" for name, value in headers.items()))
    )
    enter = ["nsenter", f"--net={target.netns}"] if target.netns else []
    before = _used(target)
    said = call(
        *cpu, *enter, "wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout=10s", "-s", script, target.url
    )  # fmt: skip
    used = _used(target) - before
    found = json.loads(
        next(line for line in said.splitlines() if line.startswith("JSON")).removeprefix("JSON")
    )
    if found["failed"] or not found["requests"]:
        raise RuntimeError(f"{target.url}: {found['failed']} of {found['requests']} requests failed")
    return Load(
        found["requests"],
        found["usec"] / 1e6,
        found["p50"] / 1e3,
        found["p90"] / 1e3,
        found["p99"] / 1e3,
        found["min"] / 1e3,
        used,
    )


def _used(target: Target) -> float:
    return 0.0 if target.pid is None else cpu_seconds(target.pid)

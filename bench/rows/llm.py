"""The model service of the gateway: what it adds to a call, and how many calls one core carries."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path

from bench import litellm, load, nginx
from bench.clock import MS, call, children
from bench.figures import Figure, Row
from bench.load import Load, Target
from bench.stand import Stand
from bench.upstream import EVENTS
from corral.model.secrets import Provider

_SECRET = "bench"
_KEY = "sk-bench-no-real-key"
_CONNECTIONS = 32
# A cap, so that budgets are kept as usual, of a million dollars, which no load here reaches.
_CAP = 10**12
_PATH = "/v1/messages"
_MODEL = "claude-sonnet-4-5"
_PROMPT = "some words of a prompt that is two kilobytes long " * 40

# With two cores or more: client and upstream on one, what is measured alone on another.
_PINNED = (os.cpu_count() or 1) > 1
_OTHERS, _MEASURED = "0", "1"
_ON_OTHERS = ("taskset", "-c", _OTHERS) if _PINNED else ()


def rows(stand: Stand) -> Iterator[Row]:
    """Latency at low load, requests a second, streamed events a second; nginx as the limit."""
    seconds = stand.n(5, 2)
    with ExitStack() as stack:
        port = stack.enter_context(_upstream())
        direct = Target(f"http://127.0.0.1:{port}{_PATH}", {"x-api-key": _KEY})
        through_nginx = stack.enter_context(_nginx(stand, port))
        ours = stack.enter_context(_gateway(stand, port))
        lite = stack.enter_context(litellm.running(stand.work / "litellm", port, _MODEL, _PATH))

        def measure(target: Target, connections: int, *, stream: bool = False, least: int = 0) -> Load:
            return load.run(
                target, _body(stream=stream), stand.work,
                connections=connections, seconds=max(seconds, least), cpu=_ON_OTHERS,
            )  # fmt: skip

        targets = {"Corral gateway": ours, "nginx": through_nginx, "no gateway": direct}
        yield _latency({who: measure(target, 1) for who, target in targets.items()})
        yield _first_byte(
            {
                who: _first_bytes(target, _body(stream=True), stand.n(200, 50))
                for who, target in targets.items()
            }
        )
        del targets["no gateway"]
        rates = {who: measure(target, _CONNECTIONS) for who, target in targets.items()}
        if lite is not None:
            _pin(lite.pid or 0, _MEASURED)
            # It answers so slowly that more at a time would only wait.
            rates["LiteLLM proxy"] = measure(lite, 4, least=15)
        yield _rate(rates)
        yield _events({who: measure(target, _CONNECTIONS, stream=True) for who, target in targets.items()})


def _body(*, stream: bool) -> str:
    messages = [{"role": "user", "content": _PROMPT}]
    request = {"model": _MODEL, "max_tokens": 1000, "stream": stream, "messages": messages}
    return json.dumps(request, separators=(",", ":"))


def _first_bytes(target: Target, body: str, n: int) -> list[float]:
    """Milliseconds until an answer begins, `n` times on one connection."""
    enter = ("nsenter", f"--net={target.netns}") if target.netns else ()
    headers = [
        f"{name}: {value}" for name, value in {"content-type": "application/json", **target.headers}.items()
    ]
    said = call(
        *_ON_OTHERS, *enter, "curl", "-sSf", "-d", body, "-w", "%{time_starttransfer}\\n",
        *chain.from_iterable(("-H", header) for header in headers),
        *("-o", "/dev/null", target.url) * (n + 1),
    )  # fmt: skip
    return [float(line) * MS for line in said.split()][1:]


def _first_byte(times: dict[str, list[float]]) -> Row:
    ours, *others = (Figure.of(who, "ms", found) for who, found in times.items())
    return Row(
        "streamed answer: its first byte",
        ours,
        tuple(others),
        remark="by curl, one connection, 2 KB in; the whole time from the request on.",
    )


def _latency(loads: dict[str, Load]) -> Row:
    direct = loads.pop("no gateway")
    slowest = Figure.single("99 of 100 within, added", "ms", next(iter(loads.values())).p99 - direct.p99)
    ours, *others = (
        Figure(
            f"{who}, added",
            "ms",
            load.p50 - direct.p50,
            load.best - direct.best,
            load.p90 - direct.p90,
            load.requests,
        )
        for who, load in loads.items()
    )
    without = Figure("the whole call without one", "ms", direct.p50, direct.best, direct.p90, direct.requests)
    return Row(
        "model call: added latency",
        ours,
        tuple(others),
        parts=(slowest, without),
        budget=0.7,
        remark=(
            "one connection, 2 KB in, 3 KB out; medians through a gateway minus the median without one. nginx "
            "swaps a header and looks at nothing. The gateway checks the token, has the engine set the call's "
            "price aside in the ledger, and reads the usage."
        ),
    )


def _rate(loads: dict[str, Load]) -> Row:
    ours, *others = (Figure.single(who, "req/s", load.per_core, load.requests) for who, load in loads.items())
    asked = {"nginx": 0.015, "LiteLLM proxy": 50}
    return Row(
        "model calls, per second of one core",
        ours,
        tuple(others),
        more_is_better=True,
        bounds={figure.who: asked[figure.who] for figure in others},
        remark=(
            "32 connections (LiteLLM: 4); requests for each second of CPU that the process used. The engine's part, the "
            "ledger, is not counted here. Python does not come near nginx, which does less. LiteLLM's proxy is measured "
            f"where {litellm.VARIABLE} names its program: with a key, without a database and budgets."
        ),
    )


def _events(loads: dict[str, Load]) -> Row:
    ours, nginx_figure = (
        Figure.single(who, "events/s", load.per_core * EVENTS, load.requests) for who, load in loads.items()
    )
    return Row(
        "streamed events, per second of one core",
        ours,
        (nginx_figure,),
        more_is_better=True,
        bounds={nginx_figure.who: 0.05},
        remark=(
            f"{_CONNECTIONS} streams of {EVENTS} events at full speed. The gateway parses each event, for the usage, "
            "and searches it for the key; nginx passes bytes."
        ),
    )


@contextmanager
def _upstream() -> Iterator[int]:
    command = [sys.executable, "-m", "bench.upstream"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        _pin(process.pid, _OTHERS)
        try:
            yield int(process.stdout.readline()) if process.stdout else 0
        finally:
            if process.stdin is not None:
                process.stdin.close()


@contextmanager
def _nginx(stand: Stand, upstream: int) -> Iterator[Target]:
    port = nginx.free_port()
    http = nginx.PROXY.format(upstream=upstream, port=port)
    with nginx.running(stand.work / "proxy", http, ready=("127.0.0.1", port)) as pid:
        (worker,) = children(pid)
        _pin(worker, _MEASURED)
        yield Target(f"http://127.0.0.1:{port}{_PATH}", {"x-api-key": "a token"}, pid=worker)


@contextmanager
def _gateway(stand: Stand, upstream: int) -> Iterator[Target]:
    stand.client.put_secret(_SECRET, _KEY, Provider.ANTHROPIC, f"http://127.0.0.1:{upstream}")
    gateway = stand.gateway_pid
    _pin(gateway, _MEASURED)
    try:
        with stand.sandbox(secrets=(_SECRET,), budget=_CAP) as box:
            env = dict(line.split("=", 1) for line in box.exec(["env"]).stdout.splitlines() if "=" in line)
            yield Target(
                f"http://10.200.0.1/s/{_SECRET}{_PATH}",
                {"Host": "gateway.corral", "x-api-key": env["ANTHROPIC_API_KEY"]},
                stand.netns(box),
                gateway,
            )
    finally:
        _pin(gateway, ",".join(map(str, range(os.cpu_count() or 1))))
        stand.client.remove_secret(_SECRET)


def _pin(pid: int, cores: str) -> None:
    if not _PINNED:
        return
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), {int(core) for core in cores.split(",")})

"""E2B's own Python SDK against Corral, beside Corral's own client in the same run."""

import json
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2

from bench.clock import repeat, rss
from bench.figures import Figure, Row
from bench.stand import Stand

_PROGRAM = Path(__file__).resolve().parent.parent / "e2b_program.py"
_SDK = "e2b-2.63.0"
_STREAMS = 1000
MIB = 1 << 20


def rows(stand: Stand) -> Iterator[Row]:
    """Nothing where E2B's SDK is not installed: `tests/conformance/setup` does that."""
    python = stand.cache / "conformance" / _SDK / "bin" / "python"
    if not python.exists():
        return
    env = stand.listen()
    try:
        yield from _rows(stand, python, env)
    finally:
        stand.listen(off=True)


def _rows(stand: Stand, python: Path, env: dict[str, str]) -> Iterator[Row]:
    def run(what: str, count: int) -> dict[str, list[float]]:
        command = [str(python), str(_PROGRAM), what, str(count)]
        done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
        told: dict[str, list[float]] = json.loads(done.stdout)
        return told

    n = stand.n(30, 10)
    yield Row(
        "E2B SDK: create, one command, kill",
        Figure.of("E2B's Python SDK", "ms", run("life", n)["life"]),
        (Figure.of("Corral SDK", "ms", repeat(n, lambda: _life(stand))),),
        budget=60,
        remark="three requests over TCP by the SDK; the native client removes and waits until all is cleared away.",
    )
    with stand.sandbox() as box:
        native = Figure.of(
            "Corral SDK", "ms", repeat(5 * n, lambda: box.exec(["bash", "-lc", "true"]), warm=5)
        )
        files = Figure.of("Corral SDK", "ms", repeat(5 * n, lambda: _file(box), warm=5))
    yield Row(
        "E2B SDK: commands.run",
        Figure.of("E2B's Python SDK", "ms", run("run", 5 * n)["run"]),
        (native,),
        budget=8,
    )
    yield Row(
        "E2B SDK: write and read 1 KB",
        Figure.of("E2B's Python SDK", "ms", run("file", 5 * n)["file"]),
        (files,),
        budget=6,
    )
    large = run("large", stand.n(5, 2))
    for name, title in (("up", "upload"), ("down", "download")):
        yield Row(
            f"E2B SDK: {title} of 256 MiB",
            Figure.of("E2B's Python SDK", "MiB/s", large[name], more_is_better=True),
            budget=300,
            more_is_better=True,
        )
    yield Row(
        "E2B SDK: 50 clients at once, each create, command, kill",
        Figure.single("E2B's Python SDK", "ms", run("clients", 50)["clients"][0], 50),
        remark="one process of clients; an error of any of them would end the run.",
    )
    yield _streams(stand, env)


def _life(stand: Stand) -> None:
    with stand.sandbox() as box:
        box.exec(["bash", "-lc", "true"])


def _file(box: Any) -> None:
    box.files.write("/home/user/small", "x" * 1024)
    box.files.read("/home/user/small")


def _streams(stand: Stand, env: dict[str, str]) -> Row:
    """Memory of the daemon with many followers of one command, over that without."""
    before = rss(stand.engine_pid)
    with ExitStack() as stack:
        box = stack.enter_context(stand.sandbox())
        process = box.spawn(["sleep", "600"])
        detail = httpx2.get(
            f"{env['E2B_API_URL']}/sandboxes/{box.id}",
            headers={"x-api-key": env["E2B_API_KEY"]},
            trust_env=False,
        )
        token = detail.json()["envdAccessToken"]
        host, port = env["E2B_API_URL"].removeprefix("http://").split(":")
        pid = int(box.exec(["pgrep", "-x", "sleep"]).stdout.split()[0])
        body = json.dumps({"process": {"pid": pid}}).encode()
        head = (
            f"POST /process.Process/Connect HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/connect+json\r\n"
            f"e2b-sandbox-id: {box.id}\r\ne2b-sandbox-port: 49983\r\nx-access-token: {token}\r\n"
            f"content-length: {len(body) + 5}\r\n\r\n"
        )
        request = head.encode() + struct.pack(">BI", 0, len(body)) + body
        streams = []
        for _ in range(_STREAMS):
            sock = stack.enter_context(socket.create_connection((host, int(port)), timeout=60))
            sock.sendall(request)
            streams.append(sock)
        started = sum(sock.recv(200).startswith(b"HTTP/1.1 200") for sock in streams)
        if started != _STREAMS:
            raise RuntimeError(f"{started} of {_STREAMS} streams began")
        used = rss(stand.engine_pid) - before
        process.kill()
    return Row(
        f"E2B: memory of {_STREAMS:,} open streams",
        Figure.single("the daemon", "MiB", used / MIB, _STREAMS),
        budget=200,
        remark="followers of one command, more than without them; shared pages counted.",
    )

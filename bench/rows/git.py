"""A clone of a repository of 200 MB, through the gateway.

The server is git's own, behind HTTP on this host: the gateway goes where its secret says. Both clones are made by the same
git: once in the sandbox's network namespace, with the sandbox's token, once in the host's, with the server's.
"""

import os
import shutil
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.clock import MIB, call, end
from bench.figures import Figure, Row
from bench.stand import Stand
from corral import Sandbox

_FILES = 200
_TOKEN = "bench-token-0123456789"
_NAME = "bench-git"


def rows(stand: Stand) -> Iterator[Row]:
    """One row."""
    root = stand.work / "git"
    _repository(root / "team" / "big.git")
    with _server(root) as port:
        host = f"127.0.0.1:{port}"
        stand.client.put_secret(_NAME, _TOKEN, "git", f"http://{host}")
        try:
            with stand.sandbox(git_repos=(f"{host}/team/big",)) as box:
                token = _token(box)
                net = f"--net={stand.netns(box)}"
                pairs = [
                    (
                        _clone(stand, f"http://10.200.0.1/git/{host}/team/big.git", f"Bearer {token}", net),
                        _clone(stand, f"http://{host}/team/big.git", _basic()),
                    )
                    for _ in range(stand.n(7, 4) + 1)
                ][1:]
        finally:
            stand.client.remove_secret(_NAME)
    direct = Figure.of("no gateway", "MB/s", [rate for _, rate in pairs], more_is_better=True)
    yield Row(
        f"git clone of {_FILES} MB",
        Figure.of("through the gateway", "MB/s", [rate for rate, _ in pairs], more_is_better=True),
        (direct,),
        more_is_better=True,
        bounds={direct.who: 0.8},
        remark="Most of a clone is git's own work on both ends, which the gateway's share is small beside.",
    )


def _repository(bare: Path) -> None:
    seed = bare.parent.parent / "seed"
    seed.mkdir(parents=True)
    for number in range(_FILES):
        (seed / f"f{number}").write_bytes(os.urandom(MIB))
    identity = ("-c", "user.name=bench", "-c", "user.email=bench@invalid")
    call("git", "init", "-q", "-b", "main", seed)
    call("git", "-C", seed, *identity, "add", "-A")
    call("git", "-C", seed, *identity, "commit", "-qm", "all")
    call("git", "-C", seed, "gc", "-q")
    call("git", "clone", "-q", "--bare", seed, bare)


@contextmanager
def _server(root: Path) -> Iterator[int]:
    process = subprocess.Popen(
        [sys.executable, "-m", "corral.testing.git_server", "--root", root, "--token-env", "BENCH_TOKEN"],
        env={**os.environ, "BENCH_TOKEN": _TOKEN}, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        yield int(line.decode().rpartition(":")[2].strip(" }\n"))
    finally:
        end(process)


def _token(box: Sandbox) -> str:
    asked = box.exec(
        ["sh", "-c", "printf 'protocol=http\\nhost=gateway.corral\\n\\n' | git credential fill"], timeout=60
    )
    return asked.stdout.partition("password=")[2].split("\n")[0]


def _basic() -> str:
    return "Basic " + b64encode(f"git:{_TOKEN}".encode()).decode()


def _clone(stand: Stand, url: str, authorization: str, *enter: str) -> float:
    target = stand.work / "clone"
    shutil.rmtree(target, ignore_errors=True)
    prefix = ["nsenter", *enter] if enter else []
    begun = time.perf_counter()
    call(
        *prefix,
        "git",
        "-c",
        f"http.extraHeader=Authorization: {authorization}",
        "clone",
        "-q",
        "--bare",
        url,
        target,
    )
    return _FILES * MIB / 1e6 / (time.perf_counter() - begun)

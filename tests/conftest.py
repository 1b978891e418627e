"""A real daemon for tests that need one: in a data directory of its own, kept between runs so that what is slow to
build (templates) is built once, and emptied of sandboxes before and after.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import hypothesis
import pytest
from tests.tenants import Remote, listening, remove_all

from corral import Client
from corral.model.places import RUN_ROOT, instance_of
from corral.sdk.settings import Settings, settings

START_SECONDS = 180.0
LANE = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
"""Which of the tests that run side by side these are."""

# How long a property's examples take says nothing on a machine that does other things beside.
hypothesis.settings.register_profile(
    "corral", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("corral")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What runs on real sandboxes and servers is run again where it fails, twice at most, and named: a busy machine may have
    been too slow for it.

    Of attacks only those that were out of time: one that succeeds once is a hole, and one that fails once shows nothing.
    Units not at all, which depend on nothing outside of themselves.
    """
    for item in items:
        if {"attack", "removals"} & set(item.path.parts):
            item.add_marker(pytest.mark.flaky(reruns=1, only_rerun=["Timeout"]))
        elif "unit" not in item.path.parts:
            item.add_marker(pytest.mark.flaky(reruns=2))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say why a test had to run again: a second run that passes hides nothing of the first one."""
    for report in terminalreporter.getreports("rerun"):
        terminalreporter.write_sep("_", f"first run of {report.nodeid}")
        terminalreporter.write_line(report.longreprtext[-3000:])


def data_directory() -> Path:
    """The tests' data directory, in each lane another one; CORRAL_TEST_DATA names another one too, so
    that two runs can go side by side.
    """
    cache = Path(os.environ.get("CORRAL_CACHE_DIR") or Path.home() / ".cache" / "corral")
    own = Path(os.environ.get("CORRAL_TEST_DATA") or cache / "test-data")
    return own.with_name(f"{own.name}-{LANE}") if LANE else own


@dataclass
class Daemon:
    """A daemon process and the ways to talk to it. `database`: the URL of one that is not in its data directory."""

    data: Path
    process: "subprocess.Popen[bytes] | None" = None
    path: str = os.environ["PATH"]
    python: str = sys.executable
    database: str = ""
    program: ClassVar[tuple[str, ...]] = ("-m", "corral.daemon.main")

    @property
    def env(self) -> dict[str, str]:
        """The environment in which the CLI and the SDK find it, and start none of their own while it is down."""
        inherited = {
            k: v for k, v in os.environ.items() if not k.startswith("CORRAL_") or k == "CORRAL_CACHE_DIR"
        }
        own = {"CORRAL_DATA_DIR": str(self.data), "CORRAL_AUTOSTART": "0", "PATH": self.path}
        return {**inherited, **own, **({"CORRAL_DATABASE_URL": self.database} if self.database else {})}

    @property
    def run(self) -> Path:
        """Its run directory."""
        return RUN_ROOT / instance_of(self.data.resolve())

    @property
    def where(self) -> Settings:
        """How the SDK finds it."""
        return settings(environ=self.env)

    def client(self) -> Client:
        """A client of it."""
        return Client(where=self.where)

    def start(self) -> None:
        """Start it and wait until it answers. One that was left running would have another version of the code."""
        if _answers(self.run / "api.sock"):
            pytest.fail(
                f"a daemon runs on {self.data} already: CORRAL_DATA_DIR={self.data} corral daemon stop"
            )
        self.process = subprocess.Popen(
            [self.python, *self.program, "--detach"],
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        deadline = time.monotonic() + START_SECONDS
        while not _answers(self.run / "api.sock"):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                pytest.fail(f"the daemon did not start: {self.process.communicate()[1].decode()[-3000:]}")
            time.sleep(0.02)

    def stop(self) -> None:
        """Ask it to end and wait for that."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """`kill -9` of both of its processes."""
        gateway = self.gateway_pid()
        self._end(signal.SIGKILL)
        if gateway is not None:
            with suppress(
                ProcessLookupError
            ):  # it ends by itself, now that nobody holds the other end of its link
                os.kill(gateway, signal.SIGKILL)

    def discard(self) -> None:
        """Stop one that had a data directory for a test only, and remove what it keeps outside of that."""
        self.stop()
        for target in (self.run / "runtimes" / "runsc" / "null-netns", self.run, self.data / "store"):
            if target.is_mount() or target.is_file():
                subprocess.run(["umount", target], check=False, capture_output=True)
        shutil.rmtree(self.run, ignore_errors=True)
        for depth in ("", "*/"):
            for group in Path("/sys/fs/cgroup").glob(f"{depth}corral-{self.run.name}"):
                group.rmdir()

    def gateway_pids(self) -> list[int]:
        """The process ids of its gateway's workers, its only children that run `corral.gateway.main`."""
        if self.process is None:
            return []
        tasks = Path(f"/proc/{self.process.pid}/task")
        children = " ".join(p.read_text() for p in tasks.glob("*/children")).split()
        commands = {int(pid): Path(f"/proc/{pid}/cmdline") for pid in children}
        return [
            pid
            for pid, command in commands.items()
            if command.exists() and b"corral.gateway.main" in command.read_bytes()
        ]

    def gateway_pid(self) -> int | None:
        """That of its gateway, of which there is one unless a test wants more."""
        return next(iter(self.gateway_pids()), None)

    def _end(self, number: int) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(120)
        except subprocess.TimeoutExpired:
            process.kill()  # or whoever comes next would meet it
            process.wait()
            raise
        finally:
            if process.stderr is not None:
                process.stderr.close()

    def cli(self, *args: str, check: bool = True, **options: object) -> "subprocess.CompletedProcess[str]":
        """Run `corral ARGS`. `options` go to subprocess.run."""
        done: subprocess.CompletedProcess[str] = subprocess.run(
            [self.python, "-m", "corral.cli.main", *args],
            env=self.env,
            capture_output=True,
            text=True,
            **{"timeout": 600, "stdin": subprocess.DEVNULL if "input" not in options else None, **options},  # type: ignore[call-overload]
        )
        if check and done.returncode != 0:
            pytest.fail(
                f"corral {' '.join(args)} exited with {done.returncode}:\n{done.stdout}\n{done.stderr}"
            )
        return done

    def cli_json(self, *args: str) -> object:
        """What `corral ARGS --json` printed."""
        return json.loads(self.cli(*args, "--json").stdout)

    def remove_all(self) -> None:
        """Remove all of its pools, sandboxes and volumes."""
        with self.client() as client:
            remove_all(client)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


def open_special_ranges(daemon: Daemon) -> None:
    """Where this host resolves the package registries to special addresses (a company's mirror), open those."""
    with daemon.client() as client:
        for check in client.doctor():
            networks = check.fix_value if check.name == "registries" else None
            if networks:
                client.set_config("egress.networks", networks)


@pytest.fixture(scope="session")
def shared_daemon() -> Iterator[Daemon]:
    """One daemon for the whole run, with its templates."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    data = data_directory()
    daemon = Daemon(data)
    unfinished = data / "unfinished"
    if unfinished.exists():
        _forget(daemon)
    data.mkdir(parents=True, exist_ok=True)
    unfinished.touch()
    # On any machine one worker: tests look for "the" gateway.
    (data / "config.json").write_text('{"gateway.workers": 1}')
    daemon.start()
    try:
        open_special_ranges(daemon)
        daemon.remove_all()
        with daemon.client() as client:
            client.build_template("base")
        yield daemon
        daemon.remove_all()
        with daemon.client() as client:
            for secret in client.list_secrets():
                client.remove_secret(secret.name)
    finally:
        daemon.stop()
    unfinished.unlink()


def _forget(daemon: Daemon) -> None:
    """Remove all that a run left that was killed, which may be anything: budgets, prices, what another tenant had."""
    (daemon.data / "config.json").unlink(missing_ok=True)
    daemon.start()
    try:
        daemon.remove_all()
        with listening(daemon):
            pass
    finally:
        daemon.discard()
    shutil.rmtree(daemon.data)


@pytest.fixture(scope="module")
def remote(shared_daemon: Daemon) -> Iterator[Remote]:
    """The shared daemon over TCP."""
    with listening(shared_daemon) as remote:
        yield remote


@pytest.fixture
def daemon(shared_daemon: Daemon) -> Iterator[Daemon]:
    """The shared daemon; whatever sandboxes a test leaves are removed."""
    yield shared_daemon
    if shared_daemon.process is None:
        shared_daemon.start()
    shared_daemon.remove_all()

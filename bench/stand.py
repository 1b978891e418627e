"""What the rows measure on: a daemon of the bench's own with the base template, and the yardsticks, started when a row
first asks for them and ended in the opposite order.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Self, Unpack

from bench.bare import BareRunc
from bench.clock import call, children, end, wait_until
from bench.docker import Docker
from corral import Client, Sandbox
from corral.errors import Unsupported
from corral.host.programs import find_program
from corral.model.places import RUN_ROOT, instance_of
from corral.protocol.catalog import TemplateInfo
from corral.sdk.autostart import answers
from corral.sdk.sandbox import CreateOptions
from corral.sdk.settings import settings

_BUILD = "build-seconds.json"


class Stand:
    """A context manager. `short`: rows take fewer samples."""

    def __init__(self, *, short: bool) -> None:
        self.short = short
        self.cache = Path(os.environ.get("CORRAL_CACHE_DIR") or Path.home() / ".cache" / "corral")
        self.data = (self.cache / "bench-data").resolve()
        self.run = RUN_ROOT / instance_of(self.data)
        self._stack = ExitStack()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="corral-bench-")))
            self._start_daemon()
            stack.callback(self._stop_daemon)
            self.client = stack.enter_context(Client(where=settings(environ=self.env)))
            self.remove_all()
            stack.callback(self.remove_all)
            self.base = self._build_base()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def n(self, full: int, short: int) -> int:
        """How many samples to take."""
        return short if self.short else full

    @property
    def env(self) -> dict[str, str]:
        """The environment in which clients find the daemon. What is installed has its bytecode, so that is kept."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if name == "CORRAL_CACHE_DIR" or not name.startswith(("CORRAL_", "PYTHONDONTWRITEBYTECODE"))
        }
        return {**inherited, "CORRAL_DATA_DIR": str(self.data)}

    def sandbox(self, **options: Unpack[CreateOptions]) -> Sandbox:
        """A new sandbox of the base template."""
        return Sandbox.create("base", client=self.client, **options)

    @property
    def runsc(self) -> Path | None:
        """gVisor's runtime, where this host has it."""
        try:
            return find_program("runsc")
        except Unsupported:
            return None

    def netns(self, sandbox: Sandbox) -> Path:
        """The file of a sandbox's network namespace."""
        return self.run / "sandboxes" / sandbox.id / "net.ns"

    @property
    def engine_pid(self) -> int:
        """Process id of the engine."""
        if self._process is None:
            raise RuntimeError("the daemon does not run")
        return self._process.pid

    @property
    def gateway_pid(self) -> int:
        """Process id of the gateway."""
        for pid in children(self.engine_pid):
            if b"corral.gateway.main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        raise RuntimeError("the gateway does not run")

    @property
    def build_seconds(self) -> float | None:
        """Seconds that building the base template took, when the bench did it."""
        try:
            return float(json.loads((self.data / _BUILD).read_text()))
        except FileNotFoundError:
            return None

    # -- yardsticks ---------------------------------------------------------------------------------------------------

    @cached_property
    def root(self) -> Path:
        """The base template's root filesystem, mounted read-only without anything of Corral's."""
        root = self.work / "root"
        root.mkdir()
        store = self.data / "store" / "layers"
        layers = [store / layer.rpartition(":")[2] / "upper" for layer in self.base.layers]
        if len(layers) > 1:
            lower = ":".join(map(str, reversed(layers)))
            call("mount", "-t", "overlay", "overlay", "-o", f"ro,lowerdir={lower}", root)
        else:
            call("mount", "--bind", layers[0], root)
        self._stack.callback(call, "umount", root)
        return root

    @cached_property
    def docker(self) -> Docker:
        """A running Docker with the base template's root filesystem."""
        tag = self.base.layers[-1].rpartition(":")[2][:16]
        return self._stack.enter_context(Docker(self.cache / "bench-docker", self.root, tag))

    @cached_property
    def bare(self) -> BareRunc:
        """A bare runc with the base template's root filesystem."""
        return self._stack.enter_context(BareRunc(self.root))

    # -- the daemon -----------------------------------------------------------------------------------------------------

    def _start_daemon(self) -> None:
        self.data.mkdir(parents=True, exist_ok=True)
        config = self.data / "config.json"
        if not config.exists():
            config.write_text('{"gateway.workers": 1}')  # rows pin the gateway to a core, and weigh one
        self._process = subprocess.Popen(
            [sys.executable, "-m", "corral.daemon.main", "--detach"],
            env=self.env,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            wait_until(self._answers, "the daemon")
        except BaseException:
            self._stop_daemon()
            raise

    def listen(self, *, off: bool = False) -> dict[str, str]:
        """Let the daemon serve its API on TCP too, or no more; the environment of a program that uses E2B's SDK."""
        with socket.create_server(("127.0.0.1", 0)) as probe:
            address = "" if off else f"127.0.0.1:{probe.getsockname()[1]}"
        self.client.set_config("api.listen", address)
        self._stop_daemon()
        self._start_daemon()
        if off:
            return {}
        url, key = f"http://{address}", self.client.create_key("bench")
        return {"PATH": os.environ["PATH"], "E2B_API_KEY": key, "E2B_API_URL": url, "E2B_SANDBOX_URL": url}

    def _answers(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"the daemon ended: see {self.data / 'logs'}")
        return answers(self.run / "api.sock")

    def _stop_daemon(self) -> None:
        if self._process is not None:
            end(self._process)

    def remove_all(self) -> None:
        """Remove all sandboxes of the bench's daemon."""
        for info in self.client.list_sandboxes():
            self.client.remove_sandbox(info.id)

    def _build_base(self) -> TemplateInfo:
        begun = time.perf_counter()
        fresh = not any(info.name == "base" for info in self.client.list_templates())
        info = self.client.build_template("base")
        if fresh:
            (self.data / _BUILD).write_text(json.dumps(time.perf_counter() - begun))
        return info

"""A bare `runc` as a yardstick: the configuration of `runc spec`, the base template's root filesystem read-only.

It is the floor: no quota, no overlay, no user namespace, no seccomp profile, no gateway, no record of anything.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.clock import call, wait_until

AT_ONCE = 4


class BareRunc:
    """Containers of `runc`, as a context manager that removes them at its end."""

    def __init__(self, root: Path) -> None:
        self._work = Path(tempfile.mkdtemp(prefix="corral-bench-runc-"))
        self._state = self._work / "state"
        self._group = f"corral-bench-{os.getpid()}"
        self._root = root
        self._running: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove_all()
        for group in (*Path("/sys/fs/cgroup").glob(f"*/{self._group}"), Path("/sys/fs/cgroup", self._group)):
            if group.is_dir():
                group.rmdir()
        shutil.rmtree(self._work, ignore_errors=True)

    def argv(self, *args: str | Path) -> list[str]:
        """The command line of a call."""
        return ["runc", "--root", str(self._state), *map(str, args)]

    def bundle(self, name: str, *command: str, config: Path | None = None) -> Path:
        """Write a bundle that runs `command`: the configuration of `runc spec`, or that of another bundle."""
        bundle = self._work / name
        bundle.mkdir()
        file = bundle / "config.json"
        if config is None:
            call("runc", "spec", "--bundle", bundle)
        else:
            shutil.copy(config, file)
        data: dict[str, Any] = json.loads(file.read_text())
        data["process"]["terminal"] = False
        data["process"]["args"] = list(command)
        if config is None:
            data["root"] = {"path": str(self._root), "readonly": True}
        # Else it nests below whatever group the bench was started in.
        data["linux"]["cgroupsPath"] = f"/{self._group}/{name}"
        file.write_text(json.dumps(data))
        return bundle

    def start(self, name: str, bundle: Path) -> None:
        """`runc run -d`."""
        pid_file = bundle / "pid"
        command = self.argv("run", "-d", "--bundle", bundle, "--pid-file", pid_file, name)
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        if done.returncode != 0:
            raise RuntimeError(f"runc run ended with {done.returncode}")
        self._running[name] = int(pid_file.read_text())

    def start_many(self, n: int, config: Path | None = None) -> float:
        """Start `n` that sleep, four at a time; seconds of wall time. Bundles are written before the clock starts."""
        names = [f"b{number}" for number in range(n)]
        bundles = [(name, self.bundle(name, "/bin/sleep", "infinity", config=config)) for name in names]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            begun = time.perf_counter()
            list(pool.map(lambda item: self.start(*item), bundles))
            return time.perf_counter() - begun

    @property
    def pids(self) -> list[int]:
        """First processes of what runs."""
        return list(self._running.values())

    def remove_all(self) -> None:
        """Kill and delete all."""
        running, self._running = self._running, {}
        for pid in running.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for name in running:
            wait_until(partial(self._delete, name), f"runc delete {name}")
            shutil.rmtree(self._work / name)

    def _delete(self, name: str) -> bool:
        return subprocess.run(self.argv("delete", name), capture_output=True).returncode == 0

"""Docker as a yardstick: a `dockerd` of the bench's own, with the base template's root filesystem as an image.

Its data is kept between runs, since the import takes longer than the measurements. It has no bridge and touches no
packet filter; all its containers are started without a network, which favours it: a sandbox has one.
"""

import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.clock import call, children, end, wait_until

PROGRAM = "/usr/bin/docker" if Path("/usr/bin/docker").exists() else "docker"
"""Debian's own, where there are several."""


class Docker:
    """A running `dockerd`, as a context manager; it is stopped and its containers are removed at the end."""

    def __init__(self, data: Path, root: Path, tag: str) -> None:
        """`root`: a root filesystem; `tag`: what tells it from all others."""
        self._data = data
        self._root = root
        self.image = f"corral-bench:{tag}"
        self._run = Path(tempfile.mkdtemp(prefix="corral-bench-docker-"))
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._data.mkdir(parents=True, exist_ok=True)
        with (self._run / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    "dockerd", "--data-root", self._data, "--exec-root", self._run / "exec",
                    "--pidfile", self._run / "pid", "--host", f"unix://{self._run}/sock", "--bridge=none",
                    "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false",
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        try:
            wait_until(self._answers, "dockerd")
            self._import()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def argv(self, *args: str) -> list[str]:
        """The command line of a call of its client."""
        return [PROGRAM, "--host", f"unix://{self._run}/sock", *args]

    def call(self, *args: str) -> str:
        """Call its client; what it wrote."""
        return call(*self.argv(*args))

    def run(self, *options: str, command: tuple[str, ...] = ("sleep", "infinity")) -> list[str]:
        """The command line of a `docker run` of the image without a network."""
        return self.argv("run", "--network=none", *options, self.image, *command)

    def start(self, *options: str) -> str:
        """Start a container that sleeps; its id."""
        return call(*self.run("--detach", *options)).strip()

    @property
    def pids(self) -> list[int]:
        """`dockerd` and its `containerd`."""
        if self._process is None:
            return []
        return [self._process.pid, *children(self._process.pid)]

    def _answers(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"dockerd ended: {(self._run / 'log').read_text()[-2000:]}")
        return subprocess.run(self.argv("version"), capture_output=True).returncode == 0

    def _import(self) -> None:
        self._remove_containers()
        if self.image.partition(":")[2] in self.call("image", "ls", "--format", "{{.Tag}}").split():
            return
        for old in self.call("image", "ls", "--quiet").split():
            self.call("image", "rm", "--force", old)
        tar = ["tar", "--numeric-owner", "--xattrs", "-C", str(self._root), "-c", "."]
        with subprocess.Popen(tar, stdout=subprocess.PIPE) as source:
            done = subprocess.run(
                self.argv("import", "-", self.image), stdin=source.stdout, capture_output=True, text=True
            )
        if done.returncode != 0 or source.returncode != 0:
            raise RuntimeError(f"docker import failed: {done.stderr}")

    def _remove_containers(self) -> None:
        found = self.call("ps", "--all", "--quiet").split()
        if found:
            self.call("rm", "--force", *found)

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        try:
            if process.poll() is None:
                self._remove_containers()
        finally:
            end(process)
            # It binds its data directory onto itself, and leaves that behind.
            while self._data.is_mount():
                call("umount", self._data)
            shutil.rmtree(self._run, ignore_errors=True)


def version() -> str:
    """Of the client and server that are used."""
    return call(PROGRAM, "--version").strip().removeprefix("Docker version ").split(",")[0]

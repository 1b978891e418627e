"""Corral's own launcher: a container on the host's kernel, started in a few milliseconds.

`runc run` takes 30 ms, and twice as much CPU time as all that Corral adds: it starts itself three times, and compiles the
system call filter each time. `corral-launch` (`launch/`) does the same steps from a plan that is made of the same
configuration. What it starts is the same: a test compares what a process sees under both.

It serves hosts whose cgroups are of version 1. On others Corral uses runc.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corral.errors import Unsupported
from corral.host import process
from corral.host.cgroups import Layout
from corral.host.libseccomp import compile_filter
from corral.model.sandbox import Isolation
from corral.oci.plan import launch_plan
from corral.oci.runtime import (
    RUN_SECONDS,
    Runtime,
    RuntimeTraits,
    classify_failure,
    finish,
    log_tail,
    read_pid,
)
from corral.oci.seccomp import seccomp_profile

LAUNCHER = RuntimeTraits("corral", Isolation.CONTAINER, program="corral-launch")
_FILTER = "seccomp.bpf"


class Launcher(Runtime):
    """`corral-launch` as a runtime. `machine` as `uname -m`; the compiled filter is kept in `state`."""

    def __init__(self, program: Path, state: Path, layout: Layout, machine: str) -> None:
        super().__init__(LAUNCHER, program, state)
        if layout.version != 1:
            raise Unsupported("it does not know cgroups of version 2 alone", "runc is used instead")
        self._layout = layout
        self._filter = state / _FILTER
        state.mkdir(0o700, parents=True, exist_ok=True)
        fresh = state / f"{_FILTER}.new"
        fresh.write_bytes(compile_filter(seccomp_profile(machine)))
        fresh.replace(self._filter)

    def write(self, bundle: Path, config: Mapping[str, Any]) -> None:
        """As Runtime says."""
        (bundle / "plan").write_bytes(launch_plan(config, self._layout, self._filter))

    async def start(
        self,
        container: str,
        bundle: Path,
        stdin: int,
        stdout: int,
        *,
        suid: bool,
        hold: int,
        image: Path | None = None,
    ) -> int:
        """As Runtime says; there is no going on from an image."""
        if image is not None:
            raise Unsupported("a container's memory cannot be restored", "use --isolation gvisor")
        return await self._launch(bundle, stdin, stdout, (hold,))

    async def run(self, container: str, bundle: Path) -> None:
        """As Runtime says, but not how it ended: that a program started shows that this host lets it."""
        await self._launch(bundle, process.DEVNULL, process.DEVNULL, ())

    async def _launch(self, bundle: Path, stdin: int, stdout: int, hold: tuple[int, ...]) -> int:
        log, pid_file = bundle / "runtime.log", bundle / "pid"
        pid_file.unlink(missing_ok=True)
        argv = [str(self._program), str(bundle / "plan"), str(log), str(pid_file)]
        child = process.spawn(argv, stdin=stdin, stdout=stdout, pass_fds=hold)
        code = await finish(child, RUN_SECONDS)
        if code != 0:
            raise classify_failure("corral-launch", code, log_tail(log))
        return read_pid(pid_file)

    def forget(self, container: str) -> None:
        """Nothing: it keeps nothing of a container."""

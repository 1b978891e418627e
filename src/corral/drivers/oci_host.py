"""What this host offers to the `oci` driver: facts for bundles, and which runtimes really work.

A runtime that is installed may still refuse this host, and no version number tells. So each one is tried, with a
container that has everything that could be refused. Success is noted in the run directory, by the program's
file, and not tried again before the next boot.
"""

import asyncio
import json
import os
import platform
import resource
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from corral.errors import CorralError
from corral.host.cgroups import Layout
from corral.host.programs import find_program
from corral.model.sandbox import Isolation
from corral.oci.bundle import HostFacts, probe_config
from corral.oci.runc import CRUN, RUNC
from corral.oci.runsc import RUNSC
from corral.oci.runtime import Runtime, RuntimeTraits

ALL_RUNTIMES = (CRUN, RUNC, RUNSC)
"""In order of preference: crun starts a container in a third of runc's time."""
# Any range will do; nothing that is made in it lasts.
_PROBE_BASE = 100_000
_NOTES = "runtimes.json"


def host_facts(layout: Layout) -> HostFacts:
    """Facts of this host; blocks for a moment."""
    return HostFacts(
        machine=platform.machine(),
        cgroup_version=layout.version,
        swap_limit=_has(layout, "memory", "memory.memsw.limit_in_bytes", "memory.swap.max"),
        io_weight=_has(layout, "blkio", "blkio.weight", "io.weight")
        or _has(layout, "blkio", "blkio.bfq.weight", "io.bfq.weight"),
        nofile=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
    )


def _has(layout: Layout, controller: str, version1: str, version2: str) -> bool:
    if layout.version == 1:
        root = layout.controllers.get(controller)
        return root is not None and (root / version1).exists()
    # Version 2 has these files below the root only.
    return layout.unified is not None and any(layout.unified.glob(f"*/{version2}"))


@dataclass(frozen=True, slots=True)
class UsableRuntimes:
    """Runtimes that work, in order of preference, and for the others why not, by name."""

    usable: tuple[Runtime, ...] = ()
    problems: dict[str, str] = field(default_factory=dict)

    def get(self, name: str) -> Runtime | None:
        """A usable runtime by its name."""
        return next((runtime for runtime in self.usable if runtime.traits.name == name), None)

    def by_isolation(self) -> dict[Isolation, tuple[str, ...]]:
        """Names by the isolation that they give."""
        found: dict[Isolation, tuple[str, ...]] = {}
        for runtime in self.usable:
            level = runtime.traits.isolation
            found[level] = (*found.get(level, ()), runtime.traits.name)
        return found


async def probe_runtimes(run_dir: Path, cgroup_root: str, layout: Layout) -> UsableRuntimes:
    """Try all runtimes. Takes 0.2 s where runsc is tried, a millisecond where all are noted."""
    notes = _Notes(run_dir / _NOTES)
    facts = host_facts(layout)
    probes: list[_Probe] = []
    async with asyncio.TaskGroup() as group:
        for traits in ALL_RUNTIMES:
            probe = _Probe(traits, run_dir, f"{cgroup_root}/probe-{traits.name}", layout, facts, notes)
            probes.append(probe)
            group.create_task(probe.run())
    notes.save()
    return UsableRuntimes(
        tuple(probe.runtime for probe in probes if probe.runtime is not None),
        {probe.traits.name: probe.problem for probe in probes if probe.runtime is None},
    )


def _launcher(traits: RuntimeTraits, layout: Layout) -> tuple[str, ...]:
    if traits is CRUN and layout.version == 1 and layout.unified is not None:
        return (str(find_program("corral-cgroup1")), str(layout.unified))
    return ()


class _Notes:
    """Programs that have worked since the last boot: name → identity of the file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._worked: dict[str, Sequence[object]] = {}
        with suppress(OSError, ValueError):
            self._worked = dict(json.loads(path.read_bytes()))

    def holds(self, name: str, program: Path) -> bool:
        return self._worked.get(name) == _identity(program)

    def add(self, name: str, program: Path) -> None:
        self._worked[name] = _identity(program)

    def save(self) -> None:
        self._path.write_text(json.dumps(self._worked))


def _identity(program: Path) -> list[object]:
    status = program.stat()
    return [str(program), status.st_size, status.st_mtime_ns]


class _Probe:
    """One attempt. Afterwards either `runtime` or `problem` is set."""

    def __init__(
        self,
        traits: RuntimeTraits,
        run_dir: Path,
        cgroup: str,
        layout: Layout,
        facts: HostFacts,
        notes: _Notes,
    ) -> None:
        self.traits = traits
        self.runtime: Runtime | None = None
        self.problem = ""
        self._run_dir = run_dir
        self._cgroup = cgroup
        self._layout = layout
        self._facts = facts
        self._notes = notes

    async def run(self) -> None:
        try:
            program = find_program(self.traits.name)
            state = self._run_dir / "runtimes" / self.traits.name
            runtime = Runtime(self.traits, program, state, _launcher(self.traits, self._layout))
            if not self._notes.holds(self.traits.name, program):
                await self._try(runtime)
                self._notes.add(self.traits.name, program)
            self.runtime = runtime
        except CorralError as error:
            self.problem = f"{error.message} ({error.hint})"

    async def _try(self, runtime: Runtime) -> None:
        container = f"probe-{self.traits.name}"
        bundle = self._run_dir / container
        group = self._layout.group(self._cgroup)
        await asyncio.to_thread(self._prepare, bundle)
        try:
            await runtime.run(container, bundle)
        finally:
            await group.kill()
            await group.remove()
            await asyncio.to_thread(runtime.forget, container)
            await asyncio.to_thread(shutil.rmtree, bundle)

    def _prepare(self, bundle: Path) -> None:
        root = bundle / "root"
        if bundle.exists():
            shutil.rmtree(bundle)
        root.mkdir(0o755, parents=True)
        bundle.chmod(0o711)
        shutil.copy(find_program("corral-init"), root / "init")
        config = probe_config(
            root,
            ["/init", "mkdir", "/made", "755", "0", "0"],
            self._facts,
            uid_base=_PROBE_BASE,
            cgroup=self._cgroup,
            seccomp=not self.traits.own_kernel,
        )
        os.chown(root, _PROBE_BASE, _PROBE_BASE)
        (bundle / "config.json").write_text(json.dumps(config))

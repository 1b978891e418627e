"""What the figures were measured on."""

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from bench import docker
from bench.clock import call
from corral.errors import Unsupported
from corral.host.programs import find_program

_PINNED = Path(__file__).resolve().parent.parent / "scripts" / "runsc" / "go.mod"


def facts() -> dict[str, str]:
    """Facts of this machine, for the report."""
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "machine": f"{os.cpu_count()} cores ({_processor()}), {_memory()} GiB, {platform.machine()}",
        "load before": f"{os.getloadavg()[0]:.1f} processes over the last minute (a quiet machine: below 0.5)",
        "kernel": platform.release(),
        "corral": version("corral"),
        "runc": call("runc", "--version").splitlines()[0].removeprefix("runc version "),
        "runsc": _runsc(),
        "docker": docker.version(),
        "python": platform.python_version(),
    }


def _runsc() -> str:
    try:
        program = find_program("runsc")
    except Unsupported:
        return "none"
    told = call(program, "--version").splitlines()[0].removeprefix("runsc version ")
    # One that is built from its Go module does not know its version.
    lines = (_PINNED.read_text() if told == "VERSION_MISSING" else "").splitlines()
    return next((line.split()[1] for line in lines if line.split()[:1] == ["gvisor.dev/gvisor"]), told)


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown"


def _memory() -> int:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3)
